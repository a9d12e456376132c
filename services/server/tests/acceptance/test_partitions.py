"""Partitions: the order of the specification, for any number of ranks, and a rank that reads few blocks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from order_reference import epoch_order, permutation, steps
from server import Pool

# A multiple of every number of partitions and of ranks below.
GLOBAL_BATCH = 192
FILES = 160


@pytest.fixture(scope="module")
def blocks() -> list[np.ndarray]:
    """The ids of each file. A file is one block."""
    ends = list(itertools.accumulate(file * 37 % 61 + 1 for file in range(FILES)))
    return [np.arange(start, end) for start, end in zip([0, *ends], ends)]


@pytest.fixture(scope="module")
def client(blocks: list[np.ndarray], module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("blocks")
    for number, ids in enumerate(blocks):
        pq.write_table(pa.table({"id": ids}), folder / f"part-{number:03}.parquet")
    with Client(module_pool.start({"blocks": folder}).location) as client:
        yield client


def request(count: int, world_size: int, **more: Any) -> dict[str, Any]:
    shuffle = {"window_rows": 1500, "partitions": count}
    sizes = {"batch_size": GLOBAL_BATCH // world_size, "world_size": world_size}
    return {"dataset": "blocks", "seed": 9, "shuffle": shuffle, **sizes, **more}


def received(client: Client, **train: Any) -> list[list[list[int]]]:
    """The ids of each rank, for each step, without padding."""
    return [
        [batch.data["id"].to_pylist()[: batch.meta.rows] for batch in step] for step in client.global_batches(**train)
    ]


def expected(orders: list[np.ndarray], world_size: int, remainder: str) -> list[list[list[int]]]:
    return [[ids.tolist() for ids in step] for step in steps(orders, GLOBAL_BATCH // world_size, world_size, remainder)]


def test_the_reference_permutes_like_the_recorded_order() -> None:
    # A golden vector of the crate forebay-plan.
    assert permutation(20, 7, 3, 1, 11).tolist() == [8, 18, 16, 11, 1, 15, 14, 19, 10, 3, 9, 17, 0, 7, 5, 6, 13, 2, 4, 12]


@pytest.mark.parametrize("count", [1, 2, 8, 64])
@pytest.mark.parametrize("remainder", ["SHORT", "DROP", "PAD"])
def test_partitions_have_the_order_of_the_specification(
    client: Client, blocks: list[np.ndarray], count: int, remainder: str
) -> None:
    orders = epoch_order(blocks, count, {"window_rows": 1500}, 9, 0)
    for world_size, lanes in itertools.product([1, 2, 3, 4, 6, 8], [1, 2]):
        found = received(client, **request(count, world_size, remainder=remainder, lanes=lanes))
        assert found == expected(orders, world_size, remainder), f"{world_size} ranks, {lanes} lanes"


@pytest.mark.parametrize(
    "shuffle", [{"window_rows": 1500, "keep_block_order": True}, {"window_rows": 1}, {"global": {}}], ids=str
)
def test_every_shuffle_with_partitions_has_the_order_of_the_specification(
    client: Client, blocks: list[np.ndarray], shuffle: dict[str, Any]
) -> None:
    for epoch in [0, 5]:
        orders = epoch_order(blocks, 8, shuffle, 9, epoch)
        train = request(8, 2, remainder="SHORT", epoch=epoch, shuffle={**shuffle, "partitions": 8})
        assert received(client, **train) == expected(orders, 2, "SHORT")


def test_rows_that_a_filter_drops_do_not_count(client: Client, blocks: list[np.ndarray]) -> None:
    kept = [ids[(ids % 3 != 0) & ((ids < 500) | (ids > 1500))] for ids in blocks]
    assert any(len(ids) == 0 for ids in kept)
    orders = epoch_order(kept, 8, {"window_rows": 1500}, 9, 0)
    train = request(8, 3, remainder="SHORT", filter="id % 3 <> 0 AND (id < 500 OR id > 1500)")
    assert received(client, **train) == expected(orders, 3, "SHORT")


def test_the_plan_says_what_partitions_mean_for_a_rank(client: Client) -> None:
    alone, one = (client.plan(**request(8, world_size)).summary for world_size in [1, 8])
    assert int(one["partitions"]) == 8 and one["same_blocks_every_epoch"] is True
    assert alone["rank_blocks"] == pytest.approx(8 * one["rank_blocks"])
    assert 2 <= one["rank_blocks"] < FILES / 8
    without = client.plan(**request(1, 8))
    assert not {"partitions", "rank_blocks", "same_blocks_every_epoch"} & without.summary.keys()
    absent = client.plan(**{**request(1, 8), "shuffle": {"window_rows": 1500}})
    assert without.tickets == absent.tickets and without.summary == absent.summary


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, ["shuffle.partitions", "is 0", "1 to 4096"]),
        (5000, ["shuffle.partitions", "is 5000", "1 to 4096"]),
        (5, ["shuffle.partitions", "is 5", "does not divide the 192 rows"]),
        (96, ["shuffle.partitions", "is 96", "160 blocks", "at most 80"]),
    ],
)
def test_impossible_partitions_are_refused_by_name(client: Client, count: int, words: list[str]) -> None:
    with refused("INVALID_ARGUMENT", *words):
        client.plan(**request(count, 2))
