"""Runs cases and prints what differs.

    differential 7:13           case 13 of the dataset with seed 7, whose files stay in target/differential
    differential 7              all cases of this dataset
    differential --cases 10000  datasets from --seed on, and the hits of each entry of the dialect
    differential --fault NAME   the same with a fault of the past, which must be found
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import shutil
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from differential.faults import FAULTS, NO_FAULT  # noqa: E402
from differential.runner import CASES, Report, run_datasets  # noqa: E402
from server import ROOT  # noqa: E402

FOLDER = ROOT / "target" / "differential"
DATASETS_PER_SERVER = 10


def run_some(seeds: list[int], only: int | None, keep: bool, fault: str) -> Report:
    folder = FOLDER / str(seeds[0])
    report = run_datasets(seeds, folder, only, FAULTS[fault])
    if not keep:
        shutil.rmtree(folder)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wanted", nargs="?", metavar="SEED[:CASE]", help="the dataset, or a case of it")
    parser.add_argument("--cases", type=int, default=CASES, help="number of cases, rounded up to whole datasets")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first dataset [default: 1]")
    parser.add_argument("--processes", type=int, default=2, help="number of processes, each with a server [default: 2]")
    parser.add_argument("--fault", choices=[*FAULTS], default=NO_FAULT.name, help="understand requests with a fault that the machine must find")
    options = parser.parse_args()
    seed, _, case = (options.wanted or str(options.seed)).partition(":")
    count = -(-options.cases // CASES)
    seeds = list(range(int(seed), int(seed) + count))
    shutil.rmtree(FOLDER, ignore_errors=True)
    total, began = Report(), time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(options.processes) as pool:
        parts = [seeds[start : start + DATASETS_PER_SERVER] for start in range(0, count, DATASETS_PER_SERVER)]
        keep = options.wanted is not None
        one = functools.partial(run_some, only=int(case) if case else None, keep=keep, fault=options.fault)
        for report in pool.map(one, parts):
            total.add(report)
            for difference in report.differences:
                print(difference)
            print(f"{total.cases} cases, {len(total.differences)} differences, {time.monotonic() - began:.0f} s", flush=True)
    print(total)
    print(total.dialect)
    return 1 if total.differences else 0


if __name__ == "__main__":
    sys.exit(main())
