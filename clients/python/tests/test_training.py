"""Loops are epochs, a state is enough to go on, and nothing outlives an iterator."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import forebay
from digests import digest
from server import Pool, until

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
BATCH = 50_000  # 60 steps an epoch


def training(client: forebay.Client, **options) -> forebay.Training:
    return client.train("flights", **{"batch_size": BATCH, "tensors": TENSOR, "seed": 3, **options})


def places(ds: forebay.Training, limit: int | None = None) -> list[tuple[int, int]]:
    found = []
    for batch in ds:
        found.append((batch.epoch, batch.step))
        if len(found) == limit:
            break
    return found


def test_every_loop_is_the_next_epoch(client: forebay.Client) -> None:
    ds = training(client)
    assert len(ds) == ds.steps_per_epoch == 60
    for epoch in range(3):
        assert places(ds) == [(epoch, step) for step in range(60)]
    ds = training(client, epoch=7)
    assert places(ds)[0] == (7, 0)


def test_epochs_of_one_stream_are_those_of_many(client: forebay.Client) -> None:
    one, many = training(client, epochs=3), training(client)
    for _ in range(3):
        assert digest(one) == digest(many)
    assert places(one) == [] == places(one), "three epochs are over"
    assert one._stream is None


def test_a_loop_that_is_left_early_is_followed_by_the_next_epoch(client: forebay.Client) -> None:
    for epochs in (None, 3):
        ds = training(client, epochs=epochs)
        assert places(ds, 5)[-1] == (0, 4)
        state = ds.state_dict()
        assert (state["epoch"], state["step"]) == (0, 5)
        assert places(ds) == [(1, step) for step in range(60)]
        ds.load_state_dict(state)
        assert places(ds) == [(0, step) for step in range(5, 60)]
        assert places(ds)[0] == (1, 0)


def test_an_earlier_loop_is_over_when_a_later_one_begins(client: forebay.Client) -> None:
    ds = training(client)
    earlier, later = iter(ds), iter(ds)
    next(earlier)
    assert next(later).epoch == 1
    later.close()
    with pytest.raises(RuntimeError, match="later loop"):
        next(earlier)
    assert places(ds, 1) == [(2, 0)], "the later one was left"


@pytest.mark.parametrize("stop", [1, 37, 59, 60])
def test_a_state_goes_on_with_the_batch_after_the_last_one(client: forebay.Client, stop: int) -> None:
    whole = training(client, epochs=2)
    expected = [digest([batch]) for _ in range(2) for batch in whole]
    ds, found = training(client), []
    for batch in ds:
        found.append(digest([batch]))
        if len(found) == stop:
            state = json.loads(json.dumps(ds.state_dict()))
            break
    again = training(client)
    again.load_state_dict(state)
    while len(found) < 120:
        found += [digest([batch]) for batch in again]
    assert found == expected


def test_a_state_is_the_same_on_every_rank_and_goes_to_any_number_of_them(client: forebay.Client) -> None:
    expected = [digest([batch]) for batch in training(client, batch_size=120_000, remainder="SHORT")]
    four = [training(client, batch_size=30_000, world_size=4, rank=rank, remainder="SHORT") for rank in range(4)]
    loops = [iter(ds) for ds in four]
    found = [digest(next(loop) for loop in loops) for _ in range(11)]
    states = [ds.state_dict() for ds in four]
    assert all(state == states[0] for state in states)
    for world_size in (1, 2, 3, 8):
        ranks = []
        for rank in range(world_size):
            ds = training(client, batch_size=120_000 // world_size, world_size=world_size, rank=rank)
            ds.load_state_dict(states[rank % 4])
            ranks.append(iter(ds))
        rest = [digest(step) for step in zip(*ranks)]
        assert found + rest == expected, f"{world_size} ranks"


def test_a_state_of_something_else_is_refused_with_both_values(client: forebay.Client) -> None:
    state = training(client).state_dict()
    for options, words in [
        ({"batch_size": 1000}, "global batches of 50000, this training has 1000"),
        ({"seed": 4}, "seed"),
        ({"shuffle": {"none": {}}}, "shuffle"),
        ({"tensors": {"x": {"columns": ["delay"], "dtype": "float32"}}}, "tensors"),
        ({"snapshot": "0" * 32}, "snapshot"),
        ({"remainder": "DROP"}, "remainder"),
    ]:
        with pytest.raises(forebay.errors.StateError, match=words):
            training(client, **options).load_state_dict(state)
    with pytest.raises(forebay.errors.StateError, match="version"):
        training(client).load_state_dict({**state, "version": 99})


def test_rank_and_world_size_come_from_the_environment_and_are_said_aloud(
    client: forebay.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level(logging.WARNING):
        ds = training(client)
    assert "rank 2 of 4" in caplog.text and "1/4 of the rows" in caplog.text
    assert (ds.rank, ds.world_size, len(ds)) == (2, 4, 15)
    assert training(client, rank=0, world_size=1).world_size == 1
    with pytest.raises(ValueError, match="go together"):
        training(client, rank=1)
    with pytest.raises(ValueError, match="expected 0 to 3"):
        training(client, rank=4, world_size=4)


def test_lanes_change_nothing(client: forebay.Client) -> None:
    assert digest(training(client, lanes=3)) == digest(training(client))


def test_a_pickled_training_stands_where_its_original_stood(client: forebay.Client) -> None:
    ds = training(client)
    expected = [digest([batch]) for batch in training(client)]
    found = []
    for batch in ds:
        found.append(digest([batch]))
        if len(found) == 20:
            copy = pickle.loads(pickle.dumps(ds))
            break
    state = copy.state_dict()
    assert (state["epoch"], state["step"]) == (0, 20)
    assert places(copy)[0] == (1, 0), "a loop that was left is followed by the next epoch, in a copy, too"
    copy.load_state_dict(state)
    assert found + [digest([batch]) for batch in copy] == expected


def forked(ds: forebay.Training, queue: multiprocessing.Queue) -> None:
    queue.put(digest(ds))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_training_loops_in_a_child_process(client: forebay.Client, method: str) -> None:
    ds = training(client)
    running = iter(ds)
    next(running)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=forked, args=(training(client), queue))
    child.start()
    assert queue.get(timeout=60) == digest(training(client))
    child.join(60)
    assert child.exitcode == 0
    assert next(running).step == 1, "the parent goes on"


def test_a_training_whose_stream_waits_between_epochs_loops_in_a_forked_child(client: forebay.Client) -> None:
    ds, expected = training(client, epochs=3), training(client, epochs=3)
    assert digest(ds) == digest(expected)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=forked, args=(ds, queue))
    child.start()
    second = digest(expected)
    assert queue.get(timeout=60) == second == digest(ds)
    child.join(60)
    assert child.exitcode == 0


def test_an_iterator_that_was_forked_says_so_and_its_child_ends(client: forebay.Client) -> None:
    running = iter(training(client))
    next(running)
    child = os.fork()
    if child == 0:
        try:
            next(running)
        except RuntimeError as error:
            del running
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    next(running)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_back_at(before: tuple[int, int], when: str) -> None:
    """A thread that has been joined is listed for a moment more."""
    until(lambda: (threads(), descriptors()) == before, failure=when)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmRSS")


@pytest.mark.alone
def test_nothing_outlives_an_iterator(client: forebay.Client) -> None:
    ds = training(client)
    sum(len(batch) for batch in ds)  # What a process has once, such as the pipe of its signals, stays.
    before = threads(), descriptors()
    for batch in ds:
        pass
    assert_back_at(before, "after a whole loop")
    for batch in ds:
        assert threads() > before[0]
        break
    assert_back_at(before, "after a loop that was left")
    loop = iter(ds)
    next(loop)
    del loop, ds
    gc.collect()
    assert_back_at(before, "after a training that was dropped")


@pytest.mark.alone
def test_a_thousand_iterators_half_read_and_dropped_leave_nothing(client: forebay.Client) -> None:
    def open_and_drop(times: int) -> None:
        for number in range(times):
            for batch in training(client, batch_size=1000, epoch=number % 3):
                if batch.step == 3:
                    break

    open_and_drop(100)
    before = threads(), descriptors(), resident_bytes()
    open_and_drop(1000)
    assert_back_at(before[:2], "after a thousand")
    assert resident_bytes() - before[2] < 16 << 20


@pytest.mark.alone
def test_memory_is_flat_over_a_hundred_epochs(client: forebay.Client) -> None:
    ds = training(client, epochs=120)
    for _ in range(20):
        assert sum(len(batch) for batch in ds) == 3_000_000
    before = resident_bytes()
    for _ in range(100):
        assert sum(len(batch) for batch in ds) == 3_000_000
    assert resident_bytes() - before < 16 << 20


def test_other_python_threads_run_while_it_waits(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    ds = training(forebay.connect(server.location, prefetch_batches=1))
    loop = iter(ds)
    next(loop)
    server.process.send_signal(signal.SIGSTOP)
    counted = 0
    done = threading.Event()

    def take() -> None:
        for _ in loop:
            pass
        done.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        counted += 1
        time.sleep(0.001)
    assert counted > 200 and not done.is_set()
    server.process.send_signal(signal.SIGCONT)
    waiting.join(60)
    assert done.is_set()


def test_ctrl_c_ends_a_wait(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    code = f"""
import faulthandler, forebay, os, sys, time
faulthandler.dump_traceback_later(15, exit=True)
before = os.listdir("/proc/self/task")
loop = iter(forebay.connect({server.location!r}, prefetch_batches=1).train("flights", batch_size=1000))
next(loop)
os.kill({server.pid}, 19)
print("waiting", flush=True)
try:
    for batch in loop: pass
