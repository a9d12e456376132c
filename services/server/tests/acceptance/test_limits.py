"""limits.max_streams and max_exchanges: the next stream is refused, and streams whose connection was reset no longer count."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import FAILURES, Client, refused
from server import Pool, Server, until
from test_lookups import Lookup

MAX_STREAMS = 4
RESETS = 50
ENDLESS: dict[str, Any] = {"dataset": "users", "batch_size": 100, "epochs": 1_000_000}

SETTINGS = f"""
[limits]
max_streams = {MAX_STREAMS}
max_exchanges = {MAX_STREAMS}
[online.users]
key = ["user_id"]
[queues.ranker.features]
dataset = "users"
columns = ["age"]
"""


class ResettableProxy:
    """A TCP proxy whose connections can be reset."""

    def __init__(self, to: str, source: str = "127.0.0.1") -> None:
        self.source = source
        self.to = (to.rsplit(":", 1)[0], int(to.rsplit(":", 1)[1]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.location = "grpc://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.servers: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Closes all connections to the server with a TCP reset instead of an orderly end."""
        while self.servers:
            # A connection that its client has ended is already closed.
            with contextlib.suppress(OSError), self.servers.pop() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        self.listener.close()
        self.reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.to, source_address=(self.source, 0))
                self.servers.append(far)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        # A timeout, because a close does not end a receive that is in progress.
        source.settimeout(0.1)
        with contextlib.suppress(OSError, ValueError):
            while True:
                with contextlib.suppress(socket.timeout):
                    data = source.recv(1 << 16)
                    if not data:
                        break
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.close()


@pytest.fixture
def limited(pool: Pool, tmp_path: Path) -> Server:
    (tmp_path / "users").mkdir()
    pq.write_table(pa.table({"user_id": range(1000), "age": range(1000)}), tmp_path / "users" / "part.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text(SETTINGS)
    return pool.start({"users": tmp_path / "users"}, config=config)


def open_stream(client: Client) -> object:
    stream = client.batches(**ENDLESS)
    assert next(stream).meta.rows == 100
    return stream


def open_lookup(client: Client) -> object:
    lookup = Lookup(client, dataset="users", columns=["age"])
    rows, _ = lookup(user_id=[7])
    assert rows["age"].to_pylist() == [7]
    return lookup


KINDS: dict[str, Callable[[Client], object]] = {"streams": open_stream, "exchanges": open_lookup}


@pytest.mark.parametrize("kind", KINDS)
def test_streams_above_the_limit_are_refused_and_reset_connections_do_not_count(
    limited: Server, kind: str
) -> None:
    begin = KINDS[kind]

    def begin_on(stack: contextlib.ExitStack, location: str) -> None:
        """Begins a stream on a connection of its own, both of which end with the stack."""

        def is_begun() -> bool:
            client = stack.enter_context(Client(location))
            try:
                held.append(begin(client))
            except FAILURES:
                # A stream that has just been reset may still count.
                return False
            return True

        held: list[object] = []
        stack.callback(held.clear)
        until(is_begun, failure="the streams that ended still count")

    def check_limit() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(MAX_STREAMS):
                begin_on(stack, limited.location)
            with Client(limited.location) as fifth, refused("RESOURCE_EXHAUSTED", f"limits.max_{kind} is {MAX_STREAMS}"):
                begin(fifth)
            # Batch streams and exchanges are limited separately.
            for other in KINDS.values():
                if other is not begin:
                    other(stack.enter_context(Client(limited.location)))

    check_limit()
    with contextlib.closing(ResettableProxy(limited.grpc)) as proxy:
        for _ in range(RESETS):
            with contextlib.ExitStack() as stack:
                begin_on(stack, proxy.location)
                proxy.reset()
    check_limit()


COMMANDS: dict[str, dict[str, Any]] = {
    "lookup": {"lookup": {"dataset": "users"}},
    "infer": {"infer": {"queue": "ranker"}},
    "worker": {"worker": {"queue": "ranker"}},
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_descriptor_of_an_exchange_has_the_limit_of_other_requests(limited: Server, kind: str) -> None:
    # Spaces after the command have no meaning.
    fitting = json.dumps(COMMANDS[kind]).ljust((1 << 20) - 100)
    too_long = fitting.ljust(1 << 20)

    def begin_exchange(stack: contextlib.ExitStack, command: str) -> None:
        client = stack.enter_context(Client(limited.location))
        writer, reader = client.flight.do_exchange(flight.FlightDescriptor.for_command(command.encode()))
        # Without its writer, the exchange would end.
        stack.callback(lambda _: reader.cancel(), writer)
        keys = pa.record_batch({"user_id": pa.array([7])})
        writer.begin(keys.schema)
        if kind != "infer":
            # The server answers with a schema before it receives any batch.
            assert len(reader.schema) > 0
            return
        writer.write_with_metadata(keys, json.dumps({"timeout_seconds": 2}).encode())
        about = json.loads(reader.read_chunk().app_metadata.to_pybytes())
        assert about["error"]["code"] == "UNAVAILABLE", about

    with contextlib.ExitStack() as stack:
        begin_exchange(stack, fitting)
        with refused("RESOURCE_EXHAUSTED", "the descriptor is longer than 1048576 bytes", "limits.max_request_bytes"):
            begin_exchange(stack, too_long)
