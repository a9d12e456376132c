"""Limits of callers: one caller leaves room for others, workers have places of their own, and unread answers are bounded."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from server import Pool, Server, until
from test_queues import serve, status, worker

ENDLESS = json.dumps({"train": {"dataset": "users", "batch_size": 100, "epochs": 1_000_000}})
TOKENS = ("greedy", "other", "third")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    chance = np.random.default_rng(1)
    folder = tmp_path / "users"
    folder.mkdir()
    table = pa.table({"user_id": np.arange(200_000), "x": chance.random(200_000)})
    pq.write_table(table, folder / "a.parquet", row_group_size=50_000)
    return folder


@pytest.fixture
def start(pool: Pool, users: Path, tmp_path: Path) -> Callable[..., Server]:
    def start_with(limits: str, settings: str = "", **flags: object) -> Server:
        config = tmp_path / "forebay.toml"
        config.write_text(f"[limits]\n{limits}\n{settings}\n")
        return pool.start({"users": users}, config=config, **flags)

    return start_with


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    entry = '[{0}]\nsha256 = "{1}"\ndatasets = ["*"]\n'
    path = tmp_path / "tokens.toml"
    path.write_text("".join(entry.format(name, hashlib.sha256(name.encode()).hexdigest()) for name in TOKENS))
    return path


def options(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@pytest.fixture
def opened() -> Iterator[Callable[[Server, str], Any]]:
    """Opens endless streams of a token and cancels them after the test."""
    with contextlib.ExitStack() as stack:

        def open_stream(server: Server, token: str) -> Any:
            client = stack.enter_context(fl.connect(server.location))
            reader = client.do_get(fl.Ticket(ENDLESS), options(token))
            reader.read_chunk()
            stack.callback(reader.cancel)
            return reader

        yield open_stream


def callers(server: Server, token: str) -> dict[str, dict[str, Any]]:
    status, body = server.http_get("/api/v1/callers", authorization=f"Bearer {token}")
    assert status == 200, body
    return {caller["token"]: caller for caller in json.loads(body)["callers"]}


def test_a_greedy_token_leaves_an_eighth_of_the_streams_to_others(
    start: Callable[..., Server], tokens: Path, opened: Callable[[Server, str], Any]
) -> None:
    server = start("max_streams = 16", tokens=tokens)
    greedy = [opened(server, "greedy") for _ in range(14)]
    with refused("RESOURCE_EXHAUSTED", "14 of them by token 'greedy'", "limits.max_streams is 16"):
        opened(server, "greedy")
    opened(server, "other")
    opened(server, "third")
    assert {name: caller["streams"] for name, caller in callers(server, "other").items()} == {
        "greedy": 14,
        "other": 1,
        "third": 1,
    }
    for stream in greedy:
        stream.cancel()
    until(lambda: callers(server, "other").get("greedy", {"streams": 0})["streams"] == 0)
    opened(server, "other")


def test_a_refusal_that_is_not_final_has_a_time_to_retry(
    start: Callable[..., Server], tokens: Path, opened: Callable[[Server, str], Any]
) -> None:
    grpc = pytest.importorskip("grpc")
    server = start("max_streams = 1", tokens=tokens)
    opened(server, "greedy")
    with grpc.insecure_channel(server.grpc) as channel:
        get = channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")
        ticket = b"\x0a" + bytes([len(ENDLESS)]) + ENDLESS.encode()
        call = get(ticket, metadata=[("authorization", "Bearer other")])
        with pytest.raises(grpc.RpcError):
            next(call)
        assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(call.trailing_metadata())["retry-after"] == "1"


def snapshot(server: Server) -> str:
    status, body = server.http_get("/api/v1/datasets", authorization="Bearer other")
    assert status == 200, body
    return json.loads(body)["datasets"][0]["snapshot"]


# Each explanation takes a second, whatever is cached.
SLOW = '[loader.fault_injection]\ngather = "1s"'


class Explanations:
    """Requests for an explanation, each on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self.host, self.port = server.http.split(":")
        train = {"dataset": "users", "snapshot": snapshot(server), "batch_size": 100}
        self.body = json.dumps({"train": train}).encode()

    def explain(self, token: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self.host, int(self.port), timeout=60)
        connection.request("POST", "/api/v1/explain?step=0", self.body, {"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer = response.status, response.headers, response.read()
        connection.close()
        return answer


def test_a_token_with_many_slow_explanations_does_not_delay_that_of_another(
    start: Callable[..., Server], tokens: Path
) -> None:
    server = start('explain_timeout = "60s"', SLOW, tokens=tokens)
    explanations, count = Explanations(server), 48
    # A request is charged until its response begins.
    pending = lambda: callers(server, "other").get("greedy", {"incoming_bytes": 0})["incoming_bytes"]
    with ThreadPoolExecutor(count) as executor, contextlib.ExitStack() as stack:
        # Ends the explanations that are still queued.
        stack.callback(server.kill)
        greedy = [executor.submit(explanations.explain, "greedy") for _ in range(count)]
        # Two of them are explained at a time, so these take 16 seconds.
        until(lambda: pending() >= 32 * len(explanations.body))
        status, _, content = explanations.explain("other")
        assert status == 200, content
        assert not all(each.done() for each in greedy), "the other explanations have ended before"


def test_an_explanation_that_exceeds_its_timeout_and_one_that_is_queued_for_as_long_have_different_statuses(
    start: Callable[..., Server], tokens: Path
) -> None:
    slower = SLOW.replace("1s", "5s")
    server = start('max_concurrent_explains = 1\nexplain_timeout = "2s"', slower, tokens=tokens)
    explanations, count = Explanations(server), 8
    with ThreadPoolExecutor(count) as executor:
        answers = list(executor.map(explanations.explain, ["greedy"] * count))
    messages = {status: json.loads(content)["error"] for status, _, content in answers}
    assert set(messages) == {429, 504}
    assert messages[504].startswith("the batch was not rebuilt within 2s (limits.explain_timeout)")
    expected = (
        "the explanation was queued for 2s (limits.explain_timeout); limits.max_concurrent_explains is 1, of which one "
        "caller can use 1; "
    )
    assert messages[429].startswith(expected), messages[429]


def test_above_the_limit_the_queued_explanations_of_the_token_with_the_most_are_rejected(
    start: Callable[..., Server], tokens: Path
) -> None:
    server = start("max_concurrent_explains = 1\nmax_queued_explains = 3", SLOW, tokens=tokens)
    explanations, count = Explanations(server), 12
    with ThreadPoolExecutor(count) as executor:
        greedy = [executor.submit(explanations.explain, "greedy") for _ in range(count)]
        until(lambda: any(each.done() for each in greedy))
        status, _, content = explanations.explain("other")
        assert status == 200, content
        answers = [each.result() for each in greedy]
    rejected = [(headers, content) for status, headers, content in answers if status == 429]
    assert 0 < len(rejected) < count and all(status in (200, 429) for status, _, _ in answers)
    for headers, content in rejected:
        assert headers["retry-after"] == "1"
        message = json.loads(content)["error"]
        assert message.startswith("3 explanations are queued (limits.max_queued_explains), and no caller has more"), message
        assert "token 'greedy'" in message


def test_snapshots_that_do_not_load_delay_no_other_snapshot_of_another_token(
    start: Callable[..., Server], users: Path, tokens: Path, tmp_path: Path
) -> None:
    flags = {"tokens": tokens, "cache_dir": tmp_path / "cache"}
    server = start("", **flags)
    first = snapshot(server)
    server.stop()
    shutil.copy(users / "a.parquet", users / "b.parquet")
    hung = [f"{number:032x}" for number in range(5)]
    for each in hung:
        # Opening a named pipe that has no writer hangs.
        os.mkfifo(tmp_path / "cache" / "state" / "snapshots" / "users" / f"{each}.manifest")
    server = start("", '[storage]\nrequest_timeout = "1h"', **flags)
    assert snapshot(server) != first

    def plan(token: str, pinned: str) -> fl.FlightInfo:
        train = {"train": {"dataset": "users", "snapshot": pinned, "batch_size": 100}}
        with fl.connect(server.location) as client:
            return client.get_flight_info(fl.FlightDescriptor.for_command(json.dumps(train)), options(token))

    with ThreadPoolExecutor(len(hung) + 1) as executor, contextlib.ExitStack() as stack:
        # Ends the calls that hang.
        stack.callback(server.kill)
        waiting = [executor.submit(plan, "greedy", each) for each in hung]
        until(lambda: callers(server, "other").get("greedy", {"calls": 0})["calls"] == len(hung))
        info = executor.submit(plan, "other", first).result(timeout=30)
        assert json.loads(info.app_metadata)["snapshot"] == first
        assert not any(each.done() for each in waiting), "the snapshots do not hang"


def test_workers_have_places_that_other_exchanges_cannot_take(start: Callable[..., Server]) -> None:
    queue = '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\ncolumns = ["x"]'
    server = start("max_exchanges = 2\nmax_workers = 1", queue)

    def exchange(stack: contextlib.ExitStack, command: dict[str, Any]) -> Any:
        client = stack.enter_context(fl.connect(server.location))
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command))
        writer, reader = client.do_exchange(descriptor)
        # The server answers with a schema before it receives any batch.
        writer.begin(pa.schema([("user_id", pa.int64())]))
        # Without its writer, the exchange would end.
        stack.callback(lambda _: reader.cancel(), writer)
        return reader.schema

    lookup, worker = {"lookup": {"dataset": "users"}}, {"worker": {"queue": "ranker"}}
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            exchange(stack, lookup)
        with refused("RESOURCE_EXHAUSTED", "limits.max_exchanges is 2"):
            exchange(stack, lookup)
        exchange(stack, worker)
        with refused("RESOURCE_EXHAUSTED", "limits.max_workers is 1"):
            exchange(stack, worker)


