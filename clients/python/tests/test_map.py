"""Results of a function in worker processes: the same in the same order for any number of workers, and no process is left."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
import functions
from digests import digest
from ports import free_port
from server import Pool, Server, until

pytestmark = pytest.mark.once

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
BATCH = 100_000  # 30 steps an epoch
COUNTS = (0, 1, 2, 4)


def dataset(client: forebay.Client, **options: Any) -> forebay.TrainingDataset:
    return client.train("flights", **{"batch_size": BATCH, "tensors": TENSOR, "seed": 3, **options})


def children() -> set[int]:
    """Returns the processes that run a worker of this process."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = set()
    for child in listed:
        try:
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(int(child))
        except OSError:
            pass
    return found


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = children()
    yield
    assert children() <= before


@pytest.mark.parametrize("workers", COUNTS)
def test_results_are_equal_and_in_order_for_any_number_of_workers(client: forebay.Client, workers: int) -> None:
    expected = [functions.scaled(batch) for batch in dataset(client)]
    results = dataset(client).map(functions.scaled, workers=workers)
    assert len(results) == results.steps_per_epoch == 30
    found = list(results)
    assert digest(found) == digest(expected)
    assert [result["place"] for result in found] == [(0, step) for step in range(30)]
    for result, wanted in zip(found, expected):
        assert result["name"] == wanted["name"]
        for part, other in zip(result["parts"], wanted["parts"]):
            np.testing.assert_array_equal(part, other)
            assert part.dtype == other.dtype and part.flags.writeable
    assert (results.epoch, results.step) == (0, 30)
    stats = results.stats()
    assert (stats["batches"], stats["rows"], stats["restarts"]) == (30, 3_000_000, 0) and stats["bytes"] >= 24_000_000
    results.close()


@pytest.mark.parametrize("epochs", [None, 3])
def test_iterations_are_epochs_and_keep_the_processes(client: forebay.Client, epochs: int | None) -> None:
    results = dataset(client, batch_size=BATCH * 3, output="numpy", epochs=epochs).map(functions.of_arrays, workers=3)
    expected = dataset(client, batch_size=BATCH * 3, epochs=epochs)
    processes = []
    for _ in range(3):
        found = list(results)
        wanted = [batch["x"].to_numpy().sum(axis=0) for batch in expected]
        np.testing.assert_array_equal([total for total, _ in found], wanted)
        processes.append([process for _, process in found])
    if not epochs:
        assert processes[0] == processes[1] == processes[2], "batch s is that of worker s % 3"
    assert set(processes[0]) == set(processes[1]) == set(processes[2])
    assert len(set(processes[0])) == 3 and os.getpid() not in processes[0]
    if epochs:
        assert list(results) == []
    results.close()


def test_a_state_resumes_with_the_next_result_for_any_number_of_workers(client: forebay.Client) -> None:
    wanted = [(epoch, step) for epoch in range(2) for step in range(30)]
    for before, after, stop in ((0, 4, 1), (4, 0, 17), (2, 3, 29), (3, 1, 30)):
        first, found = dataset(client).map(functions.place, workers=before), []
        for result in first:
            found.append(result)
            if len(found) == stop:
                state = json.loads(json.dumps(first.state_dict()))
                break
        first.close()
        second = dataset(client).map(functions.place, workers=after)
        second.load_state_dict(state)
        while len(found) < 60:
            found += list(second)
        assert found == wanted, (before, after, stop)
        second.close()


def test_a_loop_that_is_left_early_is_followed_by_the_next_epoch(client: forebay.Client) -> None:
    for epochs in (None, 3):
        ds = dataset(client, epochs=epochs)
        results = ds.map(functions.place, workers=2)
        for result in results:
            if result == (0, 4):
                break
        assert (ds.epoch, ds.step) == (results.epoch, results.step) == (0, 5), "the position is that of the dataset"
        state = ds.state_dict()
        assert list(results) == [(1, step) for step in range(30)]
        results.load_state_dict(state)
        assert list(results) == [(0, step) for step in range(5, 30)]
        assert next(iter(ds)).epoch == 1, "the dataset continues after its results"
        results.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_and_steps_end_where_those_of_the_dataset_do(client: forebay.Client, workers: int) -> None:
    wanted = [(epoch, step) for epoch in range(3) for step in range(30)]
    results = dataset(client).map(functions.place, workers=workers)
    found = []
    for result in results.epochs(3):
        found.append(result)
        if len(found) == 35:
            break
    assert found == wanted[:35] and (results.epoch, results.step) == (1, 5)
    state = results.state_dict()
    assert list(results.epochs(3)) == wanted[35:], "the same loop again is the rest of the training"
    assert list(results.epochs(3)) == []
    results.load_state_dict(state)
    assert list(results.steps(62)) == wanted[35:62] and list(results.steps(62)) == []
    assert list(results) == wanted[62:], "a loop after steps() continues"
    with pytest.raises(ValueError, match=r"steps\(\) is -1, expected a whole number of at least 0"):
        results.steps(-1)
    results.close()


