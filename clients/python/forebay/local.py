"""The server of this host and user: the first process that needs it starts it, and all processes watch it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, Sequence

from forebay.binary import binary
from forebay.cache_files import check_unmarked
from forebay.credentials import with_absolute_paths
from forebay.errors import ServerStartError
from forebay.folders import PATH_VARIABLES, RELEASE_TIMEOUT_S, cache_folder, path_variables, private, runtime_folder
from forebay.local_http import get
from forebay.server_process import end, has_ended, launch
from forebay.start_lock import locked
from forebay.version import __version__

LOG = logging.getLogger("forebay")

IDLE_TIMEOUT = "60s"
MAX_LOG_SIZE = "16MiB"
# Time between two attempts to start a server that does not start.
RESTART_DELAY_S = 1.0
# Part of the server's message for a cache folder that is locked.
DIRECTORY_IN_USE = "is used by another server"
# Time for which a server is waited for that no process can reach, because its runtime folder was removed. It stops when it is idle.
UNREACHABLE_TIMEOUT_S = 90
# Time between two attempts to start a server while the last one stops.
RETRY_S = 0.1
# Maximum size of the address of a Unix socket on Linux and macOS, with its final zero.
MAX_SOCKET_PATH = 104
# Time limit for the version of a running server, which has answered another request before.
VERSION_TIMEOUT_S = 5


class LocalServer:
    """The server of a runtime folder.

    The folder has the socket, a lock that is held while a server is started, the settings of the last start, and the log.
    While objects of a process use the server, a thread of the process keeps a connection open, and starts the server again when
    it has ended. A server without a connection stops after a minute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "grpc.sock"
        if len(os.fsencode(self.socket)) >= MAX_SOCKET_PATH:
            message = f"the path {self.socket} is too long for a socket; set XDG_RUNTIME_DIR to a shorter one"
            raise ServerStartError(message)
        # Objects of this process that use the server.
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        # Server whose version was compared.
        self._compared: int | None = None
        # Path of the server's binary when a dataset was opened last. The process may change its current folder later.
        self._binary: str | None = None
        # Content of `last-start.json` when it was read last. The runtime folder may be removed.
        self._known: dict[str, Any] = {}
        self.reset()

    @property
    def url(self) -> str:
        """URL for `connect`."""
        return f"unix:{self.socket}"

    def reset(self) -> None:
        """Forgets the thread and the lock, which a forked child does not have."""
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def ensure(self, user: Any, settings: Mapping[str, Any] | None = None) -> None:
        """Starts the server, if it is not running, and watches it in this process as long as `user` exists.

        Args:
            user: Object that uses the server. Its method `pass_again` is called with the process id of each later server.
            settings: Settings of the server, if it is started. Default: those of its last start.

        Raises:
            ServerStartError: The server does not start. The message contains that of the server.
        """
        if self._watcher is not None and settings is None and user in self._users:
            return
        with self._lock:
            self._users.add(user)
            if settings is not None or self._binary is None:
                self._binary = None
                # Without a server that runs, the start raises the error.
                with suppress(OSError):
                    self._binary = binary()
            if self._start_unless_running(settings):
                with suppress(OSError):
                    # The user knows the version of a server that this process has started.
                    self._compared = self.pid()
            self.last_start()
            if self._watcher is None:
                watcher = threading.Thread(target=self._watch, name="forebay-server", daemon=True)
                watcher.start()
                self._watcher = watcher

    def is_removed(self) -> bool:
        """Returns true if the runtime folder was removed, as by systemd at the end of the last login of the user."""
        return not os.path.isdir(self.folder)

    def replace(self, removed: LocalServer, user: Any) -> None:
        """Makes a user of a server whose runtime folder was removed use this server. If this one is not running, it is started with the settings of
        the other one.
        """
        if not self.is_running():
            with locked(self.folder / "lock", self.is_running) as is_held:
                # Another thread or process may have started the server before this one had the lock.
                if is_held and not self.is_running():
                    # The last start in this folder was one of an earlier login.
                    (self.folder / "last-start.json").unlink(missing_ok=True)
                    self._known = removed.last_start()
        with removed._lock:
            removed._users.discard(user)
        self.ensure(user)

    def users(self) -> list[Any]:
        """Returns the objects of this process that use the server."""
        with self._lock:
            return list(self._users)

    def _watch(self) -> None:
        """Keeps a connection open, and starts the server again when it has ended."""
        while True:
            try:
                with self._connect(blocks=True) as connection:
                    self._pass_credentials(_peer(connection))
                    # The server closes a connection without a request after a few seconds.
                    while connection.recv(4096):
                        pass
            except OSError:
                pass
            with self._lock:
                if not self._users:
                    self._watcher = None
                    return
            try:
                if self.is_removed():
                    for user in self.users():
                        user.find_server()
                if self.users():
                    self._start_unless_running(None)
            except Exception as error:
                LOG.warning("the server did not start, trying again: %s", error)
                time.sleep(RESTART_DELAY_S)

    def _pass_credentials(self, server: int) -> None:
        """Makes the users pass their credentials to the server with this process id, unless they have."""
        for user in self.users():
            try:
                user.pass_again(server)
            except Exception as error:
                LOG.warning("the credentials were not passed to the server, trying again: %s", error)

    def _connect(self, blocks: bool = False) -> socket.socket:
        """Connects to the server.

        Args:
            blocks: True to wait without a time limit while the server's queue of connections is full, as when it is suspended.

        Raises:
            BlockingIOError: The queue is full, and `blocks` is false.
            OSError: No server listens.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(blocks)
            connection.connect(str(self.socket))
        except BaseException:
            connection.close()
            raise
        return connection

    def is_running(self) -> bool:
        """Returns true if a server listens. It may be suspended."""
        try:
            self._connect().close()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def pid(self) -> int:
        """Returns the process id of the running server.

        Raises:
            OSError: No server accepts connections.
        """
        try:
            with self._connect() as connection:
                return _peer(connection)
        except BlockingIOError:
            raise OSError(f"the server at {self.socket} accepts no connections; it may be suspended or overloaded") from None

    def http_address(self) -> Path | str:
        """Returns the socket of the dashboard, or its TCP address, such as `127.0.0.1:8816`, if `forebay.open` was given one."""
        http = self.last_start().get("settings", {}).get("http")
        if http is None:
            return self.folder / "http.sock"
        return Path(http.removeprefix("unix:")) if http.startswith("unix:") else http

    def compare_version(self) -> None:
        """Logs a warning, once for each server, if the server has another version than this package. Call it when the server has answered."""
        try:
            pid = self.pid()
            if pid == self._compared:
                return
            self._compared = pid
            version = get(self.http_address(), "/api/v1/overview", VERSION_TIMEOUT_S)["server"]["version"]
        except (OSError, ValueError, LookupError, TypeError):
            # The port of the dashboard is unknown if the system chose it. The server may also be stopping.
            return
        if version != __version__:
            LOG.warning(
                "the running server, process %s, has version %s, but this package has version %s; `forebay stop`, or `python -m forebay stop`, "
                "stops it, and the next server has the version of the package that starts it",
                pid,
                version,
                __version__,
            )

    def _start_unless_running(self, settings: Mapping[str, Any] | None) -> bool:
        """Starts the server if it is not running. Returns true if this process has started it."""
        while not self.is_running():
            private(self.folder)
            with locked(self.folder / "lock", self.is_running) as is_held:
                # A server that ran while this process waited for the lock may have ended again.
                if is_held and not self.is_running():
                    self._start_locked(settings)
                    return True
        return False

    def _start_locked(self, settings: Mapping[str, Any] | None) -> None:
        """Starts the server. The lock has to be held."""
        # A server that stopped has removed its socket, one that was killed has not.
        continues = settings is None or (not settings and self.socket.exists())
        last = self.last_start()
        try:
            variables = last["variables"] if settings is None and "variables" in last else path_variables()
            self._start(last.get("settings", {}) if continues else settings or {}, last, variables, continues)
        except OSError as error:
            # An OSError that this package raises has a message, but no error number.
            reason = f"{error.filename or self.folder}: {error.strerror}" if error.strerror else str(error)
            raise ServerStartError(f"the server does not start: {reason}; its socket and its log are in {self.folder}") from error

    def last_cache_folder(self) -> Path | None:
        """Returns the cache folder of the last start, or None if it is unknown."""
        last = self.last_start()
        # Earlier versions recorded only a folder that they chose themselves.
        used = last.get("cache_dir") or last.get("settings", {}).get("cache_dir")
        return None if used is None else Path(used)

    def last_start(self) -> dict[str, Any]:
        """Returns settings, cache folder and process of the last start; an empty dict if there was none, or if this process has not read it before
        its file was removed.
        """
        with suppress(OSError, ValueError):
            self._known = json.loads((self.folder / "last-start.json").read_text())
        return self._known

    def _start(self, settings: Mapping[str, Any], last: Mapping[str, Any], variables: Mapping[str, str], is_restart: bool) -> None:
        """Starts the server and waits until it accepts connections. The lock has to be held.

        Args:
            settings: Settings of the server.
            last: Content of `last-start.json`, as `last_start` returns it.
            variables: Variables of the server with paths, as `path_variables` returns them.
            is_restart: True if the settings are those of the last start.
        """
        flags = {"http": f"unix:{self.folder / 'http.sock'}", **settings}
        if "cache_dir" not in flags:
            folder = variables.get("FOREBAY_CACHE_DIR") or cache_folder(self.last_cache_folder(), is_restart, self._release_timeout())
            flags["cache_dir"] = str(folder)
        check_unmarked(Path(flags["cache_dir"]))
        if "FOREBAY_EXIT_WHEN_IDLE" not in os.environ:
            flags["exit_when_idle"] = IDLE_TIMEOUT
        program = self._binary if self._binary is not None and os.path.exists(self._binary) else binary()
        command = [program, "serve", "--open-datasets", "--grpc", self.url, "--max-log-size", MAX_LOG_SIZE]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        deadline = None
        while True:
            # A server that stops has removed its socket before it unlocks its cache folder. It may end during this start.
            is_stopping = "pid" in last and not has_ended(last["pid"])
            try:
                process = self._launch(command, variables)
                break
            except ServerStartError as error:
                deadline = deadline or time.monotonic() + self._release_timeout()
                if not is_stopping or DIRECTORY_IN_USE not in str(error) or time.monotonic() > deadline:
                    raise ServerStartError(_of_arguments(str(error), settings)) from error
                time.sleep(RETRY_S)
        scratch = self.folder / "last-start.new"
        try:
            start = {"settings": dict(settings), "variables": variables, "cache_dir": flags["cache_dir"], "pid": process.pid}
            scratch.write_text(json.dumps(start))
            scratch.replace(self.folder / "last-start.json")
        except OSError:
            # The next start would not know the settings and the cache folder of this server.
            end(process)
            raise
        LOG.warning("%s", _started_message(process.pid, flags))

    def _release_timeout(self) -> int:
        """Returns the time for which a start waits until the cache folder of the last server is free."""
        is_reachable = (self.folder / "last-start.json").exists()
        return RELEASE_TIMEOUT_S if is_reachable else UNREACHABLE_TIMEOUT_S

    def _launch(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Runs the command of a server with these variables, and waits until it accepts connections."""
        environment = {name: value for name, value in os.environ.items() if name not in PATH_VARIABLES}
        return launch(command, {**with_absolute_paths(environment), **variables}, self.folder / "server.log", self.is_running)


