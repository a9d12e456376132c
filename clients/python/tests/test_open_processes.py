"""Several processes that start, use, stop and clean up the server of a host at the same time, from several folders."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest

import forebay
from forebay import folders, local_commands, start_lock
from forebay.binary import binary
from forebay.local import LocalServer
from forebay.server_process import has_ended
from ports import free_port
from server import until
from test_map import is_running
from test_open import TIMEOUT_S, Host, ended, host  # noqa: F401
from test_open_commands import OPENED, background, command, rows  # noqa: F401

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="the tests find the server with SO_PEERCRED")]


@contextmanager
def lock_of_another_process(path: Path, holder: str) -> Iterator[int]:
    """Holds a lock through a descriptor of its own, as another process does. Yields the descriptor."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(lock, holder.encode(), 0)
        yield lock
    finally:
        os.close(lock)


@pytest.fixture
def short_path() -> Iterator[Path]:
    # The path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_server_that_ends_while_a_process_waits_for_the_lock_is_started_again_with_the_lock(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = LocalServer(short_path)
    with lock_of_another_process(short_path / "lock", "123") as lock:
        # The server of the other process runs, and ends at once.
        answers = [False, True]

        def is_running_once() -> bool:
            found = answers.pop(0) if answers else False
            if found:
                waited.append(True)
            elif waited:
                fcntl.flock(lock, fcntl.LOCK_UN)
            return found

        waited: list[bool] = []
        monkeypatch.setattr(server, "is_running", is_running_once)
        starts = []

        def start(*_: Any) -> None:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            starts.append((short_path / "lock").read_text())

        monkeypatch.setattr(server, "_start", start)
        assert server._start_unless_running({})
    assert starts == [str(os.getpid())] and waited == [True]


def test_each_process_that_starts_the_server_has_the_whole_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(_: float) -> None:
            nonlocal now
            now += 1
            # Two processes fail to start the server. The third one is suspended.
            if now in (100, 200):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{now:.0f}".encode(), 0)

    monkeypatch.setattr(start_lock, "time", Clock)
    with lock_of_another_process(tmp_path / "lock", "1") as lock:
        with pytest.raises(forebay.errors.ServerStartError, match=r"process 200 has held \S+lock for 150 s"):
            with start_lock.locked(tmp_path / "lock", lambda: False):
                pass
    assert now > 200 + start_lock.LOCK_TIMEOUT_S


def test_a_relative_cache_folder_is_relative_to_the_process_that_opens(host: Host, rows: Path) -> None:  # noqa: F811
    first, second = host.folder / "first", host.folder / "second"
    for folder in (first, second):
        folder.mkdir()
    (first / "forebay.toml").write_text('[storage]\nrequest_timeout = "50s"\n')
    variables = {"FOREBAY_CACHE_DIR": "cache", "FOREBAY_STATE": "state", "FOREBAY_CONFIG": "forebay.toml"}
    # The default size depends on the free space in the folder.
    del host.environment["FOREBAY_CACHE_DISK"]
    program = "os.chdir(sys.argv[1]); ds = forebay.open(sys.argv[2]); print(len(ds), flush=True); sys.stdin.readline(); print(len(ds))"
    started = host.start(program, first, rows, **variables)
    # A process in another folder, which starts the server again, has the same folders.
    assert started.stdout is not None and started.stdout.readline() == "10\n"
    other = host.start(program, second, rows, **variables)
    assert other.stdout is not None and other.stdout.readline() == "10\n"
    _, err = started.communicate("\n", timeout=TIMEOUT_S)
    assert re.search(rf"its cache in {first}/cache may use half of the free space, \d+\.\d GiB", err), err
    pid = host.pid()
    os.kill(pid, signal.SIGKILL)
    _, err = other.communicate("\n", timeout=TIMEOUT_S)
    assert other.returncode == 0 and f"its cache in {first}/cache may use" in err, err
    assert sorted(path.name for path in first.iterdir()) == ["cache", "forebay.toml", "state"] and not list(second.iterdir())
    assert not Path("/cache").exists() and not Path("/state").exists()