def test_epochs_of_results_keep_the_workers_and_their_streams(client: forebay.Client) -> None:
    results = dataset(client, batch_size=BATCH * 3, output="numpy").map(functions.of_arrays, workers=3)
    processes = [process for _, process in results.epochs(3)]
    # Batch s of the stream is that of worker s % 3, over the ends of the epochs. An epoch has 10 steps.
    assert processes == [processes[number % 3] for number in range(30)] and len(set(processes)) == 3
    results.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_closing_the_results_ends_the_iteration(client: forebay.Client, workers: int) -> None:
    results = dataset(client).map(functions.place, workers=workers)
    loop = iter(results)
    assert next(loop) == (0, 0)
    results.close()
    with pytest.raises(RuntimeError, match="the dataset was closed or reloaded during the iteration"):
        next(loop)
    assert next(iter(results)) == (0, 1)
    results.close()


@pytest.mark.parametrize("workers", COUNTS)
def test_an_exception_reaches_the_loop_with_its_traceback_and_step(client: forebay.Client, workers: int) -> None:
    results, found = dataset(client).map(functions.fails_at_step_7, workers=workers), []
    with pytest.raises(LookupError, match="no such word") as raised:
        for result in results:
            found.append(result)
    assert found == [(0, step) for step in range(7)]
    assert raised.value.args == ("no such word", 7)
    cause = raised.value.__cause__
    assert isinstance(cause, forebay.errors.WorkerError) and (cause.epoch, cause.step) == (0, 7)
    assert "epoch 0, step 7" in str(cause)
    if workers:
        assert cause.worker == 7 % workers and f"worker {7 % workers} of {workers}" in str(cause)
        assert 'functions.py", line' in str(cause) and "in fails_at_step_7" in str(cause)
    results.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_after_an_exception_continues_with_the_missing_result(
    client: forebay.Client, tmp_path: Path, workers: int
) -> None:
    results = dataset(client).map(functions.Fixable(tmp_path / "fixed"), workers=workers)
    with pytest.raises(LookupError):
        list(results)
    state = results.state_dict()
    assert (state["epoch"], state["step"]) == (0, 7)
    (tmp_path / "fixed").touch()
    assert list(results) == [(0, step) for step in range(7, 30)]
    results.close()


def test_what_cannot_be_pickled_is_an_error_that_says_so(client: forebay.Client) -> None:
    ds = dataset(client)
    with pytest.raises(TypeError, match="f is <function .*lambda.*cannot be pickled.*top level of a module, or use workers=0"):
        ds.map(lambda batch: 1, workers=2)
    assert list(ds.map(lambda batch: 1)) == [1] * 30
    results = ds.map(functions.raises_unpicklable, workers=1)
    with pytest.raises(forebay.errors.WorkerError, match="(?s)worker 0 of 1, at epoch 1, step 0.*Unpicklable: not its"):
        list(results)
    results.close()
    results = ds.map(functions.whole_batch, workers=1)
    with pytest.raises(TypeError, match="a forebay.Batch is a view of received memory; return arrays"):
        list(results)
    results.close()


def test_invalid_arguments_name_what_was_expected(client: forebay.Client) -> None:
    with pytest.raises(ValueError, match="workers is 257, expected 0 to 256"):
        dataset(client).map(functions.place, workers=257)
    with pytest.raises(ValueError, match="prefetch is 0, expected at least 1"):
        dataset(client).map(functions.place, workers=1, prefetch=0)
    with pytest.raises(ValueError, match="map runs on the host"):
        dataset(client, device="cuda:0").map(functions.place)