except KeyboardInterrupt:
    del loop
    give_up = time.monotonic() + 10
    while os.listdir("/proc/self/task") != before and time.monotonic() < give_up: time.sleep(0.01)
    print("interrupted", os.listdir("/proc/self/task") == before, flush=True)
"""
    # Whoever runs tests in the background has them ignore SIGINT, and so would the child.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **listen)
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=20)[0] == "interrupted True\n"
    server.process.send_signal(signal.SIGCONT)


def test_stats_add_up_over_loops(client: forebay.Client) -> None:
    ds = training(client)
    for loop in (1, 2):
        for batch in ds:
            time.sleep(0.001)
        stats = ds.stats()
        assert (stats["batches"], stats["rows"]) == (60 * loop, 3_000_000 * loop)
    assert stats["compute_seconds"] > 0.1 and 0 <= stats["stall"] < 1


def test_a_long_wait_counts_as_long_as_it_was(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    ds = training(forebay.connect(server.location, prefetch_batches=1), batch_size=1000, epochs=2)
    loop = iter(ds)
    next(loop)
    before = ds.stats()["wait_seconds"]
    server.process.send_signal(signal.SIGSTOP)
    threading.Timer(0.75, server.process.send_signal, [signal.SIGCONT]).start()
    for _ in range(600):
        next(loop)
    assert 0.6 < ds.stats()["wait_seconds"] - before < 2


def test_closing_a_training_within_its_loop_says_so(client: forebay.Client) -> None:
    ds = training(client)
    with pytest.raises(RuntimeError, match="closed.*within its loop"):
        for batch in ds:
            ds.close()


def test_callbacks_see_every_step_and_progress_is_shown(client: forebay.Client, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not in this environment; the other one has it")
    seen = []
    ds = training(client, callbacks=[lambda ds: seen.append((ds.epoch, ds.step))], progress=True)
    for batch in ds:
        pass
    assert seen == [(0, step) for step in range(1, 61)]
    assert "60/60" in capsys.readouterr().err


def test_a_report_reaches_the_operators_of_the_server(client: forebay.Client, flights_server) -> None:
    for batch in training(client, batch_size=1000):
        time.sleep(0.02)
        sessions = json.loads(flights_server.http_get("/api/v1/sessions")[1])["sessions"]
        if any(session["reports"] and session["client"]["compute"] > 0 for session in sessions):
            return
    raise AssertionError("no report came")


def test_numpy_gets_every_row_once(client: forebay.Client, flights: Path) -> None:
    import pyarrow.parquet as pq

    rows = np.concatenate([batch["x"].to_numpy() for batch in training(client)])
    table = pq.read_table(flights, columns=["delay", "distance"])
    wanted = np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float32)
    order = np.lexsort(rows.T), np.lexsort(wanted.T)
    np.testing.assert_array_equal(rows[order[0]], wanted[order[1]])
