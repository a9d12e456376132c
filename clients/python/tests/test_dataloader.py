"""A DataLoader with worker processes yields the batches of a dataset in their order, and with torchdata has an exact state."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any, Iterable

import pytest

torch = pytest.importorskip("torch", reason="torch is not in this environment; the other one has it")

import pyarrow.parquet as pq  # noqa: E402

import forebay  # noqa: E402
import functions  # noqa: E402
from digests import digest  # noqa: E402
from server import Pool  # noqa: E402

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
BATCH = 100_000  # 30 steps an epoch, which 4 workers do not divide


def dataset(client: forebay.Client, **options: Any) -> forebay.TrainingDataset:
    return client.train("flights", **{"batch_size": BATCH, "tensors": TENSOR, "seed": 3, "output": "torch", **options})


def loader(ds: Any, workers: int, **options: Any) -> Iterable[Any]:
    return torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers, **options)


def stateful(ds: Any, workers: int, **options: Any) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not in this environment; the other one has it")
    return torchdata.StatefulDataLoader(ds, batch_size=None, num_workers=workers, **options)


def digests(batches: Iterable[Any]) -> list[str]:
    return [digest([batch]) for batch in batches]


@pytest.fixture(scope="module")
def epochs(flights_server: Any) -> list[list[str]]:
    """Digests of the batches of four epochs."""
    ds = dataset(forebay.connect(flights_server.location))
    return [digests(ds) for _ in range(4)]


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_loader_with_workers_yields_epochs_in_order(
    client: forebay.Client, epochs: list[list[str]], workers: int, is_persistent: bool
) -> None:
    loading = loader(dataset(client), workers, persistent_workers=is_persistent)
    assert len(loading) == 30
    for expected in epochs[:3]:
        assert digests(loading) == expected


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_start_method_of_the_workers_does_not_matter(
    client: forebay.Client, epochs: list[list[str]], method: str
) -> None:
    ds = dataset(client)
    for expected in epochs[:2]:
        assert digests(loader(ds, 2, multiprocessing_context=method)) == expected


def test_loops_with_and_without_workers_are_consecutive_epochs(client: forebay.Client, epochs: list[list[str]]) -> None:
    ds = dataset(client)
    found = [digests(loader(ds, 0)), digests(loader(ds, 3)), digests(ds), digests(loader(ds, 2))]
    assert found == epochs


@pytest.mark.parametrize("is_persistent", [False, True])
def test_loops_of_kept_workers_and_of_the_main_process_are_consecutive_epochs(
    client: forebay.Client, epochs: list[list[str]], is_persistent: bool
) -> None:
    ds = dataset(client)
    loading = loader(ds, 2, persistent_workers=is_persistent)
    assert [digests(loading), digests(ds), digests(loading), digests(ds)] == epochs

    ds = dataset(client)
    loading = loader(ds, 2, persistent_workers=is_persistent)
    assert digests(loading) == epochs[0]
    for batch in ds:
        break
    assert digests(loading) == epochs[2], "a loop that is left early is followed by the next epoch"
    assert digests(ds.steps(95)) == epochs[3][:5], "step 95 is in epoch 3"


@pytest.mark.parametrize("is_persistent", [False, True])
def test_kept_workers_continue_where_the_main_process_stopped(
    client: forebay.Client, epochs: list[list[str]], is_persistent: bool
) -> None:
    ds = dataset(client)
    loading = loader(ds, 2, persistent_workers=is_persistent)
    assert digests(loading) == epochs[0]
    assert digests(ds.steps(40)) == epochs[1][:10]
    assert digests(loading) == epochs[1][10:]
    with pytest.raises(LookupError):
        for batch in ds:
            raise LookupError
    assert digests(loading) == epochs[3]

    def fails(ds: forebay.TrainingDataset) -> None:
        if (ds.epoch, ds.step) == (1, 3):
            raise LookupError

    ds = dataset(client, callbacks=[fails])
    loading = loader(ds, 2, persistent_workers=is_persistent)
    assert digests(loading) == epochs[0]
    with pytest.raises(LookupError):
        digests(ds)
    assert digests(loading) == epochs[1][3:], "the loop after an error continues"


def test_a_loop_that_is_left_early_is_followed_by_the_next_epoch(client: forebay.Client, epochs: list[list[str]]) -> None:
    for is_persistent in (False, True):
        loading = loader(dataset(client), 2, persistent_workers=is_persistent)
        for batch in loading:
            break
        assert digests(loading) == epochs[1]


def test_the_given_number_of_epochs_is_the_limit_with_workers(client: forebay.Client, epochs: list[list[str]]) -> None:
    ds = dataset(client, epochs=2)
    found = [digests(loader(ds, 2)) for _ in range(4)]
    assert found == [epochs[0], epochs[1], [], []]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_without_batches_is_logged_once_with_any_number_of_workers(client: forebay.Client, tmp_path: Path, workers: int) -> None:
    # Workers inherit the handler.
    handler = logging.FileHandler(tmp_path / "log", delay=False)
    log = logging.getLogger("forebay")
    log.addHandler(handler)
    try:
        assert list(loader(dataset(client, filter="delay > 1000000"), workers)) == []
        ranked = dataset(client, batch_size=1_000_000, rank=0, world_size=4)
        assert len(ranked) == 0  # The ranks agree on a plan in their main processes.
        assert list(loader(ranked, workers)) == []
        ds = dataset(client, batch_size=1_000_000, epochs=1)
        assert [len(list(loader(ds, workers))) for _ in range(3)] == [3, 0, 0]
    finally:
        log.removeHandler(handler)
        handler.close()
    empty, short, ended = (tmp_path / "log").read_text().splitlines()
    assert "the training of 'flights' has no steps: the filter keeps none of 3000000 rows" in empty
    assert "3000000 rows are fewer than the 4000000 of one step" in short
    assert "the training of 'flights' has ended: all epochs up to 0 were delivered" in ended


def test_fewer_batches_than_workers_are_each_yielded_once(client: forebay.Client) -> None:
    ds = dataset(client, batch_size=1_000_000)
    assert digests(loader(ds, 4)) == digests(dataset(client, batch_size=1_000_000))


def test_a_loaded_state_starts_the_next_loop(client: forebay.Client, epochs: list[list[str]]) -> None:
    for is_persistent in (False, True):
        ds = dataset(client)
        state = ds.state_dict()
        loading = loader(ds, 2, persistent_workers=is_persistent)
        assert digests(loading) == epochs[0]
        ds.load_state_dict({**state, "epoch": 0, "step": 7})
        assert digests(loading) == epochs[0][7:]
        assert digests(loading) == epochs[1]


def test_the_state_is_an_error_while_its_position_is_in_workers(client: forebay.Client, epochs: list[list[str]]) -> None:
    ds = dataset(client)
    before = ds.state_dict()
    loading = iter(loader(ds, 2))
    found = digests([next(loading) for _ in range(5)])
    with pytest.raises(RuntimeError, match="the position is in the workers of a DataLoader: use torchdata's StatefulDataLoader"):
        ds.state_dict()
    del loading
    again = dataset(client)
    again.load_state_dict({**before, "step": len(found)})
    assert found + digests(again) == epochs[0]


def test_all_workers_read_the_snapshot_of_the_first(pool: Pool, flights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "flights"
    folder.mkdir()
    shutil.copy(flights, folder / "a.parquet")
    ds = dataset(forebay.connect(pool.start({"flights": folder}).location))
    first = digests(loader(ds, 2))
    pq.write_table(pq.read_table(flights).slice(0, BATCH), folder / "b.parquet")
    assert (len(first), len(digests(loader(ds, 2))), len(ds)) == (30, 30, 30)


def test_an_output_that_cannot_leave_a_worker_is_an_error(client: forebay.Client) -> None:
    with pytest.raises(RuntimeError, match="output 'batch' cannot leave a worker process; use 'torch', 'numpy' or 'arrow'"):
        next(iter(loader(dataset(client, output="batch"), 1)))
    wrapped = Wrapped(dataset(client, output="batch"))
    assert list(loader(wrapped, 2)) == [[0, step] for step in range(30)]


class Wrapped(torch.utils.data.IterableDataset):
    """An iterable dataset of a user around the training dataset."""

    def __init__(self, ds: forebay.TrainingDataset) -> None:
        self.ds = ds

    def __iter__(self) -> Iterable[Any]:
        return map(functions.place, self.ds)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_the_state_of_a_stateful_loader_is_exact(client: forebay.Client, epochs: list[list[str]], workers: int) -> None:
    expected = [digest for epoch in epochs[:3] for digest in epoch]
    for stop in (1, 10, 29, 30, 41):
        loading, found = stateful(dataset(client), workers), []
        while len(found) < stop:
            for batch in loading:
                found.append(digest([batch]))
                if len(found) == stop:
                    state = json.loads(json.dumps(loading.state_dict())) if workers == 0 else loading.state_dict()
                    break
        again = stateful(dataset(client), workers)
        again.load_state_dict(pickle.loads(pickle.dumps(state)))
        while len(found) < 90:
            rest = digests(again)
            found += rest
        assert found == expected, stop


@pytest.mark.parametrize("workers", [2, 4])
def test_the_state_after_an_epoch_starts_the_next_one(
    client: forebay.Client, epochs: list[list[str]], workers: int
) -> None:
    for is_persistent in (False, True):
        loading = stateful(dataset(client), workers, persistent_workers=is_persistent)
        assert digests(loading) == epochs[0]
        state = loading.state_dict()
        again = stateful(dataset(client), workers, persistent_workers=is_persistent)
        again.load_state_dict(state)
        assert [digests(again), digests(again)] == epochs[1:3]


def test_ranks_have_to_agree_before_their_workers_start(client: forebay.Client) -> None:
    ds = dataset(client, rank=1, world_size=2)
    with pytest.raises(RuntimeError, match=r"call len\(\) of the dataset before the loop"):
        next(iter(loader(ds, 2)))
    ds = dataset(client, rank=1, world_size=2)
    assert len(ds) == 15
    assert digests(loader(ds, 2)) == digests(dataset(client, rank=1, world_size=2))


def test_results_of_map_are_tensors_and_go_through_a_loader(client: forebay.Client) -> None:
    ds = dataset(client)
    expected = [functions.tensors(batch) for batch in dataset(client)]
    results = ds.map(functions.tensors, workers=2)
    found = list(loader(results, 0))
    assert len(found) == 30
    for result, wanted in zip(found, expected):
        assert result.pop("threads") == 1
        for name, tensor in result.items():
            assert tensor.dtype == wanted[name].dtype and torch.equal(tensor, wanted[name]), name
    with pytest.raises(RuntimeError, match="num_workers must be 0: use the argument workers of map"):
        next(iter(loader(results, 1)))
    results.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "num_workers must be 0 with a CUDA device"),
        ({"pin_memory": True}, "num_workers must be 0 with pin_memory; use the argument pin_memory of the DataLoader"),
    ],
    ids=("device", "pin_memory"),
)
def test_memory_of_a_device_in_the_workers_of_a_loader_is_an_error(
    client: forebay.Client, options: dict[str, object], message: str
) -> None:
    ds = client.train("flights", batch_size=100_000, columns=["delay"], output="torch", **options)
    with pytest.raises(RuntimeError, match=message):
        next(iter(loader(ds, 1)))