def test_answers_that_a_client_does_not_read_are_limited_and_end_with_its_connection(
    start: Callable[..., Server],
) -> None:
    limit, most = 12 << 20, 10 << 20
    server = start(
        f'max_unsent_bytes = {limit}\nmax_explain_bytes = {most}\nreceive_timeout = "10s"',
        f"[lookups]\nmax_answer_bytes = {most}\n",
    )
    with Client(server.location) as client:
        snapshot = json.loads(server.http_get("/api/v1/datasets")[1])["datasets"][0]["snapshot"]
        assert client.digest(dataset="users", batch_size=200_000)
    train = {"train": {"dataset": "users", "snapshot": snapshot, "batch_size": 200_000, "columns": ["user_id", "x"]}}
    body = json.dumps(train).encode()
    path = "/api/v1/explain?step=0&format=json"
    head = f"POST {path} HTTP/1.1\r\nhost: {server.http}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = server.http.split(":")

    def export() -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", path, body)
        response = connection.getresponse()
        answer = response.status, response.headers, response.read()
        connection.close()
        return answer

    status, _, content = export()
    assert status == 200 and len(content) > limit // 2, content[:300]
    # A small receive buffer, so that most of the answer stays on the server.
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect((host, int(port)))
    unread.sendall(head + body)
    held = lambda: json.loads(server.http_get("/api/v1/callers")[1])["resources"][-1]["used"]
    until(lambda: 0 < held() <= len(content))
    status, headers, content = export()
    assert status == 429 and headers["retry-after"] == "1", content
    assert f"limits.max_unsent_bytes is {limit}" in json.loads(content)["error"]
    until(lambda: held() == 0, seconds=60, failure="the unread answer is kept")
    assert export()[0] == 200
    unread.close()


