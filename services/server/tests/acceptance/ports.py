"""Ports for servers that must have a port before they start, or keep it when they are restarted."""

from __future__ import annotations

import random
import socket
from pathlib import Path

FIRST = 10_000
GIVEN: set[int] = set()


def free_port() -> int:
    """Returns a port of 127.0.0.1 that no program uses, and never the same one twice.

    The system assigns ephemeral ports, for port 0 and for outgoing connections, from another range. It therefore can't assign
    this one before the server binds it.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(FIRST, end)
        if port not in GIVEN and _is_free(port):
            GIVEN.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in servers: a port counts as free if only closed connections still use it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
