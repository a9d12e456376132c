"""Ray Data: a read that was killed, and one that reads the same rows again."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forebay
import forebay.ray
from launching import Launched
from server import Pool

ROWS, BLOCK_ROWS = 200_000, 1_000
# Number of blocks after which a driver that is killed waits.
READ = 20
DRIVER = f"""
import sys, time
from pathlib import Path

import pyarrow.parquet as pq
import ray

import forebay
import forebay.ray

url, snapshot, tasks, folder = sys.argv[1:]
ray.init(num_cpus=4, object_store_memory=200_000_000, include_dashboard=False, log_to_driver=False)
source = forebay.ray.Source(forebay.connect(url), "rows", columns=["id"], batch_size={BLOCK_ROWS}, snapshot=snapshot)
read = ray.data.read_datasource(source, override_num_blocks=int(tasks))
for number, block in enumerate(read.iter_batches(batch_size=None, batch_format="pyarrow")):
    part = Path(folder, f"{{number:04}}.part")
    pq.write_table(block, part)
    part.rename(part.with_suffix(".parquet"))
    if int(tasks) > 10 and number == {READ}:
        print("waits", flush=True)
        time.sleep(600)
"""


def driver(url: str, snapshot: str, tasks: int, folder: Path) -> Launched:
    """Starts a program that reads all rows with a number of tasks, and writes those that it has received. With many tasks, it waits
    in mid-read."""
    folder.mkdir()
    return Launched([sys.executable, "-c", DRIVER, url, snapshot, str(tasks), str(folder)])


def received(folder: Path) -> np.ndarray:
    return np.concatenate([pq.read_table(path)["id"].to_numpy() for path in sorted(folder.glob("*.parquet"))])


def write(path: Path, start: int, rows: int) -> None:
    pq.write_table(pa.table({"id": np.arange(start, start + rows)}), path, row_group_size=5_000)


def test_a_read_that_was_killed_reads_the_rows_of_its_snapshot_again_with_another_number_of_tasks(pool: Pool, tmp_path: Path) -> None:
    data = tmp_path / "rows"
    data.mkdir()
    write(data / "0.parquet", 0, ROWS)
    server = pool.start({"rows": data})
    client = forebay.connect(server.location)
    snapshot = forebay.ray.Source(client, "rows", columns=["id"]).snapshot

    killed = driver(server.location, snapshot, 40, tmp_path / "killed")
    killed.lines_until("waits")
    assert killed.processes[0].returncode == -9, "".join(killed.output[-60:])
    first = received(tmp_path / "killed")
    assert 0 < len(first) < ROWS and len(np.unique(first)) == len(first)

    # The dataset has more rows now, but not the snapshot.
    write(data / "1.parquet", ROWS, 1_000)
    client.refresh("rows")
    assert forebay.ray.Source(client, "rows", columns=["id"]).snapshot != snapshot
    driver(server.location, snapshot, 7, tmp_path / "again").all_lines(timeout=400)
    again = received(tmp_path / "again")
    assert np.array_equal(np.sort(again), np.arange(ROWS))
    # A program that has stored the rows of the first read continues with the others.
    rest = again[~np.isin(again, first)]
    assert np.array_equal(np.sort(np.concatenate([first, rest])), np.arange(ROWS))
