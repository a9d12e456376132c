"""Ranks agree on what they read before their first step, or none of them takes one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any, Callable

import pyarrow.parquet as pq
import pytest

import forebay
from digests import digest
from forebay import errors
from server import Pool

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


class Waiting:
    """A key-value store whose `get` waits, as that of torch.distributed does."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, 20)
            return self.values[key].encode()


def on_all_ranks(make: Callable[[int], forebay.Training], ranks: int = 2) -> list[Any]:
    """What each rank's first steps gave, or what they raised."""
    results: list[Any] = [None] * ranks

    def run(rank: int, ds: forebay.Training) -> None:
        try:
            loop = iter(ds)
            first = next(loop)
            results[rank] = (ds.summary["snapshot"], digest([first]) if "x" in first else "")
        except errors.Error as error:
            results[rank] = error

    trainings = [make(rank) for rank in range(ranks)]
    for ds in trainings:
        ds._number = 0  # As in processes of their own.
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(trainings)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.fixture
def two_servers(pool: Pool, flights: Path, tmp_path: Path) -> tuple[forebay.Client, forebay.Client]:
    """Two servers of the same folder that have looked at it at different times."""
    folder, state = tmp_path / "flights", tmp_path / "state"
    folder.mkdir()
    shutil.copy(flights, folder / "a.parquet")
    before = pool.start({"flights": folder}, state=state)
    pq.write_table(pq.read_table(flights).slice(0, 1000), folder / "b.parquet")
    after = pool.start({"flights": folder}, state=state)
    return forebay.connect(before.location), forebay.connect(after.location)


@pytest.mark.parametrize("kind", [dict, Waiting])
def test_the_others_read_what_rank_0_sees(two_servers: tuple[forebay.Client, forebay.Client], kind: type) -> None:
    store = kind()

    def make(rank: int) -> forebay.Training:
        return two_servers[rank].train(
            "flights", batch_size=1000, tensors=TENSOR, rank=rank, world_size=2, store=store
        )

    (first, one), (second, other) = on_all_ranks(make)
    assert first == second and one != other


def test_ranks_that_would_see_different_snapshots_fail_at_step_0(
    two_servers: tuple[forebay.Client, forebay.Client],
) -> None:
    store: dict[str, str] = {}
    snapshots = [client.train("flights", batch_size=1).summary["snapshot"] for client in two_servers]
    assert snapshots[0] != snapshots[1]

    def make(rank: int) -> forebay.Training:
        return two_servers[rank].train(
            "flights",
            batch_size=1000,
            tensors=TENSOR,
            rank=rank,
            world_size=2,
            store=store,
            snapshot=snapshots[rank],
        )

    for error in on_all_ranks(make):
        assert isinstance(error, errors.DisagreementError), error
        assert all(snapshot in str(error) for snapshot in snapshots)


def test_ranks_with_another_seed_fail_at_step_0_with_both_plans(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.Training:
        return client.train(
            "flights", batch_size=1000, tensors=TENSOR, rank=rank, world_size=3, store=store, seed=rank // 2
        )

    plans = [client.train("flights", batch_size=1000, rank=0, world_size=3, seed=seed).summary for seed in (0, 1)]
    for error in on_all_ranks(make, 3):
        assert isinstance(error, errors.DisagreementError), error
        assert all(plan["plan_hash"] in str(error) for plan in plans) and "rank 2" in str(error)


def test_ranks_of_another_world_size_fail_at_step_0_with_both(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.Training:
        return client.train("flights", batch_size=1000, rank=rank, world_size=2 + 2 * rank, store=store)

    for error in on_all_ranks(make):
        assert isinstance(error, errors.DisagreementError), error
        assert "for 2 ranks" in str(error) and "for 4 ranks" in str(error)


def test_ranks_that_stand_elsewhere_or_read_other_columns_fail_at_step_0(client: forebay.Client) -> None:
    def train(rank: int, **options: Any) -> forebay.Training:
        return client.train("flights", batch_size=1000, rank=rank, world_size=2, **options)

    ahead = train(0)
    loop = iter(ahead)
    for _ in range(3):
        next(loop)

    def elsewhere(rank: int, store: dict[str, str] = {}) -> forebay.Training:
        ds = train(rank, store=store)
        if rank == 1:
            ds.load_state_dict(ahead.state_dict())
        return ds

    for error in on_all_ranks(elsewhere):
        assert isinstance(error, errors.DisagreementError), error
        assert "from epoch 0, step 0" in str(error) and "from epoch 0, step 3" in str(error)

    def others(rank: int, store: dict[str, str] = {}) -> forebay.Training:
        return train(rank, store=store, columns=["delay"] if rank == 0 else ["distance"])

    for error in on_all_ranks(others):
        assert isinstance(error, errors.DisagreementError) and "distance" in str(error), error


def test_when_one_rank_has_no_plan_all_fail_with_its_words(client: forebay.Client) -> None:
    store: dict[str, str] = {}

    def make(rank: int) -> forebay.Training:
        columns = ["delay"] if rank == 0 else ["delai"]
        return client.train("flights", batch_size=1000, columns=columns, rank=rank, world_size=2, store=store)

    first, second = on_all_ranks(make)
    assert isinstance(first, errors.DisagreementError) and "delai" in str(first)
    assert isinstance(second, errors.RequestError) and "delai" in str(second)


def test_a_rank_that_never_comes_is_an_error_within_the_deadline(flights_server) -> None:
    client = forebay.connect(flights_server.location, deadline=1)
    ds = client.train("flights", batch_size=1000, rank=0, world_size=2, store={})
    with pytest.raises(errors.DisagreementError, match="did not answer in time"):
        next(iter(ds))
