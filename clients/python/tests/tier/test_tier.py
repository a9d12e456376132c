"""Several servers deliver the batches of one, and decode each block once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from partition_reference import partitions
from server import Pool
from tier import (
    BLOCK_ROWS,
    FAST,
    JOB,
    KEEP_ALL,
    PARTITIONS,
    ROWS,
    TIMEOUT_S,
    UNBUFFERED,
    WORLD,
    Tier,
    counter,
    first_locations,
    global_batches,
    read,
    read_ranks,
    tensor_bytes,
)

pytestmark = pytest.mark.once

# The number of ranks that are compared with one. `make nightly` runs 256.
MANY_RANKS = int(os.environ.get("FOREBAY_TIER_RANKS", "32"))
# The number of blocks of the dataset with many. `make nightly` reads 10,000.
MANY_BLOCKS = int(os.environ.get("FOREBAY_TIER_BLOCKS", "1000"))

VIEWS = {
    "tensor": {},
    "columns": {"tensors": {}, "columns": ["a", "user"]},
    "strings": {"tensors": {}, "columns": ["text", "b"]},
    "filter": {"filter": "b < 0.7"},
    "groups": {"group_by": ["user"], "batch_size": 64},
    "dedupe": {"dedupe": [{"key": ["user"], "tensor": "u", "columns": ["user"], "dtype": "int64"}]},
}


@pytest.mark.parametrize("name", VIEWS)
def test_one_two_and_four_servers_deliver_the_same_batches(pool: Pool, events: Path, tmp_path: Path, name: str) -> None:
    job = {**JOB, **VIEWS[name]}
    found = []
    for count in (1, 2, 4):
        tier = Tier(pool, tmp_path / f"tier-{count}", {"events": events}).grow(count)
        found.append(read_ranks(tier.urls, WORLD, connect=FAST, **job))
    assert found[0] == found[1] == found[2]
    assert sum(map(len, found[0])) > 0


def test_several_ranks_of_several_servers_read_the_global_batches_of_one_rank(tier: Tier, expected: list[str]) -> None:
    assert read(tier.grow(4)) == expected


def test_each_server_decodes_only_the_blocks_of_its_partitions(tier: Tier) -> None:
    tier.grow(4)
    for epoch in range(3):
        read_ranks(tier.urls, WORLD, connect=FAST, **JOB, epoch=epoch)
        decoded = tier.counters("forebay_decode_rows_total")
        # Two ranks of eight per server, each with one partition. The blocks are equal, so no partition has a part of a block.
        assert decoded == [ROWS / 4] * 4, "a later epoch decodes nothing"


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """262,144 rows of 128 float32 columns in 64 blocks: 128 MiB of frames."""
    folder = tmp_path_factory.mktemp("wide")
    chance = np.random.default_rng(2)
    values = chance.random((128, ROWS), np.float32)
    pq.write_table(pa.table({f"f{i}": column for i, column in enumerate(values)}), folder / "0.parquet", row_group_size=BLOCK_ROWS)
    return folder


# Epochs until all columns are on disk, although the machine is busy.
SETTLING = 10


@pytest.mark.parametrize(("memory", "disk"), [(0.4, 0.0), (0.1, 0.3)], ids=["memory", "disk"])
def test_the_caches_of_the_servers_hold_together_what_none_of_them_holds_alone(
    pool: Pool, wide: Path, tmp_path: Path, memory: float, disk: float
) -> None:
    # Memory and disk of a server hold 40% of the data.
    size = 4 * 128 * ROWS
    few = {"cache_memory": str(int(memory * size)), "cache_disk": str(max(int(disk * size), 1 << 20))}
    job = {
        **JOB,
        "shuffle": {"partitions": PARTITIONS, "window_rows": ROWS // 16},
        "tensors": {"x": {"columns": ["f*"], "dtype": "float32"}},
    }
    # Rows that were written into frames, from the store or from the disk, and bytes that were read from the store.
    names = ("forebay_decode_rows_total", "forebay_storage_read_bytes_total")
    framed, stored = {}, {}
    for count in (1, 4):
        tier = Tier(pool, tmp_path / f"tier-{count}", {"events": wide}, flags=few, settings=KEEP_ALL if disk else "").grow(count)
        for epoch in range(3 if count == 1 or not disk else SETTLING):
            before = [sum(tier.counters(name)) for name in names]
            read_ranks(tier.urls, WORLD, connect=FAST, each=lambda batch: None, **job, epoch=epoch)
            after = [sum(tier.counters(name)) for name in names]
            framed[count, epoch], stored[count, epoch] = after[0] - before[0], after[1] - before[1]
            # A server does not wait for a slow disk: it may decode a column again instead of writing it or reading it.
            if disk and count == 4 and epoch and stored[4, epoch] == 0:
                break
    assert framed[4, 0] == ROWS
    assert stored[4, epoch] == 0
    assert disk or stored[4, 1] == 0
    assert stored[1, 1] >= stored[1, 0] / 2 and stored[1, 2] >= stored[1, 0] / 2
    # Columns on disk become frames again.
    assert disk or framed[4, 1] == framed[4, 2] == 0


@pytest.fixture(scope="session")
def many_blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Blocks of 8 to 24 rows, and their rows. Each block is a file, because small row groups of a file are joined."""
    folder = tmp_path_factory.mktemp("many-blocks")
    blocks = {}
    for rows in range(8, 25):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": np.arange(rows, dtype=np.float32)}), sink)
        blocks[rows] = sink.getvalue()
    sizes = np.random.default_rng(3).integers(8, 25, MANY_BLOCKS).tolist()
    for number, rows in enumerate(sizes):
        (folder / f"{number:05}.parquet").write_bytes(blocks[rows])
    return folder, sizes


