#!/usr/bin/env python3
"""Measures how long a training loop waits for the first batch of an epoch, with `epochs(n)` and with one loop per epoch.

    loadtests/epoch_gap.py grpc://127.0.0.1:8815 flights --epochs 8 --rounds 3

`epochs(n)` reads all epochs from one stream, in which the next epoch is prepared while the loop trains on the last batches of the
previous one. A loop per epoch opens a stream for each. The loop sleeps between batches, as a trainer computes, so that batches are
ready before it asks for them, unless the stream has a gap. The first epoch of each way is not counted, because it fills the caches.
The rounds alternate between both ways.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any, Iterator

import forebay


def in_one_stream(ds: forebay.TrainingDataset[Any], epochs: int) -> Iterator[Any]:
    """Returns the batches of `epochs(n)`."""
    return ds.epochs(epochs)


def in_loops(ds: forebay.TrainingDataset[Any], epochs: int) -> Iterator[Any]:
    """Returns the batches of one loop per epoch."""
    return itertools.chain.from_iterable(ds for _ in range(epochs))


WAYS = {"epochs(n)": in_one_stream, "one loop per epoch": in_loops}


def waits(batches: Iterator[Any], compute: float) -> tuple[list[float], list[float]]:
    """Returns the waits in seconds for the first batches of epochs, and for all others, after the first epoch."""
    firsts: list[float] = []
    others: list[float] = []
    while True:
        asked = time.monotonic()
        batch = next(batches, None)
        waited = time.monotonic() - asked
        if batch is None:
            return firsts, others
        if batch.epoch > 0:
            (firsts if batch.step == 0 else others).append(waited)
        time.sleep(compute)


def described(values: list[float]) -> str:
    """Returns median and range of times in ms."""
    low, middle, high = (1e3 * value for value in (min(values), statistics.median(values), max(values)))
    return f"median {middle:.2f} ms ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("dataset", help="name of the dataset")
    parser.add_argument("--columns", nargs="+", help="columns to read (default: all)")
    parser.add_argument("--batch-size", type=int, default=65_536, help="rows per batch (default: 65536)")
    parser.add_argument("--epochs", type=int, default=8, help="number of epochs of each round, at least 2 (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of both ways (default: 3)")
    parser.add_argument("--compute-ms", type=float, default=5, help="time of a training step in ms (default: 5)")
    options = parser.parse_args()
    if options.epochs < 2 or options.rounds < 1:
        parser.error("expected at least 2 epochs and 1 round")
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in WAYS}
    for _ in range(options.rounds):
        for name, read in WAYS.items():
            train = {"batch_size": options.batch_size, "columns": options.columns, "seed": 1, "rank": 0, "world_size": 1}
            ds = forebay.connect(options.url).train(options.dataset, **train)
            if ds.steps_per_epoch < 2:
                parser.error(f"an epoch has {ds.steps_per_epoch} steps, expected at least 2; choose a smaller --batch-size")
            for all_waits, more in zip(found[name], waits(iter(read(ds, options.epochs)), options.compute_ms / 1e3)):
                all_waits += more
    for name, (firsts, others) in found.items():
        print(f"{name}: first batch of an epoch {described(firsts)}; other batches {described(others)}", flush=True)


if __name__ == "__main__":
    main()