def unsent(server: Server) -> int:
    return json.loads(server.http_get("/api/v1/callers")[1])["resources"][-1]["used"]


def test_the_answers_of_an_exchange_are_charged_until_the_client_reads_them(start: Callable[..., Server]) -> None:
    server = start('receive_timeout = "10s"', '[online.users]\nkey = ["user_id"]')
    keys = pa.record_batch({"user_id": np.arange(60_000)})
    descriptor = fl.FlightDescriptor.for_command(json.dumps({"lookup": {"dataset": "users"}}))
    with fl.connect(server.location) as reading, fl.connect(server.location) as idle:
        writer, reader = reading.do_exchange(descriptor)
        writer.begin(keys.schema)
        for _ in range(20):
            writer.write_batch(keys)
            assert reader.read_chunk().data.num_rows == len(keys)
        until(lambda: unsent(server) == 0, failure="an answer that was read is charged")
        unread, _answers = idle.do_exchange(descriptor)
        unread.begin(keys.schema)
        ended: list[Exception] = []

        def write() -> None:
            try:
                for _ in range(1000):
                    unread.write_batch(keys)
            except fl.FlightUnavailableError as error:
                ended.append(error)

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        until(lambda: unsent(server) >= len(keys) * 16)
        writing.join(timeout=60)
        assert ended, "the connection of the unread answers is open"
        until(lambda: unsent(server) == 0)


