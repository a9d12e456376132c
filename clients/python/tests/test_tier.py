"""Several servers deliver the batches of one, decode each block once, and may come, go and die without changing a byte."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool, Server, until
from tier import MEMBERSHIP, Proxy, Tier, content, global_batches, read_ranks, tensor_bytes, view

pytestmark = pytest.mark.once

WORLD = 8
PARTITIONS = 8
BLOCKS, BLOCK_ROWS = 64, 4096
ROWS = BLOCKS * BLOCK_ROWS
# The number of random histories. `make nightly` runs 20.
SEEDS = int(os.environ.get("FOREBAY_TIER_SEEDS", "3"))
JOB = {
    "dataset": "events",
    "batch_size": 256,
    "seed": 5,
    "shuffle": {"partitions": PARTITIONS},
    "tensors": {"x": {"columns": ["a", "b"], "dtype": "float32"}},
    "remainder": "SHORT",
}
FAST = {"replan_interval": 1}
KEEP_ALL = '[loader]\ndisk_writes = "always"\n'


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


def read(tier: Tier, **options: Any) -> list[str]:
    options = {"epochs": 2, "connect": FAST, **options}
    return global_batches(read_ranks(tier.urls, WORLD, each=tensor_bytes, **JOB, **options))


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
    decoded, read = {}, {}
    for count in (1, 4):
        tier = Tier(pool, tmp_path / f"tier-{count}", {"events": wide}, flags=few).grow(count)
        for epoch in range(3):
            before = [sum(tier.counters(name)) for name in ("forebay_decode_rows_total", "forebay_storage_read_bytes_total")]
            read_ranks(tier.urls, WORLD, connect=FAST, each=lambda batch: None, **job, epoch=epoch)
            after = [sum(tier.counters(name)) for name in ("forebay_decode_rows_total", "forebay_storage_read_bytes_total")]
            decoded[count, epoch], read[count, epoch] = after[0] - before[0], after[1] - before[1]
    assert decoded[4, 0] == ROWS and decoded[4, 1] == decoded[4, 2] == 0
    assert read[4, 1] == read[4, 2] == 0
    assert decoded[1, 1] >= ROWS / 2 and decoded[1, 2] >= ROWS / 2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_server_killed_in_mid_epoch_changes_no_batch(tier: Tier, expected: list[str], seed: int) -> None:
    tier.grow(4)
    chance = random.Random(seed)
    victim, step = chance.randrange(4), chance.randrange(1, 200)

    def kill(rank: int, batch: Any) -> None:
        if rank == 0 and (batch.epoch, batch.step) == (step // 128, step % 128):
            tier.servers[victim].kill()

    assert read(tier, at=kill) == expected


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rolling_restart_changes_no_batch_and_decodes_nothing_again(
    pool: Pool, events: Path, tmp_path: Path, expected: list[str], seed: int
) -> None:
    tier = Tier(pool, tmp_path / "tier", {"events": events}, settings=KEEP_ALL).grow(4)
    assert read(tier) == expected
    first = random.Random(seed).randrange(4)

    def roll() -> None:
        for turn in range(4):
            index = (first + turn) % 4
            tier.servers[index].terminate()
            tier.servers[index].wait()
            tier.restart(index)

    assert read(tier, concurrently=roll) == expected
    before = tier.counters("forebay_storage_read_bytes_total")
    assert read(tier) == expected
    assert tier.counters("forebay_storage_read_bytes_total") == before, "each server still has its columns on disk"


def test_a_joining_server_takes_its_share_of_the_streams_in_mid_epoch(tier: Tier, expected: list[str]) -> None:
    tier.grow(3)
    joined = []

    def join(rank: int, batch: Any) -> None:
        if rank == 0 and batch.epoch == 0 and batch.step == 10:
            tier.grow(1)
            joined.append(True)

    found = read(tier, at=join, epochs=2)
    assert found == expected and joined
    # The next job is placed on all four servers.
    before = tier.counters("forebay_batches_total")
    read(tier, epochs=1)
    after = tier.counters("forebay_batches_total")
    assert all(b > a for a, b in zip(before, after))


def test_servers_with_different_views_deliver_the_same_batches(tier: Tier, expected: list[str]) -> None:
    tier.grow(4)
    # Each server now knows only itself and its neighbour; see Tier.start for the file that all of them share.
    tier.write(tier.names[:3])
    assert read(tier) == expected


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_list_of_members_that_flaps_changes_no_batch(tier: Tier, expected: list[str], seed: int) -> None:
    tier.grow(4)
    chance = random.Random(seed)
    lists = [tier.names, [], tier.names[:2], ["nonsense"], tier.names[1:], [*tier.names, "127.0.0.1:1"]]

    def flap(rank: int, batch: Any) -> None:
        if rank == 0 and batch.step % 8 == 0:
            tier.write(chance.choice(lists))

    assert read(tier, at=flap) == expected
    for server in tier.servers:
        assert tier.known(server) == set(tier.names), view(server)


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    made = [Proxy() for _ in range(2)]
    yield made
    for proxy in made:
        proxy.close()


def test_a_server_whose_network_drops_everything_costs_only_time(
    pool: Pool, events: Path, tmp_path: Path, proxies: list[Proxy], expected: list[str]
) -> None:
    members = tmp_path / "members"
    members.write_text("\n".join(proxy.name for proxy in proxies))
    config = tmp_path / "forebay.toml"
    config.write_text(MEMBERSHIP)
    servers: list[Server] = []
    for proxy in proxies:
        place = {"members": f"file:{members}", "advertise": proxy.name, "config": config, "state": tmp_path / "state"}
        server = pool.start({"events": events}, **place)
        proxy.target = server.grpc
        servers.append(server)
    for server in servers:
        until(lambda: len([m for m in view(server)["members"] if m["state"] == "ready"]) == 2, 60)
    urls = [f"grpc://{proxy.name}" for proxy in proxies]

    def drop(rank: int, batch: Any) -> None:
        if rank == 0 and batch.epoch == 0 and batch.step == 20:
            proxies[1].flows.clear()

    quick = {**FAST, "attempt_timeout": 2, "keepalive_interval": 1, "keepalive_timeout": 1}
    found = read_ranks(urls, WORLD, each=tensor_bytes, at=drop, connect=quick, epochs=2, **JOB)
    assert global_batches(found) == expected


def test_jobs_of_one_dataset_without_partitions_share_one_server(tier: Tier) -> None:
    tier.grow(4)
    job = {**JOB, "shuffle": {}}
    for seed in range(4):
        read_ranks(tier.urls, 2, connect=FAST, **{**job, "seed": seed})
    decoded = tier.counters("forebay_decode_rows_total")
    assert sorted(decoded) == [0, 0, 0, ROWS], "each block is decoded once, although the jobs differ"


def test_many_ranks_read_the_store_as_often_as_one(pool: Pool, events: Path, tmp_path: Path) -> None:
    read_bytes = []
    for world in (1, 32):
        tier = Tier(pool, tmp_path / f"tier-{world}", {"events": events}).grow(2)
        for url in tier.urls:
            # A server reads the footers when it opens the dataset.
            assert int(forebay.connect(url).train(**JOB, rank=0, world_size=1).summary["rows"]) == ROWS
        before = sum(tier.counters("forebay_storage_read_bytes_total"))
        read_ranks(tier.urls, world, connect=FAST, **{**JOB, "batch_size": 2048 // world})
        read_bytes.append(sum(tier.counters("forebay_storage_read_bytes_total")) - before)
    assert 0 < read_bytes[1] <= 1.05 * read_bytes[0]
