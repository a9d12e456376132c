"""Arrow messages of callers: what a stock client sends is read, and a small message takes little memory and time."""

from __future__ import annotations

import json
import struct
import threading
import time
from pathlib import Path
from typing import Iterable, Iterator

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api import ask
from client import Client, refused
from server import Pool, Server, until
from test_lookups import Lookup

EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
# Streams of other writers, see record.py.
MESSAGES = Path(__file__).with_name("messages")
MIB = 1 << 20
SLACK = 64 * MIB
USERS = 5000
ATTACKERS = 16
# Answers of gRPC health.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
STATUSES = {SERVING, NOT_SERVING}


@pytest.fixture
def users(pool: Pool, tmp_path: Path) -> Server:
    pq.write_table(pa.table({"id": np.arange(USERS), "age": np.arange(USERS) % 100}), tmp_path / "users.parquet")
    server = pool.start({"users": tmp_path / "users.parquet"}, online="users=id")
    with Client(server.location) as client:
        until(lambda: Lookup(client, dataset="users")(id=[1])[0]["age"].to_pylist() == [1])
    return server


def other_columns(rows: int) -> dict[str, pa.Array]:
    """Columns of every kind, which the server does not need."""
    texts = pa.array([None if row % 3 == 0 else f"a longer text of row {row}" for row in range(rows)])
    lists = pa.array([None if row % 5 == 0 else list(range(row % 4)) for row in range(rows)], pa.list_(pa.int32()))
    return {
        "text": texts,
        "large": texts.cast(pa.large_string()),
        "views": texts.cast(pa.string_view()),
        "categories": texts.dictionary_encode(),
        "lists": lists,
        "structs": pa.StructArray.from_arrays([texts, lists], ["text", "list"]),
        "maps": pa.array([[("key", row)] for row in range(rows)], pa.map_(pa.string(), pa.int64())),
        "nulls": pa.nulls(rows),
        "flags": pa.array([row % 2 == 0 for row in range(rows)]),
        "decimals": pa.array(range(rows), pa.decimal128(20, 2)),
        "vectors": pa.array([[row, row + 1] for row in range(rows)], pa.list_(pa.float32(), 2)),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["run"])),
        "bytes": pa.array([b"abc"] * rows, pa.binary(3)),
    }