@contextlib.contextmanager
def answers_of_queue(
    server: Server, keys: pa.RecordBatch, count: int, reply: Callable[[pa.RecordBatch], pa.Array]
) -> Iterator[fl.FlightStreamReader]:
    """Sends `count` requests to the queue `ranker`. Its worker replies when all of them are admitted. Yields the reader of the answers."""
    descriptor = fl.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
    all_are_admitted = threading.Event()

    def model(batch: pa.RecordBatch, _about: dict[str, Any]) -> pa.Array:
        all_are_admitted.wait()
        return reply(batch)

    with worker(server, model), fl.connect(server.location) as client:
        writer, reader = client.do_exchange(descriptor)
        writer.begin(keys.schema)
        for _ in range(count):
            writer.write_with_metadata(keys, b"{}")
        until(lambda: status(server)["outcomes"]["admitted"] == count)
        all_are_admitted.set()
        yield reader


def test_the_answers_of_a_queue_are_charged_until_its_caller_reads_them(start: Callable[..., Server]) -> None:
    queue = (
        '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\n'
        'tensors = [{ name = "u", columns = ["x"] }]\n[queues.ranker.batching]\ndefault_timeout = "60s"\nmax_queue_rows = 100_000_000\n'
        f"max_batch_bytes = {1 << 20}"
    )
    # Answers are much larger than their requests, which are charged, too.
    limit, rows, count, width = 5 << 20, 10, 2000, 100
    server = start(
        f"max_unsent_bytes = {limit}\nmax_explain_bytes = {4 << 20}\nmax_pending_requests = {count}",
        f"[lookups]\nmax_answer_bytes = {limit // 2}\n{queue}",
    )
    keys = pa.record_batch({"user_id": np.arange(rows)})

    def reply(batch: pa.RecordBatch) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(batch) * width)), width)

    with answers_of_queue(server, keys, count, reply) as reader:
        # The answers have 16 MB. The buffers of the client receive a part of them before it reads.
        until(lambda: unsent(server) > limit * 3 // 4)
        outcomes: list[str] = []
        while len(outcomes) < count:
            about = json.loads(reader.read_chunk().app_metadata.to_pybytes())
            outcomes.append(about.get("error", {}).get("code", "answered"))
            if outcomes[-1] != "answered":
                assert "limits.max_unsent_bytes" in about["error"]["message"], about
                assert about["error"]["retry_after_seconds"] > 0
        assert "answered" in outcomes
        until(lambda: unsent(server) == 0)


def test_the_headers_of_the_answers_of_a_queue_are_charged(start: Callable[..., Server]) -> None:
    queue = (
        '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\ncolumns = ["x"]\n'
        '[queues.ranker.batching]\ndefault_timeout = "60s"'
    )
    server = start("", queue)
    # Columns without a value take bytes of the header only: 16 each.
    count, fields = 200, [str(number) for number in range(5000)]
    keys = pa.record_batch({"user_id": np.arange(1)})

    def reply(batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([pa.nulls(len(batch))] * len(fields), fields)

    with answers_of_queue(server, keys, count, reply) as reader:
        # The buffers of the client receive a part of the 16 MB before it reads.
        until(lambda: unsent(server) > 4 << 20)
        for _ in range(count):
            chunk = reader.read_chunk()
            assert chunk.data is not None, chunk.app_metadata.to_pybytes()
        # The schema of the answers is charged while the worker is connected.
        until(lambda: unsent(server) < 2 << 20)


def test_a_request_to_a_queue_is_charged_to_its_caller_until_the_answer_of_the_worker(
    start: Callable[..., Server], tokens: Path
) -> None:
    queue = (
        '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\n'
        'tensors = [{ name = "u", columns = ["x"] }]\n[queues.ranker.batching]\ndefault_timeout = "60s"\n'
        f"max_batch_bytes = {1 << 20}\n[[queues.ranker.request_columns]]\nname = \"query\"\ndtype = \"float32\"\nlength = 100"
    )
    limit, rows, count = 4 << 20, 100, 200
    tokens.write_text(tokens.read_text().replace('datasets = ["*"]', 'datasets = ["*"]\nserves = ["ranker"]'))
    server = start(
        f"max_unsent_bytes = {limit}\nmax_explain_bytes = {2 << 20}\nmax_pending_requests = {count}",
        f"[lookups]\nmax_answer_bytes = {2 << 20}\n{queue}",
        tokens=tokens,
    )
    held = lambda name: callers(server, "third").get(name, {"unsent_bytes": 0})["unsent_bytes"]
    query = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 100, np.float32)), 100)
    request = pa.record_batch({"user_id": pa.array(np.arange(rows)), "query": query})
    # The columns are held twice: with the request, and in the features that the worker receives.
    least = 2 * rows * 100 * 4
    descriptor = fl.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
    outcomes = lambda: json.loads(server.http_get("/api/v1/queues/ranker", authorization="Bearer third")[1])["outcomes"]

    @contextlib.contextmanager
    def asking(token: str) -> Iterator[tuple[Any, Any]]:
        with fl.connect(server.location) as client:
            writer, reader = client.do_exchange(descriptor, options(token))
            writer.begin(request.schema)
            yield writer, reader
            reader.cancel()

    with asking("greedy") as (writer, reader), asking("other") as (others, other_reader):
        for _ in range(count):
            writer.write_with_metadata(request, b"{}")
        writer.done_writing()
        refusals = 0
        while refusals < count - outcomes()["admitted"]:
            about = json.loads(reader.read_chunk().app_metadata.to_pybytes())
            assert about["error"]["code"] == "RESOURCE_EXHAUSTED" and about["error"]["retry_after_seconds"] > 0
            assert "of them by token 'greedy'" in about["error"]["message"], about
            assert f"limits.max_unsent_bytes is {limit}" in about["error"]["message"], about
            refusals += 1
        admitted = outcomes()["admitted"]
        assert 0 < admitted * least <= held("greedy") <= limit * 7 // 8, "it is charged for what was admitted"
        others.write_with_metadata(request, b"{}")
        until(lambda: outcomes()["admitted"] == admitted + 1, failure="the place of others is taken")
        assert held("other") >= least

        # A worker has all requests and does not answer.
        received, answers = threading.Semaphore(0), threading.Event()

        def model(batch: pa.RecordBatch, _about: dict[str, Any]) -> np.ndarray:
            received.release()
            answers.wait()
            return np.zeros(len(batch))

        working = threading.Thread(target=serve, args=(server.location, model, 2, options("third")), daemon=True)
        working.start()
        assert received.acquire(timeout=60)
        assert held("greedy") >= admitted * least and held("third") == 0
        answers.set()
        for _ in range(admitted):
            assert "error" not in json.loads(reader.read_chunk().app_metadata.to_pybytes())
        assert "error" not in json.loads(other_reader.read_chunk().app_metadata.to_pybytes())
        until(lambda: held("greedy") == held("other") == 0, failure="answered requests are charged")


