"""Hostile files, lookups and views stay within the memory, because their sizes are estimated before they are loaded, and so do
many streams of a dataset that is far larger."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from conftest import GROUP_ROWS
from hostile import understate_size
from server import ROOT, Pool, Server
from test_bad_input import UNREADABLE
from test_lookups import Lookup
from test_tiers import counter

MIB = 1 << 20
CACHE_MEMORY = 64 * MIB
LOOKUP_MEMORY = 16 * MIB
MAX_BLOCK = 64 * MIB
# Buffers of connections, of the allocator, and of the pages that are decoded at a time.
SLACK = 64 * MIB
# The allocator returns free pages to the system at once. By default it keeps several times as much as is in use here, and its
# amount is different in each run.
NO_FREE_PAGES = {"MIMALLOC_PURGE_DELAY": "0", "MIMALLOC_ARENA_EAGER_COMMIT": "0", "MIMALLOC_ABANDONED_PAGE_PURGE": "1"}
ROWS = 20_000
HOSTILE_FILES = ROOT / "services" / "storage" / "tests" / "hostile" / "files"


@pytest.fixture(scope="module")
def bounded(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("bounded")
    tables = {
        "lists": pa.table({"id": range(ROWS), "l": pa.array([[row] for row in range(ROWS)], pa.list_(pa.int64()))}),
        # One long value that a dictionary stores once: 100 MB of text in a small file, whose footer claims that it is 5 kB.
        "texts": pa.table({"id": range(ROWS), "text": pa.array(["x" * 5000] * ROWS).dictionary_encode()}),
    }
    for name, table in tables.items():
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "part.parquet", row_group_size=ROWS, write_statistics=False)
    understate_size(folder / "texts" / "part.parquet", ROWS * 5000, 5000)
    datasets = {name: folder / name for name in tables} | hostile_files(folder)
    config = folder / "forebay.toml"
    config.write_text(f"[storage]\nmax_block_bytes = {MAX_BLOCK}\n")
    return module_pool.start(
        datasets,
        online="lists=id",
        config=config,
        env=NO_FREE_PAGES,
        cache_memory=CACHE_MEMORY,
        lookup_memory=LOOKUP_MEMORY,
        cpu_threads=2,
        io_threads=2,
    )


def hostile_files(folder: Path) -> dict[str, Path]:
    for name, bad in UNREADABLE.items():
        bad.make(folder / name)
    written = {path.stem: path for path in sorted(HOSTILE_FILES.glob("*.parquet"))}
    return written | {name: folder / name for name in UNREADABLE}


def used_bytes(server: Server, request: object) -> int:
    """Returns how far the memory of the server rises above its level before `request`."""
    idle = server.memory_bytes()
    server.forget_peak_memory()
    request()
    return server.memory_bytes("VmHWM") - idle


@pytest.mark.parametrize("length", [200, 8000, 65_536])
def test_a_lookup_of_padded_lists_stops_at_its_memory(bounded: Server, length: int) -> None:
    def request() -> None:
        with Client(bounded.location) as client, refused("RESOURCE_EXHAUSTED", "raise --lookup-memory"):
            Lookup(client, dataset="lists", select=[f"list_pad(l, {length}, 0) AS p"], columns=["p"])(id=[1, 2, 3])

    used = used_bytes(bounded, request)
    assert used <= CACHE_MEMORY + MAX_BLOCK + SLACK, f"{used:,} bytes"


VIEWS = {
    "padded lists": {"dataset": "lists", "select": ["list_pad(l, 65536, 0) AS p"], "columns": ["p"]},
    "a text many times": {
        "dataset": "texts",
        "select": [f"concat({', '.join(['text'] * 50)}) AS long"],
        "columns": ["long"],
    },
    "a dictionary of one long text": {"dataset": "texts", "columns": ["text"]},
    "a filter on large values": {
        "dataset": "lists",
        "filter": "list_pad(l, 20000, 0) = list_pad(l, 20001, 0)",
        "columns": ["id"],
    },
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_large_values_is_refused_or_served_within_the_memory(bounded: Server, view: str) -> None:
    def request() -> None:
        with Client(bounded.location) as client, contextlib.suppress(flight.FlightError, pa.ArrowException):
            for _ in client.batches(batch_size=16, shuffle={"window_rows": 100}, **VIEWS[view]):
                pass

    used = used_bytes(bounded, request)
    print(f"{used / MIB:.0f} MiB above idle")
    assert used <= CACHE_MEMORY + MAX_BLOCK + SLACK, f"{used:,} bytes"
    with Client(bounded.location) as client:
        assert client.table(dataset="lists", batch_size=4096, columns=["id"]).num_rows == ROWS


@pytest.mark.parametrize("name", [*UNREADABLE, *sorted(path.stem for path in HOSTILE_FILES.glob("*.parquet"))])
def test_a_hostile_file_is_refused_within_the_memory(bounded: Server, name: str) -> None:
    def request() -> None:
        with Client(bounded.location) as client, refused({"DATA_LOSS", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "FAILED_PRECONDITION"}):
            for _ in client.batches(dataset=name, batch_size=16, shuffle={"window_rows": 100_000}):
                pass

    used = used_bytes(bounded, request)
    print(f"{used / MIB:.0f} MiB above idle")
    assert used <= CACHE_MEMORY + MAX_BLOCK + SLACK, f"{used:,} bytes"


FOOTER = 16 * MIB
FOOTER_MEMORY = 32 * MIB
# Long footers of a dataset are read and parsed together up to this size.
FOOTER_ROOM = 64 * MIB


def test_a_refresh_reads_long_footers_a_few_at_a_time(pool: Pool, tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(f"[storage]\nfooter_memory_bytes = {FOOTER_MEMORY}\n")
    folder = tmp_path / "long"
    folder.mkdir()
    table = pa.table({"id": range(100)})
    with pq.ParquetWriter(folder / "00.parquet", table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"text": "x" * FOOTER})
    server = pool.start({"long": folder}, config=config, env=NO_FREE_PAGES, cache_memory=CACHE_MEMORY, cpu_threads=2, io_threads=2)

    def request() -> None:
        for number in range(1, 64):
            (folder / f"{number:02}.parquet").hardlink_to(folder / "00.parquet")
        with Client(server.location) as client:
            client.refresh("long")
            assert client.table(dataset="long", batch_size=64).num_rows == 64 * 100

    used = used_bytes(server, request)
    print(f"{used / MIB:.0f} MiB above idle")
    # The bytes of a footer, its text, and a copy of the text in the schema. The rows take no memory to speak of.
    assert used <= FOOTER_MEMORY + 3 * FOOTER_ROOM, f"{used:,} bytes"


# The flights take 175 MB of memory as blocks, and a window of four blocks 4 MB. The windows of eight streams, with those that are
# prefetched, exceed the memory.
LITTLE_MEMORY = 16 * MIB
# A block is added before others are evicted for it.
ONE_BLOCK = MIB
PREFETCH = MIB
BUFFERS = 8 * MIB
DECODE = 2 * MIB
CONNECTION = 4 * MIB
FEATURES = {"columns": ["delay", "distance"], "null_value": 0}
MANY_VIEWS: list[dict[str, Any]] = [
    {},
    {"columns": ["date", "delay"]},
    {"columns": ["origin", "destination"]},
    {"filter": "delay > 0"},
    {"select": ["delay + distance AS sum"], "columns": ["sum", "date"]},
    {"columns": ["date"], "tensors": [{"name": "x", "dtype": "float32", **FEATURES}]},
    {"columns": [], "tensors": [{"name": "x", "dtype": "float64", **FEATURES}]},
    {"columns": ["distance", "origin"], "shuffle": {"none": {}}},
]


def test_eight_views_of_ten_times_the_memory_stay_within_it_while_another_consumer_is_stalled(
    pool: Pool, small_groups: Path, tmp_path: Path
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(
        f"[loader]\nprefetch_bytes = {PREFETCH}\ntotal_prefetch_bytes = {len(MANY_VIEWS) * PREFETCH}\n"
        f"buffer_pool_bytes = {BUFFERS}\ndecode_bytes = {DECODE}\n[storage]\nidle_bytes = 0\n"
    )
    flags: dict[str, Any] = {"config": config, "cache_memory": LITTLE_MEMORY, "cache_disk": 0, "cpu_threads": 2, "io_threads": 2}
    server = pool.start({"flights": small_groups}, env=NO_FREE_PAGES, **flags)
    request = {"dataset": "flights", "batch_size": 8192, "shuffle": {"window_rows": 4 * GROUP_ROWS}}
    resident: list[int] = []

    def read(number: int) -> int:
        rows = 0
        with Client(server.location) as client:
            for step, batch in enumerate(client.batches(**{**request, "seed": number, **MANY_VIEWS[number]})):
                rows += batch.meta.rows
                if step % 20 == 0:
                    resident.append(counter(server, "forebay_cache_resident_bytes", tier="memory"))
        return rows

    with Client(server.location) as client:
        idle = server.memory_bytes()
        server.forget_peak_memory()
        stalled = client.batches(**request, seed=100)
        next(stalled)
        with ThreadPoolExecutor(len(MANY_VIEWS)) as executor:
            rows = list(executor.map(read, range(len(MANY_VIEWS))))
        used = server.memory_bytes("VmHWM") - idle
        stalled.close()
    whole = [count for view, count in zip(MANY_VIEWS, rows) if "filter" not in view]
    assert whole == [3_000_000] * len(whole)
    print(f"{used / MIB:.0f} MiB above idle, at most {max(resident) / MIB:.1f} MiB resident of {LITTLE_MEMORY / MIB:.0f}")
    assert max(resident) <= LITTLE_MEMORY + ONE_BLOCK
    streams = len(MANY_VIEWS) + 1
    bound = LITTLE_MEMORY + streams * (PREFETCH + CONNECTION) + BUFFERS + DECODE + SLACK
    assert used <= bound, f"{used:,} bytes of {bound:,}"
