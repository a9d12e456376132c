"""Commands for the server that `forebay.open` starts: `python -m forebay status`, `stop`, `dashboard` and `cache`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable, Sequence

from forebay import cache_files, folders
from forebay.errors import ServerStartError
from forebay.local import LocalServer, local_server
from forebay.local_http import Dashboard, get
from forebay.server_process import has_ended

STOP_TIMEOUT_S = 60
MAX_PORT = 65535
POLL_S = 0.05


def main(arguments: Sequence[str]) -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(prog="forebay", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="print the server of this host and user, its datasets and its cache")
    commands.add_parser("stop", help="stop the server of this host and user; processes that have a dataset open start it again")
    dashboard = commands.add_parser("dashboard", help="serve the dashboard of the server on a loopback port, until Ctrl-C")
    dashboard.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1. Default: any free port")
    cache = commands.add_parser("cache", help="print the cache folders and their sizes")
    cache.add_argument("--clear", action="store_true", help="remove what is cached in the folders that no server uses")
    cache.add_argument("--state", action="store_true", help="with --clear: remove their snapshots too, without which checkpoints can't be loaded")
    options = parser.parse_args(arguments)
    if options.command == "cache" and options.state and not options.clear:
        cache.error("--state has an effect with --clear only")
    run: dict[str, Callable[[], None]] = {
        "status": status,
        "stop": stop,
        "dashboard": lambda: serve_dashboard(options.port),
        "cache": lambda: caches(options.clear, options.state),
    }
    try:
        run[options.command]()
    except ServerStartError as error:
        # There is no runtime folder.
        sys.exit(f"forebay: {str(error).removeprefix('the server does not start: ')}")
    except OSError as error:
        # The errors of this module have no number.
        has_ended = error.errno is not None and options.command != "cache" and not _is_running()
        sys.exit("forebay: the server has ended in the meantime" if has_ended else f"forebay: {error}")


def status() -> None:
    """Prints the server, its datasets and its cache."""
    server = _running()
    address = server.http_address()
    overview, datasets = get(address, "/api/v1/overview"), get(address, "/api/v1/datasets")["datasets"]
    about = overview["server"]
    print(f"server   {server.url}, process {server.pid()}, version {about['version']}, up {about['uptime_seconds']:.0f} s")
    for name, value in server.last_start().get("settings", {}).items():
        print(f"setting  {name} = {value}")
    for tier in overview["cache"]:
        print(f"cache    {tier['tier']}: {_size(tier['resident_bytes'])} of {_size(tier['capacity_bytes'])}")
    for dataset in datasets:
        rows = "not open" if dataset["rows"] is None else f"{dataset['rows']} rows"
        print(f"dataset  {dataset['name']}: {dataset['error'] or rows}, {dataset['url']}")
    print(f"log      {server.folder / 'server.log'}")


def stop() -> None:
    """Stops the server, and waits until its process has ended, so that its cache folder is free."""
    server = _running()
    try:
        pid = server.pid()
    except (FileNotFoundError, ConnectionError):
        print("the server has ended in the meantime")
        return
    if pid == 0:
        # Signals to process 0 go to the processes of this terminal.
        raise ProcessLookupError(f"the server at {server.socket} runs in another container, where it can be stopped")
    folder = server.last_cache_folder()
    # Another process may have stopped it.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not _is_gone(server, pid, folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} did not end within {STOP_TIMEOUT_S} s; see {server.folder / 'server.log'}")
        time.sleep(POLL_S)
    print(f"stopped process {pid}")
    current = _pid(server)
    if current is not None:
        print(f"process {current} is the next server: a process that has a dataset of forebay.open open has started it again")


def serve_dashboard(port: int) -> None:
    """Serves the dashboard until Ctrl-C."""
    address = _running().http_address()
    if not isinstance(address, Path):
        raise OSError(f"the dashboard is already served at the address that forebay.open was given: http://{address}")
    with Dashboard(address, port) as dashboard:
        print(dashboard.url, flush=True)
        try:
            dashboard.serve_forever()
        except KeyboardInterrupt:
            pass


def caches(clears: bool, with_state: bool) -> None:
    """Prints the cache folders with their sizes, or removes what is cached in those that no server uses.

    Args:
        clears: True to remove.
        with_state: True to remove the state too: the snapshots that checkpoints name, and counts of rows.
    """
    last = None
    with suppress(OSError, ServerStartError):
        last = local_server().last_cache_folder()
    for folder in folders.cache_folders(last):
        size = _used_bytes(folder)
        # Another program may have removed the folder.
        with suppress(FileNotFoundError):
            state = _cleared(folder, with_state) if clears else "unused" if folders.is_unused(folder) else "in use"
            print(f"{_size(size):>12}  {state:<8} {folder}")


def _cleared(folder: Path, with_state: bool) -> str:
    """Removes what is cached in a folder, unless a server uses it, and with `with_state` the state. Returns what was done, in words."""
    # No server can begin to use the folder while it is cleared.
    with folders.held(folder) as is_unused:
        if not is_unused:
            return "in use"
        keeps = not with_state and (folder / folders.STATE).is_dir()
        left = cache_files.remove(folder, (*folders.CACHED, *(() if keeps else (folders.STATE,))))
    if left:
        print(f"forebay: left in {folder}, because no server has created them: {cache_files.shown(left)}", file=sys.stderr)
    return "removed, except for the snapshots" if keeps else "removed"


def _is_gone(server: LocalServer, pid: int, folder: Path | None) -> bool:
    """Returns true if a server has ended.

    Args:
        server: The server of this host and user, which may be the next one.
        pid: Process id of the server.
        folder: Its cache folder, if it is known.
    """
    if sys.platform == "linux" or has_ended(pid):
        return has_ended(pid)
    # Other systems do not tell whether a process has ended that was not waited for.
    current = _pid(server)
    return current != pid and (current is not None or folder is None or not folder.is_dir() or folders.is_unused(folder))


def _port(text: str) -> int:
    """Returns a port of the command line."""
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, expected a number from 0 to {MAX_PORT}")
    return int(text)


def _is_running() -> bool:
    try:
        return local_server().is_running()
    except (OSError, ServerStartError):
        return False


def _running() -> LocalServer:
    server = local_server()
    if not server.is_running():
        raise FileNotFoundError(f"no server of forebay.open runs for this user on this host (no process listens at {server.socket})")
    return server


def _pid(server: LocalServer) -> int | None:
    """Returns the process id of the running server, or None if it has ended."""
    try:
        return server.pid()
    except OSError:
        return None


def _used_bytes(folder: Path) -> int:
    """Returns the disk space of the files in a folder. Files that a server removes in the meantime do not count."""
    total = 0
    for parent, children, files in os.walk(folder):
        for name in (*children, *files):
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
