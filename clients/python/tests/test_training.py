"""An iteration is an epoch, a state resumes a training, and no resource outlives an iterator."""

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
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import ranks
from digests import digest
from server import Pool, until

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
BATCH = 50_000  # 60 steps an epoch


def dataset(client: forebay.Client, **options) -> forebay.TrainingDataset:
    return client.train("flights", **{"batch_size": BATCH, "tensors": TENSOR, "seed": 3, **options})


def places(ds: forebay.TrainingDataset, limit: int | None = None) -> list[tuple[int, int]]:
    found = []
    for batch in ds:
        found.append((batch.epoch, batch.step))
        if len(found) == limit:
            break
    return found


def test_every_iteration_is_the_next_epoch(client: forebay.Client) -> None:
    ds = dataset(client)
    assert len(ds) == ds.steps_per_epoch == 60
    for epoch in range(3):
        assert places(ds) == [(epoch, step) for step in range(60)]
    ds = dataset(client, epoch=7)
    assert places(ds)[0] == (7, 0)


def test_epochs_of_one_stream_equal_those_of_several_streams(client: forebay.Client) -> None:
    one, many = dataset(client, epochs=3), dataset(client)
    for _ in range(3):
        assert digest(one) == digest(many)
    assert places(one) == [] == places(one), "all three epochs were delivered"
    assert one._stream is None


def test_an_iteration_that_is_left_early_is_followed_by_the_next_epoch(client: forebay.Client) -> None:
    for epochs in (None, 3):
        ds = dataset(client, epochs=epochs)
        assert places(ds, 5)[-1] == (0, 4)
        state = ds.state_dict()
        assert (state["epoch"], state["step"]) == (0, 5)
        assert places(ds) == [(1, step) for step in range(60)]
        ds.load_state_dict(state)
        assert places(ds) == [(0, step) for step in range(5, 60)]
        assert places(ds)[0] == (1, 0)


def test_an_iteration_ends_when_a_later_one_starts(client: forebay.Client) -> None:
    ds = dataset(client)
    earlier, later = iter(ds), iter(ds)
    next(earlier)
    assert next(later).epoch == 1
    later.close()
    with pytest.raises(RuntimeError, match="later iteration"):
        next(earlier)
    assert places(ds, 1) == [(2, 0)], "the later iteration was left early"


@pytest.mark.parametrize("stop", [1, 37, 59, 60])
def test_a_state_resumes_with_the_batch_after_the_last_one(client: forebay.Client, stop: int) -> None:
    whole = dataset(client, epochs=2)
    expected = [digest([batch]) for _ in range(2) for batch in whole]
    ds, found = dataset(client), []
    for batch in ds:
        found.append(digest([batch]))
        if len(found) == stop:
            state = json.loads(json.dumps(ds.state_dict()))
            break
    again = dataset(client)
    again.load_state_dict(state)
    while len(found) < 120:
        found += [digest([batch]) for batch in again]
    assert found == expected


def test_a_state_is_equal_on_all_ranks_and_resumes_on_any_number_of_them(client: forebay.Client) -> None:
    expected = [digest([batch]) for batch in dataset(client, batch_size=120_000, remainder="SHORT")]
    four = [dataset(client, batch_size=30_000, world_size=4, rank=rank, remainder="SHORT") for rank in range(4)]
    loops = [iter(ds) for ds in four]
    found = [digest(next(loop) for loop in loops) for _ in range(11)]
    states = [ds.state_dict() for ds in four]
    assert all(state == states[0] for state in states)
    for world_size in (1, 2, 3, 8):
        parts = []
        for rank in range(world_size):
            ds = dataset(client, batch_size=120_000 // world_size, world_size=world_size, rank=rank)
            ds.load_state_dict(states[rank % 4])
            parts.append(iter(ds))
        rest = [digest(step) for step in zip(*parts)]
        assert found + rest == expected, f"{world_size} ranks"


def test_a_state_of_another_training_is_rejected_with_both_values(client: forebay.Client) -> None:
    state = dataset(client).state_dict()
    for options, message in [
        ({"batch_size": 1000}, "global batch of 50000, but batch_size 1000"),
        ({"seed": 4}, "seed"),
        ({"shuffle": {"none": {}}}, "shuffle"),
        ({"filter": "delay > 0"}, "filter"),
        ({"snapshot": "0" * 32}, "snapshot"),
        ({"remainder": "DROP"}, "remainder"),
    ]:
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=message):
            dataset(client, **options).load_state_dict(state)
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="version"):
        dataset(client).load_state_dict({**state, "version": 99})


