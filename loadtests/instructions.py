#!/usr/bin/env python3
"""Counts the instructions of servers per delivered gigabyte with Cachegrind: `instructions.py [--check] BINARY...`.

With `--check`, a count of more than 1.05 times its bound below is an error. Without valgrind, the check is skipped.

The result is the difference between a run of 8 epochs and one of 2, divided by the difference of the bytes. Therefore, the
cost of the start does not count. Requires valgrind and a Python with pyarrow and NumPy, such as target/acceptance/venv.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

ROWS, COLUMNS, GROUP_ROWS = 200_000, 39, 50_000
TURNS = 3
SHORT, LONG = 2, 8
REQUESTS = {
    "batches of 4,096 rows": {"batch_size": 4096},
    "batches of 4,096 rows with a label": {"batch_size": 4096, "label_column": "label"},
    "batches of 512 rows": {"batch_size": 512},
}
# Billions of instructions per gigabyte on x86-64. Lower a bound when the count falls, and raise it only for a reason.
BOUNDS = {
    "batches of 4,096 rows": 8.38,
    "batches of 4,096 rows with a label": 8.53,
    "batches of 512 rows": 9.15,
}
TOLERANCE = 1.05
COUNT = re.compile(r"I\s+refs:\s+([\d,]+)")


def write(path: Path) -> None:
    rng = np.random.default_rng(5)
    columns = {f"x{number}": rng.random(ROWS, np.float32) for number in range(COLUMNS)}
    columns["label"] = (columns["x0"] > 0.7).astype(np.float32)
    pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)


def run(binary: str, data: Path, request: dict, epochs: int) -> tuple[int, int]:
    """Returns the instructions and the bytes of the batches."""
    with tempfile.TemporaryDirectory() as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        with ready.open("w") as out, log.open("w") as err:
            process = subprocess.Popen(
                ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={folder}/counts", binary, "serve"]
                + [f"--dataset=data={data}", f"--cache-dir={folder}/cache", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0"],
                stdout=out,
                stderr=err,
                env={**os.environ, "FOREBAY_CACHE_DISK": "0"},
            )
        while not ready.read_text().endswith("\n"):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        client = flight.connect(f"grpc://{json.loads(ready.read_text())['grpc']}")
        ticket = flight.Ticket(json.dumps({"train": {"dataset": "data", "epochs": epochs, **request}}).encode())
        sent = sum(chunk.data.nbytes for chunk in client.do_get(ticket))
        process.send_signal(signal.SIGTERM)
        process.wait()
        return int(COUNT.search(log.read_text()).group(1).replace(",", "")), sent


def per_gigabyte(binary: str, data: Path, request: dict) -> float:
    (few, few_bytes), (many, many_bytes) = (run(binary, data, request, epochs) for epochs in (SHORT, LONG))
    return (many - few) / (many_bytes - few_bytes)


def main(binaries: list[str], check: bool) -> None:
    if check and shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return
    exceeded = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.parquet")
        write(data)
        for name, request in REQUESTS.items():
            counts = {binary: [] for binary in binaries}
            for _ in range(TURNS):
                for binary in binaries:
                    counts[binary].append(per_gigabyte(binary, data, request))
            first = statistics.median(counts[binaries[0]])
            for binary, found in counts.items():
                turns = " ".join(f"{count:.3f}" for count in found)
                print(f"{name}: {binary}: {turns} G instructions per GB, {statistics.median(found) / first:.3f} times the first", flush=True)
                if statistics.median(found) > TOLERANCE * BOUNDS[name]:
                    exceeded.append(f"{name}: {binary}: {statistics.median(found):.3f}, expected at most {BOUNDS[name]} + 5%")
    if check and exceeded:
        raise SystemExit("\n".join(exceeded))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    main(arguments or ["target/release/forebay"], "--check" in sys.argv)
