"""Snapshots are a part of the memory of the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from client import Client, refused
from server import Pool, Server

COLUMNS, GROUPS = 150, 700
REQUEST = {"columns": ["c0"], "batch_size": GROUPS, "epochs": 1, "shuffle": {"none": {}}}


def test_a_snapshot_that_does_not_fit_is_refused_with_both_sizes_and_others_are_served(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    table = pa.table({f"c{column}": range(GROUPS) for column in range(COLUMNS)})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=1, write_statistics=False)
    pq.write_table(table, tmp_path / "small.parquet")
    datasets = {name: tmp_path / f"{name}.parquet" for name in ["wide", "small"]}
    client = connect(pool.start(datasets, cache_memory="1MiB"))

    with refused("RESOURCE_EXHAUSTED", "'wide'", "memory of the snapshot and its manifest", "cache_memory") as error:
        next(client.batches(dataset="wide", **REQUEST))
    needed, limit = map(int, re.search(r"is (\d+), the limit is (\d+)", str(error.value)).groups())
    # 8 bytes for each column of each row group, and a part of the memory that the other snapshot leaves.
    assert needed > limit and needed > 8 * COLUMNS * GROUPS // 2 and limit < 1 << 20
    (batch,) = client.batches(dataset="small", **REQUEST)
    assert batch.data.column("c0").to_pylist() == list(range(GROUPS))

    client = connect(pool.start(datasets, cache_memory="8MiB"))
    (batch,) = client.batches(dataset="wide", **REQUEST)
    assert batch.data.column("c0").to_pylist() == list(range(GROUPS))