def test_the_request_of_a_caller_that_has_left_is_charged_no_longer(start: Callable[..., Server], tokens: Path) -> None:
    queue = '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\ncolumns = ["x"]'
    server = start("", f'{queue}\n[queues.ranker.batching]\ndefault_timeout = "1h"', tokens=tokens)
    held = lambda: callers(server, "third").get("greedy", {"unsent_bytes": 0})["unsent_bytes"]
    keys = pa.record_batch({"user_id": np.arange(1000)})
    with fl.connect(server.location) as client:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
        writer, reader = client.do_exchange(descriptor, options("greedy"))
        writer.begin(keys.schema)
        writer.write_with_metadata(keys, b"{}")
        until(lambda: held() > 0)
        reader.cancel()
    until(lambda: held() == 0)


def test_requests_of_a_failed_batch_are_charged_while_they_wait_for_another_attempt(
    start: Callable[..., Server], tokens: Path
) -> None:
    tokens.write_text(tokens.read_text().replace('datasets = ["*"]', 'datasets = ["*"]\nserves = ["ranker"]'))
    queue = (
        '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\n'
        'tensors = [{ name = "u", columns = ["x"] }]\n[queues.ranker.batching]\ndefault_timeout = "600s"'
    )
    server = start("", queue, tokens=tokens)
    held = lambda: callers(server, "third").get("greedy", {"unsent_bytes": 0})["unsent_bytes"]
    keys = pa.record_batch({"user_id": np.arange(100)})
    attempts, proceeds = Queue(), threading.Event()

    def model(batch: pa.RecordBatch, about: dict[str, Any]) -> np.ndarray:
        attempts.put(int(about["valid_rows"]))
        if int(about["valid_rows"]) > len(keys):
            raise ValueError("the model fails for several requests")
        proceeds.wait()
        return np.zeros(len(batch))

    descriptor = fl.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
    with fl.connect(server.location) as client:
        writer, reader = client.do_exchange(descriptor, options("greedy"))
        writer.begin(keys.schema)
        for _ in range(2):
            writer.write_with_metadata(keys, b"{}")
        admitted = lambda: json.loads(server.http_get("/api/v1/queues/ranker", authorization="Bearer third")[1])["outcomes"]["admitted"]
        until(lambda: admitted() == 2)
        both = held()
        working = threading.Thread(target=serve, args=(server.location, model, 1, options("third")), daemon=True)
        working.start()
        # A batch that fails is split into halves.
        assert [attempts.get(timeout=60) for _ in range(2)] == [200, 100]
        assert held() == both, "one request is at the worker, the other one waits"
        proceeds.set()
        for _ in range(2):
            assert "error" not in json.loads(reader.read_chunk().app_metadata.to_pybytes())
        until(lambda: held() == 0)
        reader.cancel()


