"""`forebay.open` needs no server: it starts one, which the processes of a host and user share."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
import server as servers
from forebay.local_cluster import LocalCluster
from server import Pool, until
from test_map import is_running

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != "linux", reason="the tests find the server with SO_PEERCRED"),
]

TIMEOUT_S = 240
PAGE = servers.ROOT / "docs" / "how-to" / "open.md"
# At the beginning of each program. `epoch` is the digest of one epoch; `at` runs after some of its steps.
PRELUDE = """
import os, signal, socket, struct, sys, time
import forebay
from digests import digest
from pathlib import Path

def server_pid():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["XDG_RUNTIME_DIR"] + "/forebay/grpc.sock")
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

def kill_server():
    # Returns when the next server accepts connections.
    pid = server_pid()
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            if server_pid() != pid:
                return
        except OSError:
            pass
        time.sleep(0.01)

def training(ds):
    return ds.train(batch_size=50_000, tensors={"x": {"columns": ["delay", "distance"], "dtype": "float32"}}, seed=3)

def epoch(ds, at=lambda step: None):
    found = []
    for batch in training(ds):
        found.append(digest([batch]))
        at(batch.step)
    return found
"""


@dataclass
class Host:
    """A host on which no server runs: folders and environment of its processes."""

    folder: Path
    environment: dict[str, str]

    @property
    def runtime(self) -> Path:
        return self.folder / "run" / "forebay"

    @property
    def socket(self) -> Path:
        return self.runtime / "grpc.sock"

    def start(self, program: str, *arguments: object, **environment: str) -> subprocess.Popen:
        """Starts a Python program in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **environment},
            start_new_session=True,
        )

    def run(self, program: str, *arguments: object, **environment: str) -> str:
        """Runs a Python program to its end and returns what it prints."""
        return ended(self.start(program, *arguments, **environment))

    def log(self) -> str:
        return (self.runtime / "server.log").read_text()

    def pid(self) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def ended(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out.strip()


@pytest.fixture
def host() -> Iterator[Host]:
    # The path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    for name in ("run", "cache", "tmp"):
        (folder / name).mkdir(mode=0o700)
    paths = [str(Path(forebay.__file__).parents[1]), str(Path(__file__).parent)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "FOREBAY_BIN": str(servers.binary()),
        "FOREBAY_EXIT_WHEN_IDLE": "30s",
        "FOREBAY_CACHE_DISK": "1GiB",
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
    }
    made = Host(folder, environment)
    yield made
    with suppress(OSError):  # No server runs, or it ends just now.
        os.kill(made.pid(), signal.SIGKILL)
    # A server that is about to end removes its own files.
    shutil.rmtree(folder, ignore_errors=True)


def test_eight_processes_at_once_start_one_server(host: Host, flights: Path) -> None:
    program = "ds = forebay.open(sys.argv[1]); print(server_pid(), ds.name, ds.head(3).num_rows, flush=True); input()"
    processes = []
    for _ in range(8):
        process = host.start(program, flights)
        processes.append(process)
    lines = {process.stdout.readline().strip() for process in processes}
    for process in processes:
        process.kill()
        process.communicate()
    assert len(lines) == 1 and lines.pop().endswith(" 3")
    assert host.log().count("listening") == 1


def test_a_server_killed_in_mid_epoch_costs_only_time(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1], prefetch_batches=2)
expected, pids = epoch(ds), [server_pid()]

def kill(step):
    if step in (10, 30):
        kill_server()
        pids.append(server_pid())

assert epoch(ds, kill) == expected and len(expected) == 60
assert len(set(pids)) == 3
print("same digest")
"""
    assert host.run(program, flights) == "same digest"


def test_a_killed_server_continues_the_trainings_of_all_processes(host: Host, flights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    shutil.copy(flights, other)
    program = """
ds, ready, go = forebay.open(sys.argv[1], prefetch_batches=2), Path(sys.argv[2]), Path(sys.argv[3])
expected = epoch(ds)

def wait(step):
    if step == 10:
        ready.touch()
        while not go.exists():
            time.sleep(0.01)

