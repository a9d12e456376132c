"""Batch queues with stock clients as callers and workers: every caller receives its own rows or an error, in time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client
from server import Pool, Server, until

USERS, ITEMS = 5000, 2000

QUEUES = """
[online.users]
key = ["user_id"]
[online.items]
key = ["item_id"]

[queues.ranker.features]
dataset = "users"
tensors = [{ name = "u", columns = ["f*"] }]
[[queues.ranker.features.joins]]
dataset = "items"
tensors = [{ name = "i", columns = ["g*"] }]

[queues.ranker.batching]
max_batch_rows = 1000
default_timeout = "20s"
"""


class Caller:
    """A caller of a queue: sends keys and receives scores in order of completion."""

    def __init__(self, server: Server, queue: str = "ranker") -> None:
        self.client = flight.connect(server.location)
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"infer": {"queue": queue}}).encode())
        self.writer, self.reader = self.client.do_exchange(descriptor)
        self.began = False

    def send(self, users: Any, items: Any, **request: Any) -> None:
        batch = pa.record_batch({"user_id": pa.array(users, pa.int64()), "item_id": pa.array(items, pa.int64())})
        if not self.began:
            self.writer.begin(batch.schema)
            self.began = True
        self.writer.write_with_metadata(batch, json.dumps(request).encode())

    def receive(self) -> tuple[pa.RecordBatch | None, dict]:
        chunk = self.reader.read_chunk()
        about = json.loads(chunk.app_metadata.to_pybytes())
        assert (chunk.data is None) == ("error" in about), about
        return chunk.data, about

    def __call__(self, users: Any, items: Any, **request: Any) -> tuple[pa.RecordBatch | None, dict]:
        self.send(users, items, **request)
        return self.receive()

    def close(self) -> None:
        self.writer.done_writing()
        with pytest.raises(StopIteration):
            self.reader.read_chunk()
        self.client.close()


def numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    column = batch[name]
    return np.asarray(column.flatten()).reshape(len(column), -1).astype(np.float64)


def serve(
    location: str,
    model: Callable[[pa.RecordBatch, dict], Any],
    credits: int = 2,
    options: flight.FlightCallOptions | None = None,
) -> None:
    """Runs a worker until the server ends the exchange or the model raises StopIteration. The model returns numbers or a column."""
    client = flight.connect(location)
    command = {"worker": {"queue": "ranker", "credits": credits}}
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(command).encode()), options)
    began = False
    with contextlib.suppress(StopIteration, flight.FlightUnavailableError):
        while True:
            chunk = reader.read_chunk()
            about = json.loads(chunk.app_metadata.to_pybytes())
            try:
                made = model(chunk.data, about)
                scores = pa.record_batch({"score": made if isinstance(made, pa.Array) else pa.array(made, pa.float64())})
            except ValueError as error:
                writer.write_metadata(json.dumps({"batch": about["batch"], "error": str(error)}).encode())
                continue
            if not began:
                writer.begin(scores.schema)
                began = True
            writer.write_with_metadata(scores, json.dumps({"batch": about["batch"]}).encode())


def score(batch: pa.RecordBatch, _about: dict) -> np.ndarray:
    """Returns a score that encodes both keys of a row: `f0` is the user's key, `g0` the item's."""
    return numbers(batch, "u")[:, 0] * 10_000.0 + numbers(batch, "i")[:, 0]


def expected(users: Any, items: Any) -> list[float]:
    user = [id if 0 <= id < USERS else 0 for id in users]
    item = [id if 0 <= id < ITEMS else 0 for id in items]
    return [user * 10_000.0 + item for user, item in zip(user, item)]


@contextlib.contextmanager
def worker(server: Server, model: Callable = score, credits: int = 2) -> Iterator[None]:
    thread = threading.Thread(target=serve, args=(server.location, model, credits), daemon=True)
    thread.start()
    until(lambda: status(server)["load"]["workers"] >= 1)
    yield


def status(server: Server, queue: str = "ranker") -> dict:
    code, body = server.http_get(f"/api/v1/queues/{queue}")
    assert code == 200, body
    return json.loads(body)


def tune(server: Server, body: Any, query: str = "") -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://{server.http}/api/v1/queues/ranker{query}"
    request = urllib.request.Request(url, data, method="PATCH", headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def features(tmp_path: Path) -> dict[str, Path]:
    users, items = np.arange(USERS), np.arange(ITEMS)
    rows = {"user_id": users, **{f"f{n}": (users + n).astype(np.float32) for n in range(8)}}
    pq.write_table(pa.table(rows), tmp_path / "users.parquet", row_group_size=1000)
    rows = {"item_id": items, **{f"g{n}": (items + n).astype(np.float32) for n in range(4)}}
    pq.write_table(pa.table(rows), tmp_path / "items.parquet", row_group_size=1000)
    (tmp_path / "forebay.toml").write_text(QUEUES)
    return {name: tmp_path / f"{name}.parquet" for name in ("users", "items")}


@pytest.fixture
def start(pool: Pool, features: dict[str, Path], tmp_path: Path) -> Callable[..., Server]:
    # Without tokens, changes of queue settings over HTTP must be allowed explicitly.
    insecure = {"FOREBAY_INSECURE": "true"}
    return lambda **flags: pool.start(features, config=tmp_path / "forebay.toml", env=insecure, **flags)


def test_every_caller_gets_the_scores_of_its_own_rows(start: Callable[..., Server]) -> None:
    server = start()
    rng = np.random.default_rng(3)
    requests = [[rng.integers(-5, USERS, count) for count in rng.integers(1, 60, 50)] for _ in range(8)]
    failures: list = []

    def call(mine: list[np.ndarray]) -> None:
        try:
            caller = Caller(server)
            for number, users in enumerate(mine):
                caller.send(users, users % ITEMS, id=1000 + number)
            for _ in mine:
                scores, about = caller.receive()
                users = mine[int(about["id"]) - 1000]
                assert scores["score"].to_pylist() == expected(users, users % ITEMS), about
                assert about["batch_rows"] >= len(users) and about["features"]["joins"][0]["snapshot"]
            caller.close()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with worker(server), worker(server):
        threads = [threading.Thread(target=call, args=(mine,)) for mine in requests]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures, failures[0]
        seen = status(server)
        assert seen["outcomes"]["answered"] == 400 and sum(seen["close_reasons"].values()) < 400
        assert seen["model"]["fixed"] + seen["model"]["row"] > 0


def test_a_result_has_the_index_of_its_request_and_its_durations(start: Callable[..., Server]) -> None:
    server = start()
    # On a busy machine, the usual delay of 5 ms may pass before the queue looks for a free worker.
    assert tune(server, {"max_batch_delay": "10s"})[0] == 200
    with worker(server):
        caller = Caller(server)
        for number in range(3):
            scores, about = caller([7], [number])
            assert scores["score"].to_pylist() == [70_000.0 + number]
            assert int(about.get("id", 0)) == number and about["close_reason"] == "idle"
            assert about["worker_seconds"] > 0
        caller.close()


def test_a_deadline_ends_only_its_own_request(start: Callable[..., Server]) -> None:
    server = start()
    caller = Caller(server)
    caller.send([1], [1], id=1, timeout_seconds=2)
    caller.send([2], [2], id=2)
    _, about = caller.receive()
    # Half of the time is left to ask another server.
    assert about["error"]["code"] == "UNAVAILABLE" and int(about["id"]) == 1 and about["error"]["retry_after_seconds"] == 0
    assert "no worker serves the queue" in about["error"]["message"]
    # The other request waits for a worker for 10 s, half of its time.
    until(lambda: status(server)["load"]["queued_requests"] == 1)
    with worker(server):
        scores, about = caller.receive()
        assert scores["score"].to_pylist() == [20_002.0] and int(about["id"]) == 2
        caller.close()


def test_requests_of_low_priority_make_room_for_others(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES + "max_queue_requests = 4\n")
    caller = Caller(start())
    for number in range(4):
        caller.send([number], [0], id=number, priority="LOW")
    for number in range(4, 6):
        caller.send([number], [0], id=number)
    # Without a worker, all requests wait.
    for number in (3, 2):
        scores, about = caller.receive()
        assert scores is None and int(about["id"]) == number and about["error"]["code"] == "RESOURCE_EXHAUSTED", about
        assert "made room for others" in about["error"]["message"] and about["error"]["retry_after_seconds"] > 0, about
    caller.send([9], [9], id=9, priority="HIGH")
    with pytest.raises(pa.ArrowInvalid, match="priority: expected NORMAL or LOW"):
        caller.receive()


def test_a_canceled_request_leaves_the_queue_and_is_never_computed(start: Callable[..., Server]) -> None:
    server = start()
    caller = Caller(server)
    caller.send([1], [1], id=7)
    until(lambda: status(server)["load"]["queued_requests"] == 1)
    for id in (8, 7):  # 8 does not exist.
        caller.writer.write_metadata(json.dumps({"cancel": id}).encode())
    _, about = caller.receive()
    assert about["error"]["code"] == "CANCELLED" and int(about["id"]) == 7
    assert status(server)["load"]["queued_requests"] == 0 and status(server)["outcomes"]["cancelled"] == 1
    computed: list[int] = []

    def counts(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        computed.append(int(about["valid_rows"]))
        return score(batch, about)

    with worker(server, counts):
        scores, about = caller([2, 3], [2, 3], id=9)
        assert scores["score"].to_pylist() == [20_002.0, 30_003.0] and int(about["id"]) == 9
        # Canceling an answered request has no effect.
        caller.writer.write_metadata(json.dumps({"cancel": 9}).encode())
        assert caller([4], [4])[0]["score"].to_pylist() == [40_004.0]
        assert computed == [2, 1]
        _, about = caller([5], [5], cancel=9, id=10)
        assert about["error"]["code"] == "INVALID_ARGUMENT" and "cancel: is allowed only in a message without" in about["error"]["message"]
        assert caller([6], [6])[0]["score"].to_pylist() == [60_006.0]


def test_an_exchange_at_its_request_limit_can_cancel_requests(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES + "\n[limits]\nmax_pending_requests = 3\n")
    server = start()
    caller = Caller(server)
    for id in range(3):
        caller.send([id], [id], id=id)
    until(lambda: status(server)["load"]["queued_requests"] == 3)
    for id in range(2):
        caller.writer.write_metadata(json.dumps({"cancel": id}).encode())
    ended = {int(about.get("id", 0)): about["error"]["code"] for about in (caller.receive()[1] for _ in range(2))}
    assert ended == {0: "CANCELLED", 1: "CANCELLED"}
    for id in range(3, 8):  # More than the limit.
        caller.send([id], [id], id=id)
    with worker(server):
        answers = dict((int(about["id"]), scores["score"].to_pylist()) for scores, about in (caller.receive() for _ in range(6)))
        assert answers == {id: [id * 10_001.0] for id in range(2, 8)}


def test_a_filter_of_the_features_excludes_other_rows(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES.replace('dataset = "users"', 'dataset = "users"\nfilter = "user_id < 100"'))
    server = start()
    with worker(server):
        assert Caller(server)([99, 100], [1, 2])[0]["score"].to_pylist() == [990_001.0, 2.0]


def test_an_invalid_request_is_rejected_without_affecting_others(start: Callable[..., Server]) -> None:
    server = start()
    with worker(server):
        caller = Caller(server)
        _, about = caller(np.zeros(1001), np.zeros(1001))
        assert about["error"]["code"] == "INVALID_ARGUMENT" and "1000" in about["error"]["message"]
        for keys, timeout, why in [([1], -1, "timeout_seconds: is -1"), ([], 1, "no rows"), (np.zeros(70_000), 1, "expected at most 65536")]:
            _, about = caller(keys, keys, timeout_seconds=timeout)
            assert about["error"]["code"] == "INVALID_ARGUMENT" and why in about["error"]["message"], about
        caller.writer.write_metadata(json.dumps({"id": 33}).encode())
        _, about = caller.receive()
        assert int(about["id"]) == 33 and about["error"]["code"] == "INVALID_ARGUMENT", about
        assert "neither a batch nor `cancel`" in about["error"]["message"]
        caller.send([3], [4])
        assert caller.receive()[0]["score"].to_pylist() == [30_004.0]
        with pytest.raises(KeyError, match=r"there is no queue 'rankr' among \[\"ranker\"\]"):
            Caller(server, "rankr")([1], [1])
        other = Caller(server)
        batch = pa.record_batch({"user_id": pa.array(["x"])})
        other.writer.begin(batch.schema)
        other.writer.write_batch(batch)
        assert "no column 'item_id'" in other.receive()[1]["error"]["message"]
        twice = Caller(server)
        batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([1]), pa.array([2])], ["user_id", "item_id", "item_id"])
        twice.writer.begin(batch.schema)
        twice.writer.write_batch(batch)
        assert "there are several columns 'item_id', expected one" in twice.receive()[1]["error"]["message"]


def test_the_error_of_a_worker_reaches_its_callers_and_the_worker_continues(start: Callable[..., Server]) -> None:
    server = start()

    def fails_at_13(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        if (numbers(batch, "u")[:, 0] == 13).any():
            raise ValueError("13 is too much")
        return score(batch, about)

    with worker(server, fails_at_13):
        caller = Caller(server)
        assert "13 is too much" in caller([13], [1])[1]["error"]["message"]
        assert caller([14], [1])[0]["score"].to_pylist() == [140_001.0]


def errors_of_worker(server: Server, model: Callable[..., Any]) -> list[pa.ArrowInvalid]:
    """Starts a worker. Returns a list to which the error is appended with which the server ends its stream."""
    errors: list[pa.ArrowInvalid] = []

    def run() -> None:
        try:
            serve(server.location, model)
        except pa.ArrowInvalid as error:
            errors.append(error)

    threading.Thread(target=run, daemon=True).start()
    return errors


def test_a_worker_that_returns_too_few_rows_receives_an_error(start: Callable[..., Server]) -> None:
    server = start()

    def too_few(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        return score(batch, about)[:-1]

    ended = errors_of_worker(server, too_few)
    caller = Caller(server)
    message = caller([1, 2], [1, 2])[1]["error"]["message"]
    assert "the batch has 2 rows, the reply 1" in message
    until(lambda: bool(ended))
    assert "the batch has 2 rows, the reply 1" in str(ended[0])


# Columns of one text per row, and the expected type.
UNDIVIDED: dict[str, tuple[Callable[[list[str]], pa.Array], str]] = {
    "string view": (lambda texts: pa.array(texts, pa.string_view()), "is of type Utf8View, expected Utf8 or LargeUtf8"),
    "list of string views": (
        lambda texts: pa.array([[text] for text in texts], pa.list_(pa.string_view())),
        "expected Utf8 or LargeUtf8 in place of Utf8View",
    ),
    "list view": (
        lambda texts: pa.ListViewArray.from_arrays(np.arange(len(texts)), np.ones(len(texts), np.int32), pa.array(texts)),
        "expected List or LargeList",
    ),
    "runs": (
        lambda texts: pa.RunEndEncodedArray.from_arrays(pa.array([len(texts)], pa.int32()), pa.array(texts[:1])),
        "expected one value per row",
    ),
    "dictionary": (lambda texts: pa.array(texts).dictionary_encode(), "dictionary-encoded batches are not supported; send the values"),
}


@pytest.mark.parametrize("kind", UNDIVIDED)
def test_a_worker_whose_reply_cannot_be_divided_receives_an_error(start: Callable[..., Server], kind: str) -> None:
    server = start()
    column, expected_type = UNDIVIDED[kind]

    def undivided(batch: pa.RecordBatch, _about: dict) -> pa.Array:
        return column(["a text that is longer than a view"] * batch.num_rows)

    ended = errors_of_worker(server, undivided)
    caller = Caller(server)
    error = caller([1, 2], [1, 2])[1]["error"]
    assert error["code"] == "INTERNAL", error
    what = "reply: " if kind == "dictionary" else "column 'score' is of type "
    assert what in error["message"] and expected_type in error["message"], error
    until(lambda: bool(ended))
    assert expected_type in str(ended[0])
    with worker(server):
        assert caller([3], [4])[0]["score"].to_pylist() == [30_004.0]


def test_a_reply_with_neither_rows_nor_an_error_fails_its_batch(start: Callable[..., Server]) -> None:
    server = start()
    caller = Caller(server)
    caller.send([1], [1], id=5)
    client = flight.connect(server.location)
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"worker": {"queue": "ranker"}}).encode())
    writer, reader = client.do_exchange(descriptor)
    batch = json.loads(reader.read_chunk().app_metadata.to_pybytes())["batch"]
    writer.write_metadata(json.dumps({"batch": batch, "error": ""}).encode())
    _, about = caller.receive()
    assert int(about["id"]) == 5 and about["error"]["code"] == "INTERNAL", about
    assert "neither rows nor an `error`" in about["error"]["message"]
    with pytest.raises(pa.ArrowInvalid, match="neither rows nor an `error`"):
        reader.read_chunk()


def test_a_reply_above_the_limit_divides_its_batch(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES + "\n[limits]\nmax_exchange_bytes = 65536\n")
    server = start()
    caller = Caller(server)
    for number in range(4):
        caller.send([number], [number], id=number)
    until(lambda: status(server)["load"]["queued_requests"] == 4)
    with pytest.raises(pa.ArrowInvalid, match=r"the limit is: 65536 bytes \(limits.max_exchange_bytes\)"):
        serve(server.location, lambda batch, _about: pa.array(["x" * 20_000] * batch.num_rows), credits=1)
    sizes: list[int] = []

    def counts(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        sizes.append(int(about["valid_rows"]))
        return score(batch, about)

    with worker(server, counts):
        answers = {int(about.get("id", 0)): scores for scores, about in (caller.receive() for _ in range(4))}
    assert {number: scores["score"].to_pylist() for number, scores in answers.items()} == {n: [n * 10_001.0] for n in range(4)}
    assert max(sizes) == 2, sizes


def test_padded_batches_have_the_configured_sizes(start: Callable[..., Server]) -> None:
    server = start()
    assert tune(server, {"pad_to": [8, 64]})[0] == 200
    sizes: list[tuple[int, int]] = []

    def padded(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        sizes.append((int(about["valid_rows"]), batch.num_rows))
        assert not numbers(batch, "u")[int(about["valid_rows"]) :].any()
        assert batch["found"].to_pylist()[int(about["valid_rows"]) :] == [0] * (batch.num_rows - int(about["valid_rows"]))
        return score(batch, about)

    with worker(server, padded):
        caller = Caller(server)
        for count in (3, 8, 9, 100):
            users = list(range(count))
            assert caller(users, users)[0]["score"].to_pylist() == expected(users, users)
    assert sizes == [(3, 8), (8, 8), (9, 64), (100, 100)]


def test_queue_settings_change_at_run_time_and_a_dry_run_changes_nothing(start: Callable[..., Server]) -> None:
    server = start()
    with worker(server):
        caller = Caller(server)
        for number in range(50):
            caller([number], [1])
        code, dry = tune(server, {"max_batch_rows": 10, "max_batch_delay": "20ms"}, "?dry_run")
        assert code == 200 and dry["dry_run"] and dry["batching"]["max_batch_rows"] == 10
        assert dry["forecast"]["capacity_rows_per_second"] < dry["forecast_before"]["capacity_rows_per_second"]
        assert status(server)["batching"]["max_batch_rows"] == 1000
        curve = json.loads(server.http_get("/api/v1/queues/ranker/throughput-latency")[1])
        sizes = [point["max_batch_rows"] for point in curve["points"]]
        assert sizes == [16 << number for number in range(len(sizes))] and len(sizes) > 8
        # The fixed cost of a batch is divided by more rows.
        capacities = [point["forecast"]["capacity_rows_per_second"] for point in curve["points"]]
        assert capacities == sorted(capacities) and curve["current"]["max_batch_rows"] == 1000
        code, tuned = tune(server, {"max_batch_rows": 10})
        assert code == 200 and tuned["batching"]["max_batch_delay"] == "5ms"
        assert status(server)["batching"]["max_batch_rows"] == 10
        assert "10" in caller(np.zeros(11), np.zeros(11))[1]["error"]["message"]
        for nonsense, why in [
            ({"max_batch_rows": 0}, "max_batch_rows is 0"),
            ({"max_rows": 5}, "unknown field `max_rows`"),
            ({"default_timeout": "soon"}, "default_timeout: "),
            (b"[]", "expected a JSON object"),
        ]:
            code, body = tune(server, nonsense)
            assert code == 422 and why in body["error"], body
        assert status(server)["batching"]["max_batch_rows"] == 10
    assert server.http_get("/api/v1/queues/rankr")[0] == 404
    assert [queue["name"] for queue in json.loads(server.http_get("/api/v1/queues")[1])["queues"]] == ["ranker"]


WORKER = """
import sys
sys.path.insert(0, {folder!r})
from test_queues import numbers, score, serve
import time
def slow(batch, about):
    time.sleep(0.02)
    print(*(int(value) for value in numbers(batch, "u")[:, 0]), flush=True)
    return score(batch, about)