@pytest.mark.parametrize("named", ["", "bin/forebay", "forebay"])
def test_a_relative_path_of_the_binary_is_relative_to_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    program = tmp_path / "bin" / "forebay"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forebay.binary.sysconfig.get_path", lambda _: str(tmp_path / "absent"))
    monkeypatch.setenv("PATH", "bin")
    monkeypatch.setenv("FOREBAY_BIN", named)
    assert binary() == str(program)
    monkeypatch.setenv("FOREBAY_BIN", "absent")
    with pytest.raises(FileNotFoundError, match="FOREBAY_BIN is 'absent', which is not on the PATH"):
        binary()


def test_a_relative_cache_home_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert folders.cache_folder(None) == tmp_path / "home" / ".cache" / "forebay-local" / "0"


def test_a_server_that_waits_for_a_cache_folder_while_it_is_cleared_locks_it_for_all_others(host: Host, rows: Path) -> None:  # noqa: F811
    host.run(OPENED, rows)
    assert "stopped" in command(host, "stop").stdout
    folder = Path(command(host, "cache").stdout.split()[-1])
    # A server opens the file, and then waits for its lock.
    with open(folder / "lock") as opened:
        assert "removed" in command(host, "cache", "--clear", "--state").stdout
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not folders.is_unused(folder)
        with folders.held(folder) as is_held:
            assert not is_held


def test_processes_that_look_whether_a_cache_folder_is_used_do_not_count_as_servers(tmp_path: Path) -> None:
    with folders._held(tmp_path, fcntl.LOCK_SH) as is_held:
        assert is_held and folders.is_unused(tmp_path)
        with folders.held(tmp_path) as is_held:
            assert not is_held


def test_a_child_that_is_forked_during_a_look_does_not_lock_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []

    def opened(*arguments: Any, open_file: Any = os.open) -> int:
        lock = open_file(*arguments)
        # A forked child has a copy of the descriptor.
        copies.append(os.dup(lock))
        return lock

    monkeypatch.setattr("forebay.folders.os.open", opened)
    assert folders.is_unused(tmp_path)
    with folders.held(tmp_path) as is_held:
        assert is_held
    with folders.held(tmp_path) as is_held:
        assert is_held
    for copy in copies:
        os.close(copy)


# Listens at the socket of the server, and removes it at SIGTERM. The process ends when it can read a line.
SLOW_SERVER = """
import signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
def close(*_):
    import os
    os.unlink(sys.argv[1])
    listener.close()
signal.signal(signal.SIGTERM, close)
print("listening", flush=True)
sys.stdin.readline()
"""


def test_a_stop_waits_for_the_process_also_if_no_one_waits_for_its_exit_status(host: Host) -> None:  # noqa: F811
    host.runtime.mkdir(mode=0o700)
    server = subprocess.Popen([sys.executable, "-c", SLOW_SERVER, str(host.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline() == "listening\n"
        stop = background(host, "stop")
        until(lambda: not host.socket.exists())
        # Another command takes longer than the stop would without the process.
        assert command(host, "status").returncode == 1
        assert stop.poll() is None and not has_ended(server.pid)
        assert server.stdin is not None
        server.stdin.write("\n")
        server.stdin.flush()
        out, err = stop.communicate(timeout=TIMEOUT_S)
        assert out == f"stopped process {server.pid}\n", err
        assert has_ended(server.pid) and is_zombie(server.pid)
    finally:
        server.kill()
        server.communicate()


def is_zombie(pid: int) -> bool:
    return re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) is not None


def test_a_server_in_another_container_is_not_stopped(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(host.folder / "run"))
    # The process id of a peer in another namespace is 0.
    monkeypatch.setattr("forebay.local._peer", lambda _: 0)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a signal is sent"))
    host.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host.socket))
        listener.listen()
        with pytest.raises(ProcessLookupError, match="runs in another container"):
            local_commands.stop()
    monkeypatch.undo()


