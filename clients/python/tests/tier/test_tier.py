"""Several servers deliver the batches of one, and decode each block once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool
from tier import BLOCK_ROWS, FAST, JOB, PARTITIONS, ROWS, WORLD, Tier, counter, global_batches, read, read_ranks, tensor_bytes

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


def test_the_caches_of_the_servers_hold_together_what_none_of_them_holds_alone(pool: Pool, wide: Path, tmp_path: Path) -> None:
    # Memory and disk of a server hold 40% of the data.
    few = {"cache_memory": str(int(0.4 * 4 * 128 * ROWS)), "cache_disk": "1MiB"}
    job = {
        **JOB,
        "shuffle": {"partitions": PARTITIONS, "window_rows": ROWS // 4},
        "tensors": {"x": {"columns": ["f*"], "dtype": "float32"}},
    }
    decoded, stored = {}, {}
    for count in (1, 4):
        tier = Tier(pool, tmp_path / f"tier-{count}", {"events": wide}, flags=few).grow(count)
        for epoch in range(3):
            before = [sum(tier.counters(name)) for name in ("forebay_decode_rows_total", "forebay_storage_read_bytes_total")]
            read_ranks(tier.urls, WORLD, connect=FAST, each=lambda batch: None, **job, epoch=epoch)
            after = [sum(tier.counters(name)) for name in ("forebay_decode_rows_total", "forebay_storage_read_bytes_total")]
            decoded[count, epoch], stored[count, epoch] = after[0] - before[0], after[1] - before[1]
    assert decoded[4, 0] == ROWS and decoded[4, 1] == decoded[4, 2] == 0
    assert stored[4, 1] == stored[4, 2] == 0
    assert decoded[1, 1] >= ROWS / 2 and decoded[1, 2] >= ROWS / 2


@pytest.fixture(scope="session")
def many_blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Blocks of 8 to 24 rows, and the number of rows. Each block is a file, because small row groups of a file are joined."""
    folder = tmp_path_factory.mktemp("many-blocks")
    blocks = {}
    for rows in range(8, 25):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"a": np.arange(rows, dtype=np.float32)}), sink)
        blocks[rows] = sink.getvalue()
    sizes = np.random.default_rng(3).integers(8, 25, MANY_BLOCKS).tolist()
    for number, rows in enumerate(sizes):
        (folder / f"{number:05}.parquet").write_bytes(blocks[rows])
    return folder, sum(sizes)


def test_many_unequal_blocks_are_decoded_once_except_those_that_partitions_share(
    pool: Pool, many_blocks: tuple[Path, int], tmp_path: Path
) -> None:
    folder, rows = many_blocks
    tier = Tier(pool, tmp_path / "tier", {"events": folder}).grow(2)
    job = {**JOB, "tensors": {"x": {"columns": ["a"], "dtype": "float32"}}}
    plan = forebay.connect(*tier.urls).train(**job, rank=0, world_size=WORLD).summary
    assert MANY_BLOCKS <= float(plan["rank_blocks"]) * WORLD < MANY_BLOCKS + PARTITIONS
    found = read_ranks(tier.urls, WORLD, each=tensor_bytes, connect=FAST, **job)
    values = np.concatenate([np.frombuffer(batch, np.float32) for batches in found for batch in batches])
    counts = np.bincount(values.astype(int))
    assert counts.sum() == rows and (counts[:8] == MANY_BLOCKS).all()
    decoded = tier.counters("forebay_decode_rows_total")
    assert rows <= sum(decoded) <= 1.05 * rows
    assert all(rows / 2 <= of_server <= 1.05 * rows / 2 for of_server in decoded), decoded


def test_servers_on_the_hosts_of_their_ranks_decode_one_share_each(pool: Pool, events: Path, expected: list[str]) -> None:
    # As one server per host, which knows no others and is asked by the ranks of its host only.
    hosts = [pool.start({"events": events}) for _ in range(2)]

    def own(rank: int) -> list[str]:
        return [hosts[rank * len(hosts) // WORLD].location]

    for _ in range(2):
        found = read_ranks(own, WORLD, each=tensor_bytes, epochs=2, **JOB)
        assert global_batches(found) == expected
        assert [counter(host, "forebay_decode_rows_total") for host in hosts] == [ROWS / 2] * 2


def test_jobs_of_one_dataset_without_partitions_share_one_server(tier: Tier) -> None:
    tier.grow(4)
    job = {**JOB, "shuffle": {}}
    for seed in range(4):
        read_ranks(tier.urls, 2, connect=FAST, **{**job, "seed": seed})
    decoded = tier.counters("forebay_decode_rows_total")
    assert sorted(decoded) == [0, 0, 0, ROWS], "each block is decoded once, although the jobs differ"


def test_many_ranks_read_the_store_as_often_as_one(pool: Pool, events: Path, tmp_path: Path) -> None:
    read_bytes = []
    for world in (1, MANY_RANKS):
        tier = Tier(pool, tmp_path / f"tier-{world}", {"events": events}).grow(2)
        # One server has read the footers, for the snapshot. The other reads them before its first block.
        footers = max(tier.counters("forebay_storage_read_bytes_total"))
        assert footers > 0
        read_ranks(tier.urls, world, connect=FAST, **{**JOB, "batch_size": 2048 // world})
        counts = tier.counters("forebay_storage_read_bytes_total")
        read_bytes.append(sum(max(0, count - footers) for count in counts))
    assert 0 < read_bytes[1] <= 1.05 * read_bytes[0]
