"""Callers and workers of batch queues: the example in the documentation, failures, threads, restarts."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import pytest

import forebay
import server as servers
from ports import free_port
from server import Pool, Server, until

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

pytestmark = pytest.mark.once

PAGE = (servers.ROOT / "docs" / "how-to" / "batch-queues.md").read_text()
USERS, ITEMS = 1000, 2000


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def start(pool: Pool, tmp_path: Path) -> Callable[..., Server]:
    """Servers with the queue of the documentation. The features of a row are `key + column`."""
    for name, key, letter, count, width in [("users", "user_id", "f", USERS, 8), ("items", "item_id", "g", ITEMS, 4)]:
        ids = np.arange(count)
        rows = {key: ids, **{f"{letter}{n}": (ids + n).astype(np.float32) for n in range(width)}}
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet", row_group_size=500)
    (tmp_path / "forebay.toml").write_text(blocks("toml")[0])
    datasets = {name: tmp_path / f"{name}.parquet" for name in ("users", "items")}

    def started(grpc: str | None = None) -> Server:
        # Workers outlive their test. No later server uses this port, so they cannot connect to one.
        return pool.start(datasets, config=tmp_path / "forebay.toml", grpc=grpc or f"127.0.0.1:{free_port()}")

    return started


@pytest.fixture
def ranker(start: Callable[..., Server]) -> Server:
    return start()


def keys(users: list[int], items: list[int]) -> dict:
    return {"user_id": users, "item_id": items}


def start_worker(server: Server, model: Callable, **options) -> threading.Thread:
    def run() -> None:
        try:
            for batch in forebay.connect(server.location, retry_deadline=60).worker("ranker", **options):
                model(batch)
        except forebay.Error:
            pass  # The server was stopped.

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def add(batch: forebay.Batch) -> None:
    batch.reply({"sum": batch["u"].to_numpy()[:, 0] + batch["i"].to_numpy()[:, 0], "user": batch["u"].to_numpy()[:, 0]})


def test_the_example_of_the_documentation_runs_as_written(ranker: Server, tmp_path: Path) -> None:
    worker, caller = (block.replace("grpc://127.0.0.1:8815", ranker.location) for block in blocks("python")[0:2])
    running = subprocess.Popen([sys.executable, "-c", worker])
    try:
        done = subprocess.run([sys.executable, "-c", caller.replace("timeout=0.05", "timeout=60")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        rng = np.random.default_rng(1)
        user, item = rng.random((8, 16), np.float32), rng.random((4, 16), np.float32)
        scores = ((np.arange(7, 15, dtype=np.float32) @ user) * ((np.arange(500)[:, None] + np.arange(4)).astype(np.float32) @ item)).sum(1)
        best = [int(number) for number in re.findall(r"\d+", done.stdout)]
        assert len(best) == 10 and set(best) == set(np.argsort(-scores)[:10].tolist())
    finally:
        running.kill()
        running.wait()


def test_the_example_of_request_columns_runs_as_written(start: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text("".join(blocks("toml")[0:2]))
    server = start()
    worker, caller = (block.replace("grpc://127.0.0.1:8815", server.location) for block in blocks("python")[2:4])
    running = subprocess.Popen([sys.executable, "-c", worker])
    try:
        done = subprocess.run([sys.executable, "-c", caller.replace("timeout=0.5", "timeout=60")], capture_output=True, text=True)
        assert (done.returncode, done.stdout.split()) == (0, "[1. 4.] [True, False]".split()), done.stdout + done.stderr
    finally:
        running.kill()
        running.wait()


def test_a_request_may_have_low_priority(ranker: Server) -> None:
    start_worker(ranker, add)
    client = forebay.connect(ranker.location)
    assert client.infer("ranker", keys([1], [2]), timeout=60, priority="low")["sum"].to_numpy().tolist() == [3]
    with pytest.raises(forebay.errors.RequestError, match="priority is 'high', expected 'normal' or 'low'"):
        client.infer("ranker", keys([1], [2]), priority="high")  # type: ignore[arg-type]


def test_threads_of_one_client_receive_their_own_answers(ranker: Server) -> None:
    start_worker(ranker, add)
    client, failures = forebay.connect(ranker.location), []

    def ask(number: int) -> None:
        try:
            for step in range(20):
                items = list(range(step + 1))
                answer = client.infer("ranker", keys([number] * len(items), items), timeout=60)
                assert answer["sum"].to_numpy().tolist() == [number + item for item in items]
                assert answer["user"].to_numpy().tolist() == [number] * len(items)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures[0]


def test_a_rejected_request_has_a_reason_and_the_next_one_succeeds(ranker: Server) -> None:
    client = forebay.connect(ranker.location)
    # This request opens the exchange, so the timeout of the next request does not include the time for that.
    too_many = [0] * 5000
    with pytest.raises(forebay.RequestRejectedError, match="4096") as refused:
        client.infer("ranker", keys(too_many, too_many))
    assert refused.value.code == "INVALID_ARGUMENT"
    for _ in range(5):
        began = time.monotonic()
        with pytest.raises(forebay.RequestRejectedError) as refused:
            client.infer("ranker", keys([1], [1]), timeout=3)
        assert refused.value.code == "DEADLINE_EXCEEDED" and time.monotonic() - began < 60
        # On a busy machine, the client may give up before it has the answer of the server.
        if "no answer within the timeout" not in str(refused.value):
            break
    assert "no worker serves the queue" in str(refused.value)
    start_worker(ranker, add)
    assert client.infer("ranker", keys([1], [2]), timeout=60)["sum"].to_numpy().tolist() == [3]


def test_a_batch_without_a_reply_or_with_an_error_fails_alone(ranker: Server) -> None:
    def sometimes(batch: forebay.Batch) -> None:
        first = batch["u"].to_numpy()[0, 0]
        if first == 1:
            return
        if first == 2:
            batch.fail("two is too many")
            return
        if first == 3:
            with pytest.raises(ValueError, match="rows"):
                batch.reply(np.zeros(batch.valid_rows + 5))
            return
        add(batch)

    start_worker(ranker, sometimes)
    client = forebay.connect(ranker.location)
    for user, message in [(1, "reply"), (2, "two is too many"), (3, "rows")]:
        with pytest.raises(forebay.RequestRejectedError, match=message) as refused:
            client.infer("ranker", keys([user], [1]), timeout=60)
        assert refused.value.code == "INTERNAL"
    assert client.infer("ranker", keys([4], [1]), timeout=60)["sum"].to_numpy().tolist() == [5]


def test_a_reply_or_a_reason_that_is_too_large_does_not_end_the_loop(ranker: Server, caplog: pytest.LogCaptureFixture) -> None:
    def large(batch: forebay.InferenceBatch) -> None:
        if user_of(batch) == 9:
            batch.fail("x" * 400_000)
        else:
            batch.reply(np.zeros((batch.valid_rows, 1 << 20), np.float32))

    start_worker(ranker, large)
    client = forebay.connect(ranker.location)
    for _ in range(2):
        with pytest.raises(forebay.RequestRejectedError, match=r"the limit of the server is 16777216 \(limits.max_exchange_bytes\)"):
            client.infer("ranker", keys([1] * 5, [1] * 5), timeout=60)
        with pytest.raises(forebay.RequestRejectedError, match="xxx"):
            client.infer("ranker", keys([9], [1]), timeout=60)
        assert client.infer("ranker", keys([2], [1]), timeout=60)["score"].to_numpy().shape == (1, 1 << 20)
    assert "reply discarded: the message has " in caplog.text


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (["a", None], [None, None], [None, None]),
        ([None, None], ["a", "b"], ["a", "b"]),
        ([0.5, 1], [1, 1], [1.0, 1.0]),
        ([1, 2], [3.0, None], [3, None]),
        ([True, None], [None, None], [None, None]),
    ],
)
def test_replies_of_values_keep_the_type_of_the_first_one(ranker: Server, first: list, then: list, expected: list) -> None:
    start_worker(ranker, lambda batch: batch.reply({"label": then if user_of(batch) == 2 else first}))
    client = forebay.connect(ranker.location)
    for user, values in ((1, first), (2, expected), (1, first)):
        answer = client.infer("ranker", keys([user, 1], [1, 1]), timeout=60)["label"].to_arrow().to_pylist()
        assert answer == values and [type(value) for value in answer if user == 2] == [type(value) for value in values if user == 2]


def ask(client: forebay.Client, user: int, answers: dict) -> threading.Thread:
    """Starts a request, whose answer or error is put into `answers`."""

    def run() -> None:
        try:
            answers[user] = client.infer("ranker", keys([user], [1]), timeout=60)["sum"].to_numpy().tolist()
        except forebay.errors.RequestRejectedError as error:
            answers[user] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def single(start: Callable[..., Server], tmp_path: Path) -> Server:
    """A server whose batches have one row."""
    config = tmp_path / "forebay.toml"
    config.write_text(config.read_text().replace("max_batch_rows = 4096", "max_batch_rows = 1"))
    return start()


def user_of(batch: forebay.InferenceBatch) -> int:
    return int(batch["u"].to_numpy()[0, 0])


def next_before_reply(batches: Iterator[forebay.InferenceBatch], last: forebay.InferenceBatch) -> forebay.InferenceBatch | None:
    """Returns the next batch if it arrives before the reply to the last one, and otherwise replies to both.

    The server sends it shortly before the predicted end of the last one, and none to a worker that is late.
    """
    late = threading.Timer(0.3, add, [last])
    late.start()
    batch = next(batches)
    late.cancel()
    late.join()
    if last._native.is_open:
        return batch
    add(batch)
    return None


def two_of(
    client: forebay.Client, batches: Iterator[forebay.InferenceBatch]
) -> tuple[list[forebay.InferenceBatch], list[threading.Thread], dict]:
    """Returns two batches of one request each, without a reply, the threads of their callers, and the answers of these."""
    # The predictions are right after some batches.
    for _ in range(100):
        answers: dict = {}
        callers = [ask(client, user, answers) for user in (1, 2)]
        first = next(batches)
        if (second := next_before_reply(batches, first)) is not None:
            assert sorted(map(user_of, (first, second))) == [1, 2] and not answers
            return [first, second], callers, answers
        [caller.join(60) for caller in callers]
        assert answers == {1: [2], 2: [3]}
    raise AssertionError("the server never sent a batch before the reply to the last one")


def test_a_worker_may_have_several_batches_and_reply_in_any_order(single: Server) -> None:
    client = forebay.connect(single.location)
    batches = client.worker("ranker", credits=2, max_unanswered=2)
    (first, second), callers, answers = two_of(client, batches)
    add(second)
    callers[user_of(second) - 1].join(60)
    assert answers == {user_of(second): [user_of(second) + 1]}
    add(first)
    [caller.join(60) for caller in callers]
    assert answers == {1: [2], 2: [3]}
    batches.close()


def test_batches_that_the_loop_forgot_fail_although_it_may_have_several(single: Server) -> None:
    client, answers = forebay.connect(single.location), {}
    batches = client.worker("ranker", credits=2, max_unanswered=2)
    caller = ask(client, 1, answers)
    # A batch without a reference is forgotten, although no further one arrives.
    batch = next(batches)
    del batch
    caller.join(60)
    assert "did not reply" in str(answers[1])
    # The oldest one fails when the loop requests more than it may have.
    (oldest, other), callers, answers = two_of(client, batches)
    threading.Thread(target=lambda: (callers[user_of(oldest) - 1].join(60), add(other), ask(client, 3, answers)), daemon=True).start()
    last = next(batches)
    assert user_of(last) == 3 and "did not reply" in str(answers[user_of(oldest)])
    with pytest.raises(RuntimeError, match="already has a reply"):
        add(oldest)
    callers[user_of(other) - 1].join(60)
    # The end of the loop fails the rest.
    batches.close()
    until(lambda: 3 in answers)
    assert "did not reply" in str(answers[3]) and answers[user_of(other)] == [user_of(other) + 1]
    for wrong in (0, 3):
        with pytest.raises(ValueError, match=f"max_unanswered is {wrong}, expected 1 to credits, which is 2"):
            client.worker("ranker", credits=2, max_unanswered=wrong)


def test_replies_are_arrays_lists_or_arrow_batches(ranker: Server) -> None:
    kinds = {
        1: lambda rows: np.arange(rows, dtype=np.float32),
        2: lambda rows: pa.record_batch({"score": pa.array(np.arange(rows, dtype=np.float32))}),
        3: lambda rows: {"score": list(map(float, range(rows)))},
    }

    # All replies of a worker have the same type, so each type has a worker. It stays connected until its reply is received.
    def serve_one(make: Callable, received: threading.Event) -> None:
        for batch in forebay.connect(ranker.location).worker("ranker"):
            batch.reply(make(batch.valid_rows))
            received.wait(60)
            return

    for user, make in kinds.items():
        received = threading.Event()
        worker = threading.Thread(target=serve_one, args=[make, received])
        worker.start()
        client = forebay.connect(ranker.location)
        assert client.infer("ranker", keys([user] * 3, [1, 2, 3]), timeout=60)["score"].to_numpy().tolist() == [0, 1, 2]
        received.set()
        worker.join()


def test_a_matrix_in_a_reply_is_returned_as_a_matrix(ranker: Server) -> None:
    start_worker(ranker, lambda batch: batch.reply({"embedding": batch["u"].to_numpy()[:, :3] * 2}))
    answer = forebay.connect(ranker.location).infer("ranker", keys([1, 5], [0, 0]), timeout=60)
    assert answer["embedding"].to_numpy().tolist() == [[2, 4, 6], [10, 12, 14]]


def test_callers_and_workers_reconnect_when_the_server_is_restarted(start: Callable[..., Server], tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/grpc"
    server = start(grpc=address)
    client, worker = forebay.connect(address, retry_deadline=60), forebay.connect(address, retry_deadline=60)

    def run() -> Iterator[None]:
        for batch in worker.worker("ranker"):
            add(batch)

    threading.Thread(target=run, daemon=True).start()
    assert client.infer("ranker", keys([1], [1]), timeout=60)["sum"].to_numpy().tolist() == [2]
    server.kill()
    start(grpc=address)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert client.infer("ranker", keys([2], [3]), timeout=30)["sum"].to_numpy().tolist() == [5]
            return
        except forebay.Error:
            # Requests in flight fail with an error. Later requests are answered.
            assert time.monotonic() < deadline
