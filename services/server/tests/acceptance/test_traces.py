"""Traces through a real collector: their parents and attributes, and their cost for streams."""

from __future__ import annotations

import json
import re
import secrets
import socket
import socketserver
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator

import pyarrow.flight as flight
import pytest

from client import FAILURES, Client, command
from collector import Collector, Span, collecting
from hostile import write_good
from metrics import scrape
from online import message, stubs
from server import Pool, Server, until
from test_queues import Caller, features, worker  # noqa: F401
from test_unary import key_columns

ROWS, BATCH = 60_000, 1000
TRAIN: dict[str, Any] = {"dataset": "small", "batch_size": BATCH}


class Context:
    """The span of a caller."""

    def __init__(self, sampled: bool = True) -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self.header = f"00-{self.trace}-{self.span}-{'01' if sampled else '00'}"

    @property
    def options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(headers=[(b"traceparent", self.header.encode())])


@pytest.fixture(scope="module")
def collected() -> Iterator[tuple[Collector, str]]:
    with collecting() as found:
        yield found


@pytest.fixture
def collector(collected: tuple[Collector, str]) -> Collector:
    return collected[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_good(tmp_path_factory.mktemp("small") / "small.parquet", rows=ROWS, row_group_size=5000)


@pytest.fixture
def traced(pool: Pool, small: Path, collected: tuple[Collector, str]) -> Server:
    return pool.start({"small": small}, traces_endpoint=collected[1])


def read(client: Client, context: Context | None, **train: Any) -> int:
    """Returns the number of batches of a stream that is requested with a `traceparent`."""
    ticket = flight.Ticket(command(**{**TRAIN, **train}))
    reader = client.flight.do_get(ticket, context.options) if context else client.flight.do_get(ticket)
    return sum(1 for _ in reader)


def test_a_stream_is_a_span_of_the_trainers_trace_and_each_batch_a_child_of_it(
    traced: Server, collector: Collector, connect: Callable[[Server], Client]
) -> None:
    context = Context()
    before = time.time_ns()
    assert read(connect(traced), context, rank=1, world_size=2, steps=20, epoch=3) == 20
    call = collector.wait(lambda: collector.of("arrow.flight.protocol.FlightService/DoGet", context.trace))[0]
    assert call.parent == context.span and not call.failed
    # The semantic conventions of OpenTelemetry for gRPC servers.
    assert call.attributes["rpc.system.name"] == "grpc" and call.attributes["client.address"] == "127.0.0.1"
    assert call.attributes["rpc.method"] == "arrow.flight.protocol.FlightService/DoGet"
    assert call.attributes["rpc.response.status_code"] == "OK" and "error.type" not in call.attributes
    assert call.resource["service.name"] == "forebay" and call.resource["process.pid"] == traced.pid
    assert uuid.UUID(call.resource["service.instance.id"]).version == 4
    batches = collector.wait(lambda: (of := collector.of("batch", context.trace)) and len(of) == 20 and of)
    batches.sort(key=lambda span: span.attributes["forebay.step"])
    assert all(span.parent == call.id for span in batches)
    assert [span.attributes["forebay.step"] for span in batches] == list(range(20))
    for span in batches:
        assert (span.attributes["forebay.epoch"], span.attributes["forebay.rank"]) == (3, 1)
        assert span.attributes["forebay.rows"] == BATCH and span.attributes["forebay.bytes"] > BATCH * 8
        stages = collector.children(span)
        assert {"wait", "send"} <= {stage.name for stage in stages}
        assert all(span.start <= stage.start <= stage.end <= span.end for stage in stages)
        assert before <= span.start and span.end <= call.end
    asked = [stage for span in batches for stage in collector.children(span) if stage.name == "wait"]
    assert all(one.end <= other.start for one, other in zip(asked, asked[1:]))


def test_the_window_span_of_a_batch_contains_its_reads_and_decodes(
    pool: Pool, small: Path, collected: tuple[Collector, str], connect: Callable[[Server], Client]
) -> None:
    collector, endpoint = collected
    server = pool.start({"small": small}, traces_endpoint=endpoint)
    for is_cold in (True, False):
        context = Context()
        assert read(connect(server), context, steps=1) == 1
        [batch] = collector.wait(lambda: collector.of("batch", context.trace))
        stages = {stage.name: stage for stage in collector.children(batch)}
        assert stages.keys() == {"window", "gather", "wait", "send"} | ({"storage", "decode"} if is_cold else set())
        if is_cold:
            window, storage, decode = (stages[name] for name in ("window", "storage", "decode"))
            assert window.start <= storage.start < storage.end <= window.end
            assert storage.start < decode.start < decode.end <= window.end


def test_an_unsampled_caller_is_respected_and_other_calls_are_sampled_at_random(
    pool: Pool, small: Path, collected: tuple[Collector, str], connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    collector, endpoint = collected
    for sample, expected in [(0.0, 0), (1.0, 10)]:
        config = tmp_path / "forebay.toml"
        config.write_text(f'[traces]\nendpoint = "{endpoint}"\nsample = {sample}\n')
        server = pool.start({"small": small}, config=config)
        client, no, yes = connect(server), Context(sampled=False), Context()
        for _ in range(10):
            read(client, None, steps=1)
        read(client, no, steps=1)
        read(client, yes, steps=1)
        mine = lambda: [span for span in collector.of("batch") if span.resource["process.pid"] == server.pid]
        # A server that stops exports the last spans only for a limited time.
        collector.wait(lambda: len(mine()) >= expected + 1)
        assert server.stop() == 0
        assert sum(span.trace == yes.trace for span in mine()) == 1
        assert all(span.trace != no.trace for span in mine())
        assert len(mine()) == expected + 1


def test_only_a_failure_of_the_server_has_an_error_status(
    request: pytest.FixtureRequest, pool: Pool, small: Path, collected: tuple[Collector, str], collector: Collector, connect: Callable[[Server], Client]
) -> None:
    # A store that closes each connection without an answer.
    silent = socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    threading.Thread(target=silent.serve_forever, daemon=True).start()
    request.addfinalizer(silent.shutdown)
    names = {
        "small": small,
        "missing": small / "nothing",
        "silent": f"http://127.0.0.1:{silent.server_address[1]}/a.parquet",
    }
    server = pool.start(names, traces_endpoint=collected[1])
    for dataset, code, is_error in [
        ("nothing", "NOT_FOUND", False),
        ("missing", "NOT_FOUND", False),
        ("silent", "UNAVAILABLE", True),
    ]:
        context = Context()
        with pytest.raises(FAILURES):
            read(connect(server), context, dataset=dataset)
        [call] = collector.wait(lambda: collector.of("arrow.flight.protocol.FlightService/DoGet", context.trace))
        assert call.attributes["rpc.response.status_code"] == code, call.attributes
        assert call.failed == is_error and call.attributes.get("error.type") == (code if is_error else None)


def test_resource_attributes_of_the_environment_take_precedence(
    pool: Pool, small: Path, collected: tuple[Collector, str], collector: Collector, connect: Callable[[Server], Client]
) -> None:
    env = {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod-7,deployment.environment.name=staging"}
    context = Context()
    read(connect(pool.start({"small": small}, traces_endpoint=collected[1], env=env)), context, steps=1)
    [call] = collector.wait(lambda: collector.of("arrow.flight.protocol.FlightService/DoGet", context.trace))
    assert (call.resource["service.instance.id"], call.resource["deployment.environment.name"]) == ("pod-7", "staging")
    assert call.resource["service.name"] == "forebay"


QUEUES = (Path(__file__).parent / "test_queues.py").read_text().split('QUEUES = """')[1].split('"""')[0]


@pytest.fixture
def online(pool: Pool, features: dict[str, Path], tmp_path: Path, collected: tuple[Collector, str]) -> Server:  # noqa: F811
    (tmp_path / "forebay.toml").write_text(QUEUES + f'\n[traces]\nendpoint = "{collected[1]}"\nsample = 0.0\n')
    return pool.start(features, config=tmp_path / "forebay.toml")


def test_lookup_spans_hold_the_number_of_rows_found(
    online: Server, collector: Collector, connect: Callable[[Server], Client]
) -> None:
    import grpc

    wanted = {"dataset": "users", "keys": key_columns({"user_id": [1, 2, -1]})}
    unary, get, exchange = Context(), Context(), Context()
    with grpc.insecure_channel(online.grpc) as channel:
        stub = stubs()["online_grpc"].OnlineStub(channel)
        stub.Lookup(message(**wanted), metadata=[("traceparent", unary.header)], timeout=60)
    client = connect(online).flight
    client.do_get(flight.Ticket(json.dumps({"lookup": wanted}).encode()), get.options).read_all()
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": {"dataset": "users"}}).encode())
    writer, reader = client.do_exchange(descriptor, exchange.options)
    import pyarrow as pa

    keys = pa.record_batch({"user_id": pa.array([1, 2, -1], pa.int64())})
    writer.begin(keys.schema)
    for _ in range(2):
        writer.write_batch(keys)
        reader.read_chunk()
    writer.done_writing()
    with pytest.raises(StopIteration):
        reader.read_chunk()
    calls = {"forebay.v1.Online/Lookup": unary, "arrow.flight.protocol.FlightService/DoGet": get}
    for name, context in calls.items():
        [call] = collector.wait(lambda: collector.of(name, context.trace))
        assert call.parent == context.span
        assert (call.attributes["forebay.rows"], call.attributes["forebay.found"]) == (3, 2)
    [call] = collector.wait(lambda: collector.of("arrow.flight.protocol.FlightService/DoExchange", exchange.trace))
    lookups = collector.of("lookup", exchange.trace)
    assert len(lookups) == 2 and all(span.parent == call.id for span in lookups)
    assert all((span.attributes["forebay.rows"], span.attributes["forebay.found"]) == (3, 2) for span in lookups)


def test_a_micro_batch_is_linked_to_the_requests_in_it(online: Server, collector: Collector) -> None:
    contexts = [Context() for _ in range(6)]
    unsampled = Context(sampled=False)
    with worker(online):
        caller = Caller(online)
        for number, context in enumerate([*contexts, unsampled]):
            caller.send([number], [number], id=number, traceparent=context.header)
        for _ in range(7):
            assert "error" not in caller.receive()[1]
        caller.close()
    requests: list[Span] = []
    for number, context in enumerate(contexts):
        [request] = collector.wait(lambda: collector.of("request", context.trace))
        assert request.parent == context.span and request.attributes["forebay.queue"] == "ranker"
        assert request.attributes["forebay.rows"] == 1 and request.attributes["forebay.worker_seconds"] >= 0
        requests.append(request)
    assert not collector.of("request", unsampled.trace)

    def linked() -> list[Span]:
        mine = {(request.trace, request.id) for request in requests}
        batches = [batch for batch in collector.of("micro-batch") if set(batch.links) & mine]
        return batches if sum(len(batch.links) for batch in batches) == len(requests) else []

    batches = collector.wait(linked)
    links = [link for batch in batches for link in batch.links]
    assert sorted(links) == sorted((request.trace, request.id) for request in requests)
    for batch in batches:
        assert batch.parent == "" and batch.trace not in {context.trace for context in contexts}
        assert batch.attributes["forebay.queue"] == "ranker"
        assert batch.attributes["forebay.requests"] >= len(batch.links)
        assert batch.attributes["forebay.reason"] in {"rows", "bytes", "delay", "deadline", "idle"}
        stages = {stage.name: stage for stage in collector.children(batch)}
        assert stages.keys() == {"gather", "worker"}
        assert batch.start <= stages["gather"].start <= stages["gather"].end <= stages["worker"].start
        assert stages["worker"].end <= batch.end
        of_batch = [request for request in requests if (request.trace, request.id) in batch.links]
        assert all(request.start <= batch.start for request in of_batch)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_log_lines_of_a_traced_call_hold_its_trace_id(
    pool: Pool,
    connect: Callable[[Server], Client],
    collected: tuple[Collector, str],
    tmp_path: Path,
    log_format: str,
) -> None:
    folder = tmp_path / "grows"
    write_good(folder / "a.parquet", rows=10)
    server = pool.start({"grows": folder}, traces_endpoint=collected[1], log_format=log_format)
    client, context = connect(server), Context()
    refresh = flight.Action("refresh", b'{"dataset": "grows"}')
    for name, options in [("b", None), ("c", context.options)]:
        write_good(folder / f"{name}.parquet", rows=10)
        list(client.flight.do_action(refresh, options))
    lines = [line for line in server.log().splitlines() if "took a snapshot" in line]
    assert len(lines) == 3
    # The lines of the start and of the first call have no trace.
    assert [context.trace in line for line in lines] == [False, False, True]
    if log_format == "json":
        assert json.loads(lines[2])["span"]["trace_id"] == context.trace
    else:
        assert re.search(rf"trace_id=\S*{context.trace}", re.sub(r"\x1b\[[0-9;]*m", "", lines[2]))


class Silent:
    """A listener that counts connections and never answers."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.connections: list[socket.socket] = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                self.connections.append(self.listener.accept()[0])
            except OSError:
                return

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        self.listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


def test_without_an_endpoint_nothing_is_traced_and_no_collector_is_contacted(
    pool: Pool, small: Path, connect: Callable[[Server], Client], silent: Silent
) -> None:
    # Variables that configure the endpoint of other programs.
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": silent.endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": silent.endpoint}
    server = pool.start({"small": small}, env=env)
    assert read(connect(server), Context()) == ROWS // BATCH
    assert server.stop() == 0
    assert not silent.connections


def cpu_seconds(server: Server) -> float:
    """Returns the CPU time of all threads of the server, also of those that ended."""
    # The clock of clock_getcpuclockid, which Python lacks.
    return time.clock_gettime(~server.pid << 3 | 2)


# Several times as many spans as fit into the queue.
TRACED = {"batch_size": 100, "epochs": 5}
TRACED_BATCHES = 5 * ROWS // 100


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clock of another process exists on Linux")
@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_an_unavailable_collector_neither_delays_streams_nor_costs_much_cpu_time(
    pool: Pool, small: Path, connect: Callable[[Server], Client], silent: Silent, kind: str, tmp_path: Path
) -> None:
    endpoint = silent.endpoint
    if kind == "refusing":
        silent.close()
    config = tmp_path / "forebay.toml"
    config.write_text(f'[traces]\nendpoint = "{endpoint}"\nmax_queue = 1000\ntimeout = "1s"\n')
    dead = pool.start({"small": small}, config=config)
    healthy = pool.start({"small": small})
    pairs = [(server, connect(server)) for server in (dead, healthy)]

    def cost(server: Server, client: Client) -> float:
        """CPU time of a batch of a traced stream."""
        before = cpu_seconds(server)
        assert read(client, Context(), **TRACED) == TRACED_BATCHES
        return (cpu_seconds(server) - before) / TRACED_BATCHES

    for pair in pairs:
        cost(*pair)
    before = dead.memory_bytes()
    # Alternating runs, because other processes of the machine evict the caches of the CPU.
    costs = [[cost(*pair) for pair in pairs] for _ in range(4)]
    least = [min(cost) for cost in zip(*costs)]
    grown = dead.memory_bytes() - before
    print(f"{kind} collector: {least[0] * 1e6:.0f} us per batch, healthy {least[1] * 1e6:.0f}, {grown / 1e6:.1f} MB more")
    assert least[0] < 1.6 * least[1]
    assert grown < 64 << 20
    found = scrape(dead)
    # A stream that waited for a silent collector would wait until there is space in the queue, and nothing would be dropped.
    assert found.value("forebay_traces_dropped_total", **({"reason": "queue"} if kind == "silent" else {})) > 1000
    until(lambda: scrape(dead).value("forebay_traces_dropped_total", reason="export") > 0)
    assert found.value("forebay_traces_exported_total") == 0
    assert "trace export failed; dropping spans" in dead.log()
    assert dead.log().count("trace export failed; dropping spans") == 1
    started = time.monotonic()
    assert dead.stop() == 0
    # When a server stops, the last export and the closing of connections may take 2.5 s in total. The rest of the 10 s is for a busy
    # machine.
    assert time.monotonic() - started < 10


def test_queued_spans_are_sent_before_the_server_stops(
    pool: Pool, small: Path, collected: tuple[Collector, str], collector: Collector, connect: Callable[[Server], Client]
) -> None:
    # Tried up to three times, because the last export may take longer than 2 s on a busy machine.
    for _ in range(3):
        server, context = pool.start({"small": small}, traces_endpoint=collected[1]), Context()
        assert read(connect(server), context, steps=5) == 5
        assert server.stop() == 0
        if len(collector.of("batch", context.trace)) == 5:
            break
    assert len(collector.of("batch", context.trace)) == 5


@pytest.mark.parametrize(
    ("traces", "words"),
    [
        ('endpoint = "localhost:4317"', ["traces.endpoint", "http://HOST:PORT"]),
        ("sample = 2.0", ["traces.sample", "0 to 1"]),
        ("max_queue = 0", ["traces.max_queue"]),
    ],
)
def test_invalid_trace_settings_are_rejected(pool: Pool, small: Path, tmp_path: Path, traces: str, words: list) -> None:
    from server import StartError

    (tmp_path / "forebay.toml").write_text(f"[traces]\n{traces}\n")
    with pytest.raises(StartError) as refusal:
        pool.start({"small": small}, config=tmp_path / "forebay.toml")
    assert all(word in refusal.value.log for word in words), refusal.value.log
