"""Every row is delivered once per epoch, in one order: a ticket determines the bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Batch, Client, refused
from conftest import GROUP_ROWS
from digest import digest_of, plain_table, row_hashes, sorted_row_hashes
from server import Pool, Server

# Divisible by every world size below, and not a divisor of the three million flights.
GLOBAL_BATCH = 24 * 1009
SMALL_WINDOW: dict[str, Any] = {
    "dataset": "small-groups",
    "batch_size": GLOBAL_BATCH,
    "seed": 11,
    "shuffle": {"window_rows": 4 * GROUP_ROWS},
}
FLIGHTS: dict[str, Any] = {"dataset": "flights", "batch_size": GLOBAL_BATCH, "seed": 11}


@pytest.fixture(scope="module")
def undisturbed(flights_client: Client) -> str:
    """The digest of one epoch of FLIGHTS."""
    return flights_client.digest(**FLIGHTS)


@pytest.fixture(scope="module")
def undisturbed_small_window(flights_client: Client) -> list[Batch]:
    """The batches of one epoch of SMALL_WINDOW."""
    return list(flights_client.batches(**SMALL_WINDOW))


def fingerprints(batches: list[Batch]) -> list[tuple]:
    """Returns the metadata of each batch, with the hash of its body, and the digest of its values."""
    return [(batch.meta, digest_of([batch.data])) for batch in batches]


def mean(column: pa.Array) -> float:
    return float(column.cast(pa.int64()).to_numpy().mean())


# -- every row exactly once --------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "world_size"), [(4096, 1), (1000, 7), (8191, 3), (65_536, 5), (1_048_576, 2)])
def test_every_row_is_delivered_whole_and_exactly_once_per_epoch(
    flights_client: Client, flights_rows: np.ndarray, batch_size: int, world_size: int
) -> None:
    request = {**FLIGHTS, "batch_size": batch_size, "world_size": world_size, "remainder": "SHORT"}
    rows = sorted_row_hashes(flights_client.rows(**request))
    assert np.array_equal(rows, flights_rows)


@pytest.mark.parametrize(
    "shuffle", [{"window_rows": 1}, {"window_rows": 500_000}, {"global": {}}, {"none": {}}], ids=str
)
def test_every_row_is_delivered_exactly_once_for_every_shuffle(
    flights_client: Client, flights_rows: np.ndarray, shuffle: dict
) -> None:
    rows = sorted_row_hashes(flights_client.rows(**{**FLIGHTS, "shuffle": shuffle}))
    assert np.array_equal(rows, flights_rows)


def test_every_row_of_lineitem_is_delivered_exactly_once_over_three_ranks(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path
) -> None:
    client = connect(pool.start({"lineitem": lineitem}))
    names = ["l_orderkey", "l_linenumber", "l_partkey", "l_extendedprice", "l_shipdate", "l_shipmode", "l_comment"]
    request = {"dataset": "lineitem", "columns": names, "batch_size": 7001, "world_size": 3, "remainder": "SHORT"}
    got = client.table(**request)
    expected = plain_table(pq.read_table(lineitem, columns=names))
    assert got.column_names == names
    keys = [("l_orderkey", "ascending"), ("l_linenumber", "ascending")]
    assert digest_of(got.sort_by(keys).to_batches()) == digest_of(expected.sort_by(keys).to_batches())


@pytest.mark.parametrize("remainder", ["SHORT", "DROP"])
@pytest.mark.parametrize(("batch_size", "world_size"), [(1000, 7), (8191, 3), (99_991, 8)])
def test_every_rank_takes_the_same_number_of_steps(
    flights_client: Client, flights_table: pa.Table, batch_size: int, world_size: int, remainder: str
) -> None:
    request = {
        **FLIGHTS,
        "columns": ["delay"],
        "batch_size": batch_size,
        "world_size": world_size,
        "remainder": remainder,
    }
    global_batch, rows = batch_size * world_size, flights_table.num_rows
    steps = rows // global_batch if remainder == "DROP" else -(-rows // global_batch)
    received = list(flights_client.global_batches(**request))  # fails if one rank continues after another ended
    assert len(received) == steps
    for step, batches in enumerate(received):
        left = min(global_batch, rows - step * global_batch)
        bounds = [
            rank * batch_size if left == global_batch else rank * left // world_size for rank in range(world_size)
        ]
        assert [batch.meta.position - step * global_batch for batch in batches] == bounds
        assert [batch.meta.rank for batch in batches] == list(range(world_size))
        assert {batch.meta.step for batch in batches} == {step}
        assert [batch.meta.rows for batch in batches] == [batch.data.num_rows for batch in batches]
        assert sum(batch.meta.rows for batch in batches) == left


def test_one_rank_keeps_a_short_last_batch_by_default_and_several_drop_it(flights_client: Client) -> None:
    one = flights_client.plan(**FLIGHTS)
    two = flights_client.plan(**FLIGHTS, world_size=2)
    assert one.info.total_records == 3_000_000
    assert two.info.total_records == 3_000_000 // (2 * GLOBAL_BATCH) * 2 * GLOBAL_BATCH


# -- the same order whatever serves it ---------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "lanes"), [(1, 5), (2, 1), (3, 2), (4, 5), (6, 1), (8, 2)])
def test_world_size_and_lanes_do_not_change_the_global_batches(
    flights_client: Client, undisturbed: str, world_size: int, lanes: int
) -> None:
    request = {**FLIGHTS, "batch_size": GLOBAL_BATCH // world_size, "world_size": world_size, "lanes": lanes}
    assert flights_client.digest(**request, remainder="SHORT") == undisturbed


@pytest.mark.parametrize(
    "flags",
    [
        {"cpu_threads": 1, "io_threads": 1, "blocking_threads": 1},
        {"cpu_threads": 8, "io_threads": 4},
        {"cache_memory": "16MiB"},  # about a tenth of the flights, decoded
        {"cache_memory": "4GiB"},
        {"cpu_scheduling": "idle"},
    ],
    ids=lambda flags: " ".join(f"{name}={value}" for name, value in flags.items()),
)
def test_threads_memory_and_cache_state_do_not_change_a_byte(
    pool: Pool,
    connect: Callable[[Server], Client],
    small_groups: Path,
    undisturbed_small_window: list[Batch],
    flags: dict,
) -> None:
    client = connect(pool.start({"small-groups": small_groups}, **flags))
    expected = fingerprints(undisturbed_small_window)
    for _ in ("cold", "warm"):
        assert fingerprints(list(client.batches(**SMALL_WINDOW))) == expected


def test_programs_that_keep_all_cpus_busy_neither_stop_the_stream_nor_change_a_byte(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path, undisturbed_small_window: list[Batch]
) -> None:
    client = connect(pool.start({"small-groups": small_groups}))
    expected = fingerprints(undisturbed_small_window)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for _ in ("cold", "warm"):
            assert fingerprints(list(client.batches(**SMALL_WINDOW))) == expected
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("flags", [{"cpu_threads": 1, "io_threads": 1, "blocking_threads": 1}, {"cpu_threads": 8, "io_threads": 4}], ids=str)
def test_threads_do_not_change_the_default_order(
    pool: Pool, connect: Callable[[Server], Client], flights: Path, undisturbed: str, flags: dict
) -> None:
    client = connect(pool.start({"flights": flights}, **flags))
    assert client.digest(**FLIGHTS) == undisturbed
    assert client.digest(**{**FLIGHTS, "batch_size": GLOBAL_BATCH // 3}, world_size=3, remainder="SHORT") == undisturbed


def test_a_restart_changes_neither_order_nor_tickets(
    pool: Pool,
    connect: Callable[[Server], Client],
    small_groups: Path,
    tmp_path: Path,
    undisturbed_small_window: list[Batch],
) -> None:
    cache_dir = tmp_path / "kept-cache"
    expected = fingerprints(undisturbed_small_window)
    before = pool.start({"small-groups": small_groups}, cache_dir=cache_dir)
    client = connect(before)
    ticket = client.plan(**SMALL_WINDOW).tickets[0]
    assert fingerprints(list(client.read(ticket))) == expected
    assert before.stop() == 0

    again = connect(pool.start({"small-groups": small_groups}, cache_dir=cache_dir))
    assert fingerprints(list(again.read(ticket))) == expected
    assert fingerprints(list(again.batches(**SMALL_WINDOW))) == expected


def test_projection_does_not_change_the_order(flights_client: Client, undisturbed_small_window: list[Batch]) -> None:
    names = ["distance", "origin"]
    projected = flights_client.rows(**SMALL_WINDOW, columns=names)
    assert digest_of(projected) == digest_of(batch.data.select(names) for batch in undisturbed_small_window)


def test_two_ranks_read_concurrently_receive_their_own_batches(
    flights_server: Server, connect: Callable[[Server], Client], undisturbed: str
) -> None:
    request = {**FLIGHTS, "batch_size": GLOBAL_BATCH // 2, "world_size": 2, "remainder": "SHORT"}
    streams = [connect(flights_server).batches(**request, rank=rank) for rank in (0, 1)]
    merged = chain.from_iterable(zip(*streams))
    assert digest_of(batch.data for batch in merged) == undisturbed


# -- resume and epochs -------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("start_step", [1, 2, 61, 122, 123])
def test_start_step_is_exactly_the_tail(
    flights_client: Client, undisturbed_small_window: list[Batch], start_step: int, lanes: int
) -> None:
    assert len(undisturbed_small_window) == 124
    tail = list(flights_client.global_batches(**SMALL_WINDOW, start_step=start_step, lanes=lanes))
    expected = undisturbed_small_window[start_step:]
    assert fingerprints([batch for (batch,) in tail]) == fingerprints(expected)


def test_steps_limits_the_length_of_a_stream(flights_client: Client, undisturbed_small_window: list[Batch]) -> None:
    part = list(flights_client.batches(**SMALL_WINDOW, start_step=5, steps=3))
    assert fingerprints(part) == fingerprints(undisturbed_small_window[5:8])


def test_start_step_at_the_end_is_an_empty_stream_or_the_next_epoch(flights_client: Client) -> None:
    request = {**SMALL_WINDOW, "columns": ["delay"]}
    assert flights_client.plan(**request, start_step=124).info.total_records == 0
    assert list(flights_client.batches(**request, start_step=124)) == []
    over_the_end = list(flights_client.batches(**request, start_step=124, epochs=2))
    assert fingerprints(over_the_end) == fingerprints(list(flights_client.batches(**request, epoch=1)))
    with refused({"INVALID_ARGUMENT", "OUT_OF_RANGE"}, "start_step", "124"):
        flights_client.plan(**request, start_step=125)


def test_two_epochs_in_one_stream_are_epoch_0_and_then_epoch_1(flights_client: Client) -> None:
    request = {**SMALL_WINDOW, "columns": ["date", "delay"]}
    single = [list(flights_client.batches(**request, epoch=epoch)) for epoch in (0, 1)]
    both = list(flights_client.batches(**request, epochs=2))
    assert fingerprints(both) == fingerprints(single[0] + single[1])
    assert [batch.meta.epoch for batch in both] == [0] * 124 + [1] * 124


def test_lane_numbering_continues_across_epochs(flights_client: Client) -> None:
    request = {**SMALL_WINDOW, "columns": ["delay"], "batch_size": 1_000_003, "epochs": 3}
    expected = fingerprints(list(flights_client.batches(**request)))
    merged = [batch for (batch,) in flights_client.global_batches(**request, lanes=2)]
    assert len(expected) == 9  # odd steps per epoch: lane 0 starts the first epoch, lane 1 the second
    assert fingerprints(merged) == expected


# -- seeds and modes ---------------------------------------------------------------------------------


def test_nine_orders_of_three_seeds_and_three_epochs_are_distinct(flights_client: Client) -> None:
    request = {"dataset": "flights", "columns": ["date", "delay"], "batch_size": 65_536, "steps": 1}
    orders = {
        (seed, epoch): flights_client.digest(**request, seed=seed, epoch=epoch)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9, orders


def test_none_is_file_order(flights_client: Client, flights_table: pa.Table) -> None:
    expected = digest_of(flights_table.to_batches())
    for dataset in ("flights", "small-groups"):
        assert flights_client.digest(dataset=dataset, batch_size=10_007, shuffle={"none": {}}) == expected


def test_keep_block_order_keeps_time_order_and_shuffles_within_each_window(
    flights_client: Client, flights: Path, flights_table: pa.Table
) -> None:
    groups = pq.ParquetFile(flights).metadata
    group_rows = groups.row_group(0).num_rows
    assert group_rows > 200_000
    request = {"dataset": "flights", "batch_size": group_rows, "seed": 5}
    windows = [
        batch.data for batch in flights_client.batches(**request, shuffle={"window_rows": 200_000, "keep_block_order": True})
    ]
    del windows[groups.num_row_groups :]  # the three rows by which the last group exceeds the others
    means = [mean(window.column("date")) for window in windows]
    assert means == sorted(means)
    start = 0
    for window in windows[:-1]:
        in_file = flights_table.slice(start, group_rows)
        start += group_rows
        assert np.array_equal(np.sort(row_hashes(window)), np.sort(row_hashes(in_file)))
        assert not np.array_equal(row_hashes(window), row_hashes(in_file))

    shuffled = flights_client.batches(**request, shuffle={"window_rows": 200_000}, columns=["date"])
    means = [mean(batch.data.column("date")) for batch in shuffled]
    assert means != sorted(means)
