"""A dataset whose files are replaced, and views that differ in one constant, while every cache is hot."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import FAILURES, Client, refused
from server import Pool, Server, until
from test_lookups import Lookup
from test_tiers import counter, settled_column_files

ROWS, GROUP_ROWS = 50_000, 5_000
OLD, NEW = 0, 1_000_000
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "row_group_size": GROUP_ROWS}
REQUEST: dict[str, Any] = {"dataset": "rows", "batch_size": 4096, "seed": 3, "shuffle": {"window_rows": 2 * GROUP_ROWS}}


def write(path: Path, first: int) -> int:
    """Writes a file whose values begin with `first`, by way of a new file. Returns its size, which does not depend on them."""
    values = np.arange(first, first + ROWS, dtype=np.int64)
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    pq.write_table(pa.table({"key": np.arange(ROWS), "value": values}), new, **PLAIN)
    return new.replace(path).stat().st_size


def values_of(client: Client, **more: Any) -> np.ndarray:
    return np.sort(client.table(**{**REQUEST, **more}).column("value").to_numpy())


@pytest.mark.parametrize("memory", ["256MiB", "2MiB"], ids=["in memory", "on disk"])
def test_a_file_replaced_by_one_of_the_same_shape_is_served_with_its_new_values_only(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, memory: str
) -> None:
    path = tmp_path / "rows" / "part.parquet"
    size = write(path, OLD)
    config = tmp_path / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    server = pool.start({"rows": path.parent}, config=config, cache_memory=memory, cache_disk="256MiB")
    client = connect(server)
    plan = client.plan(**REQUEST)
    for _ in ("cold", "hot"):
        assert np.array_equal(values_of(client), np.arange(OLD, OLD + ROWS))
    assert settled_column_files(server)
    decoded = counter(server, "forebay_decode_columns_total")
    assert np.array_equal(values_of(client), np.arange(OLD, OLD + ROWS))
    assert counter(server, "forebay_decode_columns_total") == decoded, "the caches are not hot"

    assert write(path, NEW) == size, "the size reveals the change"
    assert client.refresh("rows")["changed"]
    for _ in ("cold", "hot"):
        assert np.array_equal(values_of(client), np.arange(NEW, NEW + ROWS))
    # The old snapshot fails, or has its own values from a cache. Without caches it fails.
    with contextlib.suppress(*FAILURES):
        old = np.concatenate([batch.data["value"].to_numpy() for batch in client.read(plan.tickets[0])])
        print("an old ticket is served from a cache")
        assert np.array_equal(np.sort(old), np.arange(OLD, OLD + ROWS))
    client.action("drop-cache", {})
    with refused("FAILED_PRECONDITION", "part.parquet"):
        list(client.read(plan.tickets[0]))
    with refused("FAILED_PRECONDITION", "part.parquet"):
        values_of(client, snapshot=plan.snapshot)
    assert np.array_equal(values_of(client), np.arange(NEW, NEW + ROWS))


def test_rows_that_a_filter_keeps_of_a_file_replaced_by_one_of_equal_size_and_time_are_counted_again(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    path = tmp_path / "rows" / "part.parquet"

    def write_at_the_same_time(first: int) -> None:
        write(path, first)
        os.utime(path, ns=(1_700_000_000_000_000_000,) * 2)

    def check(server: Server, first: int) -> str:
        rows = np.arange(first, first + ROWS)
        client = connect(server)
        client.refresh("rows")
        assert np.array_equal(values_of(client, filter="value % 7 = 0"), rows[rows % 7 == 0])
        return client.plan(**REQUEST).snapshot

    write_at_the_same_time(OLD)
    server = pool.start({"rows": path.parent}, cache_dir=tmp_path / "cache")
    snapshot = check(server, OLD)
    write_at_the_same_time(NEW)
    assert check(server, NEW) == snapshot, "it has sizes and times alone"
    server.kill()
    write_at_the_same_time(OLD)
    check(pool.start({"rows": path.parent}, cache_dir=tmp_path / "cache"), OLD)


def test_a_lookup_of_a_replaced_file_returns_its_new_values(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    path = tmp_path / "rows" / "part.parquet"
    size = write(path, OLD)
    client = connect(pool.start({"rows": path.parent}, online="rows=key"))

    def found() -> list[int]:
        rows, _ = Lookup(client, dataset="rows", columns=["value"])(key=[7, 49_999])
        return rows["value"].to_pylist()

    assert found() == [7, 49_999]
    assert write(path, NEW) == size
    client.refresh("rows")
    # The index of the new snapshot is loaded in the background.
    until(lambda: found() == [NEW + 7, NEW + 49_999], failure="lookups return the old values")


def test_views_of_one_column_that_replace_nulls_by_different_values_share_no_rows(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    values = pa.array([None if row % 3 == 0 else row for row in range(ROWS)], pa.int64())
    pq.write_table(pa.table({"key": np.arange(ROWS), "value": values}), tmp_path / "rows.parquet", **PLAIN)
    client = connect(pool.start({"rows": tmp_path / "rows.parquet"}, cache_disk="256MiB"))
    for _ in ("cold", "hot"):
        for fill in (0, 9):
            tensor = {"name": "x", "columns": ["value"], "dtype": "float32", "null_value": fill}
            table = client.table(**REQUEST, columns=["key"], tensors=[tensor])
            keys = table.column("key").to_numpy()
            found = np.concatenate([np.asarray(chunk.flatten()) for chunk in table.column("x").chunks])
            assert np.array_equal(found, np.where(keys % 3 == 0, fill, keys))
