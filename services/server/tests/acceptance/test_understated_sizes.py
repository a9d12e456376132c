"""Data whose size the footers understate stays within the memory, also if many streams or many blocks are read at once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client
from hanging import HangingFolder
from hostile import understate_size
from preload import compiled
from server import Pool, Server, until
from test_memory_bounds import MIB, NO_FREE_PAGES, used_bytes
from test_tiers import counter

CACHE_MEMORY = 64 * MIB
LOOKUP_MEMORY = 16 * MIB
MAX_BLOCK = 64 * MIB
SLACK = 64 * MIB
# Blocks that are being decoded, and buffers.
LOOKUP_SLACK = 32 * MIB
FILES, FILE_ROWS, TEXT_BYTES = 16, 1000, 5000
# Eight windows of eight blocks, each of another dataset, are 320 MB.
STREAMS, WINDOW_BLOCKS = 8, 8


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 16 blocks with one long value each, which a dictionary stores once: 80 MB of text in small files, whose footers claim
    that they are 80 kB."""
    folder = tmp_path_factory.mktemp("texts")
    text = pa.array(["x" * TEXT_BYTES] * FILE_ROWS).dictionary_encode()
    for number in range(FILES):
        path = folder / f"part-{number:02}.parquet"
        table = pa.table({"id": range(number * FILE_ROWS, (number + 1) * FILE_ROWS), "text": text})
        pq.write_table(table, path, write_statistics=False)
        understate_size(path, FILE_ROWS * TEXT_BYTES, TEXT_BYTES)
    return folder


def start(pool: Pool, datasets: dict[str, Path], env: dict[str, str] | None = None, **flags: Any) -> Server:
    config = pool.folder / "forebay.toml"
    config.write_text(f"[storage]\nmax_block_bytes = {MAX_BLOCK}\n")
    flags |= {"config": config, "cache_memory": CACHE_MEMORY, "cache_disk": 0, "cpu_threads": 2, "io_threads": 2}
    return pool.start(datasets, env={**NO_FREE_PAGES, **(env or {})}, **flags)


def test_eight_streams_whose_windows_are_larger_than_estimated_stay_within_the_memory(
    pool: Pool, texts: Path, tmp_path: Path
) -> None:
    # Datasets at different paths share no decoded block.
    datasets = {f"texts{number}": tmp_path / "copies" / str(number) for number in range(STREAMS)}
    for folder in datasets.values():
        shutil.copytree(texts, folder)
    hanging = HangingFolder(tmp_path / "copies", compiled("hang", tmp_path, "-ldl"), tmp_path / "hangs")
    server = start(pool, datasets, env=hanging.environment)

    def read(seed: int) -> int:
        with Client(server.location) as client:
            shuffle = {"window_rows": WINDOW_BLOCKS * FILE_ROWS}
            batches = client.batches(dataset=f"texts{seed}", batch_size=100, seed=seed, shuffle=shuffle)
            return sum(batch.meta.rows for batch in batches)

    def request() -> None:
        # All streams have reserved their windows before the first block is decoded.
        hanging.hang()
        with ThreadPoolExecutor(STREAMS) as executor:
            rows = [executor.submit(read, seed) for seed in range(STREAMS)]
            until(lambda: counter(server, "forebay_streams") == STREAMS, failure="the streams do not start")
            hanging.answer()
            assert [stream.result() for stream in rows] == [FILES * FILE_ROWS] * STREAMS

    used = used_bytes(server, request)
    print(f"{used / MIB:.0f} MiB above idle")
    assert used <= CACHE_MEMORY + MAX_BLOCK + SLACK, f"{used:,} bytes"


def test_lookup_rows_of_many_blocks_are_loaded_up_to_the_first_block_beyond_their_memory(pool: Pool, texts: Path) -> None:
    without_lookups = start(pool, {"texts": texts}).memory_bytes("VmHWM")
    server = start(pool, {"texts": texts}, online="texts=id", lookup_memory=LOOKUP_MEMORY)
    # The rows are loaded in the background, again and again.
    failures = lambda: server.log().count("keeping 'texts' in memory needs")
    until(lambda: failures() >= 2, seconds=60, failure="the rows fit in memory")
    used = server.memory_bytes("VmHWM") - without_lookups
    print(f"{used / MIB:.0f} MiB above idle")
    # The whole dataset takes five times the memory for lookups.
    assert used <= LOOKUP_MEMORY + LOOKUP_SLACK, f"{used:,} bytes"