def test_a_resumed_training_may_have_other_columns(client: forebay.Client) -> None:
    first, other = dataset(client), dataset(client, tensors={"y": ["distance"]}, columns=["delay"])
    expected = [batch["distance"].to_numpy().tobytes() for batch in dataset(client, tensors=None, columns=["distance"])]
    for batch in first:
        if batch.step == 9:
            break
    other.load_state_dict(first.state_dict())
    found = [(batch.keys(), batch["y"].to_numpy().tobytes()) for batch in other]
    assert found == [(["delay", "y"], values) for values in expected[10:]]


def test_epochs_are_counted_over_interruptions(client: forebay.Client) -> None:
    every = [(epoch, step) for epoch in range(3) for step in range(60)]
    assert [(batch.epoch, batch.step) for batch in dataset(client).epochs(3)] == every
    for stop in (1, 59, 60, 61, 120, 179, 180):
        ds, found = dataset(client), []
        for batch in ds.epochs(3):
            found.append((batch.epoch, batch.step))
            if len(found) == stop:
                break
        again = dataset(client)
        again.load_state_dict(ds.state_dict())
        for resumed in (ds, again):
            assert found + [(batch.epoch, batch.step) for batch in resumed.epochs(3)] == every
            assert list(resumed.epochs(3)) == []


def test_steps_cross_epochs_and_stop_in_their_middle(client: forebay.Client) -> None:
    ds = dataset(client, epoch=2)
    assert [(batch.epoch, batch.step) for batch in ds.steps(70)][-1] == (3, 9)
    assert ds._stream is None
    assert [(batch.epoch, batch.step) for batch in ds.steps(72)] == [(3, 10), (3, 11)]
    assert [(batch.epoch, batch.step) for batch in ds.epochs(2)] == [(3, step) for step in range(12, 60)]
    assert places(ds, 1) == [(4, 0)]
    with pytest.raises(ValueError, match="expected a whole number of at least 0"):
        ds.steps(-1)
    with pytest.raises(ValueError, match="expected a whole number of at least 0"):
        ds.epochs(-1)


def test_the_state_of_a_batch_is_exact_for_a_loop_that_reads_ahead(client: forebay.Client) -> None:
    ds = dataset(client)
    ahead = [batch for _, batch in zip(range(10), ds)]
    found = [digest([batch]) for batch in ahead[:3]]
    again = dataset(client)
    again.load_state_dict(ahead[2].state)
    assert found + [digest([batch]) for batch in again] == [digest([batch]) for batch in dataset(client)]
    assert ahead[-1].state == ds.state_dict()


def test_a_loop_that_is_suspended_does_not_change_a_later_one(client: forebay.Client) -> None:
    ds = dataset(client)
    suspended = ds.epochs(1)
    next(suspended)
    later = ds.epochs(2)
    found = [next(later)]
    suspended.close()
    found += later
    assert [(batch.epoch, batch.step) for batch in found] == [(epoch, step) for epoch in (0, 1) for step in range(60)][1:]


def test_a_loop_that_is_left_at_the_end_of_an_epoch_closes_its_stream(client: forebay.Client) -> None:
    ds = dataset(client, epochs=3)
    for batch in ds:
        if batch.step == 59:
            break
    assert ds._stream is None


def test_callbacks_are_called_after_every_step_of_a_span(client: forebay.Client) -> None:
    called = []
    ds = dataset(client, callbacks=[lambda ds: called.append((ds.epoch, ds.step))])
    assert len(list(ds.steps(61))) == 61
    assert called[-2:] == [(0, 60), (1, 1)] and len(called) == 61


def test_a_span_is_one_session_of_one_stream(client: forebay.Client) -> None:
    ds, streams = dataset(client), set()
    for _ in ds.epochs(3):
        streams.add(id(ds._stream))
    assert len(streams) == 1


def test_a_dataset_is_true_without_a_request() -> None:
    assert forebay.connect("grpc://127.0.0.1:1", retry_deadline=0).train("flights", batch_size=1)


def test_a_mixture_may_have_one_dataset_several_times(client: forebay.Client) -> None:
    late = {"dataset": "flights", "fraction": 0.5, "filter": "delay > 60"}
    early = {"dataset": "flights", "fraction": 0.25, "filter": "delay < 0"}
    ds = client.train("flights", batch_size=1000, columns=["delay"], mix=[late, early], filter="delay BETWEEN 0 AND 60")
    for batch in ds.steps(3):
        delays = batch["delay"].to_numpy()
        assert ((delays > 60).sum(), (delays < 0).sum()) == (500, 250)


