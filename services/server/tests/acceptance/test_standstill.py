"""Requests that are not completed and answers that are not received: they are charged to their caller and end in time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from http2 import Http2, prefixed
from online import message
from server import Pool, Server, until
from test_queues import serve

FLIGHT = "arrow.flight.protocol.FlightService"
QUEUE = """
[online.users]
key = ["user_id"]
[queues.ranker.features]
dataset = "users"
tensors = [{ name = "u", columns = ["x"] }]
[queues.ranker.batching]
default_timeout = "60s"
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    folder = tmp_path / "users"
    folder.mkdir()
    table = pa.table({"user_id": np.arange(100_000), "x": np.random.default_rng(1).random(100_000)})
    pq.write_table(table, folder / "a.parquet", row_group_size=25_000)
    return folder


@pytest.fixture
def start(pool: Pool, users: Path, tmp_path: Path) -> Callable[..., Server]:
    def start_with(names: list[str], limits: str, settings: str = "", **flags: object) -> Server:
        config, tokens = tmp_path / "forebay.toml", tmp_path / "tokens.toml"
        config.write_text(f"[limits]\n{limits}\n{settings}\n")
        entry = '[{0}]\nsha256 = "{1}"\ndatasets = ["*"]\nserves = ["*"]\n'
        tokens.write_text(
            "".join(entry.format(name, hashlib.sha256(name.encode()).hexdigest()) for name in [*names, "good"])
        )
        return pool.start({"users": users}, config=config, tokens=tokens, **flags)

    return start_with


@pytest.fixture
def connect() -> Iterator[Callable[..., Http2]]:
    with contextlib.ExitStack() as stack:

        def connect_to(address: str, window: int, token: str) -> Http2:
            connection = Http2(address, window, token)
            stack.callback(connection.close)
            return connection

        yield connect_to


def get(server: Server, path: str) -> tuple[int, str]:
    return server.http_get(path, authorization="Bearer good")


def all_held(server: Server) -> dict[str, dict[str, int]]:
    """Returns what each caller holds of each resource."""
    status, body = get(server, "/api/v1/callers")
    assert status == 200, body
    nothing = {"unsent_bytes": 0, "incoming_bytes": 0, "calls": 0, "subscribers": 0}
    return defaultdict(lambda: nothing, {caller["token"]: caller for caller in json.loads(body)["callers"]})


def held(server: Server, token: str) -> dict[str, int]:
    """Returns what a caller holds of each resource."""
    return all_held(server)[token]


