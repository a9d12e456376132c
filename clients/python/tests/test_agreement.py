"""The ranks of a job agree on a plan before their first step, or none of them starts."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import Any, Callable

import pyarrow.parquet as pq
import pytest

import forebay
from digests import digest
from forebay import errors
from server import Pool, until

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


class BlockingStore:
    """A key-value store with a blocking `get`, like that of torch.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 60)
            return self.values[key].encode()


def on_all_ranks(make: Callable[[int], forebay.TrainingDataset], ranks: int = 2) -> list[Any]:
    """Returns snapshot and digest of the first batch of each rank, or the exception."""
    results: list[Any] = [None] * ranks

    def run(rank: int, ds: forebay.TrainingDataset) -> None:
        try:
            loop = iter(ds)
            first = next(loop)
            results[rank] = (ds.summary["snapshot"], digest([first]) if "x" in first else "")
        except errors.Error as error:
            results[rank] = error

    datasets = [make(rank) for rank in range(ranks)]
    for ds in datasets:
        ds._number = 0  # As in separate processes.
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(datasets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.fixture
def two_servers(pool: Pool, flights: Path, tmp_path: Path) -> tuple[forebay.Client, forebay.Client]:
    """Two servers with different snapshots of the same folder."""
    folder, state = tmp_path / "flights", tmp_path / "state"
    folder.mkdir()
    shutil.copy(flights, folder / "a.parquet")
    before = pool.start({"flights": folder}, state=state)
    pq.write_table(pq.read_table(flights).slice(0, 1000), folder / "b.parquet")
    after = pool.start({"flights": folder}, state=state)
    return forebay.connect(before.location), forebay.connect(after.location)


@pytest.mark.parametrize("kind", [dict, BlockingStore])
def test_all_ranks_read_the_snapshot_of_rank_0(two_servers: tuple[forebay.Client, forebay.Client], kind: type) -> None:
    store = kind()

    def make(rank: int) -> forebay.TrainingDataset:
        return two_servers[rank].train(
            "flights", batch_size=1000, tensors=TENSOR, rank=rank, world_size=2, rendezvous_store=store
        )

    (first, one), (second, other) = on_all_ranks(make)
    assert first == second and one != other


def test_ranks_with_different_pinned_snapshots_fail_at_step_0(
    two_servers: tuple[forebay.Client, forebay.Client],
) -> None:
    store: dict[str, str] = {}
    snapshots = [client.train("flights", batch_size=1).summary["snapshot"] for client in two_servers]
    assert snapshots[0] != snapshots[1]

    def make(rank: int) -> forebay.TrainingDataset:
        return two_servers[rank].train(
            "flights",
            batch_size=1000,
            tensors=TENSOR,
            rank=rank,
            world_size=2,
            rendezvous_store=store,
            snapshot=snapshots[rank],
        )

    for error in on_all_ranks(make):
        assert isinstance(error, errors.RankMismatchError), error
        assert all(snapshot in str(error) for snapshot in snapshots)


def test_ranks_with_different_seeds_fail_at_step_0_with_both_plan_hashes(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.TrainingDataset:
        return client.train(
            "flights", batch_size=1000, tensors=TENSOR, rank=rank, world_size=3, rendezvous_store=store, seed=rank // 2
        )

    plans = [client.train("flights", batch_size=1000, rank=0, world_size=3, seed=seed).summary for seed in (0, 1)]
    for error in on_all_ranks(make, 3):
        assert isinstance(error, errors.RankMismatchError), error
        assert all(plan["plan_hash"] in str(error) for plan in plans) and "rank 2" in str(error)


def test_ranks_with_different_world_sizes_fail_at_step_0_with_both_sizes(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.TrainingDataset:
        return client.train("flights", batch_size=1000, rank=rank, world_size=2 + 2 * rank, rendezvous_store=store)

    for error in on_all_ranks(make):
        assert isinstance(error, errors.RankMismatchError), error
        assert "for 2 ranks" in str(error) and "for 4 ranks" in str(error)


def test_ranks_with_different_positions_or_columns_fail_at_step_0(client: forebay.Client) -> None:
    def train(rank: int, **options: Any) -> forebay.TrainingDataset:
        return client.train("flights", batch_size=1000, rank=rank, world_size=2, **options)

    ahead = train(0)
    loop = iter(ahead)
    for _ in range(3):
        next(loop)

    def at_other_step(rank: int, store: dict[str, str] = {}) -> forebay.TrainingDataset:
        ds = train(rank, rendezvous_store=store)
        if rank == 1:
            ds.load_state_dict(ahead.state_dict())
        return ds

    for error in on_all_ranks(at_other_step):
        assert isinstance(error, errors.RankMismatchError), error
        assert "from epoch 0, step 0" in str(error) and "from epoch 0, step 3" in str(error)

    def with_other_columns(rank: int, store: dict[str, str] = {}) -> forebay.TrainingDataset:
        return train(rank, rendezvous_store=store, columns=["delay"] if rank == 0 else ["distance"])

    for error in on_all_ranks(with_other_columns):
        assert isinstance(error, errors.RankMismatchError) and "distance" in str(error), error


def test_when_one_rank_has_no_plan_all_fail_with_its_message(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.TrainingDataset:
        columns = ["delay"] if rank == 0 else ["delai"]
        return client.train("flights", batch_size=1000, columns=columns, rank=rank, world_size=2, rendezvous_store=store)

    first, second = on_all_ranks(make)
    assert isinstance(first, errors.RankMismatchError) and "delai" in str(first)
    assert isinstance(second, errors.RequestError) and "delai" in str(second)


def test_a_missing_rank_is_an_error_within_the_deadline(flights_server) -> None:
    client = forebay.connect(flights_server.location, retry_deadline=1)
    ds = client.train("flights", batch_size=1000, rank=0, world_size=2, rendezvous_store={})
    with pytest.raises(errors.RankMismatchError, match="did not answer in time"):
        next(iter(ds))


def test_a_rank_that_waits_for_another_one_says_so(
    pool: Pool, flights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay.agreement.FIRST_LOG_S", 0.01)
    client = forebay.connect(pool.start({"flights": flights}).location)
    store = BlockingStore()

    def make(rank: int) -> forebay.TrainingDataset:
        return client.train("flights", batch_size=1000, rank=rank, world_size=2, rendezvous_store=store)

    datasets = [make(rank) for rank in range(2)]
    for ds in datasets:
        ds._number = 0  # As in separate processes.
    with caplog.at_level(logging.WARNING, "forebay"):
        first = threading.Thread(target=lambda: len(datasets[0]))
        first.start()
        until(lambda: any("waiting for rank 1 of 2 ranks" in record.getMessage() for record in caplog.records))
        steps = len(datasets[1])
        first.join()
    assert len(datasets[0]) == steps
