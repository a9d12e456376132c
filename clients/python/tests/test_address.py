"""Addresses of servers, as the servers of Ray use them."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest

import forebay
from forebay.address import free_port, host_port, split

pytestmark = pytest.mark.once

HOSTS = ["10.0.0.1", "node-7.cluster", "::1", "fd00::12"]


@pytest.mark.parametrize("host", HOSTS)
def test_the_parts_of_an_address_are_found_again(host: str) -> None:
    address = host_port(host, 8815)
    assert split(address) == (host, "8815")
    assert address.startswith("[") == (":" in host)


def test_a_url_of_an_ipv6_address_is_accepted_by_a_client() -> None:
    with pytest.raises(forebay.Error, match=r"connect to grpc://\[::1\]:1"):
        next(iter(forebay.connect(f"grpc://{host_port('::1', 1)}", retry_deadline=10).train("clicks", batch_size=1)))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_free_port_can_be_bound(host: str) -> None:
    try:
        port = free_port(host)
    except OSError as error:
        pytest.skip(f"this machine has no address {host}: {error}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, port))


def test_the_servers_of_ray_compose_no_address_themselves() -> None:
    """Addresses with a colon of their own in an f-string have no brackets."""
    tree = ast.parse((Path(forebay.__file__).parent / "ray/server.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            assert "{}:{}" not in text and "{}:0" not in text, ast.unparse(node)
