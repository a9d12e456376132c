"""Number of copies per delivered byte, counted at `memcpy` and `memmove`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client
from preload import compiled
from server import Pool, Server

ROWS, COLUMNS, BATCH = 200_000, 128, 4096
DELIVERED = ROWS * COLUMNS * 4
# Keeps the compiler from replacing the loops of memcpy with calls of memcpy.
FLAGS = ["-fno-builtin", "-fno-tree-loop-distribute-patterns"]


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts copied bytes."""
    return compiled("copies", tmp_path_factory.mktemp("copies"), *FLAGS)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 float32 columns."""
    random = np.random.default_rng(0)
    columns = {f"f{column:03}": random.random(ROWS, dtype=np.float32) for column in range(COLUMNS)}
    path = tmp_path_factory.mktemp("matrix") / "matrix.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=10_000, compression="none")
    return path


@pytest.mark.parametrize(
    ("shuffle", "least", "most"),
    [
        # Only the gather copies.
        ({}, 1.0, 1.03),
        # Rows are sent from their frames. Here two of five batches span two frames, which copies them.
        ({"shuffle": {"none": {}}}, 0.0, 0.03),
    ],
    ids=["shuffled", "file order"],
)
def test_a_cached_tensor_is_copied_once_or_in_file_order_not_at_all(
    pool: Pool,
    connect: Callable[[Server], Client],
    counting: Path,
    matrix: Path,
    tmp_path: Path,
    shuffle: dict,
    least: float,
    most: float,
) -> None:
    copies = tmp_path / "copies"
    copies.write_bytes(bytes(8))
    server = pool.start({"matrix": matrix}, env={"LD_PRELOAD": str(counting), "COPIES": str(copies)})
    client = connect(server)
    tensor = {"name": "x", "columns": ["f*"], "dtype": "float32"}
    request = {"dataset": "matrix", "tensors": [tensor], "batch_size": BATCH, "content_hash": False, **shuffle}

    def copied_in(epochs: int, epoch: int) -> int:
        (before,) = struct.unpack("Q", copies.read_bytes())
        batches = client.batches(**request, epoch=epoch, epochs=epochs)
        assert sum(batch.data.num_rows for batch in batches) == ROWS * epochs
        (after,) = struct.unpack("Q", copies.read_bytes())
        return after - before

    assert copied_in(1, 0) > 0, "the library counts nothing"
    ratio = copied_in(4, 1) / (4 * DELIVERED)
    assert least <= ratio <= most, f"{ratio:.3f} copies of each byte"
