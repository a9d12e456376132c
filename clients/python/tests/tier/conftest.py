"""Fixtures: a dataset, servers that know each other, and what one rank reads from one server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server import Pool
from tier import BLOCK_ROWS, JOB, ROWS, WORLD, Tier, global_batches, read_ranks, tensor_bytes


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """262,144 rows in 64 blocks of four files."""
    folder = tmp_path_factory.mktemp("events")
    chance = np.random.default_rng(1)
    for number in range(4):
        rows = ROWS // 4
        start = number * rows
        table = pa.table(
            {
                "a": np.arange(start, start + rows, dtype=np.float32),
                "b": chance.random(rows, np.float32),
                "text": pa.array([f"row {row % 977}" for row in range(start, start + rows)]),
                "user": np.arange(start, start + rows, dtype=np.int64) // 5,
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=BLOCK_ROWS)
    return folder


@pytest.fixture
def tier(pool: Pool, events: Path, tmp_path: Path) -> Tier:
    return Tier(pool, tmp_path / "tier", {"events": events})


@pytest.fixture(scope="session")
def expected(events: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Digests of the global batches of two epochs of JOB, read by one rank from one server without members."""
    pool = Pool(tmp_path_factory.mktemp("alone"))
    try:
        server = pool.start({"events": events})
        train = {**JOB, "batch_size": JOB["batch_size"] * WORLD, "epochs": 2}
        return global_batches(read_ranks([server.location], 1, each=tensor_bytes, **train))
    finally:
        pool.close()