def test_a_killed_worker_is_restarted_at_its_position(
    client: forebay.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [functions.scaled(batch) for batch in dataset(client)]
    results = dataset(client).map(functions.KilledAt({2, 3, 11, 29}, tmp_path), workers=3)
    with caplog.at_level(logging.WARNING):
        found = list(results)
    assert digest(found) == digest(expected)
    assert [result["place"] for result in found] == [(0, step) for step in range(30)]
    assert results.stats()["restarts"] == 4
    assert "worker 2 of 3 (process " in caplog.text and "was ended by SIGKILL at epoch 0, step 11; restarting" in caplog.text
    results.close()


def test_a_worker_that_is_killed_from_outside_loses_and_repeats_nothing(client: forebay.Client) -> None:
    results, found = dataset(client, epochs=2).map(functions.place, workers=2), []
    for epoch in range(2):
        for result in results:
            found.append(result)
            if result[1] in (3, 20):
                for process in children():
                    os.kill(process, signal.SIGKILL)
    assert found == [(epoch, step) for epoch in range(2) for step in range(30)]
    assert results.stats()["restarts"] == 8
    results.close()


def test_a_worker_that_always_dies_at_a_step_is_an_error_that_names_it(client: forebay.Client) -> None:
    results, found = dataset(client).map(functions.KilledAt({5}), workers=2), []
    message = r"worker 1 of 2 \(process \d+\) was ended by SIGKILL at epoch 0, step 5, and also after 3 restarts"
    with pytest.raises(forebay.errors.WorkerError, match=message) as raised:
        for result in results:
            found.append(result["place"])
    assert found == [(0, step) for step in range(5)]
    assert (raised.value.worker, raised.value.epoch, raised.value.step) == (1, 0, 5)
    assert children() == set()


def test_workers_compute_at_most_prefetch_results_ahead(client: forebay.Client, tmp_path: Path) -> None:
    results = dataset(client).map(functions.Marked(tmp_path), workers=2, prefetch=3)
    loop = iter(results)
    for taken in range(1, 8):
        assert next(loop) == taken - 1
        of_workers = [taken // 2 + taken % 2 + 3, taken // 2 + 3]
        ahead = {f"0-{worker + 2 * number}" for worker in (0, 1) for number in range(of_workers[worker])}
        until(lambda: {path.name for path in tmp_path.iterdir()} >= ahead)
        assert {path.name for path in tmp_path.iterdir()} == ahead
    loop.close()
    results.close()


def test_the_file_of_results_grows_with_them(client: forebay.Client) -> None:
    for batch_size in (7, 1_000_000):
        ds = dataset(client, batch_size=batch_size)
        results = ds.map(functions.scaled, workers=2)
        first = next(loop := iter(results))
        np.testing.assert_array_equal(first["x"], next(iter(dataset(client, batch_size=batch_size)))["x"].to_numpy() * 2)
        loop.close()
        results.close()


def shared_memory() -> set[str]:
    """Returns the names of files in shared memory that Forebay or multiprocessing created. Other programs may create other files."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("forebay", "psm_"))}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.alone
def test_nothing_outlives_the_results(client: forebay.Client) -> None:
    results = dataset(client).map(functions.scaled, workers=2)
    list(results)
    results.close()
    del results
    before, in_memory = descriptors(), shared_memory()
    for end in ("break", "exception", "drop"):
        results = dataset(client).map(functions.scaled if end != "exception" else functions.fails_at_step_7, workers=2)
        loop = iter(results)
        next(loop)
        if end == "exception":
            with pytest.raises(LookupError):
                list(loop)
        loop.close()
        assert len(children()) == 2
        if end != "drop":
            results.close()
        del results, loop
        assert children() == set(), end
        assert (descriptors(), shared_memory()) == (before, in_memory), end


def test_a_pickled_copy_starts_its_own_workers(client: forebay.Client) -> None:
    results = dataset(client).map(functions.place, workers=2)
    loop = iter(results)
    assert [next(loop) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]
    copy = pickle.loads(pickle.dumps(results))
    copy.load_state_dict(results.state_dict())
    assert list(copy) == [(0, step) for step in range(3, 30)] == list(loop)
    copy.close()
    results.close()


def test_a_later_loop_and_a_closed_one_end_the_earlier_one(client: forebay.Client) -> None:
    results = dataset(client).map(functions.place, workers=2)
    earlier, later = iter(results), iter(results)
    next(earlier)
    assert next(later) == (1, 0)
    with pytest.raises(RuntimeError, match="later iteration"):
        next(earlier)
    state = results.state_dict()
    results.load_state_dict({**state, "step": 9})
    with pytest.raises(RuntimeError, match="closed or reloaded"):
        next(later)
    assert next(iter(results)) == (1, 9)
    results.close()


def test_a_function_may_run_processes(client: forebay.Client) -> None:
    results = dataset(client, batch_size=1_000_000).map(functions.runs_a_process, workers=2)
    assert list(results) == ["7\n"] * 3
    results.close()


def test_several_ranks_read_their_own_results(client: forebay.Client) -> None:
    expected = [digest([batch]) for batch in dataset(client, world_size=2, rank=1)]
    results = dataset(client, world_size=2, rank=1).map(functions.scaled, workers=2)
    found = [digest([{"x": result["x"] / 2}]) for result in results]
    assert found == expected and len(found) == 15
    results.close()


def program(server: Server, body: str, folder: Path, guard: bool = True) -> list[str]:
    """Returns the command of a program with a function `f` in its main module."""
    code = f"""
import os, sys, forebay
sys.path.insert(0, {str(Path(functions.__file__).parent)!r})
import functions
from pathlib import Path
def f(batch):
    return batch.step
def main():
    ds = forebay.connect({server.location!r}).train("flights", batch_size={BATCH}, columns=["delay"])
{textwrap.indent(textwrap.dedent(body), "    ")}
{"if __name__ == '__main__':" if guard else "if True:"}
    main()
"""
    (folder / "program.py").write_text(code)
    return [sys.executable, str(folder / "program.py")]


def test_a_function_of_the_main_module_runs_in_workers(flights_server: Server, tmp_path: Path) -> None:
    command = program(flights_server, "print(sum(ds.map(f, workers=2)))", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("435\n", "")


def test_a_main_module_without_a_guard_is_an_error_that_says_so(flights_server: Server, tmp_path: Path) -> None:
    command = program(flights_server, "print(sum(ds.map(f, workers=2)))", tmp_path, guard=False)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "exited with code 1 before it was ready" in done.stderr and "if __name__ == '__main__':" in done.stderr


def processes_of(folder: Path) -> list[int]:
    """Returns the workers that have called `Hanging`."""
    return [int(path.suffix[1:]) for path in folder.glob("called.*")]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent_even_if_the_function_does_not_return(
    flights_server: Server, tmp_path: Path, end: signal.Signals
) -> None:
    body = f"list(ds.map(functions.Hanging(Path({str(tmp_path / 'called')!r})), workers=2))"
    # A test run in the background ignores SIGINT, which the child would inherit.
    handles_sigint = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    parent = subprocess.Popen(
        program(flights_server, body, tmp_path), stderr=subprocess.PIPE, text=True, start_new_session=True, **handles_sigint
    )
    before = shared_memory()
    until(lambda: len(processes_of(tmp_path)) == 2, seconds=60)
    if end == signal.SIGINT:
        os.killpg(parent.pid, end)  # As Ctrl-C does.
    else:
        parent.send_signal(end)
    error = parent.communicate(timeout=60)[1]
    assert parent.returncode != 0
    if end == signal.SIGINT:
        assert "KeyboardInterrupt" in error and "WorkerError" not in error
    until(lambda: not any(map(is_running, processes_of(tmp_path))), seconds=60)
    assert shared_memory() <= before


def test_workers_read_through_a_restart_of_the_server(pool: Pool, flights: Path, tmp_path: Path) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": flights}, **place)
    client = forebay.connect(server.location, prefetch_batches=1)
    results, found = dataset(client).map(functions.place, workers=2), []
    for result in results:
        found.append(result)
        if result[1] == 5:
            server.kill()
            server = pool.start({"flights": flights}, **place)
    assert found == [(0, step) for step in range(30)]
    assert results.stats()["retries"] >= 1 and results.stats()["restarts"] == 0
    results.close()
