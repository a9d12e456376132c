"""Folders of a server that is shared by the processes of a user on a host."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

POLL_S = 0.01
# Time for which the next server waits until the folder of the last one is free.
RELEASE_TIMEOUT_S = 10
# Servers of one user that share a cache folder's parent: of several hosts with one home, or with several runtime folders.
MAX_SERVERS = 16


def runtime_folder() -> Path:
    """Returns the folder of the socket and the lock: `$XDG_RUNTIME_DIR/forebay`, or a folder in the temporary directory.

    Raises:
        PermissionError: The folder in the temporary directory is not private to this user.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base):
        try:
            # With `sudo` the directory may be that of another user.
            if os.stat(base).st_uid == os.geteuid():
                return private(Path(base, "forebay"))
        except OSError:
            pass
    return temporary_folder()


def temporary_folder() -> Path:
    """Returns the folder of this user in the temporary directory.

    Raises:
        PermissionError: The folder is not private to this user.
    """
    return private(Path(tempfile.gettempdir(), f"forebay-{os.geteuid()}"))


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


def cache_folder(last: Path | None) -> Path:
    """Returns a cache folder that no server uses: in `$XDG_CACHE_HOME/forebay-local` or `~/.cache/forebay-local`, or in the
    temporary directory if that can't be written.

    Args:
        last: Cache folder of the last server with the same runtime folder, which may not have ended completely.

    Raises:
        OSError: There is no such folder.
    """
    deadline = time.monotonic() + RELEASE_TIMEOUT_S
    while last is not None and last.is_dir():
        if is_unused(last):
            return last
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    home = _cache_home()
    if os.path.isabs(home):
        try:
            return _unused(Path(home, "forebay-local"))
        except OSError:
            pass
    return _unused(temporary_folder() / "cache")


def cache_folders() -> list[Path]:
    """Returns the cache folders of servers that `forebay.open` has started, which exist."""
    parents = [Path(_cache_home(), "forebay-local"), temporary_folder() / "cache"]
    return [folder for parent in parents if parent.is_dir() for folder in sorted(parent.iterdir()) if (folder / "lock").exists()]


def _cache_home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")


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
    with held(folder) as is_held:
        return is_held


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Keeps servers from using a cache folder until the context ends. Yields false if one uses it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    except BlockingIOError:
        is_held = False
    try:
        yield is_held
    finally:
        os.close(lock)
