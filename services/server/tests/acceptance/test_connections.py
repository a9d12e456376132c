"""Limits of connections: silent, idle and too many connections lock out no client, and probes are always answered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import socket
import struct
from pathlib import Path
from typing import Callable, Iterator

import pyarrow.flight as fl
import pytest

from client import Client
from hostile import write_good
from server import Pool, Server, until
from test_limits import ResettableProxy

# As many as in the attack that once locked out all clients, for each port.
FLOOD = 1100
# Without this option, clients of one process share connections.
SEPARATE = {"generic_options": [("grpc.use_local_subchannel_pool", 1)]}
REQUEST = {"dataset": "mine", "batch_size": 100, "select": ["value"]}


@pytest.fixture
def start(pool: Pool, tmp_path: Path) -> Callable[..., Server]:
    write_good(tmp_path / "mine" / "a.parquet")

    def start_with(limits: str = "", **flags: object) -> Server:
        config = tmp_path / "forebay.toml"
        config.write_text(f"[limits]\n{limits}\n")
        return pool.start({"mine": tmp_path / "mine"}, config=config, **flags)

    return start_with


@pytest.fixture
def sockets() -> Iterator[Callable[..., socket.socket]]:
    """Opens connections and closes them after the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * FLOOD), hard), hard))
    opened = []

    def connect(address: str, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        host, port = address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))
        opened.append(connection)
        connection.sendall(sent)
        return connection

    yield connect
    for connection in opened:
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def tunnel() -> Iterator[Callable[[str, str], str]]:
    """Starts a TCP proxy that connects from another address, and returns its location."""
    proxies = []

    def open_tunnel(source: str, address: str) -> str:
        proxy = ResettableProxy(address, source)
        proxies.append(proxy)
        return proxy.location

    yield open_tunnel
    for proxy in proxies:
        proxy.close()


def ask(address: str, path: str) -> bytes:
    """A GET request of HTTP/1.1 that leaves the connection open."""
    return f"GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n".encode()


def answer(connection: socket.socket) -> bytes:
    """The head of the answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        some = connection.recv(1 << 16)
        if not some:
            break
        received += some
    return received


def is_closed(connection: socket.socket) -> bool:
    """True if the server has closed the connection. Discards what it sent before."""
    connection.settimeout(0.01)
    with contextlib.suppress(TimeoutError):
        try:
            while connection.recv(1 << 16):
                pass
            return True
        except ConnectionError:
            return True
    return False


def answered(connect: Callable[..., socket.socket], address: str, path: str, source: str = "127.0.0.1") -> socket.socket:
    """Returns a connection whose request has the status 200. Opens another one if the server has closed or refused it."""
    opened: list[socket.socket] = []

    def is_answered() -> bool:
        with contextlib.suppress(ConnectionError):
            opened.append(connect(address, ask(address, path), source))
            if answer(opened[-1]).startswith(b"HTTP/1.1 200"):
                return True
            opened[-1].close()
        return False

    until(is_answered)
    return opened[-1]


def test_thousands_of_sockets_that_send_one_byte_lock_out_no_client_and_are_closed(
    start: Callable[..., Server], sockets: Callable[..., socket.socket]
) -> None:
    server = start('first_request_timeout = "5s"')
    flood = [sockets(address, b"P") for _ in range(FLOOD) for address in (server.grpc, server.http)]
    with Client(server.location) as client:
        assert next(iter(client.batches(**REQUEST))).meta.rows == 100
    assert server.http_get("/livez")[0] == 200
    assert server.http_get("/api/v1/datasets")[0] == 200
    refusals = server.http_get("/metrics")[1]
    assert 'forebay_connections_refused_total{limit="peer"}' in refusals
    until(lambda: all(is_closed(each) for each in flood), seconds=60, failure="the silent connections are still open")


@pytest.mark.parametrize("sent", [b"", b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /livez HTT"], ids=repr)
def test_a_connection_without_a_whole_request_is_closed(
    start: Callable[..., Server], sockets: Callable[..., socket.socket], sent: bytes
) -> None:
    server = start('first_request_timeout = "500ms"')
    for address in (server.grpc, server.http):
        connection = sockets(address, sent)
        until(lambda: is_closed(connection), failure=f"{sent!r} holds a connection")


def test_probes_are_answered_while_all_connections_are_taken(
    start: Callable[..., Server], sockets: Callable[..., socket.socket]
) -> None:
    server = start("max_connections = 8")
    # One address may take half of the connections. The last may be refused until the server has noticed that the connections of
    # its start are closed.
    for source in ("127.0.0.2", "127.0.0.3"):
        for _ in range(4):
            answered(sockets, server.http, "/api/v1/datasets", source)
    for _ in range(100):
        assert server.http_get("/livez")[0] == 200
        assert server.http_get("/readyz")[0] == 200
    status, body = server.http_get("/api/v1/datasets")
    assert status == 503
    assert "limits.max_connections" in json.loads(body)["error"]


def test_calls_beyond_the_connections_are_refused_with_the_limit(
    start: Callable[..., Server], tunnel: Callable[[str, str], str]
) -> None:
    server = start("max_connections = 2")
    with contextlib.ExitStack() as open_clients:
        clients = [open_clients.enter_context(fl.connect(server.location, **SEPARATE)) for _ in range(3)]
        # One address may have half of the connections, so the second client is refused without an answer.
        assert list(clients[0].list_flights())
        with pytest.raises(fl.FlightUnavailableError):
            list(clients[1].list_flights())
        far = tunnel("127.0.0.2", server.grpc)
        second = open_clients.enter_context(fl.connect(far, **SEPARATE))
        assert list(second.list_flights())
        third = open_clients.enter_context(fl.connect(tunnel("127.0.0.3", server.grpc), **SEPARATE))
        with pytest.raises(fl.FlightUnavailableError, match="limits.max_connections"):
            list(third.list_flights())


def test_an_idle_connection_is_closed_and_one_with_a_running_response_is_not(
    start: Callable[..., Server], sockets: Callable[..., socket.socket]
) -> None:
    server = start('idle_timeout = "1s"')
    idle = sockets(server.http, ask(server.http, "/livez"))
    assert answer(idle).startswith(b"HTTP/1.1 200")
    live = sockets(server.http, ask(server.http, "/api/v1/live"))
    assert answer(live).startswith(b"HTTP/1.1 200")
    until(lambda: is_closed(idle), failure="the idle connection is still open")
    # A connection that is opened now and closed for the same reason ends later than `live` would.
    later = sockets(server.http, ask(server.http, "/livez"))
    assert answer(later).startswith(b"HTTP/1.1 200")
    until(lambda: is_closed(later), failure="the idle connection is still open")
    assert not is_closed(live)


# Types of frames of HTTP/2, and the flag of an answer to a PING.
SETTINGS_FRAME, PING_FRAME, ACK = 4, 6, 1
# The setting SETTINGS_MAX_CONCURRENT_STREAMS.
CONCURRENT_STREAMS = 3
# Time limits that would close the connections of a keepalive test are out of reach.
PATIENT = 'first_request_timeout = "10m"\nidle_timeout = "10m"\nkeepalive_interval = "100ms"\n'


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """A frame of the connection, which belongs to no stream."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4) + payload


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS_FRAME)


