"""A consumer that stops reading costs bounded memory and does not delay other streams."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import pytest

from client import Client
from conftest import GROUP_ROWS
from digest import digest_of
from server import Pool, Server

MIB = 1 << 20
STALL_S = 4
SETTLED_GROWTH = 48 * MIB

CACHE_MEMORY = 64 * MIB
DECODE_MEMORY = 64 * MIB
PREFETCH_PER_STREAM = 4 * MIB
# Memory beyond the settings: the process itself, and the buffers of each connection.
PROCESS_MEMORY = 128 * MIB
CONNECTION_MEMORY = 12 * MIB

# Longer than any test: 139 MB per epoch.
ENDLESS: dict[str, Any] = {
    "dataset": "small-groups",
    "batch_size": 16_384,
    "seed": 1,
    "epochs": 10_000,
    "shuffle": {"window_rows": 8 * GROUP_ROWS},
}
# 20 blocks of about 750 kB each: one window fits in 24 MiB, two do not.
LARGE_WINDOW = {"window_rows": 20 * GROUP_ROWS}


@pytest.fixture
def bounded(pool: Pool, small_groups: Path, tmp_path: Path) -> Server:
    """A server whose settings bound its memory. Nothing waits for its grace period."""
    config = tmp_path / "forebay.toml"
    config.write_text(f"[loader]\nprefetch_bytes = {PREFETCH_PER_STREAM}\ndecode_bytes = {DECODE_MEMORY}\n")
    return pool.start(
        {"small-groups": small_groups},
        config=config,
        cache_memory=CACHE_MEMORY,
        cpu_threads=2,
        io_threads=2,
        grace_period="1h",
    )


def memory_bound(streams: int) -> int:
    return PROCESS_MEMORY + CACHE_MEMORY + DECODE_MEMORY + streams * (PREFETCH_PER_STREAM + CONNECTION_MEMORY)


# A tensor in file order is sent from its frames, which its batches keep alive.
IN_FRAMES = {"tensors": [{"name": "x", "columns": ["delay", "distance"], "dtype": "float32", "null_value": 0}]}


@pytest.mark.parametrize("view", [{}, {**IN_FRAMES, "shuffle": {"none": {}}}], ids=["shuffled", "in frames"])
@pytest.mark.parametrize("stalled_streams", [1, 8, 24])
def test_stalled_consumers_cost_bounded_memory(
    bounded: Server, connect: Callable[[Server], Client], stalled_streams: int, view: dict
) -> None:
    request = {**ENDLESS, **view}
    streams = [
        # Each stream starts at another place in the file.
        connect(bounded).batches(**{**request, "seed": seed, "start_step": 7 * seed if view else 0})
        for seed in range(stalled_streams)
    ]
    for stream in streams:
        assert len(list(islice(stream, 3))) == 3

    time.sleep(STALL_S / 2)
    settled = bounded.memory_bytes()
    time.sleep(STALL_S / 2)
    stalled = bounded.memory_bytes()

    assert stalled - settled < SETTLED_GROWTH, f"grew by {(stalled - settled) / MIB:.0f} MiB during the stall"
    peak = bounded.memory_bytes("VmHWM")
    assert peak < memory_bound(stalled_streams), f"{peak / MIB:.0f} MiB of {memory_bound(stalled_streams) / MIB:.0f}"
    assert bounded.is_running()


@pytest.mark.parametrize(
    ("flags", "shuffle"),
    [
        ({}, ENDLESS["shuffle"]),
        ({"cache_memory": "24MiB"}, LARGE_WINDOW),
        ({"cpu_threads": 1, "io_threads": 1, "blocking_threads": 1}, ENDLESS["shuffle"]),
    ],
    ids=["ample memory", "memory for one window", "one thread"],
)
def test_another_stream_finishes_during_a_stall_and_the_stalled_one_resumes(
    pool: Pool,
    connect: Callable[[Server], Client],
    small_groups: Path,
    flights_client: Client,
    flags: dict,
    shuffle: dict,
) -> None:
    request = {**ENDLESS, "shuffle": shuffle}
    server = pool.start({"small-groups": small_groups}, **flags)
    stalled = connect(server).batches(**request)
    received = [batch.data for batch in islice(stalled, 3)]

    other = {**request, "seed": 2, "epochs": 1}
    assert connect(server).digest(**other) == flights_client.digest(**other)

    received += [batch.data for batch in islice(stalled, 60)]
    undisturbed = (batch.data for batch in flights_client.batches(**request, steps=63))
    assert digest_of(received) == digest_of(undisturbed)


def test_a_stalled_rank_does_not_delay_the_others(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    server = pool.start({"small-groups": small_groups}, cache_memory="24MiB")
    request = {**ENDLESS, "shuffle": LARGE_WINDOW, "batch_size": 4096, "world_size": 4, "epochs": 1}
    stalled = connect(server).batches(**request, rank=0)
    next(stalled)
    steps = connect(server).plan(**request).steps
    for rank in (1, 2, 3):
        assert sum(1 for _ in connect(server).batches(**request, rank=rank)) == steps
    assert sum(1 for _ in stalled) == steps - 1


def test_disconnected_consumers_leave_no_memory_and_no_stream(bounded: Server, connect: Callable[[Server], Client]) -> None:
    def open_and_vanish(seeds: range) -> int:
        for seed in seeds:
            with Client(bounded.location) as client:
                stream = client.batches(**{**ENDLESS, "seed": seed})
                next(stream)
                stream.close()
        return bounded.memory_bytes()

    # The pools for batches and reads fill up first.
    settled = open_and_vanish(range(80))
    assert open_and_vanish(range(80, 140)) - settled < 60 * PREFETCH_PER_STREAM / 2
    client = connect(bounded)
    assert sum(batch.data.num_rows for batch in client.batches(**{**ENDLESS, "epochs": 1})) == 3_000_000
    assert bounded.stop() == 0, "a stream without a consumer keeps the server from stopping"