serve({location!r}, slow)
"""


def test_killed_workers_neither_lose_nor_mix_up_requests(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start()
    assert tune(server, {"max_batch_rows": 20, "max_attempts": 3})[0] == 200
    logs = [tmp_path / f"worker-{number}" for number in range(6)]

    def run(log: Path) -> subprocess.Popen:
        script = WORKER.format(folder=str(Path(__file__).parent), location=server.location)
        return subprocess.Popen([sys.executable, "-c", script], stdout=log.open("w"))

    running = [run(log) for log in logs[:2]]
    until(lambda: status(server)["load"]["workers"] == 2)
    caller, lost = Caller(server), 0
    sent = 300
    for number in range(sent):
        caller.send([number], [number], id=number, timeout_seconds=60)
    # Each worker is killed during a computation, and another one connects.
    for log in logs[2:]:
        time.sleep(0.15)
        running[0].send_signal(signal.SIGKILL)
        running = [*running[1:], run(log)]
    answered: set[int] = set()
    for _ in range(sent):
        scores, about = caller.receive()
        number = int(about.get("id", 0))
        assert number not in answered
        answered.add(number)
        if scores is None:
            assert about["error"]["code"] in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}, about
            lost += 1
        else:
            assert scores["score"].to_pylist() == [number * 10_000.0 + number]
    caller.close()
    [process.kill() for process in running]
    [process.wait() for process in running]
    assert len(answered) == sent and lost < sent / 10
    computed = [int(user) for log in logs for user in log.read_text().split()]
    assert max(computed.count(number) for number in range(sent)) <= 3


def test_a_stopping_server_answers_running_batches_and_ends_exchanges_as_unavailable(start: Callable[..., Server]) -> None:
    server = start()
    gate = threading.Event()

    def waits(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        gate.wait(60)
        return score(batch, about)

    with worker(server, waits):
        caller = Caller(server)
        caller.send([5], [6])
        until(lambda: status(server)["load"]["batches"] == 1)
        server.terminate()
        until(lambda: server.http_get("/readyz")[0] == 503)
        gate.set()
        assert caller.receive()[0]["score"].to_pylist() == [50_006.0]
        with pytest.raises(flight.FlightUnavailableError, match="the server is stopping"):
            caller.receive()
        assert server.wait() == 0


def test_several_datasets_are_looked_up_in_one_round_trip(start: Callable[..., Server]) -> None:
    server = start()
    with Client(server.location) as client:
        items = {"dataset": "items", "columns": ["item_id"], "tensors": [{"name": "i", "columns": ["g*"]}], "key": ["shown"]}
        wanted = {"dataset": "users", "columns": ["user_id"], "tensors": [{"name": "u", "columns": ["f*"]}], "joins": [items]}

        def look_up(keys: dict, **lookup: Any) -> tuple[pa.RecordBatch, dict]:
            descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": {**wanted, **lookup}}).encode())
            writer, reader = client.flight.do_exchange(descriptor)
            batch = pa.record_batch({name: pa.array(values) for name, values in keys.items()})
            writer.begin(batch.schema)
            writer.write_batch(batch)
            chunk = reader.read_chunk()
            return chunk.data, json.loads(chunk.app_metadata.to_pybytes())

        rows, about = look_up({"user_id": [3, -1, 4], "shown": [9, 8, 99_999]})
        assert rows.schema.names == ["user_id", "u", "found", "item_id", "i", "items_found"]
        assert rows["user_id"].to_pylist() == [3, None, 4] and rows["item_id"].to_pylist() == [9, 8, None]
        assert rows["found"].to_pylist() == [1, 0, 1] and rows["items_found"].to_pylist() == [1, 1, 0]
        assert numbers(rows, "u")[:, 7].tolist() == [10, 0, 11] and numbers(rows, "i")[:, 3].tolist() == [12, 11, 0]
        assert about["found"] == 2 and about["joins"][0]["found"] == 2
        assert about["joins"][0]["snapshot"] != about["snapshot"]
        rows.validate(full=True)
        for odd, why in [
            ({"joins": [{**items, "columns": ["item_id"], "tensors": [{"name": "u", "columns": ["g*"]}]}]}, "'u' of dataset 'items' appears twice"),
            ({"joins": [{**items, "key": ["seen"]}]}, "there is no column 'seen'"),
            ({"joins": [{**items, "key": ["shown", "user_id"]}]}, "names 2 columns"),
            ({"joins": [{**items, "joins": [items]}]}, "joins"),
            ({"joins": [{**items, "dataset": "item"}]}, "item"),
        ]:
            with pytest.raises((pa.ArrowException, flight.FlightError, KeyError), match=why):
                look_up({"user_id": [3], "shown": [1]}, **odd)