assert epoch(ds, wait) == expected
print("same digest")
"""
    go, ready = tmp_path / "go", [tmp_path / "ready-0", tmp_path / "ready-1"]
    processes = [host.start(program, path, mark, go) for path, mark in zip((flights, other), ready)]
    until(lambda: all(mark.exists() for mark in ready) or any(process.poll() for process in processes), TIMEOUT_S)
    os.kill(host.pid(), signal.SIGKILL)
    go.touch()
    assert [ended(process) for process in processes] == ["same digest", "same digest"]
    assert host.log().count("listening") == 2


def test_no_server_is_left_after_the_last_user(host: Host, flights: Path) -> None:
    program = """
forebay.open(sys.argv[1])
time.sleep(3)
print(server_pid())
"""
    pid = int(host.run(program, flights, FOREBAY_EXIT_WHEN_IDLE="1s"))
    until(lambda: not host.socket.exists())
    until(lambda: not is_running(pid))
    assert "no connection for 1s" in host.log()


def test_a_process_without_datasets_does_not_keep_the_server(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1])
del ds
while Path(os.environ["XDG_RUNTIME_DIR"], "forebay", "grpc.sock").exists():
    time.sleep(0.01)
print(forebay.open(sys.argv[1]).head(2).num_rows)
"""
    assert host.run(program, flights, FOREBAY_EXIT_WHEN_IDLE="1s") == "2"


def test_the_server_survives_the_process_that_started_it_and_its_ctrl_c(host: Host, flights: Path) -> None:
    program = "ds = forebay.open(sys.argv[1]); print(server_pid(), flush=True); input()"
    first = host.start(program, flights)
    assert first.stdout is not None
    pid = int(first.stdout.readline())
    second = host.start(program, flights)
    assert second.stdout is not None and int(second.stdout.readline()) == pid
    for process, signal_number in ((first, signal.SIGINT), (second, 0)):
        os.killpg(process.pid, signal_number)
    first.communicate(timeout=TIMEOUT_S)
    assert host.pid() == pid and os.getsid(pid) == pid
    second.kill()
    second.communicate()


def test_settings_that_differ_from_those_of_the_running_server_are_an_error(host: Host, flights: Path) -> None:
    program = """
first = forebay.open(sys.argv[1], cache_memory="64MiB", cpu_threads=1)
forebay.open(sys.argv[1])
forebay.open(sys.argv[1], cache_memory=64 << 20)
try:
    forebay.open(sys.argv[1], cache_memory="128MiB", cpu_threads=1)
except forebay.errors.RequestError as error:
    print(error)
"""
    expected = (
        "the running server has other settings: cache_memory is 67108864, expected 128MiB; `forebay stop`, or `python -m forebay "
        "stop`, stops the server, and the next forebay.open starts it with its own key and settings"
    )
    assert host.run(program, flights) == expected


def test_a_killed_server_starts_with_the_same_settings(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1], cache_memory="64MiB", cache_disk=0)
kill_server()
assert forebay.open(sys.argv[1]).head(1).num_rows == 1
forebay.open(sys.argv[1], cache_memory="64MiB", cache_disk=0)
"""
    host.run(program, flights)


def test_a_cache_folder_that_the_last_server_still_locks_is_waited_for(host: Host, flights: Path) -> None:
    program = "print(forebay.open(sys.argv[1], cache_dir=sys.argv[2]).head(1).num_rows)"
    assert host.run(program, flights, host.folder / "own", FOREBAY_EXIT_WHEN_IDLE="10m") == "1"
    last = host.pid()
    # A server that stops removes its socket first.
    os.kill(last, signal.SIGSTOP)
    host.socket.unlink()
    next_one = host.start(program, flights, host.folder / "own")
    until(lambda: "is used by another server" in host.log() or next_one.poll() is not None, TIMEOUT_S)
    os.kill(last, signal.SIGKILL)
    assert ended(next_one) == "1" and host.log().count("listening") == 2


def test_a_cache_folder_of_a_server_with_another_runtime_folder_is_an_error(host: Host, flights: Path, pool: Pool) -> None:
    pool.start({"flights": flights}, cache_dir=host.folder / "own")
    program = """
try:
    forebay.open(sys.argv[1], cache_dir=sys.argv[2])
except forebay.errors.ServerStartError as error:
    print(error)
"""
    assert "is used by another server" in host.run(program, flights, host.folder / "own")
    assert host.log().count("is used by another server") == 1


def test_a_runtime_folder_that_cannot_be_written_is_an_error_that_leaves_no_server(host: Host, flights: Path) -> None:
    program = """
try:
    forebay.open(sys.argv[1])
