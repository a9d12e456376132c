"""Ports for servers that must have a port before they start, or keep it when they are restarted."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

FIRST, END = 10_000, 65_536
# The ports are divided among the processes that run at once: two suites with two processes each, and processes of single tests.
PARTS = 8
# Minimum number of ports to choose from. If there were fewer, all could be in use.
ENOUGH = 500 * PARTS
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
GIVEN: set[int] = set()
# Locked while this process runs.
LOCKED: list[IO[str]] = []


def free_port() -> int:
    """Returns a port of 127.0.0.1 that no program uses, and never the same one twice. Up to `PARTS` processes at once get different
    ports.

    The port is outside of the system's ephemeral range if enough ports are outside of it. The system then can't assign the port
    to another program before the server binds it.
    """
    while True:
        port = random.choice(_range()[_part() :: PARTS])
        if port not in GIVEN and _is_free(port):
            GIVEN.add(port)
            return port


@functools.lru_cache(maxsize=None)
def _part() -> int:
    """Returns a number below `PARTS`. This process locks the file of the number until it ends, so no other process gets the number,
    unless all files are locked."""
    for number in range(PARTS):
        file = open(Path(tempfile.gettempdir()) / f"forebay-test-ports-{os.getuid()}-{number}", "a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            LOCKED.append(file)
            return number
    return os.getpid() % PARTS


def _range() -> range:
    """Returns the ports below or above the ephemeral range, whichever are more.

    Returns all ports if those are too few, or if the ephemeral range is unknown.
    """
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except OSError:
        first = last = 0
    outside = max(range(FIRST, first), range(last + 1, END), key=len)
    return outside if len(outside) >= ENOUGH else range(FIRST, END)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in servers: a port counts as free if only closed connections still use it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
