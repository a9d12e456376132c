"""Servers that come, go, die, and disagree about each other change no batch."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from server import Pool, until
from tier import (
    FAST,
    FLAPPING_S,
    JOB,
    KEEP_ALL,
    ROWS,
    SEEDS,
    TIMEOUT_S,
    UNBUFFERED,
    WORLD,
    Proxy,
    Tier,
    counter,
    global_batches,
    read,
    read_ranks,
    start_behind,
    tensor_bytes,
)

pytestmark = pytest.mark.once

# The steps of an epoch of JOB.
STEPS = ROWS // (JOB["batch_size"] * WORLD)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_server_killed_in_mid_epoch_changes_no_batch(tier: Tier, expected: list[str], seed: int) -> None:
    tier.grow(4)
    chance = random.Random(seed)
    victim, step = chance.randrange(4), chance.randrange(1, 200)

    def kill(rank: int, batch: Any) -> None:
        if rank == 0 and (batch.epoch, batch.step) == divmod(step, STEPS):
            tier.servers[victim].kill()

    assert read(tier, at=kill, connect=UNBUFFERED) == expected
    assert not tier.servers[victim].is_running()
    decoded = [counter(server, "forebay_decode_rows_total") for server in tier.servers if server.is_running()]
    assert 3 / 4 * ROWS <= sum(decoded) <= ROWS, "the others decode at most the partitions of the killed server again"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_streams_of_a_killed_server_are_shared_evenly_by_the_others(tier: Tier, expected: list[str], seed: int) -> None:
    tier.grow(4)
    killed = tier.servers[random.Random(seed).randrange(4)]
    others = [server for server in tier.servers if server is not killed]
    started, dead, shared = threading.Barrier(WORLD), threading.Event(), threading.Event()

    def streams() -> list[float]:
        return sorted(counter(server, "forebay_streams") for server in others)

    def wait(rank: int, batch: Any) -> None:
        if batch.step == 10:
            started.wait(TIMEOUT_S)
            if rank == 0:
                assert tier.counters("forebay_streams") == [2, 2, 2, 2]
                killed.kill()
                dead.set()
            assert dead.wait(TIMEOUT_S)
        # No stream has ended, because each has more batches left than are buffered, and no stream is at the killed server any more.
        if batch.step == 60:
            if rank == 0:
                until(lambda: streams() == [2, 3, 3], 60, lambda: f"{streams()}: expected 2, 3 and 3 streams")
                shared.set()
            assert shared.wait(TIMEOUT_S)

    assert read(tier, at=wait, connect=UNBUFFERED, epochs=1) == expected[:STEPS]
    assert shared.is_set()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rolling_restart_changes_no_batch_and_decodes_nothing_again(
    pool: Pool, events: Path, tmp_path: Path, expected: list[str], seed: int
) -> None:
    tier = Tier(pool, tmp_path / "tier", {"events": events}, settings=KEEP_ALL).grow(4)
    assert read(tier) == expected
    first = random.Random(seed).randrange(4)

    reading, rolled = threading.Event(), threading.Event()

    def roll() -> None:
        assert reading.wait(TIMEOUT_S)
        for turn in range(2 * 4):
            index = (first + turn) % 4
            tier.servers[index].terminate()
            tier.servers[index].wait()
            tier.restart(index)
        rolled.set()

    def slowly(rank: int, batch: Any) -> None:
        reading.set()
        # A rank that does not read would keep its server from stopping. The last batch has nothing after it.
        left = 2 * STEPS - (batch.epoch * STEPS + batch.step)
        if left == 1:
            assert rolled.wait(TIMEOUT_S)
        elif not rolled.is_set():
            time.sleep(max(0.02, 1 / left))

    assert read(tier, concurrently=roll, at=slowly, connect=UNBUFFERED) == expected
    before = tier.counters("forebay_storage_read_bytes_total")
    assert read(tier) == expected
    assert tier.counters("forebay_storage_read_bytes_total") == before, "each server still has its columns"
    for server in tier.servers:
        server.stop()
    tier.restart(*range(4))
    assert read(tier) == expected
    # The counters begin at 0 with the process. Columns on disk are written into frames, and counted as decoded rows, again.
    assert tier.counters("forebay_storage_read_bytes_total") == [0, 0, 0, 0], "each server still has its columns on disk"
    assert tier.counters("forebay_decode_rows_total") == [ROWS / 4] * 4


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_server_that_joins_in_mid_epoch_changes_no_batch(tier: Tier, expected: list[str], seed: int) -> None:
    chance = random.Random(seed)
    tier.grow(chance.randrange(1, 5))
    step, joined = chance.randrange(1, 200), []

    def join(rank: int, batch: Any) -> None:
        if rank == 0 and (batch.epoch, batch.step) == divmod(step, STEPS):
            tier.grow(1)
            joined.append(batch)

    assert read(tier, at=join, connect=UNBUFFERED) == expected and joined
    # The next job is placed on all servers.
    before = tier.counters("forebay_batches_total")
    read(tier, epochs=1)
    after = tier.counters("forebay_batches_total")
    assert all(b > a for a, b in zip(before, after))


def test_running_streams_move_to_a_server_that_joins(tier: Tier, pool: Pool, events: Path) -> None:
    tier.grow(4)
    job = {**JOB, "batch_size": 8}
    started, joined, settled = threading.Barrier(WORLD), threading.Event(), threading.Event()

    def slowly(rank: int, batch: Any) -> None:
        if settled.is_set() or batch.step < 10:
            return
        if batch.step == 10:
            started.wait(TIMEOUT_S)
            if rank == 0:
                assert tier.counters("forebay_streams") == [2, 2, 2, 2]
                tier.grow(1)
                joined.set()
            assert joined.wait(TIMEOUT_S)
        # A stream moves when its rank asks for a batch.
        time.sleep(0.1)
        if rank == 0 and sorted(tier.counters("forebay_streams")) == [1, 1, 2, 2, 2]:
            settled.set()

    found = read_ranks(tier.urls, WORLD, each=tensor_bytes, at=slowly, connect=UNBUFFERED, epochs=1, **job)
    assert settled.is_set(), f"open streams: {tier.counters('forebay_streams')}"
    placed = counter(tier.servers[4], "forebay_streams_placed_total")
    assert 1 <= placed <= 2, "each stream moves once"
    alone = pool.start({"events": events})
    whole = {**job, "batch_size": 8 * WORLD}
    assert global_batches(found) == global_batches(read_ranks([alone.location], 1, each=tensor_bytes, **whole))


def halves(pool: Pool, events: Path, folder: Path) -> tuple[Tier, Tier]:
    """Two servers that know only each other, and two others that do, with one state."""
    left, right = (Tier(pool, folder / name, {"events": events}, state=folder / "state").grow(2) for name in ("left", "right"))
    return left, right


def join(*tiers: Tier) -> None:
    """Lists all servers for each server, and waits until each knows all."""
    names = [name for tier in tiers for name in tier.names]
    for tier in tiers:
        tier.write(names)
    for tier in tiers:
        tier.meet(names)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_halves_that_do_not_know_each_other_deliver_the_same_batches(
    pool: Pool, events: Path, tmp_path: Path, expected: list[str], seed: int
) -> None:
    both = halves(pool, events, tmp_path)
    chance = random.Random(seed)
    half = chance.sample([0, 1] * (WORLD // 2), WORLD)
    step, joined = chance.randrange(1, 200), threading.Event()

    def heal(rank: int, batch: Any) -> None:
        if (batch.epoch, batch.step) != divmod(step, STEPS):
            return
        if rank == 0:
            for tier in both:
                tier.meet()
            join(*both)
            joined.set()
        assert joined.wait(TIMEOUT_S)

    found = read_ranks(lambda rank: both[half[rank]].urls, WORLD, each=tensor_bytes, at=heal, connect=UNBUFFERED, epochs=2, **JOB)
    assert global_batches(found) == expected and joined.is_set()
    for tier in both:
        assert sum(tier.counters("forebay_batches_total")) >= WORLD // 2 * step, "both halves have served"
    assert read(both[0]) == read(both[1]) == expected
    decoded = [rows for tier in both for rows in tier.counters("forebay_decode_rows_total")]
    assert ROWS <= sum(decoded) <= 2 * ROWS, "each view decodes the dataset at most once"


def test_without_partitions_each_half_decodes_the_dataset_once(pool: Pool, events: Path, tmp_path: Path) -> None:
    both = halves(pool, events, tmp_path)
    job = {**JOB, "shuffle": {}}

    def of(rank: int) -> list[str]:
        return both[rank % 2].urls

    found = [read_ranks(of, WORLD, connect=FAST, **job)]
    decoded = [sorted(tier.counters("forebay_decode_rows_total")) for tier in both]
    assert decoded == [[0, ROWS], [0, ROWS]]
    join(*both)
    found.append(read_ranks(of, WORLD, connect=FAST, **job))
    decoded = [sorted(tier.counters("forebay_decode_rows_total")) for tier in both]
    assert decoded == [[0, ROWS], [0, ROWS]], "the server of all is that of one half"
    alone = pool.start({"events": events})
    found.append(read_ranks([alone.location], WORLD, **job))
    assert found[0] == found[1] == found[2]


def test_servers_that_are_told_of_fewer_members_deliver_the_same_batches(tier: Tier, expected: list[str]) -> None:
    tier.grow(4)
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

    assert read(tier, at=flap, connect=UNBUFFERED) == expected
    tier.write(tier.names)
    tier.meet()


def test_a_list_of_members_that_flaps_every_second_moves_no_stream(tier: Tier, expected: list[str]) -> None:
    tier.grow(4)
    lists = [[], tier.names[:2], ["nonsense"], tier.names[1:], [*tier.names, "127.0.0.1:1"], tier.names]
    reading, steady = threading.Event(), threading.Event()

    def flap() -> None:
        assert reading.wait(TIMEOUT_S)
        for second in range(FLAPPING_S):
            tier.write(lists[second % len(lists)])
            time.sleep(1)
        steady.set()

    def slowly(rank: int, batch: Any) -> None:
        reading.set()
        if batch.step == STEPS - 1:
            assert steady.wait(TIMEOUT_S)
        elif not steady.is_set():
            time.sleep(FLAPPING_S / STEPS)

    assert read(tier, concurrently=flap, at=slowly, connect=UNBUFFERED, epochs=1) == expected[:STEPS]
    assert tier.counters("forebay_streams_placed_total") == [2, 2, 2, 2]


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    made = [Proxy() for _ in range(2)]
    yield made
    for proxy in made:
        proxy.close()


def test_a_server_whose_network_drops_everything_costs_only_time(
    pool: Pool, events: Path, tmp_path: Path, proxies: list[Proxy], expected: list[str]
) -> None:
    servers = start_behind(proxies, pool, {"events": events}, tmp_path)
    urls = [f"grpc://{proxy.name}" for proxy in proxies]
    reached, dropped = threading.Barrier(WORLD), threading.Event()

    def drop(rank: int, batch: Any) -> None:
        if (batch.epoch, batch.step) == (0, 20):
            reached.wait(TIMEOUT_S)
            if rank == 0:
                proxies[1].flows.clear()
                dropped.set()
            assert dropped.wait(TIMEOUT_S)

    quick = {**UNBUFFERED, "attempt_timeout": 2, "keepalive_interval": 1, "keepalive_timeout": 1}
    found = read_ranks(urls, WORLD, each=tensor_bytes, at=drop, connect=quick, epochs=2, **JOB)
    assert global_batches(found) == expected
    batches = WORLD * 2 * STEPS
    assert counter(servers[0], "forebay_batches_total") > batches * 3 / 4, "the first server has replaced the second one"


def test_when_the_servers_of_a_zone_die_those_of_the_other_zone_serve_its_ranks(
    pool: Pool, events: Path, tmp_path: Path, expected: list[str]
) -> None:
    zones = "ab"
    tier = Tier(pool, tmp_path / "tier", {"events": events}, own_flags=lambda index: {"zone": zones[index // 2]}).grow(4)

    def options(rank: int) -> dict[str, Any]:
        return {**FAST, "zone": zones[rank // (WORLD // 2)]}

    def by_zone(name: str) -> list[float]:
        values = [counter(server, name) if server.is_running() else 0 for server in tier.servers]
        return [sum(values[:2]), sum(values[2:])]

    assert read(tier, connect=options, epochs=1) == expected[:STEPS]
    assert by_zone("forebay_batches_total") == [WORLD // 2 * STEPS] * 2, "batches stay in the zone of their rank"
    assert by_zone("forebay_decode_rows_total") == [ROWS / 2] * 2

    def kill(rank: int, batch: Any) -> None:
        if rank == 0 and (batch.epoch, batch.step) == (0, 40):
            for server in tier.servers[:2]:
                server.kill()

    assert read(tier, connect=lambda rank: {**UNBUFFERED, **options(rank)}, at=kill) == expected
    before = by_zone("forebay_batches_total")
    assert read(tier, connect=options, epochs=1) == expected[:STEPS]
    assert by_zone("forebay_batches_total") == [0, before[1] + WORLD * STEPS]
    assert by_zone("forebay_decode_rows_total") == [0, ROWS], "the other zone has decoded the rest, too"
