"""The commands for the server that `forebay.open` starts, and what its users are told about it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
import server as servers
from server import until
from test_map import is_running
from test_open import TIMEOUT_S, Host, host  # noqa: F401

pytestmark = pytest.mark.once

OPENED = """
ds = forebay.open(sys.argv[1])
print(len(ds), ds.num_rows, flush=True)
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def command(host: Host, *words: str) -> subprocess.CompletedProcess:  # noqa: F811
    arguments = [sys.executable, "-m", "forebay", *words]
    return subprocess.run(arguments, capture_output=True, text=True, env=host.environment, timeout=TIMEOUT_S)


def background(host: Host, *words: str) -> subprocess.Popen:  # noqa: F811
    arguments = [sys.executable, "-m", "forebay", *words]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=host.environment)


def test_a_server_is_shown_and_stopped_and_its_cache_is_removed(host: Host, rows: Path) -> None:  # noqa: F811
    for words in (["status"], ["stop"], ["dashboard"]):
        done = command(host, *words)
        assert done.returncode == 1 and done.stderr.startswith("forebay: no server of forebay.open runs for this user"), words
    process = host.start(OPENED, rows)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert out.split() == ["10", "10"]
    assert re.search(r"started the server of this host, process \d+: its cache in /\S+ may use 1GiB; cache_disk", err), err
    pid = host.pid()
    shown = command(host, "status").stdout
    assert f"process {pid}, version " in shown and re.search(r"dataset  rows-\w+: 10 rows, \S+rows.parquet", shown), shown
    assert re.search(r"cache    disk: \d.* of 1.0 GiB", shown), shown
    in_use = command(host, "cache", "--clear").stdout
    assert "in use" in in_use and "removed" not in in_use
    assert command(host, "stop").stdout == f"stopped process {pid}\n"
    until(lambda: not is_running(pid))
    folder = Path(command(host, "cache").stdout.split()[-1])
    assert "removed, except for the snapshots" in command(host, "cache", "--clear").stdout
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "state"]
    assert "removed" in command(host, "cache", "--clear", "--state").stdout and [path.name for path in folder.iterdir()] == ["lock"]
    assert command(host, "cache").stdout == ""


def test_a_new_server_uses_the_present_cache_home_and_the_command_shows_the_last_folder(host: Host, rows: Path) -> None:  # noqa: F811
    caches = {name: str(host.folder / name) for name in ("cache", "other", "own")}

    def start(program: str = OPENED, **environment: str) -> str:
        process = host.start(program, rows, **environment)
        _, err = process.communicate(timeout=TIMEOUT_S)
        (found,) = re.findall(r"its cache in (\S+) may use", err)
        return found

    first = f"{caches['cache']}/forebay-local/0"
    assert start() == first
    assert "stopped" in command(host, "stop").stdout
    assert start(XDG_CACHE_HOME=caches["other"]) == f"{caches['other']}/forebay-local/0"
    # A server that was killed starts with its folder again, in which the state of running trainings is.
    pid = host.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(pid))
    assert start() == f"{caches['other']}/forebay-local/0"
    assert {line.split()[-1] for line in command(host, "cache").stdout.splitlines()} == {first, f"{caches['other']}/forebay-local/0"}
    assert "stopped" in command(host, "stop").stdout
    assert start("ds = forebay.open(sys.argv[1], cache_dir=os.environ['OWN'])", OWN=caches["own"]) == caches["own"]
    assert "stopped" in command(host, "stop").stdout
    foreign = Path(caches["own"], "data.txt")
    foreign.write_text("of another program")
    assert f"unused   {caches['own']}" in command(host, "cache").stdout
    assert f"removed, except for the snapshots {caches['own']}" in command(host, "cache", "--clear").stdout
    assert sorted(path.name for path in foreign.parent.iterdir()) == ["data.txt", "lock", "state"]
    assert f"removed  {caches['own']}" in command(host, "cache", "--clear", "--state").stdout
    assert sorted(path.name for path in foreign.parent.iterdir()) == ["data.txt", "lock"]
    assert start() == first