def test_rank_and_world_size_from_the_environment_are_logged(
    client: forebay.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(ranks, "_announced", set())
    with caplog.at_level(logging.WARNING):
        ds = dataset(client)
        assert (ds.rank, ds.world_size, len(ds)) == (2, 4, 15)
        assert dataset(client).rank == 2
    assert caplog.text.count("RANK=2 of 4, from RANK and WORLD_SIZE: this process reads 1/4 of the rows") == 1
    assert dataset(client, rank=0, world_size=1).world_size == 1
    with pytest.raises(ValueError, match="go together"):
        dataset(client, rank=1)
    with pytest.raises(ValueError, match="expected 0 to 3"):
        dataset(client, rank=4, world_size=4)


def test_lanes_do_not_change_the_batches(client: forebay.Client) -> None:
    assert digest(dataset(client, lanes=3)) == digest(dataset(client))


def test_a_pickled_dataset_has_the_position_of_its_original(client: forebay.Client) -> None:
    ds = dataset(client)
    expected = [digest([batch]) for batch in dataset(client)]
    found = []
    for batch in ds:
        found.append(digest([batch]))
        if len(found) == 20:
            copy = pickle.loads(pickle.dumps(ds))
            break
    state = copy.state_dict()
    assert (state["epoch"], state["step"]) == (0, 20)
    assert places(copy)[0] == (1, 0), "the next epoch follows an iteration that was left early, also in a copy"
    copy.load_state_dict(state)
    assert found + [digest([batch]) for batch in copy] == expected


def forked(ds: forebay.TrainingDataset, queue: multiprocessing.Queue) -> None:
    queue.put(digest(ds))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_iterates_in_a_child_process(client: forebay.Client, method: str) -> None:
    ds = dataset(client)
    running = iter(ds)
    next(running)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=forked, args=(dataset(client), queue))
    child.start()
    assert queue.get(timeout=60) == digest(dataset(client))
    child.join(60)
    assert child.exitcode == 0
    assert next(running).step == 1, "the parent's iterator continues"


def test_a_dataset_with_an_open_stream_between_epochs_iterates_in_a_forked_child(client: forebay.Client) -> None:
    ds, expected = dataset(client, epochs=3), dataset(client, epochs=3)
    assert digest(ds) == digest(expected)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=forked, args=(ds, queue))
    child.start()
    second = digest(expected)
    assert queue.get(timeout=60) == second == digest(ds)
    child.join(60)
    assert child.exitcode == 0


def test_an_iterator_raises_after_a_fork_and_the_child_exits(client: forebay.Client) -> None:
    running = iter(dataset(client))
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
    """Waits until threads and descriptors are as before. The kernel lists a joined thread for a moment longer."""
    until(lambda: (threads(), descriptors()) == before, failure=when)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError("VmRSS")


@pytest.mark.alone
def test_nothing_outlives_an_iterator(client: forebay.Client) -> None:
    threads_at_start = threads()
    # The first iteration creates resources that the process keeps, such as the pipe for signals.
    sum(len(batch) for batch in dataset(client))
    gc.collect()
    until(lambda: threads() <= threads_at_start)
    before_dataset = threads(), descriptors()
    # With PyTorch, each dataset holds one file descriptor.
    ds = dataset(client)
    before = threads(), descriptors()
    for batch in ds:
        pass
    assert_back_at(before, "after a whole iteration")
    for batch in ds:
        assert threads() > before[0]
        break
    assert_back_at(before, "after an iteration that was left early")
    loop = iter(ds)
    next(loop)
    del loop, ds
    del batch  # It refers to the dataset.
    gc.collect()
    assert_back_at(before_dataset, "after the dataset was dropped")


@pytest.mark.alone
def test_a_thousand_iterators_dropped_halfway_leave_no_resources(client: forebay.Client) -> None:
    def open_and_drop(times: int) -> None:
        for number in range(times):
            for batch in dataset(client, batch_size=1000, epoch=number % 3):
                if batch.step == 3:
                    break

    start = threads()
    open_and_drop(100)
    until(lambda: threads() <= start)
    before = threads(), descriptors(), resident_bytes()
    open_and_drop(1000)
    assert_back_at(before[:2], "after a thousand")
    assert resident_bytes() - before[2] < 16 << 20


@pytest.mark.alone
@pytest.mark.once
def test_memory_use_is_constant_over_a_hundred_epochs(client: forebay.Client) -> None:
    ds = dataset(client, epochs=120)
    for _ in range(20):
        assert sum(len(batch) for batch in ds) == 3_000_000
    before = resident_bytes()
    for _ in range(100):
        assert sum(len(batch) for batch in ds) == 3_000_000
    assert resident_bytes() - before < 16 << 20


