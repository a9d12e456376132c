"""Folders of a server that is shared by the processes of a user on a host."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Iterator

from forebay.errors import ServerStartError

# Variables of the server with the path of a file or folder, or for the state perhaps a URL.
PATH_VARIABLES = ("FOREBAY_CACHE_DIR", "FOREBAY_CONFIG", "FOREBAY_STATE")
# Names that servers create in a cache folder: the folder `state`, if the setting `state` names no other place, the lock, and the cached
# data. The folder of `cache_dir` can contain files of other programs.
STATE, LOCK = "state", "lock"
CACHED = ("columns", "footers", "indexes", "members.json")
POLL_S = 0.01
# Time for which the next server waits until the folder of the last one is free.
RELEASE_TIMEOUT_S = 10
# Servers of one user that share a cache folder's parent: of several hosts with one home, or with several runtime folders.
MAX_SERVERS = 16
# Environment variables and places of the temporary directory, in the order of Python's `tempfile`, without the current folder.
TEMPORARY_VARIABLES = ("TMPDIR", "TEMP", "TMP")
TEMPORARY_PLACES = ("/tmp", "/var/tmp", "/usr/tmp")


def runtime_folder() -> Path:
    """Returns the folder of the socket and the lock: `$XDG_RUNTIME_DIR/forebay`, or a folder in the temporary directory.

    Raises:
        PermissionError: The folder in the temporary directory is not private to this user.
        ServerStartError: There is no temporary directory that can be written.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base):
        try:
            # With `sudo` the directory may be that of another user.
            if os.stat(base).st_uid == os.geteuid():
                return private(Path(base, "forebay"))
        except OSError:
            pass
    return temporary_folder("XDG_RUNTIME_DIR to a folder of this user that can be written")


def temporary_folder(remedy: str) -> Path:
    """Returns the folder of this user in the temporary directory.

    Args:
        remedy: Words for the error, after "set": what to set for another folder.

    Raises:
        PermissionError: The folder is not private to this user.
        ServerStartError: No temporary directory can be written. The message contains the remedy.
    """
    return private(_temporary_path(remedy))


def _temporary_path(remedy: str) -> Path:
    """Returns the path of `temporary_folder`, which does not have to exist."""
    named = [os.environ[name] for name in TEMPORARY_VARIABLES if os.environ.get(name)]
    places = [os.path.abspath(place) for place in (*named, *TEMPORARY_PLACES)]
    found = ""
    try:
        found = os.path.abspath(tempfile.gettempdir())
        # The last resort of `tempfile` is the current folder, in which no process looks for a server.
        is_temporary = found in places or found != os.getcwd()
    except FileNotFoundError:
        is_temporary = False
    if not is_temporary:
        raise ServerStartError(
            f"the server does not start: no temporary directory can be written ({', '.join(dict.fromkeys(places))}); set {remedy}, or TMPDIR"
        )
    return Path(found, f"forebay-{os.geteuid()}")


def private(folder: Path) -> Path:
    """Creates a folder that only this user can access, unless it exists, and returns it.

    Raises:
        PermissionError: The folder belongs to another user, or others can access it.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder, expected a folder of user {os.geteuid()}")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, expected user {os.geteuid()}; remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(
            f"{folder} has mode {stat.S_IMODE(found.st_mode):04o}, expected 0700: other users could replace its socket; "
            "remove it, or run chmod 700"
        )
    return folder


def path_variables() -> dict[str, str]:
    """Returns the variables of this process in `PATH_VARIABLES` that are not empty, with absolute paths. The server runs in the root folder."""
    given = {name: os.environ[name] for name in PATH_VARIABLES if os.environ.get(name)}
    return {name: path if "://" in path else os.path.abspath(path) for name, path in given.items()}


def cache_folder(last: Path | None, is_restart: bool = False, timeout: float = RELEASE_TIMEOUT_S) -> Path:
    """Returns a cache folder that no server uses: in `$XDG_CACHE_HOME/forebay-local` or `~/.cache/forebay-local`, or in the
    temporary directory if that can't be written.

    Args:
        last: Cache folder of the last server with the same runtime folder, which may not have ended completely. It is used
            again if it is in one of these places.
        is_restart: True to use `last` again wherever it is, because its state has the snapshots of running trainings.
        timeout: Time in seconds for which a server in `last` is waited for.

    Raises:
        OSError: There is no such folder.
        ServerStartError: No place for a cache folder can be written.
    """
    if last is not None and not is_restart and last.parent not in _cache_parents():
        last = None
    deadline = time.monotonic() + timeout
    while last is not None and last.is_dir():
        if is_unused(last):
            return last
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    home = _cache_home()
    with suppress(OSError):
        return _unused(Path(home, "forebay-local"))
    return _unused(temporary_folder(f"cache_dir or XDG_CACHE_HOME, because {home}/forebay-local can't be written either") / "cache")


def cache_folders(last: Path | None) -> list[Path]:
    """Returns the cache folders of servers that `forebay.open` has started, without those that were emptied.

    Args:
        last: Cache folder of the last server, wherever it is.
    """
    found = [folder for parent in _cache_parents() if os.path.isdir(parent) for folder in sorted(parent.iterdir())]
    if last is not None and last not in found:
        found.append(last)
    return [folder for folder in found if os.path.exists(folder / LOCK) and any(os.path.lexists(folder / name) for name in (STATE, *CACHED))]


def _cache_parents() -> list[Path]:
    """Returns the parent folders of cache folders, without those that can't be used."""
    parents = [Path(_cache_home(), "forebay-local")]
    with suppress(OSError, ServerStartError):
        path = _temporary_path("")
        if os.path.lexists(path):
            parents.append(private(path) / "cache")
    return parents


def _cache_home() -> str:
    """Returns `$XDG_CACHE_HOME` or `~/.cache`. By the specification of XDG, a relative path in the variable has no effect."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return home if os.path.isabs(home) else os.path.expanduser("~/.cache")


def _unused(parent: Path) -> Path:
    """Returns the first numbered folder in `parent` that no server uses."""
    for number in range(MAX_SERVERS):
        folder = parent / str(number)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_unused(folder):
            return folder
    raise FileExistsError(f"{MAX_SERVERS} servers use the folders in {parent}, expected fewer")


def is_unused(folder: Path) -> bool:
    """Returns true if no server uses a cache folder."""
    # Processes that look at the same time do not take each other for a server.
    with _held(folder, fcntl.LOCK_SH) as is_held:
        return is_held


def held(folder: Path) -> AbstractContextManager[bool]:
    """Keeps servers from using a cache folder until the context ends. Its value is false if one uses the folder.

    The file of the lock must not be removed: a server that has already opened it would lock the removed file, the next server would lock a new
    one, and both would use the folder.
    """
    return _held(folder, fcntl.LOCK_EX)


@contextmanager
def _held(folder: Path, kind: int) -> Iterator[bool]:
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        is_held = True
    except BlockingIOError:
        is_held = False
    try:
        yield is_held
    finally:
        if is_held:
            # A child that was forked in the meantime has a copy of the descriptor.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)
