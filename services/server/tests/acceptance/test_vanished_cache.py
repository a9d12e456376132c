"""A cache directory that another program removes while the server uses it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client
from server import Pool, StartError, until
from test_tiers import column_files, counter

ROWS, GROUP_ROWS = 20_000, 2_000
REQUEST = {"dataset": "mine", "batch_size": 500, "seed": 5}


def test_a_server_whose_cache_directory_is_removed_continues_and_the_next_one_starts_in_it(pool: Pool, tmp_path: Path) -> None:
    table = pa.table({name: np.arange(ROWS) * factor for factor, name in enumerate(("a", "b", "c"), start=3)})
    pq.write_table(table, tmp_path / "mine.parquet", row_group_size=GROUP_ROWS)
    config, cache = tmp_path / "forebay.toml", tmp_path / "parent" / "cache"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    flags = {"config": config, "cache_dir": cache, "cache_disk": "1GiB"}
    server = pool.start({"mine": tmp_path / "mine.parquet"}, **flags)
    client = Client(server.location)
    expected = {column: client.digest(**REQUEST, columns=[column]) for column in ("a", "b")}
    until(lambda: len(column_files(server)) > 0, failure="no column is written to the disk")

    shutil.rmtree(cache.parent)
    until(lambda: (cache / "lock").exists(), failure="the directory is not locked again")
    with pytest.raises(StartError, match="is used by another server"):
        pool.start({"mine": tmp_path / "mine.parquet"}, **flags)
    assert client.digest(**REQUEST, columns=["a"]) == expected["a"]
    expected["c"] = client.digest(**REQUEST, columns=["c"])
    until(lambda: len(column_files(server)) > 0, failure="no column is written to the new folder")
    assert (cache / "columns" / "CACHEDIR.TAG").exists()
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in (cache / "columns", cache / "footers", cache / "indexes"))
    assert counter(server, "forebay_cache_errors_total", tier="disk", kind="folder") == 1
    until(lambda: "was removed while the server uses it" in server.http_get("/api/v1/events")[1], failure="there is no event")
    server.stop()

    server = pool.start({"mine": tmp_path / "mine.parquet"}, **flags)
    client = Client(server.location)
    assert {column: client.digest(**REQUEST, columns=[column]) for column in expected} == expected
    assert counter(server, "forebay_cache_hits_total", tier="disk") > 0