def write_of_others(folder: Path) -> list[str]:
    """Writes files of another program at the places of the server in a cache folder, and returns their paths below it."""
    paths = ["footers/ab/mine.txt", "indexes/mine.txt", "members.json", "state/jobs/mine.txt", "state/mine.txt"]
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("{}")
    return paths


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def test_a_cache_folder_with_files_of_another_program_is_refused_and_its_files_are_kept(host: Host, rows: Path, tmp_path: Path) -> None:  # noqa: F811
    program = """
try:
    forebay.open(sys.argv[1], cache_dir=sys.argv[2])
    print("open")
except forebay.errors.ServerStartError as error:
    print(error)
"""
    for number, path in enumerate(write_of_others(tmp_path / "all")):
        folder = tmp_path / f"cache-{number}"
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text("{}")
        message = host.run(program, rows, folder)
        assert f"the cache folder {folder} has files of another program ({path})" in message and "choose another cache_dir" in message, message
        assert files_in(folder) == [path]
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "lock").write_text("mine")
    assert "files of another program (lock)" in host.run(program, rows, tmp_path / "locked")
    # Files at other places do not matter, nor do the snapshots of an earlier server.
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "data.txt").write_text("")
    assert host.run(program, rows, folder) == "open"
    assert "stopped" in command(host, "stop").stdout
    assert "removed, except for the snapshots" in command(host, "cache", "--clear").stdout
    kept = files_in(folder)
    assert [path for path in kept if not path.startswith("state/")] == ["data.txt", "lock"] and len(kept) > 2
    assert host.run(program, rows, folder) == "open"