def test_many_unequal_blocks_are_decoded_once_except_those_that_partitions_share(
    pool: Pool, many_blocks: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, sizes = many_blocks
    tier = Tier(pool, tmp_path / "tier", {"events": folder}).grow(2)
    job = {**JOB, "tensors": {"x": {"columns": ["a"], "dtype": "float32"}}}
    plan = forebay.connect(*tier.urls).train(**job, rank=0, world_size=WORLD).summary
    assert MANY_BLOCKS <= float(plan["rank_blocks"]) * WORLD < MANY_BLOCKS + PARTITIONS
    found = read_ranks(tier.urls, WORLD, each=tensor_bytes, connect=FAST, **job)
    values = np.concatenate([np.frombuffer(batch, np.float32) for batches in found for batch in batches])
    counts = np.bincount(values.astype(int))
    assert counts.sum() == sum(sizes) and (counts[:8] == MANY_BLOCKS).all()
    # Each rank reads one partition. A server decodes a block once, if any of its ranks reads a part of it.
    assert WORLD == PARTITIONS
    blocks: dict[str, set[int]] = {name: set() for name in tier.names}
    for name, parts in zip(first_locations(tier.urls[0], job), partitions(sizes, PARTITIONS), strict=True):
        blocks[name] |= {block for block, _, _ in parts}
    decoded = [sum(sizes[block] for block in blocks[name]) for name in tier.names]
    assert sum(sizes) <= sum(decoded) <= sum(sizes) + PARTITIONS * max(sizes)
    assert tier.counters("forebay_decode_rows_total") == decoded


def test_servers_on_the_hosts_of_their_ranks_decode_one_share_each(pool: Pool, events: Path, expected: list[str]) -> None:
    # As one server per host, which knows no others and is asked by the ranks of its host only.
    hosts = [pool.start({"events": events}) for _ in range(2)]

    def own(rank: int) -> list[str]:
        return [hosts[rank * len(hosts) // WORLD].location]

    for _ in range(2):
        found = read_ranks(own, WORLD, each=tensor_bytes, epochs=2, **JOB)
        assert global_batches(found) == expected
        assert [counter(host, "forebay_decode_rows_total") for host in hosts] == [ROWS / 2] * 2


def stored_bytes(tier: Tier, jobs: list[dict[str, Any]]) -> float:
    """Reads with all jobs at once. Returns the bytes that the servers read from the store for the batches."""
    # One server has read the footers, for the snapshot. Each other one reads them before its first block.
    footers = max(tier.counters("forebay_storage_read_bytes_total"))
    assert footers > 0
    with ThreadPoolExecutor(len(jobs)) as executor:
        # An exception of a job is raised.
        list(executor.map(lambda job: read_ranks(tier.urls, connect=FAST, **job), jobs))
    return sum(max(0, count - footers) for count in tier.counters("forebay_storage_read_bytes_total"))


def test_jobs_of_one_dataset_without_partitions_share_one_server_and_read_the_store_once(
    pool: Pool, events: Path, tmp_path: Path
) -> None:
    read_bytes = []
    for count in (1, 4):
        tier = Tier(pool, tmp_path / f"tier-{count}", {"events": events}).grow(4)
        jobs = [{**JOB, "shuffle": {}, "seed": seed, "world_size": 2} for seed in range(count)]
        read_bytes.append(stored_bytes(tier, jobs))
        decoded = tier.counters("forebay_decode_rows_total")
        assert sorted(decoded) == [0, 0, 0, ROWS], "each block is decoded once, although the jobs differ"
    assert 0 < read_bytes[1] == read_bytes[0]


def test_a_server_over_its_bound_redirects_jobs_to_the_next_one_and_each_decodes_the_dataset_once(
    pool: Pool, events: Path, tmp_path: Path
) -> None:
    bound, count = 6, 12
    tier = Tier(pool, tmp_path / "tier", {"events": events}, membership=f"overflow_streams = {bound}\n").grow(3)
    jobs = [{**JOB, "shuffle": {}, "batch_size": 2048, "seed": seed} for seed in range(count)]
    opened, all_opened = threading.Semaphore(0), threading.Event()

    def hold(rank: int, batch: Any) -> None:
        if batch.step == 0:
            opened.release()
            assert all_opened.wait(TIMEOUT_S)

    with ThreadPoolExecutor(count) as executor:
        reading = []
        try:
            for job in jobs:
                # One after another: the bound is checked before a stream opens.
                reading.append(executor.submit(read_ranks, tier.urls, 1, at=hold, connect=UNBUFFERED, **job))
                assert opened.acquire(timeout=TIMEOUT_S)
            streams = tier.counters("forebay_streams")
        finally:
            all_opened.set()
        found = [each.result() for each in reading]
    redirected = tier.counters("forebay_streams_redirected_total")
    decoded = tier.counters("forebay_decode_rows_total")
    servers = sorted(zip(redirected, streams, decoded), reverse=True)
    # The first candidate of all jobs, the second one, and a server that none of them uses.
    assert servers == [(count - bound, bound, ROWS), (0, bound, ROWS), (0, 0, 0)]
    alone = pool.start({"events": events})
    assert found == [read_ranks([alone.location], 1, **job) for job in jobs]


def test_many_ranks_read_the_store_as_often_as_one(pool: Pool, events: Path, tmp_path: Path) -> None:
    read_bytes = []
    for world in (1, MANY_RANKS):
        tier = Tier(pool, tmp_path / f"tier-{world}", {"events": events}).grow(2)
        read_bytes.append(stored_bytes(tier, [{**JOB, "batch_size": 2048 // world, "world_size": world}]))
    assert 0 < read_bytes[1] <= 1.05 * read_bytes[0]
