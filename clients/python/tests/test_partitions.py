"""`train(partitions=...)`: the order of a dataset in partitions, for any number of ranks, and in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import errors
from server import Pool

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

pytestmark = pytest.mark.once

ROWS, FILES, GLOBAL_BATCH = 3000, 30, 64


@pytest.fixture
def client(pool: Pool, tmp_path: Path) -> forebay.Client:
    folder = tmp_path / "ids"
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(ROWS), FILES)):
        pq.write_table(pa.table({"id": ids}), folder / f"part-{number:02}.parquet")
    return forebay.connect(pool.start({"ids": folder}).location)


def dataset(client: forebay.Client, rank: int, world_size: int, **options: Any) -> forebay.TrainingDataset:
    options = {"partitions": 8, "shuffle": {"window_rows": 1200}, "remainder": "SHORT", "seed": 5, **options}
    return client.train("ids", batch_size=GLOBAL_BATCH // world_size, rank=rank, world_size=world_size, **options)


def ids_of(ds: forebay.TrainingDataset) -> list[list[int]]:
    return [batch["id"].to_numpy().tolist() for batch in ds]


def global_batches(client: forebay.Client, world_size: int, **options: Any) -> list[list[int]]:
    ranks = [ids_of(dataset(client, rank, world_size, **options)) for rank in range(world_size)]
    return [sum(step, []) for step in zip(*ranks, strict=True)]


def test_global_batches_do_not_depend_on_the_ranks_and_a_rank_reads_the_same_rows_in_every_epoch(client: forebay.Client) -> None:
    expected = global_batches(client, 1)
    assert sorted(sum(expected, [])) == list(range(ROWS))
    for world_size in [2, 4, 8]:
        assert global_batches(client, world_size, lanes=2) == expected
    first, second = ([sorted(sum(ids_of(dataset(client, rank, 8, epoch=epoch)), [])) for rank in range(8)] for epoch in (0, 1))
    assert first == second
    assert sorted(sum(first, [])) == list(range(ROWS)), "no two ranks read the same row"
    summary = dataset(client, 0, 8).summary
    assert int(summary["partitions"]) == 8 and summary["same_blocks_every_epoch"] is True


def test_a_state_continues_with_other_ranks_and_not_with_other_partitions(client: forebay.Client) -> None:
    expected = global_batches(client, 1)
    ds = dataset(client, 0, 1)
    batches = iter(ds)
    for _ in range(7):
        next(batches)
    state = ds.state_dict()
    assert state["request"]["shuffle"]["partitions"] == 8
    ranks = []
    for rank in range(4):
        resumed = dataset(client, rank, 4)
        resumed.load_state_dict(state)
        ranks.append(ids_of(resumed))
    assert [sum(step, []) for step in zip(*ranks, strict=True)] == expected[7:]
    # Without options for the order, it is that of the state.
    resumed = client.train("ids", batch_size=GLOBAL_BATCH, rank=0, world_size=1, seed=5)
    resumed.load_state_dict(state)
    assert ids_of(resumed) == expected[7:]
    # Windows of any size, and partitions that are not given, are those of the state.
    for options in ({"shuffle": True}, {"shuffle": None}, {"partitions": None}, {"shuffle": True, "partitions": None}):
        resumed = dataset(client, 0, 1, **options)
        resumed.load_state_dict(state)
        assert ids_of(resumed) == expected[7:], options
    with pytest.raises(errors.CheckpointMismatchError, match="'window_rows': 1200, .*'partitions': 8.* but shuffle is .*'window_rows': 1200, .*'partitions': 4"):
        dataset(client, 0, 1, partitions=4, shuffle=True).load_state_dict(state)
    with pytest.raises(errors.CheckpointMismatchError, match="but shuffle is .*'none'"):
        dataset(client, 0, 1, partitions=None, shuffle=False).load_state_dict(state)
    unordered = dataset(client, 0, 1, partitions=None, shuffle=False).state_dict()
    with pytest.raises(errors.CheckpointMismatchError, match="but partitions is 8, which has windows"):
        dataset(client, 0, 1, shuffle=None).load_state_dict(unordered)


def test_partitions_are_given_once_and_refused_by_name(client: forebay.Client) -> None:
    once = dataset(client, 0, 1, shuffle={"window_rows": 1200, "partitions": 8}, partitions=None)
    assert once.summary == dataset(client, 0, 1).summary
    assert dataset(client, 0, 1, partitions=1).summary == dataset(client, 0, 1, partitions=None).summary
    with pytest.raises(TypeError, match="not both"):
        dataset(client, 0, 1, shuffle={"partitions": 8})
    with pytest.raises(errors.RequestError, match="shuffle.partitions"):
        _ = dataset(client, 0, 1, partitions=7).summary
    with pytest.raises(TypeError, match="partitions"):
        client.eval("ids", batch_size=10, partitions=2)