def test_keys_of_pyarrow_are_read_whatever_columns_come_with_them(users: Server) -> None:
    rows = 100
    ids = np.arange(rows) * 7
    batch = pa.record_batch({**other_columns(rows), "id": pa.array(ids)})
    slices = [batch, batch.slice(13, 40), batch.slice(99), batch.slice(5, 0)]
    with Client(users.location) as client:
        for columns in [batch.schema.names, ["id"], ["id", "categories"], ["views", "id"]]:
            look_up = Lookup(client, dataset="users", columns=["id", "age"])
            for part in slices:
                part = part.select(columns)
                look_up.send(**dict(zip(part.schema.names, part.columns)))
                assert look_up.receive()[0]["id"].to_pylist() == part["id"].to_pylist()
            look_up.end()
        with refused("INVALID_ARGUMENT", "there is no column 'id' among", "text", "lists"):
            Lookup(client, dataset="users")(text=["a"], lists=[[1]])


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message."""

    def varint(rest: int) -> bytes:
        return bytes([rest]) if rest < 128 else bytes([rest & 127 | 128]) + varint(rest >> 7)

    return varint(number << 3 | 2) + varint(len(value)) + value


def message(header: bytes = b"", body: bytes = b"", descriptor: bytes = b"") -> bytes:
    parts = [(1, descriptor), (2, header), (1000, body)]
    return b"".join(field(number, part) for number, part in parts if part)


def header_of(serialized: pa.Buffer) -> bytes:
    """The header of an encapsulated message."""
    length = struct.unpack("<I", serialized[4:8])[0]
    return serialized[8 : 8 + length].to_pybytes()


def fields(message: bytes) -> dict[int, bytes]:
    """The fields of a protobuf message of which each is a string or a message."""
    at, found = 0, {}

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, length = varint() >> 3, varint()
        found[number] = message[at : at + length]
        at += length
    return found


def stream_of(answers: Iterable[bytes]) -> pa.Table:
    """The rows of the messages of a Flight call."""
    stream = b""
    for parts in map(fields, answers):
        header = parts.get(2, b"")
        if header:
            padding = bytes(-len(header) % 8)
            stream += b"\xff\xff\xff\xff" + struct.pack("<I", len(header) + len(padding)) + header + padding
            stream += parts.get(1000, b"")
    return pa.ipc.open_stream(stream).read_all()


def messages_of(stream: bytes) -> Iterator[bytes]:
    """The messages of an IPC stream as those of a Flight call."""
    for part in pa.ipc.MessageReader.open_stream(stream):
        yield message(part.metadata.to_pybytes(), part.body.to_pybytes() if part.body else b"")


@pytest.mark.parametrize("stream", sorted(MESSAGES.glob("*.arrows")), ids=lambda path: path.stem)
def test_messages_of_other_writers_than_arrow_c_are_read(users: Server, stream: Path) -> None:
    recorded = stream.read_bytes()
    expected = pa.ipc.open_stream(recorded).read_all()["id"].to_pylist()
    assert expected[0] % 7 == 0 and len(expected) > 20
    first = message(descriptor=field(2, json.dumps({"lookup": {"dataset": "users"}}).encode()))
    with grpc.insecure_channel(users.grpc) as channel:
        answers = channel.stream_stream(EXCHANGE)(iter([first, *messages_of(recorded)]), timeout=60)
        read = stream_of(answers)
    assert read["id"].to_pylist() == expected
    assert read["age"].to_pylist() == [number % 100 for number in expected]


def shared_buffers(columns: int, body_bytes: int, text: bool) -> tuple[bytes, bytes, bytes]:
    """The headers of a schema and of a batch whose columns share the bytes of the body, and the body."""
    one = pa.array(["a" * 8], pa.large_string()) if text else pa.array([7])
    arrays = [one] + [one] * (columns - 1)
    batch = pa.record_batch(arrays, names=["id"] + [f"c{number}" for number in range(columns - 1)])
    header = header_of(batch.serialize())
    own, shared = [], []
    for number in range(columns):
        # A buffer of 8 or 16 bytes takes 8 or 16 bytes of the body.
        if text:
            own += [(24 * number, 0), (24 * number, 16), (24 * number + 16, 8)]
            shared += [(0, 0), (body_bytes - 16, 16), (0, body_bytes)]
        else:
            own += [(8 * number, 0), (8 * number, 8)]
            shared += [(0, 0), (0, body_bytes)]
    packed = b"".join(struct.pack("<qq", *place) for place in own)
    assert packed in header
    header = header.replace(packed, b"".join(struct.pack("<qq", *place) for place in shared))
    body = b"a" * (body_bytes - 16) + struct.pack("<qq", 0, body_bytes - 16)
    return header_of(batch.schema.serialize()), header, body


def streams() -> Iterator[list[bytes]]:
    """The messages of hostile streams, without the descriptor."""
    for text in (False, True):
        schema, batch, body = shared_buffers(10_000, 8 * MIB, text)
        yield [message(schema), message(batch, body), message(batch, body)]
    # 16 MB of empty fields, and of empty paths.
    yield [field(2, b"") * (8 * MIB - 1)]
    yield [message(descriptor=field(3, b"") * (7 * MIB))]


def send(address: str, messages: Iterable[bytes]) -> str:
    """Sends the messages of a lookup. Returns the name of the status."""
    command = json.dumps({"lookup": {"dataset": "users"}}).encode()
    first = message(descriptor=field(2, command))
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            for _ in channel.stream_stream(EXCHANGE)(iter([first, *messages]), timeout=300):
                pass
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def test_small_messages_take_little_memory_and_delay_no_probe(users: Server) -> None:
    address = users.grpc
    hostile = list(streams())
    before = users.memory_bytes()
    users.forget_peak_memory()
    delays: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.wait(0.02):
            begin = time.monotonic()
            assert ask(users, "GET", "/livez").status == 200
            delays.append(time.monotonic() - begin)

    prober = threading.Thread(target=probe)
    prober.start()
    statuses = set()
    for messages in hostile:
        attackers = [threading.Thread(target=lambda: statuses.add(send(address, messages))) for _ in range(ATTACKERS)]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
    done.set()
    prober.join()
    assert "OK" not in statuses and "INTERNAL" not in statuses, statuses
    sent = max(sum(map(len, messages)) for messages in hostile)
    grown = users.memory_bytes("VmHWM") - before
    assert grown <= ATTACKERS * (sent + SLACK), f"{grown / MIB:.0f} MiB"
    print(f"{grown / MIB:.0f} MiB, slowest probe {max(delays) * 1e3:.0f} ms of {len(delays)}; {statuses}")
    with Client(users.location) as client:
        assert Lookup(client, dataset="users")(id=[7])[0]["age"].to_pylist() == [7]


def test_a_connection_watches_the_health_of_few_services_at_a_time(users: Server) -> None:
    with grpc.insecure_channel(users.grpc) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"") for _ in range(4)]
        assert {next(each) for each in watches} <= STATUSES
        with pytest.raises(grpc.RpcError) as caught:
            next(watch(b""))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "health watches" in caught.value.details()
        watches.pop().cancel()
        until(lambda: begins(watch(b"")))
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") in STATUSES


def begins(watch: Iterator[bytes]) -> bool:
    try:
        return next(watch) in STATUSES
    except grpc.RpcError:
        return False


def test_health_is_also_checked_over_the_http_port(users: Server) -> None:
    with grpc.insecure_channel(users.http) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        until(lambda: check(b"") == SERVING)
        with pytest.raises(grpc.RpcError):
            next(channel.unary_stream("/grpc.health.v1.Health/Watch")(b""))