def test_clearing_the_cache_removes_only_what_servers_have_created(host: Host, rows: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "cache"
    program = """
ds = forebay.open(sys.argv[1], cache_dir=sys.argv[2], key="n")
print(sum(batch.num_rows for batch in ds.train(batch_size=5, filter="n >= 0")), ds.lookup({"n": [1]}).num_rows)
"""
    assert host.run(program, rows, folder) == "10 1"
    assert "stopped" in command(host, "stop").stdout
    parts = {path.partition("/")[0] for path in files_in(folder)}
    assert parts == {"columns", "footers", "indexes", "lock", "state"}
    # Names of files that servers write besides these.
    digits = "0123456789abcdef" * 2
    of_servers = [
        f"columns/01/{digits}-{digits[:16]}.col.tmp", f"footers/01/{digits}.12-3.tmp", f"indexes/rows/{digits}.12.tmp",
        f"state/jobs/{digits}.job#1", f"state/snapshots/rows/{digits}.{digits}.counts", f"state/values/{digits}.values",
    ]  # fmt: skip
    for path in of_servers:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    others = write_of_others(folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{digits}.index").write_text("")
    (folder / "indexes" / "link").symlink_to(outside)
    done = command(host, "cache", "--clear")
    assert f"removed, except for the snapshots {folder}" in done.stdout
    assert f"forebay: left in {folder}, because no server has created them: footers/ab/mine.txt, indexes/link, indexes/mine.txt and 1 more" in done.stderr
    kept = files_in(folder)
    assert [path for path in kept if not path.startswith("state/")] == ["footers/ab/mine.txt", "indexes/link", "indexes/mine.txt", "lock", "members.json"]
    done = command(host, "cache", "--clear", "--state")
    assert "footers/ab/mine.txt, indexes/link, indexes/mine.txt and 3 more" in done.stderr, done.stderr
    assert files_in(folder) == sorted([*others, "indexes/link", "lock"]) and files_in(outside) == [f"{digits}.index"]


def test_a_running_server_of_another_version_is_logged_once(host: Host, rows: Path) -> None:  # noqa: F811
    program = """
from forebay import local
local.__version__ = sys.argv[2]
datasets = [forebay.open(sys.argv[1]) for _ in range(2)]
print("opened", flush=True)
sys.stdin.readline()
"""
    keeper = host.start(program, rows, forebay.__version__)
    try:
        assert keeper.stdout is not None and keeper.stdout.readline() == "opened\n"
        for version, lines in ((forebay.__version__, 0), ("99.0", 1)):
            _, err = host.start(program, rows, version).communicate("\n", timeout=TIMEOUT_S)
            expected = f"process {host.pid()}, has version {forebay.__version__}, but this package has version {version}; `forebay stop`"
            assert err.count("version") == 3 * lines and (expected in err) == bool(lines), err
    finally:
        _, err = keeper.communicate("\n", timeout=TIMEOUT_S)
    assert "version" not in err, "the process has started the server itself"


def test_a_stop_while_the_server_ends_or_starts_again_says_what_happened(host: Host, rows: Path) -> None:  # noqa: F811
    holder = host.start("ds = forebay.open(sys.argv[1]); print(len(ds), flush=True); sys.stdin.read()", rows)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "10\n"
        for _ in range(4):
            stops = [background(host, "stop") for _ in range(3)]
            for stop in stops:
                out, err = stop.communicate(timeout=TIMEOUT_S)
                # Between two servers, none runs.
                assert re.match(r"stopped process \d+\n|the server has ended in the meantime\n", out) or "no server of forebay.open runs" in err, out + err
                assert "Errno" not in err and "Traceback" not in err, err
    finally:
        holder.kill()
        holder.wait()


def test_the_help_lists_the_commands_of_the_package_and_wrong_paths_are_messages(host: Host, rows: Path) -> None:  # noqa: F811
    listed = command(host, "--help").stdout
    for name in ("serve", "status", "stop", "dashboard", "cache", "profile"):
        assert re.search(rf"^  {name}\b", listed, re.MULTILINE), listed
    for port in ("99999", "-1", "http"):
        done = command(host, "dashboard", f"--port={port}")
        assert done.returncode == 2 and f"{port!r} is no port, expected a number from 0 to 65535" in done.stderr, done.stderr
    done = command(host, "cache", "--state")
    assert done.returncode == 2 and "--state has an effect with --clear only" in done.stderr
    done = command(host, "profile", "nope")
    assert done.returncode == 1 and done.stderr.startswith("forebay: ") and "nope does not exist, expected a Parquet file" in done.stderr
    rows.write_bytes(b"no Parquet")
    done = command(host, "profile", str(rows))
    assert done.returncode == 1 and done.stderr.startswith("forebay: ") and "Traceback" not in done.stderr, done.stderr


def test_the_dashboard_has_a_port_that_requires_its_token(host: Host, rows: Path) -> None:  # noqa: F811
    host.run(OPENED, rows)
    arguments = [sys.executable, "-m", "forebay", "dashboard"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=host.environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        origin = url.partition("/?")[0]
        for wrong in (origin + "/", origin + "/api/v1/overview", origin + "/?token=wrong"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(wrong)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(url) as page:
            assert page.url == origin + "/" and b"<html" in page.read().lower()
        with browser.open(origin + "/api/v1/datasets") as answer:
            assert b'"rows":10' in answer.read()
    finally:
        process.terminate()
        process.wait()


def test_the_binary_of_the_package_runs_the_commands_in_the_python_of_its_folder(host: Host, rows: Path, tmp_path: Path) -> None:  # noqa: F811
    environment = tmp_path / "bin"
    environment.mkdir()
    shutil.copy(servers.binary(), environment / "forebay")
    python = environment / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # The current directory is not searched for the package.
    (tmp_path / "forebay.py").write_text("raise SystemExit('another forebay')")

    def run(*words: str) -> subprocess.CompletedProcess:
        arguments = [str(environment / "forebay"), *words]
        return subprocess.run(arguments, capture_output=True, text=True, env=host.environment, timeout=TIMEOUT_S, cwd=tmp_path)

    assert run("status").stderr.startswith("forebay: no server of forebay.open runs for this user")
    host.run(OPENED, rows)
    pid = host.pid()
    assert f"process {pid}, version " in run("status").stdout
    assert "in use" in run("cache", "--clear").stdout
    assert run("stop").stdout == f"stopped process {pid}\n"
    assert "removed" in run("cache", "--clear", "--state").stdout and run("cache").stdout == ""
    python.write_text('#!/bin/sh\nexec "$REAL_PYTHON" -S -E "$@"\n')
    host.environment["REAL_PYTHON"] = sys.executable
    assert "this command requires the Python package forebay, which " in run("status").stderr
