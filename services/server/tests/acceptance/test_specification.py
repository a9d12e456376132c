"""Groups, packs, padding, distinct rows and mixtures, compared with the specification that order_reference.py implements again."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Batch, Client
from order_reference import distinct, epoch_order, groups, mixture, of_groups, packs, steps
from server import Pool

SEED = 9
# One block each.
FILES = 60
OTHER_FILES = 9
LONGEST = 12
DEDUPE = [{"key": ["query"], "tensor": "q", "columns": ["q_0", "q_1"], "dtype": "int64"}]
SHUFFLES: list[dict[str, Any]] = [{"window_rows": 300}, {"window_rows": 300, "keep_block_order": True}, {"global": {}}]


def cut(rows: int, files: int) -> list[np.ndarray]:
    """Cuts ids into blocks of very different sizes, each with at least one row."""
    weights = np.array([file * 37 % 61 + 1 for file in range(files)])
    ends = (weights.cumsum() * rows // weights.sum()).tolist()
    return [np.arange(start, end) for start, end in zip([0, *ends], ends)]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Rows of queries with up to 12 items. Queries recur later, some are null, and some rows of a query have other values."""
    rng = random.Random(1)
    lengths = [rng.randint(1, LONGEST) for _ in range(300)]
    queries = [None if number % 17 == 5 else number % 50 for number, length in enumerate(lengths) for _ in range(length)]
    values = [(query or 0) % 7 + 10 * (rng.random() < 0.1) for query in queries]
    return pa.table(
        {
            "id": pa.array(range(len(queries)), pa.int64()),
            "query": pa.array(queries, pa.int64()),
            "q_0": pa.array(values, pa.int64()),
            "q_1": pa.array([-value for value in values], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def blocks(table: pa.Table) -> list[np.ndarray]:
    return cut(table.num_rows, FILES)


@pytest.fixture(scope="module")
def other_blocks() -> list[np.ndarray]:
    return [ids + 1_000_000 for ids in cut(400, OTHER_FILES)]


@pytest.fixture(scope="module")
def client(
    table: pa.Table, blocks: list[np.ndarray], other_blocks: list[np.ndarray], module_pool: Pool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("specification")
    for name in ("rows", "others"):
        (folder / name).mkdir()
    for number, ids in enumerate(blocks):
        pq.write_table(table.slice(int(ids[0]), len(ids)), folder / "rows" / f"part-{number:03}.parquet")
    for number, ids in enumerate(other_blocks):
        pq.write_table(pa.table({"id": ids}), folder / "others" / f"part-{number:03}.parquet")
    with Client(module_pool.start({name: folder / name for name in ("rows", "others")}).location) as client:
        yield client


def grouped(batch: Batch) -> list[list[int]]:
    """The ids of each group of a batch."""
    ids, offsets = batch.data["id"].to_pylist(), batch.meta.group_offsets
    assert offsets[0] == 0 and offsets[-1] == batch.meta.rows
    return [ids[start:end] for start, end in zip(offsets, offsets[1:])]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_groups_have_the_order_of_the_specification(
    client: Client, table: pa.Table, blocks: list[np.ndarray], shuffle: dict, count: int
) -> None:
    keys = table["query"].to_pylist()
    kept = [ids[ids % 5 != 0] for ids in blocks]
    for rows, text in [(blocks, ""), (kept, "id % 5 <> 0")]:
        found, begun = groups(keys, rows)
        assert any(len(numbers) == 0 for numbers in begun), "no group spans a block"
        scaled = of_groups(shuffle, sum(map(len, rows)), len(found))
        request: dict[str, Any] = {"dataset": "rows", "columns": ["id"], "group_by": ["query"], "filter": text, "seed": SEED}
        request["shuffle"] = {**shuffle, "partitions": count}
        for (world_size, remainder), epoch in itertools.product([(1, "SHORT"), (2, "SHORT"), (4, "DROP")], [0, 3]):
            train = {**request, "batch_size": 24 // world_size, "world_size": world_size, "remainder": remainder, "epoch": epoch}
            expected = steps(epoch_order(begun, count, scaled, SEED, epoch), 24 // world_size, world_size, remainder)
            received = [[grouped(batch) for batch in step] for step in client.global_batches(**train)]
            assert received == [[[found[group].tolist() for group in rank] for rank in step] for step in expected], train


@pytest.mark.parametrize("remainder", ["SHORT", "DROP", "PAD"])
@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_packs_and_their_padding_are_those_of_the_specification(
    client: Client, table: pa.Table, blocks: list[np.ndarray], shuffle: dict, remainder: str
) -> None:
    max_pack_rows = 3 * LONGEST + 5
    found, begun = groups(table["query"].to_pylist(), blocks)
    assert 3 * max(map(len, found)) <= max_pack_rows
    scaled = of_groups(shuffle, table.num_rows, len(found))
    request: dict[str, Any] = {"dataset": "rows", "columns": ["id"], "group_by": ["query"], "max_pack_rows": max_pack_rows, "seed": SEED}
    for (batch_size, world_size), epoch in itertools.product([(1, 1), (2, 3), (6, 1)], [0, 1]):
        (order,) = epoch_order(begun, 1, scaled, SEED, epoch)
        packed = packs(order, found, max_pack_rows)
        expected = [
            [[found[group].tolist() for pack in rank for group in packed[pack]] for rank in step]
            for step in steps([np.arange(len(packed))], batch_size, world_size, remainder)
        ]
        train = {**request, "batch_size": batch_size, "world_size": world_size, "remainder": remainder, "epoch": epoch, "shuffle": shuffle}
        received = list(client.global_batches(**train))
        assert [[grouped(batch) for batch in step] for step in received] == expected, train
        for batch in itertools.chain.from_iterable(received):
            padding = batch_size * max_pack_rows - batch.meta.rows if remainder == "PAD" else 0
            assert batch.data["id"].to_pylist()[batch.meta.rows :] == [0] * padding
            if remainder == "PAD":
                assert batch.data["valid"].to_pylist() == [1] * batch.meta.rows + [0] * padding


@pytest.mark.parametrize("group_by", [[], ["query"]], ids=["rows", "groups"])
def test_distinct_rows_are_those_of_the_specification(
    client: Client, table: pa.Table, blocks: list[np.ndarray], group_by: list[str]
) -> None:
    shuffle, world_size, batch_size = {"window_rows": 300}, 2, 20 if group_by else 150
    columns = [table[name].to_pylist() for name in ("query", "q_0", "q_1")]
    found, begun = groups(columns[0] if group_by else range(table.num_rows), blocks)
    scaled = of_groups(shuffle, table.num_rows, len(found))
    expected = []
    for step in steps(epoch_order(begun, 1, scaled, SEED, 0), batch_size, world_size, "SHORT"):
        rows = [[row for item in rank for row in found[item].tolist()] for rank in step]
        expected.append([(ids, *distinct([tuple(column[row] for column in columns) for row in ids])) for ids in rows])
    train = {"dataset": "rows", "columns": ["id"], "dedupe": DEDUPE, "group_by": group_by, "seed": SEED, "shuffle": shuffle}
    repeated = 0
    received = list(client.global_batches(**train, batch_size=batch_size, world_size=world_size, remainder="SHORT"))
    assert len(received) == len(expected)
    for batch, (ids, values, index) in zip(itertools.chain(*received), itertools.chain(*expected)):
        assert batch.data["id"].to_pylist() == ids
        assert batch.data["q_index"].to_pylist() == index
        assert batch.data["q"].values.to_pylist() == [list(each[1:]) for each in values]
        repeated += len(ids) - len(values)
    assert repeated > 0, "no row is repeated"


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_mixtures_have_the_order_of_the_specification(
    client: Client, blocks: list[np.ndarray], other_blocks: list[np.ndarray], shuffle: dict
) -> None:
    # The second one is the dataset itself, with a filter.
    late = [ids[ids > 1500] for ids in blocks]
    mix = [{"dataset": "others", "fraction": 0.3}, {"dataset": "rows", "fraction": 0.1, "filter": "id > 1500"}]
    epochs = 3
    for batch_size, world_size in [(60, 1), (30, 2), (20, 3)]:
        sizes = [batch_size * share // 10 for share in (6, 3, 1)]
        expected = mixture(blocks, [other_blocks, late], sizes, world_size, shuffle, SEED, epochs)
        train = {"dataset": "rows", "columns": ["id"], "mix": mix, "seed": SEED, "shuffle": shuffle, "epochs": epochs}
        received = [
            [batch.data["id"].to_pylist() for batch in step]
            for step in client.global_batches(**train, batch_size=batch_size, world_size=world_size)
        ]
        assert received == [[rank.tolist() for rank in step] for epoch in expected for step in epoch], train
        taken = epochs * len(expected[0]) * sizes[1] * world_size
        assert taken > 2 * sum(map(len, other_blocks)), "the other dataset is not repeated"