def _peer(connection: socket.socket) -> int:
    """Returns the id of the process at the other end of a Unix socket."""
    if sys.platform == "linux":
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    # LOCAL_PEERPID of SOL_LOCAL on macOS.
    return connection.getsockopt(0, 2)


def local_server() -> LocalServer:
    """Returns the server of this host and user, which may not be running."""
    folder = runtime_folder()
    with _servers_lock:
        return _servers.setdefault(folder, LocalServer(folder))


def _started_message(pid: int, flags: Mapping[str, Any]) -> str:
    """Returns the log line about a server that this process has started, which says how much disk space it may use."""
    folder = flags["cache_dir"]
    size = flags.get("cache_disk", os.environ.get("FOREBAY_CACHE_DISK"))
    if size is None:
        size = "half of the free space"
        # The server runs, whatever this process can read.
        with suppress(OSError):
            size += f", {shutil.disk_usage(folder).free / 2 / (1 << 30):.1f} GiB"
    return (
        f"started the server of this host, process {pid}: its cache in {folder} may use {size}; cache_disk of forebay.open limits "
        "it, and `python -m forebay cache` shows it"
    )


def _of_arguments(message: str, settings: Mapping[str, Any]) -> str:
    """Returns a message of the server with the names of arguments of `open` in place of the flags."""
    for name in settings:
        message = message.replace(f"--{name.replace('_', '-')} ", f"{name} ")
    return message


def _after_fork() -> None:
    global _servers_lock
    _servers_lock = threading.Lock()
    for server in _servers.values():
        server.reset()


_servers: dict[Path, LocalServer] = {}
_servers_lock = threading.Lock()
os.register_at_fork(after_in_child=_after_fork)