def test_a_request_whose_caller_leaves_while_a_worker_computes_it_is_charged_no_longer(
    start: Callable[..., Server], tokens: Path
) -> None:
    tokens.write_text(tokens.read_text().replace('datasets = ["*"]', 'datasets = ["*"]\nserves = ["ranker"]'))
    queue = '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\ncolumns = ["x"]'
    server = start("", f'{queue}\n[queues.ranker.batching]\ndefault_timeout = "600s"', tokens=tokens)
    held = lambda: callers(server, "third").get("greedy", {"unsent_bytes": 0})["unsent_bytes"]
    keys, received, proceeds = pa.record_batch({"user_id": np.arange(100)}), threading.Event(), threading.Event()

    def model(batch: pa.RecordBatch, _about: dict[str, Any]) -> np.ndarray:
        received.set()
        proceeds.wait()
        return np.zeros(len(batch))

    threading.Thread(target=serve, args=(server.location, model, 1, options("third")), daemon=True).start()
    with fl.connect(server.location) as client:
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
        writer, reader = client.do_exchange(descriptor, options("greedy"))
        writer.begin(keys.schema)
        writer.write_with_metadata(keys, b"{}")
        assert received.wait(60)
        assert held() > 0
        reader.cancel()
    until(lambda: held() == 0, failure="the worker has not answered, but the caller has left")
    proceeds.set()


