#!/usr/bin/env python3
"""Measures the CPU time of `TrainingDataset.map` with worker processes, per batch, relative to a call in the loop.

    loadtests/map_cost.py grpc://127.0.0.1:8815 flights --workers 4 --epochs 2 --rounds 5

Each way runs in a process of its own, once for one epoch and once for more. The difference has no start of processes in it. The
rounds alternate between both ways, and the medians are compared, because other load of the machine changes the caches. The time
includes all worker processes and receiving the batches, but not the server. The function is pure Python over every second row of
each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

import forebay


def function(batch: forebay.Batch) -> dict[str, Any]:
    """Computes in pure Python, and returns the batch and the result."""
    x = batch["x"].to_numpy()
    total = 0.0
    for delay, distance in x[::2].tolist():
        total += delay * 0.5 if distance > 500 else delay
    return {"x": x, "total": total}


def consume(url: str, dataset: str, batch_size: int, workers: int | None, epochs: int) -> dict[str, float]:
    """Returns CPU seconds and batches. `workers` is None for a call in the loop."""
    tensors = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
    ds = forebay.connect(url).train(dataset, batch_size=batch_size, tensors=tensors, seed=1)
    results = None if workers is None else ds.map(function, workers=workers)
    batches = 0
    for _ in range(epochs):
        for item in ds if results is None else results:
            if results is None:
                function(item)
            batches += 1
    if results is not None:
        results.close()
    # The workers have ended, so that their time counts as that of children.
    used = os.times()
    return {"cpu_seconds": used.user + used.system + used.children_user + used.children_system, "batches": batches}


def measure(arguments: argparse.Namespace, workers: int | None) -> float:
    """Returns the CPU time per batch in seconds."""
    found = []
    for epochs in (1, 1 + arguments.epochs):
        way = [] if workers is None else ["--workers", str(workers)]
        place = [arguments.url, arguments.dataset, "--batch-size", str(arguments.batch_size), "--epochs", str(epochs)]
        command = [sys.executable, __file__, *place, *way, "--once"]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    seconds, batches = (found[1][name] - found[0][name] for name in ("cpu_seconds", "batches"))
    return seconds / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("dataset", help="name of the dataset, which has the columns delay and distance")
    parser.add_argument("--batch-size", type=int, default=50_000, help="rows per batch (default: 50000)")
    parser.add_argument("--workers", type=int, help="number of worker processes (default: 4)")
    parser.add_argument("--epochs", type=int, default=2, help="number of measured epochs (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of both ways (default: 5)")
    parser.add_argument("--once", action="store_true", help="one run of this process only, which prints JSON")
    arguments = parser.parse_args()
    if arguments.once:
        place = arguments.url, arguments.dataset, arguments.batch_size
        print(json.dumps(consume(*place, arguments.workers, arguments.epochs)))
        return
    workers = 4 if arguments.workers is None else arguments.workers
    rounds = [(measure(arguments, None), measure(arguments, workers)) for _ in range(arguments.rounds)]
    for in_loop, mapped in rounds:
        print(f"round: {in_loop * 1e3:.2f} ms in the loop, {mapped * 1e3:.2f} ms with {workers} workers, {mapped / in_loop:.3f}")
    in_loop, mapped = (statistics.median(way) for way in zip(*rounds))
    print(f"median in the loop: {in_loop * 1e3:.2f} ms of CPU time per batch")
    print(f"median of map with {workers} workers: {mapped * 1e3:.2f} ms, {mapped / in_loop:.3f} times as much")


if __name__ == "__main__":
    main()
