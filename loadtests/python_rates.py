#!/usr/bin/env python3
"""Measures rate and CPU time of a training loop of the Python package, and compares versions of the package.

    loadtests/python_rates.py grpc://127.0.0.1:8815 clicks --output numpy --rounds 5
    loadtests/python_rates.py grpc://127.0.0.1:8815 clicks --package before=/old/clients/python --package now=clients/python

Each measurement is a process of its own, which reads one epoch to fill the caches of the server, and then the measured ones. The CPU
time is that of this process; the server is not included. With several packages, the rounds alternate between them, and the medians of
their ratios are compared, because other load of the machine changes the rates.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def cpu_seconds() -> float:
    """Returns the CPU time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def consume(options: argparse.Namespace) -> dict[str, float]:
    """Returns millions of rows per second, and CPU seconds per million rows, of the epochs after the first one."""
    import forebay

    train: dict[str, Any] = {"batch_size": options.batch_size, "seed": 1, "rank": 0, "world_size": 1}
    if options.tensors:
        train["tensors"] = json.loads(options.tensors)
    ds = forebay.connect(options.url).train(options.dataset, output=options.output, **train)
    for _ in ds:
        pass
    started, used, rows = time.monotonic(), cpu_seconds(), 0
    for _ in range(options.epochs):
        rows += sum(batch.num_rows for batch in ds)
    seconds, used = time.monotonic() - started, cpu_seconds() - used
    return {"rate": rows / seconds / 1e6, "cpu": used / rows * 1e6}


def measure(options: argparse.Namespace, package: str | None) -> dict[str, float]:
    """Returns the measurement of a new process, which imports the package in a folder, or the installed one."""
    variables = {**os.environ, **({} if package is None else {"PYTHONPATH": str(Path(package).resolve())})}
    program = [sys.executable, str(Path(__file__).resolve()), "--once", options.url, options.dataset]
    sizes = ["--batch-size", str(options.batch_size), "--epochs", str(options.epochs)]
    command = [*program, *sizes, "--output", options.output, *(["--tensors", options.tensors] if options.tensors else [])]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd="/")
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def named(package: str) -> tuple[str, str]:
    """Returns name and folder of an argument NAME=FOLDER."""
    name, equals, folder = package.partition("=")
    if not equals or not Path(folder, "forebay").is_dir():
        raise argparse.ArgumentTypeError(f"{package!r}: expected NAME=FOLDER, where FOLDER contains forebay/")
    return name, folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("dataset", help="name of the dataset")
    parser.add_argument("--tensors", help="tensors as JSON, as in Client.train (default: all columns, without tensors)")
    parser.add_argument("--output", default="numpy", help="batch, numpy, torch, jax or arrow (default: numpy)")
    parser.add_argument("--batch-size", type=int, default=16_384, help="rows per batch (default: 16384)")
    parser.add_argument("--epochs", type=int, default=4, help="number of measured epochs (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each package (default: 5)")
    parser.add_argument(
        "--package", type=named, action="append", metavar="NAME=FOLDER", help="package to compare (default: the installed one)"
    )
    parser.add_argument("--once", action="store_true", help="one measurement in this process, which prints JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(consume(options)))
        return
    packages: dict[str, str | None] = dict(options.package or [("installed", None)])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in packages}
    for number in range(options.rounds):
        # The order alternates, because a process can profit from the work of the previous one.
        for name in list(packages) if number % 2 == 0 else list(packages)[::-1]:
            found[name].append(measure(options, packages[name]))
    first = next(iter(packages))
    for kind, unit in (("rate", "M rows/s"), ("cpu", "CPU s per M rows")):
        for name, measured in found.items():
            values = [each[kind] for each in measured]
            line = f"{name}: {statistics.median(values):.3f} {unit} ({min(values):.3f} to {max(values):.3f})"
            if name != first:
                ratios = [value / before[kind] for value, before in zip(values, found[first])]
                line += f", {statistics.median(ratios):.3f} times {first} ({min(ratios):.3f} to {max(ratios):.3f})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