def options(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


def descriptor(command: dict[str, Any]) -> bytes:
    """A FlightDescriptor with a command of at least 128 bytes."""
    text = json.dumps(command).encode().ljust(128)
    return b"\x08\x02\x12" + bytes([len(text) % 128 + 128, len(text) // 128]) + text


def ticket(command: dict[str, Any]) -> bytes:
    text = json.dumps(command).encode().ljust(128)
    return b"\x0a" + bytes([len(text) % 128 + 128, len(text) // 128]) + text


def infer(rows: int) -> bytes:
    service_pb2 = pytest.importorskip("tritonclient.grpc").service_pb2
    request = service_pb2.ModelInferRequest(model_name="ranker")
    tensor = request.inputs.add(name="user_id", datatype="INT64", shape=[rows])
    tensor.contents.int64_contents.extend(range(rows))
    return request.SerializeToString()


def is_served(server: Server) -> bool:
    """True if another caller is answered over both ports."""
    with fl.connect(server.location) as client:
        (listed,) = client.list_flights(options=options("good"))
        chunk = client.do_get(fl.Ticket(json.dumps({"train": {"dataset": "users", "batch_size": 10}})), options("good"))
        return listed.total_records == 100_000 and chunk.read_chunk().data.num_rows == 10 and get(server, "/api/v1/jobs")[0] == 200


TRAIN = {"train": {"dataset": "users", "batch_size": 10_000, "job_name": "standstill"}}
UNARY = {
    "lookup": ("forebay.v1.Online/Lookup", lambda: message(dataset="users", keys=[{"name": "user_id", "integers": range(1000)}]).SerializeToString()),
    "flight-info": (f"{FLIGHT}/GetFlightInfo", lambda: descriptor(TRAIN)),
    "schema": (f"{FLIGHT}/GetSchema", lambda: descriptor(TRAIN)),
    "flights": (f"{FLIGHT}/ListFlights", lambda: b""),
    "action": (f"{FLIGHT}/DoAction", lambda: b"\x0a\x07refresh\x12\x14" + b'{"dataset": "users"}'),
    "infer": ("inference.GRPCInferenceService/ModelInfer", lambda: infer(100)),
    "metadata": ("inference.GRPCInferenceService/ModelMetadata", lambda: b"\x0a\x06ranker"),
}
# The server makes their answers when the client can receive them.
LAZY = {"flights", "action"}
HTTP = {"jobs": "/api/v1/jobs", "datasets": "/api/v1/datasets", "sessions": "/api/v1/sessions", "explain": "/api/v1/explain?step=0"}


@pytest.mark.parametrize("window", [0, 1])
def test_answers_of_every_kind_that_no_client_receives_are_charged_and_end_with_their_connections(
    start: Callable[..., Server], connect: Callable[..., Http2], window: int
) -> None:
    names = [*UNARY, *HTTP, "live"]
    server = start(names, 'receive_timeout = "12s"', QUEUE)
    threading.Thread(
        target=serve, args=(server.location, lambda batch, _: np.zeros(len(batch)), 2, options("good")), daemon=True
    ).start()
    until(lambda: '"workers":1' in get(server, "/api/v1/queues/ranker")[1].replace(" ", ""))
    assert is_served(server)
    until(lambda: len(json.loads(get(server, "/api/v1/jobs")[1])["jobs"]) > 0, failure="no job is recorded")
    snapshot = json.loads(get(server, "/api/v1/datasets")[1])["datasets"][0]["snapshot"]
    pinned = json.dumps({"train": {**TRAIN["train"], "snapshot": snapshot}}).encode()
    # The bodies are made before the first connection is opened, because the first use of a library is slow.
    bodies = {name: prefixed(body()) for name, (_, body) in UNARY.items()}
    connections = {}
    for name, (method, _) in UNARY.items():
        connections[name] = connect(server.grpc, window, name)
        connections[name].call(method, bodies[name])
    for name, path in HTTP.items():
        connections[name] = connect(server.http, window, name)
        is_post = name == "explain"
        connections[name].request("POST" if is_post else "GET", path, pinned if is_post else b"")
    connections["live"] = connect(server.http, window, "live")
    connections["live"].request("GET", "/api/v1/live")
    seen: set[str] = set()

    def all_seen() -> bool:
        every = all_held(server)
        for name in names:
            amounts = every[name]
            is_lazy = window == 0 and (name in LAZY or name == "live")
            if amounts["subscribers" if name == "live" else "calls"] if is_lazy else amounts["unsent_bytes"]:
                seen.add(name)
        return seen == set(names)

    until(all_seen, failure=lambda: f"not charged: {set(names) - seen}")
    assert is_served(server)
    for name, connection in connections.items():
        until(connection.is_closed.is_set, 60, failure=f"the connection of {name} is open")
        assert connection.received <= window
        nothing = {"unsent_bytes": 0, "calls": 0}
        until(lambda: {key: held(server, name)[key] for key in nothing} == nothing, failure=f"{name} is charged")
    assert is_served(server)


def test_requests_that_are_not_completed_are_charged_and_end_in_time(
    start: Callable[..., Server], connect: Callable[..., Http2]
) -> None:
    server = start(["greedy"], 'request_timeout = "15s"\nexplain_timeout = "100ms"', QUEUE)
    methods = [f"{FLIGHT}/DoGet", f"{FLIGHT}/GetFlightInfo", f"{FLIGHT}/DoExchange", "forebay.v1.Online/Lookup"]
    grpc, http = connect(server.grpc, 1 << 16, "greedy"), connect(server.http, 1 << 16, "greedy")
    # A byte of a message of 1,000 bytes, and for one call not even its length.
    begun = prefixed(bytes(1000))[:6]
    streams = {grpc.call(method, begun, ends=False) for method in methods}
    streams.add(grpc.call(f"{FLIGHT}/DoGet", b"\0", ends=False))
    # A whole message, without the end of the request.
    streams.add(grpc.call(f"{FLIGHT}/GetFlightInfo", prefixed(descriptor(TRAIN)), ends=False))
    posted = http.request("POST", "/api/v1/explain?step=0", b"{", ends=False)
    most = {"incoming_bytes": 0, "calls": 0}

    def all_charged() -> bool:
        amounts = held(server, "greedy")
        most.update({name: max(amounts[name], amount) for name, amount in most.items()})
        # The size of the HTTP request is unknown.
        return most["incoming_bytes"] >= 4 * 1000 + (1 << 20) and most["calls"] == len(streams)

    until(all_charged, failure=lambda: f"at most {most}")
    assert is_served(server)
    until(lambda: grpc.ended >= streams, 60, failure=lambda: f"open: {streams - grpc.ended}")
    until(lambda: posted in http.ended, 25)
    until(lambda: held(server, "greedy")["incoming_bytes"] == held(server, "greedy")["calls"] == 0)

    def late() -> dict[str, float]:
        families = text_string_to_metric_families(get(server, "/metrics")[1])
        samples = [sample for family in families for sample in family.samples if sample.name == "forebay_grpc_calls_total"]
        return {sample.labels["method"]: sample.value for sample in samples if sample.labels["code"] == "DEADLINE_EXCEEDED"}

    # A call is counted after its answer was sent.
    until(lambda: late() == {"DoGet": 2, "GetFlightInfo": 2, "DoExchange": 1, "Lookup": 1}, failure=lambda: str(late()))
    assert is_served(server)


def test_a_caller_whose_requests_take_all_incoming_bytes_leaves_some_to_others(
    start: Callable[..., Server], connect: Callable[..., Http2]
) -> None:
    mib = 1 << 20
    limits = f'request_timeout = "60s"\nmax_exchange_bytes = {mib}\nmax_incoming_bytes = {8 * mib}'
    server = start(["greedy"], limits, QUEUE)
    connection = connect(server.grpc, 1 << 16, "greedy")
    for _ in range(20):
        connection.call(f"{FLIGHT}/DoExchange", prefixed(bytes(mib))[:6], ends=False)
    until(lambda: held(server, "greedy")["incoming_bytes"] == 7 * mib)
    assert is_served(server)
    assert held(server, "greedy")["incoming_bytes"] == 7 * mib
    connection.close()
    until(lambda: held(server, "greedy")["incoming_bytes"] == 0)


def test_one_token_leaves_an_eighth_of_the_subscribers_to_others(
    start: Callable[..., Server], connect: Callable[..., Http2]
) -> None:
    server = start(["greedy"], "max_live_subscribers = 8")
    connection = connect(server.http, 1 << 16, "greedy")
    for _ in range(7):
        connection.request("GET", "/api/v1/live")
    until(lambda: held(server, "greedy")["subscribers"] == 7)
    status, body = server.http_get("/api/v1/live", authorization="Bearer greedy")
    assert status == 429 and "limits.max_live_subscribers is 8" in body
    other = connect(server.http, 1 << 16, "good")
    other.request("GET", "/api/v1/live")
    until(lambda: other.received > 0)


def test_streams_that_are_not_read_hold_at_most_twice_the_prefetch_budget_and_do_not_stop_others(
    pool: Pool, tmp_path: Path, connect: Callable[..., Http2]
) -> None:
    rows, mib = 1 << 20, 1 << 20
    folder = tmp_path / "large"
    folder.mkdir()
    pq.write_table(pa.table({"a": np.arange(rows), "b": np.arange(rows)}), folder / "a.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text(f'[limits]\nreceive_timeout = "15s"\n[loader]\ntotal_prefetch_bytes = {32 * mib}\n')
    server = pool.start({"large": folder}, config=config, cache_memory="256MiB")
    # Each batch has 16 MiB.
    command = {"train": {"dataset": "large", "batch_size": rows, "epochs": 1000}}
    read = lambda reader: reader.read_chunk().data.num_rows == rows
    with fl.connect(server.location) as client:
        reader = client.do_get(fl.Ticket(json.dumps(command)))
        assert all(read(reader) for _ in range(10))
        reader.cancel()
    before = server.memory_bytes()
    server.forget_peak_memory()
    unread = [connect(server.grpc, number % 2, "") for number in range(4)]
    for connection in unread:
        for _ in range(5):
            connection.call(f"{FLIGHT}/DoGet", prefixed(ticket(command)))
    streams = lambda: json.loads(server.http_get("/api/v1/callers")[1])["resources"][0]["used"]
    until(lambda: streams() == 20)
    with fl.connect(server.location) as client:
        reader = client.do_get(fl.Ticket(json.dumps(command)))
        # The stream that waits continues after `receive_timeout`, when the server has disconnected the streams that do not read.
        assert all(read(reader) for _ in range(3))
        reader.cancel()
    grown = server.memory_bytes("VmHWM") - before
    assert grown < (64 + 128) * mib, f"20 streams with batches of 16 MiB took {grown / mib:.0f} MiB"
    until(lambda: any(connection.is_closed.is_set() for connection in unread))