except forebay.errors.ServerStartError as error:
    print(error)
"""
    for name in ("lock", "server.log", "last-start.new"):
        # A folder in place of a file, as a full or a read-only disk would be.
        (host.runtime / name).mkdir(parents=True, mode=0o700)
        host.runtime.chmod(0o700)
        message = host.run(program, flights)
        assert message.startswith("the server does not start: ") and str(host.runtime / name) in message, message
        with pytest.raises(OSError):
            host.pid()
        (host.runtime / name).rmdir()
    host.run("assert forebay.open(sys.argv[1]).head(1).num_rows == 1", flights)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("kill -9 $$", "the process was ended by SIGKILL, as when the memory of the host"),
        ("exit 7", "the process ended with exit status 7; its log is"),
        ("echo odd >&2; exit 1", "server.log: odd"),
    ],
)
def test_a_server_that_ends_without_a_message_is_an_error_with_its_end_and_its_log(host: Host, flights: Path, script: str, expected: str) -> None:
    binary = host.folder / "binary"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    program = """
try:
    forebay.open(sys.argv[1])
except forebay.errors.ServerStartError as error:
    print(error)
"""
    message = host.run(program, flights, FOREBAY_BIN=str(binary))
    assert message.startswith("the server does not start: the process ") and expected in message, message
    assert str(host.runtime / "server.log") in message


# Keeps the lock that processes hold while they start the server.
HOLDER = """
import fcntl
from forebay import local, start_lock
folder = local.local_server().folder
with start_lock.locked(folder / "lock", lambda: False):
    print("held", flush=True)
    input()
"""
WAITER = """
from forebay import start_lock
start_lock.SILENCE_S, start_lock.REPEAT_S, start_lock.LOCK_TIMEOUT_S = 0.05, 0.05, float(sys.argv[2])
try:
    print(forebay.open(sys.argv[1]).head(1).num_rows)
except forebay.errors.ServerStartError as error:
    print(error)
"""


@pytest.fixture
def holder(host: Host) -> Iterator[subprocess.Popen]:
    process = host.start(HOLDER)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_wait_for_a_process_that_starts_the_server_is_logged_and_has_an_end(host: Host, flights: Path, holder: subprocess.Popen) -> None:
    waiter = host.start(WAITER, flights, 1)
    out, err = waiter.communicate(timeout=TIMEOUT_S)
    lock = host.runtime / "lock"
    assert out.startswith(f"the server does not start: process {holder.pid} has held {lock} for 1.0 s"), out + err
    assert f"waiting for process {holder.pid}, which holds {lock} while it starts the server" in err, err
    assert lock.read_text() == str(holder.pid)


def test_a_process_that_waits_for_a_start_continues_when_the_lock_is_free_or_a_server_runs(
    host: Host, flights: Path, holder: subprocess.Popen
) -> None:
    waiter = host.start(WAITER, flights, TIMEOUT_S)
    assert waiter.stderr is not None
    assert "waiting for process" in waiter.stderr.readline()
    command = [str(servers.binary()), "serve", "--open-datasets", "--grpc", f"unix:{host.socket}", "--cache-dir", str(host.folder / "own")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=host.environment)
    try:
        assert ended(waiter) == "1", "the process that holds the lock has not started this server"
    finally:
        server.kill()
        server.wait()
    waiter = host.start(WAITER, flights, TIMEOUT_S)
    assert waiter.stderr is not None
    assert "waiting for process" in waiter.stderr.readline()
    holder.communicate("\n", timeout=TIMEOUT_S)
    assert ended(waiter) == "1" and (host.runtime / "lock").read_text() == ""


def test_errors_of_the_server_are_exceptions_with_its_message(host: Host, flights: Path, tmp_path: Path) -> None:
    program = """
def failed(url, **settings):
    try:
        forebay.open(url, **settings)
    except Exception as error:
        return type(error).__name__, str(error)

absent = sys.argv[2] + "/absent.parquet"
kind, message = failed(absent)
assert kind == "NotFoundError" and absent in message, message
import shutil
shutil.copy(sys.argv[1], absent)
assert forebay.open(absent).head(1).num_rows == 1
kind, message = failed("s3a://x/y?z=1")
assert kind == "RequestError" and "query" in message, message
print("no server ran before")
"""
    assert host.run(program, flights, tmp_path, FOREBAY_EXIT_WHEN_IDLE="1s") == "no server ran before"
    until(lambda: not host.socket.exists())
    program = """