def test_a_large_request_of_a_stream_of_lookups_is_charged_while_the_stream_is_open(start: Callable[..., Server]) -> None:
    server = start("", '[online.users]\nkey = ["user_id"]')
    keys = pa.record_batch({"user_id": np.arange(10)})
    with fl.connect(server.location) as client:
        for length, least in [(100, 0), (60_000, 60_000)]:
            lookup = {"dataset": "users", "columns": ["x"], "filter": "user_id >= 0".ljust(length)}
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(json.dumps({"lookup": lookup})))
            writer.begin(keys.schema)
            writer.write_batch(keys)
            assert reader.read_chunk().data["found"].to_pylist() == [1] * len(keys)
            # The answer is charged until it is sent. The stream keeps its request once.
            until(lambda: least <= unsent(server) <= least + least // 100)
            writer.done_writing()
            with pytest.raises(StopIteration):
                reader.read_chunk()
            until(lambda: unsent(server) == 0)


def test_nothing_is_left_of_lookups_whose_callers_disconnect_at_any_time(start: Callable[..., Server]) -> None:
    server = start("", '[online.users]\nkey = ["user_id"]')
    keys = pa.record_batch({"user_id": np.arange(20_000)})
    descriptor = fl.FlightDescriptor.for_command(json.dumps({"lookup": {"dataset": "users"}}))
    for number in range(30):
        client = fl.connect(server.location)
        writer, reader = client.do_exchange(descriptor)
        writer.begin(keys.schema)
        for _ in range(1 + number % 3):
            writer.write_batch(keys)
        if number % 2:
            # An answer was taken over by a frame, and others are being made.
            reader.read_chunk()
        reader.cancel()
        client.close()
    until(lambda: unsent(server) == 0, failure="an answer is charged that no client receives")
    until(lambda: json.loads(server.http_get("/api/v1/callers")[1])["callers"] == [])


def test_a_mixture_is_visible_only_to_callers_that_may_read_all_its_datasets(
    pool: Pool, users: Path, tmp_path: Path
) -> None:
    entry = '[{0}]\nsha256 = "{1}"\ndatasets = {2}\n'
    path, readable = tmp_path / "tokens.toml", {"both": '["*"]', "one": '["users"]'}
    path.write_text(
        "".join(entry.format(name, hashlib.sha256(name.encode()).hexdigest(), sets) for name, sets in readable.items())
    )
    server = pool.start({"users": users, "others": users}, tokens=path)
    mix = [{"dataset": "others", "fraction": 0.5}]
    train = {"dataset": "users", "batch_size": 100, "epochs": 1_000_000, "job_name": "mixed\nline", "mix": mix}
    client = fl.connect(server.location)
    reader = client.do_get(fl.Ticket(json.dumps({"train": train})), options("both"))
    reader.read_chunk()

    def get(path: str, token: str) -> dict[str, Any]:
        return json.loads(server.http_get(path, authorization=f"Bearer {token}")[1])

    (session,) = get("/api/v1/sessions", "both")["sessions"]
    assert get("/api/v1/sessions", "one")["sessions"] == []
    assert server.http_get(f"/api/v1/sessions/{session['id']}", authorization="Bearer one")[0] == 404
    started = lambda token: [event for event in get("/api/v1/events", token)["events"] if event["kind"] == "session_started"]
    until(lambda: len(started("both")) == 1)
    assert started("one") == []
    assert "mixed line" in started("both")[0]["message"] and "\nline" not in server.log()
    reader.cancel()
    client.close()


def test_changes_and_failed_logins_are_logged_with_the_caller(start: Callable[..., Server], tokens: Path) -> None:
    server = start("", tokens=tokens)
    with fl.connect(server.location) as client:
        list(client.do_action(fl.Action("refresh", b'{"dataset": "users"}'), options("greedy")))
        with refused("UNAUTHENTICATED"):
            list(client.list_flights(options=options("unknown")))
    assert server.http_get("/api/v1/datasets", authorization="Bearer unknown")[0] == 401
    audit = [line for line in server.log().splitlines() if " audit: " in line]
    assert any("change" in line and "token 'greedy'" in line and "127.0.0.1" in line and "refresh" in line and "users" in line for line in audit), audit
    assert sum("authentication failed" in line and "127.0.0.1" in line for line in audit) == 2
