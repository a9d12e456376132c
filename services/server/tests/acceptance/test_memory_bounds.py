"""Hostile files, lookups and views stay within the memory, because their sizes are estimated before they are loaded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from server import Pool, Server
from test_lookups import Lookup

MIB = 1 << 20
CACHE_MEMORY = 64 * MIB
LOOKUP_MEMORY = 16 * MIB
MAX_BLOCK = 64 * MIB
# Buffers of connections, of the allocator, and of the pages that are decoded at a time.
SLACK = 64 * MIB
ROWS = 20_000


@pytest.fixture(scope="module")
def bounded(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("bounded")
    tables = {
        "lists": pa.table({"id": range(ROWS), "l": pa.array([[row] for row in range(ROWS)], pa.list_(pa.int64()))}),
        # One long value that a dictionary stores once: 100 MB of text in a small file, whose footer has no sizes.
        "texts": pa.table({"id": range(ROWS), "text": pa.array(["x" * 5000] * ROWS).dictionary_encode()}),
    }
    for name, table in tables.items():
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "part.parquet", row_group_size=ROWS, write_statistics=False)
    config = folder / "forebay.toml"
    config.write_text(f"[storage]\nmax_block_bytes = {MAX_BLOCK}\n")
    return module_pool.start(
        {name: folder / name for name in tables},
        online="lists=id",
        config=config,
        cache_memory=CACHE_MEMORY,
        lookup_memory=LOOKUP_MEMORY,
        cpu_threads=2,
        io_threads=2,
    )


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
    assert used <= CACHE_MEMORY + MAX_BLOCK + SLACK, f"{used:,} bytes"
    with Client(bounded.location) as client:
        assert client.table(dataset="lists", batch_size=4096, columns=["id"]).num_rows == ROWS
