"""Requests with equal ids, a worker process that is stopped, and the metric for autoscalers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable

import numpy as np
import pyarrow as pa

from metrics import scrape
from server import Server, until
from test_queues import WORKER, Caller, features, score, start, status, tune, worker  # noqa: F401 (fixtures)


def test_a_cancel_reaches_the_last_of_several_requests_with_one_id(start: Callable[..., Server]) -> None:  # noqa: F811
    server = start()
    caller = Caller(server)
    for user in (1, 2):
        caller.send([user], [0], id=7)
    until(lambda: status(server)["load"]["queued_requests"] == 2)
    caller.writer.write_metadata(b'{"cancel": 7}')
    _, about = caller.receive()
    assert (about["error"]["code"], int(about["id"])) == ("CANCELLED", 7)
    with worker(server):
        scores, about = caller.receive()
        assert (scores["score"].to_pylist(), int(about["id"])) == ([10_000.0], 7), "the first one is answered"
        caller.close()


def test_the_answer_of_the_first_request_with_an_id_leaves_the_last_one_cancellable(
    start: Callable[..., Server],  # noqa: F811
) -> None:
    server = start()
    assert tune(server, {"max_batch_rows": 1})[0] == 200
    may_answer, arrived = threading.Semaphore(0), threading.Semaphore(0)

    def waits(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        arrived.release()
        may_answer.acquire()
        return score(batch, about)

    with worker(server, waits, credits=1):
        caller = Caller(server)
        for user in (1, 2):
            caller.send([user], [0], id=7, timeout_seconds=60)
        assert arrived.acquire(timeout=60)
        may_answer.release()
        assert caller.receive()[0]["score"].to_pylist() == [10_000.0]
        # The worker computes the second one.
        assert arrived.acquire(timeout=60)
        caller.writer.write_metadata(b'{"cancel": 7}')
        _, about = caller.receive()
        assert (about["error"]["code"], int(about["id"])) == ("CANCELLED", 7)
        may_answer.release()


def test_the_requests_of_a_stopped_worker_process_are_answered_by_another_one(
    start: Callable[..., Server], tmp_path: Path  # noqa: F811
) -> None:
    server = start()
    assert tune(server, {"max_batch_rows": 20})[0] == 200
    script = WORKER.format(folder=str(Path(__file__).parent), location=server.location)
    logs = [tmp_path / f"worker-{number}" for number in range(2)]
    workers = [subprocess.Popen([sys.executable, "-c", script], stdout=log.open("w")) for log in logs]
    try:
        until(lambda: status(server)["load"]["workers"] == 2)
        caller = Caller(server)
        # A worker is overdue by the time that its batches take, so each computes some.
        sent = 0

        def ask(count: int) -> None:
            nonlocal sent
            numbers = range(sent, sent + count)
            for number in numbers:
                caller.send([number], [number], id=number, timeout_seconds=60)
            sent += count
            found = {}
            for _ in numbers:
                scores, about = caller.receive()
                found[int(about.get("id", 0))] = scores and scores["score"].to_pylist()
            assert found == {number: [number * 10_000.0 + number] for number in numbers}

        while not all(len(log.read_text().splitlines()) >= 5 for log in logs):
            ask(80)
        workers[0].send_signal(signal.SIGSTOP)
        ask(200)
        assert scrape(server).value("forebay_queue_overdue_total", queue="ranker") >= 1
        assert status(server)["load"]["overdue_workers"] >= 1
        workers[0].send_signal(signal.SIGCONT)
        # Its late reply makes it a worker again.
        until(lambda: status(server)["load"]["workers"] == 2)
        ask(80)
        caller.close()
    finally:
        [process.kill() for process in workers]
        [process.wait() for process in workers]


def test_the_demand_for_workers_is_the_mean_rate_of_requests_over_the_capacity_of_a_worker(
    start: Callable[..., Server],  # noqa: F811
) -> None:
    server = start()
    name = "forebay_queue_demand_workers"
    assert name not in scrape(server).names(), "no batch was computed"
    with worker(server):
        caller = Caller(server)
        first_sent = time.monotonic()
        caller([0], [1])
        first_answered = time.monotonic()
        for number in range(1, 100):
            caller([number], [1])
        capacity = status(server)["forecast"]["capacity_rows_per_second"]
        scrape_begin = time.monotonic()
        demand = scrape(server).value(name, queue="ranker")
        scrape_end = time.monotonic()
        caller.close()
    # If the first request was less than 10 s ago, the rate is 100 divided by the time since it.
    longest_s, shortest_s = max(1, scrape_end - first_sent), max(1, scrape_begin - first_answered)
    least = 100 / longest_s if longest_s < 10 else 0
    most = 100 / shortest_s if longest_s < 10 else 100
    assert 0.99 * least <= demand * capacity <= 1.01 * most, (demand, capacity, longest_s, shortest_s)
