"""Addresses of servers: HOST:PORT, with brackets around an IPv6 address."""

from __future__ import annotations

import ipaddress
import socket


def host_port(host: str, port: int) -> str:
    """Returns HOST:PORT, as flags and URLs need it. `host` is a name or an address without brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, str]:
    """Returns the host, without brackets, and the port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def free_port(host: str) -> int:
    """Returns a port that no program uses at an address of this machine."""
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_v6 = False
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
