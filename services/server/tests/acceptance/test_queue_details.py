"""Requests with equal ids, a worker process that is stopped, and the metric for autoscalers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa

from metrics import scrape
from server import Server, until
from test_queues import WORKER, Caller, features, score, start, status, tune, worker  # noqa: F401 (fixtures)


def events(server: Server, kind: str) -> list[dict[str, Any]]:
    """Events of a kind, oldest first."""
    code, body = server.http_get("/api/v1/events")
    assert code == 200, body
    return [event for event in json.loads(body)["events"] if event["kind"] == kind]


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
        # The API names the stopped worker, with the time since its last answer.
        now = status(server)
        silent = now["silent_workers"]
        assert now["load"]["overdue_workers"] == len(silent) >= 1
        name, silent_seconds = silent[0]["name"], silent[0]["silent_seconds"]
        assert re.fullmatch(rf"worker {silent[0]['worker']} \(127\.0\.0\.1:\d+\)", name) and silent_seconds >= 1
        until(lambda: status(server)["silent_workers"][0]["silent_seconds"] > silent_seconds)
        until(lambda: bool(events(server, "worker_overdue")))
        overdue = events(server, "worker_overdue")[0]
        assert overdue["severity"] == "warning" and overdue["queue"] == "ranker"
        assert re.match(rf"{re.escape(name)} has not answered for \d+\.\ds and receives no batches", overdue["message"])
        assert not [event for event in events(server, "worker_answering") if name in event["message"]]
        workers[0].send_signal(signal.SIGCONT)
        # Its late reply makes it a worker again.
        until(lambda: status(server)["load"]["workers"] == 2)
        assert status(server)["silent_workers"] == []
        answering = lambda: [each for each in events(server, "worker_answering") if each["message"].startswith(name)]
        until(lambda: bool(answering()))
        assert re.search(r" answers again, after \d+\.\ds$", answering()[0]["message"])
        ask(80)
        caller.close()
    finally:
        [process.kill() for process in workers]
        [process.wait() for process in workers]


def test_a_worker_whose_failed_batches_others_compute_is_named_while_it_is_suspended(
    start: Callable[..., Server],  # noqa: F811
) -> None:
    server = start()
    joined: list[str] = []

    def broken(_batch: pa.RecordBatch, _about: dict) -> np.ndarray:
        raise ValueError("CUDA error: device-side assert triggered")

    def names() -> list[str]:
        return [event["message"].partition(" connected")[0] for event in events(server, "worker_joined")]

    with worker(server, broken, credits=1):
        until(lambda: len(names()) == 1)
        joined += names()
        with worker(server, credits=1):
            until(lambda: status(server)["load"]["workers"] == 2)
            caller, suspended = Caller(server), []
            while not suspended:
                scores, about = caller([1], [2], timeout_seconds=60)
                assert scores is not None and scores["score"].to_pylist() == [10_002.0], about
                suspended = status(server)["suspended_workers"]
            (listed,) = suspended
            assert listed["name"] == joined[0] and listed["name"].startswith(f"worker {listed['worker']} (127.0.0.1:")
            assert 0 < listed["remaining_seconds"] <= 60
            until(lambda: bool(events(server, "worker_suspended")))
            event = events(server, "worker_suspended")[0]
            assert event["severity"] == "warning" and event["queue"] == "ranker"
            assert event["message"].startswith(f"{listed['name']} failed batches that other workers computed")
            exposed = scrape(server)
            assert exposed.value("forebay_queue_suspensions_total", queue="ranker") >= 1
            assert exposed.value("forebay_events_total", kind="worker_suspended") >= 1
            caller.close()


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