for settings, expected in [
    ({"cache_memory": "much"}, "invalid value 'much' for 'cache_memory "),
    ({"cache_dir": "/proc/absent"}, "/proc/absent"),
]:
    try:
        forebay.open(sys.argv[1], **settings)
        print("no error for", settings)
    except forebay.errors.ServerStartError as error:
        assert expected in str(error), error
"""
    assert host.run(program, flights) == ""


def test_another_key_is_an_error_that_says_what_to_do_and_a_wrong_key_does_not_stay(host: Host, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "users.parquet")
    program = """
def failed(**options):
    try:
        forebay.open(sys.argv[1], **options)
    except Exception as error:
        return type(error).__name__, str(error)

for wrong in ("nope", ["id", "id"], ["name", "nope"]):
    kind, message = failed(key=wrong)
    assert kind == "RequestError", (kind, message)
users = forebay.open(sys.argv[1], key="id")
assert users.lookup({"id": [2]}, columns=["name"])["name"].to_list() == ["b"]
kind, message = failed(key="name")
assert kind == "RequestError" and "lookups are by" in message and "`python -m forebay stop`, stops the server" in message, message
kind, message = failed(cache_memory="lots")
assert kind == "RequestError" and "cache_memory: invalid value: string" in message and "expected a size such as 8GiB" in message, message
"""
    host.run(program, tmp_path / "users.parquet")


def test_a_dataset_that_is_not_supported_or_has_no_store_is_an_error_at_once(host: Host, tmp_path: Path) -> None:
    for folder, columns in (("other", {"b": [1]}), ("types", {"a": [0.5]})):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / folder / "1.parquet")
        pq.write_table(pa.table(columns), tmp_path / folder / "2.parquet")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "delta" / "a.parquet")
    (tmp_path / "delta" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    program = """
import socket
def failed(url):
    try:
        forebay.open(url)
    except Exception as error:
        return type(error).__name__, str(error)

for folder in ("other", "types", "delta"):
    kind, message = failed(f"{sys.argv[1]}/{folder}")
    assert kind == "UnsupportedError", (kind, message)
