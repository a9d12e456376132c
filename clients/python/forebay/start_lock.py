"""The lock that a process holds while it starts the server of this host and user."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Callable, Iterator

from forebay.errors import ServerStartError
from forebay.server_process import POLL_S, SILENCE_S, START_TIMEOUT_S

LOG = logging.getLogger("forebay")

# Time between two log lines about a start by another process.
REPEAT_S = 30
# Maximum wait for one other process that starts the server. It may be suspended.
LOCK_TIMEOUT_S = START_TIMEOUT_S + 30


@contextmanager
def locked(path: Path, is_done: Callable[[], bool]) -> Iterator[bool]:
    """Waits for the lock of a file, and holds it until the context ends. Yields false, without the lock, if `is_done` returned true first.

    While the lock is held, the file contains the process id of its holder.

    Raises:
        ServerStartError: Another process holds the lock for too long, or the file cannot be opened.
        FileNotFoundError: Its folder was removed.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        # The folder was removed. A later attempt uses another one.
        raise
    except OSError as error:
        raise ServerStartError(f"the server does not start: {path}: {error.strerror}; set XDG_RUNTIME_DIR to a folder that can be written") from error
    try:
        is_held = _wait_for(lock, path, is_done)
        try:
            if is_held:
                _write_holder(lock, str(os.getpid()))
            yield is_held
        finally:
            if is_held:
                _write_holder(lock, "")
                # A child that was forked in the meantime has a copy of the descriptor.
                fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, is_done: Callable[[], bool]) -> bool:
    """Waits for the lock of an open file. Returns true if it has the lock, and false if `is_done` returned true before."""
    begun = time.monotonic()
    next_line, holder = begun + SILENCE_S, ""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        if is_done():
            return False
        now, found = time.monotonic(), _read_holder(lock)
        if found and found != holder:
            # Each process that fails to start the server is followed by the next one, which has the same time.
            begun, holder = now if holder else begun, found
        shown = f"process {holder}" if holder else "another process"
        if now > next_line:
            LOG.warning("waiting for %s, which holds %s while it starts the server", shown, path)
            next_line = now + REPEAT_S
        if now > begun + LOCK_TIMEOUT_S:
            raise ServerStartError(
                f"the server does not start: {shown} has held {path} for {LOCK_TIMEOUT_S} s, as a process does while it "
                "starts the server; continue this process if it is suspended (kill -CONT), or end it"
            )
        time.sleep(POLL_S)


def _read_holder(lock: int) -> str:
    """Returns the id of the process that holds the lock of an open file; an empty string if it is unknown."""
    found = os.pread(lock, 32, 0).decode(errors="replace").strip()
    return found if found.isdecimal() else ""


def _write_holder(lock: int, holder: str) -> None:
    # A full disk is no reason not to start.
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, holder.encode(), 0)