def test_a_suspended_server_is_a_message_and_no_command_waits_without_a_limit(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(host.folder / "run"))
    host.runtime.mkdir(mode=0o700)
    server = subprocess.Popen([sys.executable, "-c", SLOW_SERVER, str(host.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    waiting = []
    try:
        assert server.stdout is not None and server.stdout.readline() == "listening\n"
        os.kill(server.pid, signal.SIGSTOP)
        monkeypatch.setattr(local_commands, "STOP_TIMEOUT_S", 0.5)
        # More polls of the process than the server has places for connections.
        monkeypatch.setattr(local_commands, "POLL_S", 0.001)
        with pytest.raises(TimeoutError, match=f"process {server.pid} did not end within 0.5 s"):
            local_commands.stop()
        local = LocalServer(host.runtime)
        with pytest.raises(OSError, match="accepts no connections; it may be suspended or overloaded"):
            while True:
                waiting.append(local._connect())
                local.pid()
        assert local.is_running() and len(waiting) > 1
    finally:
        for each in waiting:
            each.close()
        server.kill()
        server.communicate()


def test_the_status_is_shown_if_the_dashboard_has_a_tcp_address(host: Host, rows: Path) -> None:  # noqa: F811
    address = f"127.0.0.1:{free_port()}"
    host.run("forebay.open(sys.argv[1], http=sys.argv[2])", rows, address)
    done = command(host, "status")
    assert f"setting  http = {address}" in done.stdout and "10 rows" in done.stdout, done.stderr
    refused = command(host, "dashboard").stderr
    assert refused == f"forebay: the dashboard is already served at the address that forebay.open was given: http://{address}\n"


def test_a_server_that_does_not_answer_is_a_message(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    host.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(host.runtime / "http.sock"))
        listener.listen()
        with pytest.raises(OSError, match="the server did not answer GET /api within 1 s; it may be suspended"):
            local_commands.get(host.runtime / "http.sock", "/api", 1)


def test_folders_that_are_removed_while_their_size_is_counted_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kept", "removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 5000)
    scandir = os.scandir

    def removing(path: Any) -> Any:
        if str(path).endswith("removed"):
            raise FileNotFoundError(path)
        return scandir(path)

    expected = sum(path.lstat().st_blocks * 512 for path in (tmp_path / "kept", tmp_path / "removed", tmp_path / "kept" / "file"))
    monkeypatch.setattr(os, "scandir", removing)
    assert local_commands._used_bytes(tmp_path) == expected


ROUNDS = 3
# Opens, reads and releases a dataset.
USER = "ds = forebay.open(sys.argv[1]); print(sum(len(batch) for batch in ds.train(batch_size=3, rank=0, world_size=1)))"


def test_processes_that_open_stop_show_and_clear_at_the_same_time_all_succeed(host: Host, rows: Path) -> None:  # noqa: F811
    order = random.Random(7)
    for _ in range(ROUNDS):
        words = [["stop"], ["stop"], ["cache"], ["cache", "--clear"], ["status"]]
        users = [host.start(USER, rows) for _ in range(3)]
        order.shuffle(words)
        commands = [background(host, *each) for each in words]
        for user in users:
            assert ended(user) == "10"
        for each in commands:
            out, err = each.communicate(timeout=TIMEOUT_S)
            is_expected = each.returncode == 0 or "no server of forebay.open runs" in err or "the server has ended in the meantime" in err
            assert is_expected and "Errno" not in out + err and "Traceback" not in err, (each.args, out, err)
    # Only one server of all is left, and none after the last stop.
    with_server = command(host, "stop")
    if with_server.returncode == 0:
        pid = int(with_server.stdout.split()[-1])
        assert not is_running(pid)
    cleared = command(host, "cache", "--clear", "--state").stdout
    assert "in use" not in cleared and command(host, "cache").stdout == "", cleared
    assert host.log().count("panicked") == 0
    deadline = time.monotonic() + TIMEOUT_S
    while servers_of(host):
        assert time.monotonic() < deadline, servers_of(host)
        time.sleep(0.1)


def servers_of(host: Host) -> list[int]:  # noqa: F811
    """Returns the processes of servers with the runtime folder of a host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(host.socket).encode() in path.read_bytes() and not has_ended(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found