refusing = socket.socket()
refusing.bind(("127.0.0.1", 0))
address = "127.0.0.1:%d" % refusing.getsockname()[1]
os.environ.update(AWS_ENDPOINT=f"http://{address}", AWS_ALLOW_HTTP="true", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
for url in (f"http://{address}/x.parquet", "s3://bucket/x.parquet", "s3://bucket/folder/"):
    kind, message = failed(url)
    assert kind == "NotFoundError" and f"no store answers at {address}: Connection refused" in message, (kind, message)
"""
    host.run(program, tmp_path)


def test_a_read_only_home_is_no_obstacle(host: Host, flights: Path) -> None:
    del host.environment["XDG_CACHE_HOME"], host.environment["XDG_RUNTIME_DIR"]
    # No user can create a folder there, not even root.
    program = "print(forebay.open(sys.argv[1]).head(2).num_rows)"
    assert host.run(program, flights, HOME="/proc/self", FOREBAY_EXIT_WHEN_IDLE="1s") == "2"
    found = host.folder / "tmp" / f"forebay-{os.geteuid()}"
    assert found.stat().st_mode & 0o777 == 0o700
    until(lambda: not (found / "grpc.sock").exists())


def test_a_runtime_folder_that_others_can_use_is_refused(host: Host, flights: Path) -> None:
    host.runtime.mkdir(mode=0o777)
    host.runtime.chmod(0o777)
    folder = host.folder / "tmp" / f"forebay-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o770)
    program = """
try:
    forebay.open(sys.argv[1])
except PermissionError as error:
    print(error)
"""
    message = host.run(program, flights)
    assert str(folder) in message and "mode 0770, expected 0700" in message


@pytest.mark.parametrize("place", ["/proc/absent", "."])
def test_without_a_temporary_directory_the_errors_say_what_to_set(host: Host, flights: Path, place: str) -> None:
    del host.environment["XDG_RUNTIME_DIR"], host.environment["XDG_CACHE_HOME"]
    program = f"""
import tempfile
from forebay import __main__
os.chdir({str(host.folder)!r})
# As with a read-only root: the last place that tempfile tries is the current folder.
tempfile._candidate_tempdir_list = lambda: [os.path.abspath({place!r})]

def failed(call):
    try:
        call()
    except (forebay.errors.ServerStartError, SystemExit) as error:
        return str(error)

def command(*words):
    sys.argv = ["forebay", *words]
    __main__.main()

for call in (lambda: forebay.open(sys.argv[1]), lambda: command("status"), lambda: command("stop"), lambda: command("dashboard")):
    message = failed(call)
    assert "no temporary directory can be written (" in message and "set XDG_RUNTIME_DIR to a folder of this user" in message, message
command("cache")
command("cache", "--clear")
# The runtime folder is no cache: its file system is usually in memory.
os.environ.update(XDG_RUNTIME_DIR={str(host.folder / "run")!r}, HOME="/proc/self")
message = failed(lambda: forebay.open({str(flights)!r}))
assert "set cache_dir or XDG_CACHE_HOME, because /proc/self/.cache/forebay-local can't be written either, or TMPDIR" in message, message
print(forebay.open({str(flights)!r}, cache_dir={str(host.folder / "own")!r}).head(1).num_rows)
command("cache")
"""
    rows, shown = host.run(program, flights).splitlines()
    assert rows == "1" and "in use" in shown and shown.endswith(str(host.folder / "own"))
    assert sorted(path.name for path in host.folder.iterdir()) == ["cache", "own", "run", "tmp"]


def test_processes_of_other_users_are_refused(host: Host, flights: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    keeper = host.start("ds = forebay.open(sys.argv[1]); print(ds.name, flush=True); input()", flights)
    assert keeper.stdout is not None
    name = keeper.stdout.readline().strip()
    for folder in (host.folder, host.folder / "run", host.runtime):
        folder.chmod(0o755)
    host.socket.chmod(0o777)
    (host.runtime / "http.sock").chmod(0o777)
    program = """
client = forebay.connect("unix:" + sys.argv[1], retry_deadline=20)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for call in (
    lambda: client.action("open", url=sys.argv[3]),
    lambda: next(iter(client.train(sys.argv[2], batch_size=1))),
):
    try:
        call()
    except forebay.errors.PermissionDeniedError as error:
        print(error)
with socket.socket(socket.AF_UNIX) as http:
    http.settimeout(60)
    http.connect(sys.argv[4])
    http.sendall(b"GET /api/v1/datasets HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n")
    print(http.makefile().readline().split()[1])
"""
    lines = host.run(program, host.socket, name, flights, host.runtime / "http.sock").splitlines()
    refused = "answers only its processes; the caller has user id 65534"
    assert len(lines) == 3 and refused in lines[0] and refused in lines[1] and lines[2] == "403"
    keeper.kill()
    keeper.communicate()


def test_datasets_cannot_be_opened_over_tcp(pool: Pool, flights: Path) -> None:
    client = forebay.connect(pool.start({"flights": flights}).location)
    with pytest.raises(forebay.errors.PermissionDeniedError, match="only a process of the user"):
        client.action("open", url=str(flights))
    for flags in (["--grpc", "127.0.0.1:0"], ["--grpc", "unix:/tmp/a", "--tokens", "/dev/null"]):
        done = servers.forebay("serve", "--open-datasets", *flags)
        assert done.returncode == 1 and "--open-datasets: expected" in done.stderr


def test_a_unix_socket_without_the_mode_opens_no_datasets(pool: Pool, flights: Path, host: Host) -> None:
    pool.start({"flights": flights}, grpc=f"unix:{host.folder}/grpc.sock")
    client = forebay.connect(f"unix:{host.folder}/grpc.sock")
    with pytest.raises(forebay.errors.PermissionDeniedError, match="--open-datasets"):
        client.action("open", url=str(flights))


def test_threads_forks_and_spawned_processes_share_the_server(host: Host, flights: Path) -> None:
    program = """
import multiprocessing, pickle, subprocess, threading

found = []
threads = [threading.Thread(target=lambda: found.append(epoch(forebay.open(sys.argv[1])))) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 2 and found[0] == found[1]
ds, pid = forebay.open(sys.argv[1]), server_pid()

def child(queue):
    queue.put((epoch(ds) == found[0], server_pid()))

fork = multiprocessing.get_context("fork")
queue = fork.Queue()
process = fork.Process(target=child, args=(queue,))
process.start()
assert queue.get(timeout=200) == (True, pid)
process.join()

code = "import pickle, sys; ds = pickle.load(sys.stdin.buffer); print(sum(batch.num_rows for batch in ds))"
done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(training(ds)), capture_output=True, timeout=200)
assert int(done.stdout) == 3_000_000, done.stderr
assert server_pid() == pid
"""
    host.run(program, flights)


def test_a_forked_child_restarts_a_killed_server(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1], prefetch_batches=2)
expected = epoch(ds)
child = os.fork()
if child == 0:
    def kill(step):
        if step == 10:
            os.kill(server_pid(), signal.SIGKILL)
    os._exit(0 if epoch(ds, kill) == expected else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    host.run(program, flights)


def test_a_dataset_shows_its_first_rows_and_its_schema(host: Host, flights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "two files"
    folder.mkdir()
    for name in ("a.parquet", "b.parquet"):
        (folder / name).symlink_to(flights)
    program = """
os.environ.update(RANK="1", WORLD_SIZE="2")
path = Path(sys.argv[1]).resolve()
ds = forebay.open(path)
assert ds.head(3)["delay"].to_numpy().shape == (3,) and "delay" in ds.schema
os.chdir(path.parent)
names = {forebay.open(url).name for url in (path, path.name, path.as_uri(), f"./{path.name}")}
assert names == {ds.name} and ds.name.startswith(path.stem), names
folder = forebay.open(sys.argv[2])
assert folder.name.startswith("two-files-")
rows = sum(batch.num_rows for batch in folder.train(batch_size=100_000, columns=["delay"], rank=0, world_size=1))
assert rows == 6_000_000
"""
    host.run(program, flights, folder)


def test_the_parts_of_a_dataset_keep_their_rows_in_trainings_and_evaluations(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1])
count = lambda batches: sum(int(batch["valid"].to_numpy().sum()) for batch in batches)
evaluated = [count(part.eval(batch_size=100_000, columns=["delay"])) for part in (ds, *ds.split(0.9, by="origin"))]
train, test = ds.split(0.9, by="origin")
trained = [sum(map(len, part.train(batch_size=100_000, columns=["delay"]))) for part in (ds, train, test)]
assert evaluated == trained and evaluated[0] == evaluated[1] + evaluated[2] == 3_000_000, (evaluated, trained)
short, long = train.split(by="distance", at=500)
near = sum(map(len, train.train(batch_size=100_000, columns=["delay"], filter="distance < 500")))
assert near == sum(map(len, short.train(batch_size=100_000, columns=["delay"])))
assert near + count(long.eval(batch_size=100_000, columns=["delay"])) == trained[1]
assert "hash_bucket" in repr(test)
kinds = lambda part: {value for batch in part.train(batch_size=100_000, columns=["distance"]) for value in batch["distance"].to_numpy().tolist()}
_, rest = ds.split(0.5, by="distance")
parts = [kinds(part) for part in rest.split(0.5, by="distance")]
assert parts[0] | parts[1] == kinds(rest) and not parts[0] & parts[1]
assert abs(len(parts[0]) / len(kinds(rest)) - 0.5) < 0.1, "a part of a part has the fraction of its values"
assert count(short.eval(batch_size=100_000, filter="true -- all")) == near
"""
    host.run(program, flights)


def test_lookups_by_key_survive_a_killed_server(host: Host, flights: Path, tmp_path: Path) -> None:
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"user_id": [1, 2, 3], "age": [30, 40, 50]}), tmp_path / "users.parquet")
    program = """
users = forebay.open(sys.argv[1], key="user_id")
def ages(users):
    return users.lookup({"user_id": [3, 9, 1]}, columns=["age"]).to_arrow().to_pydict()
expected = {"age": [50, None, 30], "found": [1, 0, 1]}
assert ages(users) == expected, ages(users)
kill_server()
assert ages(users) == expected
for call, message in [
    (lambda: forebay.open(sys.argv[1], key=["age"]), "lookups are by"),
    (lambda: forebay.open(sys.argv[1]).lookup({"user_id": [3]}), "without a key"),
    (lambda: forebay.open(sys.argv[2], key="absent"), "absent"),
]:
    try:
        call()
        print("no error with", message)
    except forebay.errors.Error as error:
        assert message in str(error), error
"""
    assert host.run(program, tmp_path / "users.parquet", flights) == ""