def test_other_python_threads_run_while_an_iterator_waits(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    ds = dataset(forebay.connect(server.location, prefetch_batches=1))
    loop = iter(ds)
    received = [next(loop).step]
    server.process.send_signal(signal.SIGSTOP)
    waiting = threading.Thread(target=lambda: received.extend(batch.step for batch in loop))
    waiting.start()
    # The thread receives what the server has sent before, and then waits. If it held the lock of the interpreter while it waits, this
    # loop would not end, and the server would not continue.
    looks, before = 0, 0
    while looks < 100:
        is_still_awaited = is_awaited(ds._stream) and len(received) == before
        looks, before = looks + 1 if is_still_awaited else 0, len(received)
        time.sleep(0.001)
    assert waiting.is_alive() and len(received) < len(ds)
    server.process.send_signal(signal.SIGCONT)
    waiting.join()
    assert received == list(range(len(ds)))


def is_awaited(stream: Any) -> bool:
    """Returns true if a thread waits for the next batch of a native stream, which does not tell its position then."""
    try:
        stream.cursor
    except RuntimeError as error:
        assert "another thread is waiting" in str(error)
        return True
    return False


def test_ctrl_c_ends_a_wait(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    code = f"""
import faulthandler, forebay, os, sys, time
faulthandler.dump_traceback_later(60, exit=True)
before = os.listdir("/proc/self/task")
loop = iter(forebay.connect({server.location!r}, prefetch_batches=1).train("flights", batch_size=1000))
next(loop)
os.kill({server.pid}, 19)
try:
    print("waiting", flush=True)
    for batch in loop: pass
except KeyboardInterrupt:
    del loop
    give_up = time.monotonic() + 30
    while os.listdir("/proc/self/task") != before and time.monotonic() < give_up: time.sleep(0.01)
    print("interrupted", os.listdir("/proc/self/task") == before, flush=True)
"""
    # A test run in the background ignores SIGINT, which the child would inherit.
    handles_sigint = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **handles_sigint)
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=90)[0] == "interrupted True\n"
    server.process.send_signal(signal.SIGCONT)


def test_stats_are_sums_over_all_iterations(client: forebay.Client) -> None:
    ds = dataset(client)
    for loop in (1, 2):
        for batch in ds:
            time.sleep(0.001)
        stats = ds.stats()
        assert (stats["batches"], stats["rows"]) == (60 * loop, 3_000_000 * loop)
    assert stats["compute_seconds"] > 0.1 and 0 <= stats["stall"] < 1


def test_the_measured_wait_is_as_long_as_the_actual_wait(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    ds = dataset(forebay.connect(server.location, prefetch_batches=1), batch_size=1000, epochs=2)
    loop = iter(ds)
    next(loop)
    for _ in range(3):
        before = ds.stats()["wait_seconds"]
        server.process.send_signal(signal.SIGSTOP)
        threading.Timer(0.75, server.process.send_signal, [signal.SIGCONT]).start()
        waits = []
        for _ in range(600):
            start = time.monotonic()
            next(loop)
            waits.append(time.monotonic() - start)
        measured = ds.stats()["wait_seconds"] - before
        # The longest wait is that for the stopped server, unless the machine paused this thread for longer.
        if max(waits) / 2 < measured:
            break
    assert max(waits) / 2 < measured < sum(waits)


def test_closing_a_dataset_during_its_iteration_raises(client: forebay.Client) -> None:
    ds = dataset(client)
    with pytest.raises(RuntimeError, match="closed.*during the iteration"):
        for batch in ds:
            ds.close()


def test_callbacks_run_after_every_step_and_progress_is_shown(client: forebay.Client, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not in this environment; the other one has it")
    seen = []
    ds = dataset(client, callbacks=[lambda ds: seen.append((ds.epoch, ds.step))], progress=True)
    for batch in ds:
        pass
    assert seen == [(0, step) for step in range(1, 61)]
    assert "60/60" in capsys.readouterr().err


def test_reports_of_a_trainer_appear_in_the_http_api(client: forebay.Client, flights_server) -> None:
    for batch in dataset(client, batch_size=1000):
        time.sleep(0.02)
        sessions = json.loads(flights_server.http_get("/api/v1/sessions")[1])["sessions"]
        if any(session["client_reports"] and session["client"]["compute_fraction"] > 0 for session in sessions):
            return
    raise AssertionError("no report arrived")


def test_every_row_is_delivered_once(client: forebay.Client, flights: Path) -> None:
    import pyarrow.parquet as pq

    rows = np.concatenate([batch["x"].to_numpy() for batch in dataset(client)])
    table = pq.read_table(flights, columns=["delay", "distance"])
    wanted = np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float32)
    order = np.lexsort(rows.T), np.lexsort(wanted.T)
    np.testing.assert_array_equal(rows[order[0]], wanted[order[1]])