def pings(connection: socket.socket) -> Iterator[bytes]:
    """The payloads of the server's PING frames, until it closes the connection."""
    with connection.makefile("rb") as received, contextlib.suppress(ConnectionError):
        while header := received.read(9):
            payload = received.read(int.from_bytes(header[:3], "big"))
            if header[3] == PING_FRAME and not header[4] & ACK:
                yield payload


def concurrent_streams(connection: socket.socket) -> int:
    """The number of concurrent requests that the server announces in its first frame."""
    header = connection.recv(9, socket.MSG_WAITALL)
    assert header[3] == SETTINGS_FRAME and not header[4] & ACK
    payload = connection.recv(int.from_bytes(header[:3], "big"), socket.MSG_WAITALL)
    return dict(struct.iter_unpack(">HI", payload))[CONCURRENT_STREAMS]


def test_the_http_port_accepts_fewer_requests_at_once_from_a_connection_than_the_grpc_port(
    start: Callable[..., Server], sockets: Callable[..., socket.socket]
) -> None:
    server = start("max_calls_per_connection = 100")
    announced = [concurrent_streams(sockets(address, PREFACE)) for address in (server.grpc, server.http)]
    assert announced == [100, 32]


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_a_connection_that_does_not_answer_keepalive_pings_is_closed(
    start: Callable[..., Server], sockets: Callable[..., socket.socket], port: str
) -> None:
    server = start(PATIENT + 'keepalive_timeout = "200ms"')
    # Ends when the server closes the connection. The timeout of the socket fails the test before.
    assert len(list(pings(sockets(getattr(server, port), PREFACE)))) == 1


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_a_connection_that_answers_keepalive_pings_stays_open(
    start: Callable[..., Server], sockets: Callable[..., socket.socket], port: str
) -> None:
    server = start(PATIENT + 'keepalive_timeout = "30s"')
    connection = sockets(getattr(server, port), PREFACE)
    received = pings(connection)
    for _ in range(5):
        # The server sends the next PING only after the answer to the last one.
        connection.sendall(frame(PING_FRAME, ACK, next(received)))
    assert not is_closed(connection)


def test_running_streams_finish_after_the_maximum_age_and_clients_reconnect(
    start: Callable[..., Server], sockets: Callable[..., socket.socket]
) -> None:
    server = start('max_connection_age = "1s"')
    with Client(server.location) as client:
        expected = client.digest(**REQUEST, epochs=200)
        batches = client.batches(**REQUEST, epochs=200)
        rows = next(batches).meta.rows
        # A connection that is opened now reaches the maximum age later than that of the stream. On a busy machine, the server may
        # close it before the answer.
        later = answered(sockets, server.http, "/livez")
        until(lambda: is_closed(later), failure="the connection outlives the maximum age")
        rows += sum(batch.meta.rows for batch in batches)
        assert rows == 200 * 2000
        assert client.digest(**REQUEST, epochs=200) == expected


def test_authenticated_connections_do_not_count_for_their_address(
    start: Callable[..., Server], sockets: Callable[..., socket.socket], tmp_path: Path
) -> None:
    secret = "a-token"
    tokens = tmp_path / "tokens.toml"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    tokens.write_text(f'[team]\nsha256 = "{digest}"\ndatasets = ["*"]\n')
    server = start('max_unauthenticated_connections = 4\nfirst_request_timeout = "10m"', tokens=tokens)
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())])
    with contextlib.ExitStack() as open_clients:
        for _ in range(12):
            client = fl.connect(server.location, **SEPARATE)
            open_clients.enter_context(client)
            assert list(client.list_flights(options=options))
        silent = [sockets(server.grpc) for _ in range(5)]
        until(lambda: is_closed(silent[0]), seconds=60)
        assert not any(is_closed(each) for each in silent[1:])