def test_servers_of_one_state_know_the_datasets_of_each_other(host: Host, flights: Path) -> None:
    program = """
ds = forebay.open(sys.argv[1], state=sys.argv[2])
import json
print(json.dumps([ds.name, training(ds).state_dict()]))
"""
    name, state = json.loads(host.run(program, flights, host.folder / "state"))
    (host.folder / "run-2").mkdir(mode=0o700)
    program = """
import json
# Another dataset starts the server.
other = forebay.open(sys.argv[1], state=sys.argv[2])
tensors = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
by_name = other.client.train(sys.argv[3], batch_size=50_000, tensors=tensors, seed=3)
by_name.load_state_dict(json.loads(sys.argv[4]))
assert next(iter(by_name)).num_rows == 50_000
"""
    small = host.folder / "small.parquet"
    small.symlink_to(flights)
    second = {"XDG_RUNTIME_DIR": str(host.folder / "run-2"), "XDG_CACHE_HOME": str(host.folder / "cache-2")}
    second["FOREBAY_EXIT_WHEN_IDLE"] = "1s"
    host.run(program, small, host.folder / "state", name, json.dumps(state), **second)
    until(lambda: not (host.folder / "run-2" / "forebay" / "grpc.sock").exists())


def test_a_state_of_a_moved_folder_names_both_places_and_loads_at_the_old_path(host: Host, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    pq.write_table(pa.table({"n": range(1000)}), old / "a.parquet")
    program = """
import json
old, new = sys.argv[1:]
def ids(batches): return [batch["n"].to_numpy().tolist() for batch in batches]
def failed(path):
    try:
        forebay.open(path).train(batch_size=100).load_state_dict(state)
    except forebay.errors.CheckpointMismatchError as error:
        return str(error)

ds = forebay.open(old).train(batch_size=100)
batches = iter(ds)
next(batches)
state, rest = json.loads(json.dumps(ds.state_dict())), ids(batches)
assert state["url"] == old
os.rename(old, new)
message = failed(new)
assert f"of {old}, but dataset is 'new-" in message and f"of {new}; open the dataset as {old}: another path is another dataset" in message, message
os.symlink(new, old)
again = forebay.open(old).train(batch_size=100)
again.load_state_dict(state)
assert ids(again) == rest and len(rest) == 9
del state["url"]
assert failed(new).endswith(f"of {new}"), "a state of an earlier version has no place"
"""
    host.run(program, old, new)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host:80/a.parquet?token=secret", "https://(not shown)@host:80/a.parquet?(not shown)"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("abfss://container:secret@account.dfs.core.windows.net/x", "abfss://(not shown)@account.dfs.core.windows.net/x"),
        ("s3://bucket/day=1@2/x", "s3://bucket/day=1@2/x"),
        ("/data/a?b#c", "/data/a?b#c"),
        ("/data/s3://a@b", "/data/s3://a@b"),
    ],
)
def test_the_place_in_a_state_is_the_url_without_credentials(url: str, shown: str) -> None:
    cluster = object.__new__(LocalCluster)
    cluster._request, cluster._name = {"url": url}, "name"
    assert cluster.url_of("name") == shown and cluster.url_of("other") is None


def test_the_log_has_a_maximum_size(host: Host, flights: Path) -> None:
    log, ready = host.folder / "log", host.folder / "ready"
    command = [str(servers.binary()), "serve", "--grpc", f"unix:{host.folder}/s", "--http", "127.0.0.1:0"]
    command += ["--cache-dir", str(host.folder / "c"), "--max-log-size", "8KiB", "--dataset", f"flights={flights}"]
    with log.open("ab") as err, ready.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, "FOREBAY_LOG": "debug"})
    try:
        until(lambda: ready.stat().st_size > 0)
        client, sizes = forebay.connect(f"unix:{host.folder}/s"), [0]
        until(lambda: bool(client.refresh("flights")) and (sizes.append(log.stat().st_size) or sizes[-1] < sizes[-2]))
        assert max(sizes) <= 8 << 10
    finally:
        process.kill()
        process.wait()


def test_the_page_runs_as_written(host: Host, flights: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "flights.parquet").symlink_to(flights)
    out = host.run(f"os.chdir({str(tmp_path)!r})\n{block}\nassert x.shape[1] == 2")
    assert out.startswith("{") and "'delay': '" in out
