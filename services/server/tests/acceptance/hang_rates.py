#!/usr/bin/env python3
"""Measures what a disk or store that hangs costs a stream of another dataset.

    target/acceptance/venv/bin/python services/server/tests/acceptance/hang_rates.py [CASE...] [--pairs N] [--seconds S]
        [--least RATIO]

Slow readers of one dataset run all the time. Its disk or store hangs in one turn and answers in the other turn of each
pair. Each turn measures the rate of a stream of the other dataset. For each case, prints the median over the pairs of
the rate while it hangs, divided by the rate while it answers:

    files    The files of the first dataset hang. The other dataset is decoded from its files.
    scarce   As above, with less memory than the windows of the waiting streams take.
    memory   The files of the first dataset hang. The other dataset is in memory.
    cache    The disk of the cache hangs, which has both datasets. The first does not fit in memory, the other does.
    store    The first dataset is in an S3 store that accepts connections and does not answer. The other dataset is decoded from
             local files.

Exits with 1 if a median is below RATIO.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from client import FAILURES, Client
from hanging import HangingFolder
from hostile import write_good
from preload import compiled
from s3 import make_bucket, s3_server
from server import Pool
from slow import Gate

FILES, FILE_ROWS, GROUP_ROWS = {"hung": 32, "other": 8}, 200_000, 20_000
READERS = 2
READER_PAUSE_S = 0.1
# Time for a turn's first reads to hang, or to answer again, before its rate is measured.
SETTLE_S = 0.5
STREAM: dict[str, Any] = {"batch_size": 8192, "epochs": 1_000_000, "shuffle": {"window_rows": 3 * GROUP_ROWS}}
# The first dataset takes 102 MB of memory, the other 26 MB, and each window 1 MB.
FOLDERS = {
    "files": ("hung", {"cache_memory": "20MiB", "cache_disk": 0}),
    "scarce": ("hung", {"cache_memory": "3MiB", "cache_disk": 0}),
    "memory": ("hung", {"cache_memory": "256MiB", "cache_disk": 0}),
    "cache": ("cache/columns", {"cache_memory": "64MiB", "cache_disk": "1GiB"}),
}
CASES = [*FOLDERS, "store"]


class Reader(threading.Thread):
    """Reads a stream without end, again after a failure, and counts its rows."""

    def __init__(self, location: str, pause_s: float, **request: Any) -> None:
        super().__init__(daemon=True)
        self.location, self.pause_s, self.request, self.rows = location, pause_s, request, 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(self.pause_s):
            with contextlib.suppress(*FAILURES), Client(self.location) as client:
                for batch in client.batches(**STREAM, **self.request):
                    self.rows += batch.data.num_rows
                    if self.stopped.wait(self.pause_s):
                        return


@contextlib.contextmanager
def running(readers: list[Reader]) -> Iterator[None]:
    for reader in readers:
        reader.start()
    yield
    for reader in readers:
        reader.stopped.set()


def rate(reader: Reader, seconds: float) -> float:
    time.sleep(SETTLE_S)
    rows, began = reader.rows, time.monotonic()
    time.sleep(seconds)
    return (reader.rows - rows) / (time.monotonic() - began)


@dataclass
class Setup:
    """The datasets of a case, flags and environment of its server, and what lets the first dataset hang and answer."""

    datasets: dict[str, str | Path]
    flags: dict[str, object]
    environment: dict[str, str]
    hang: Callable[[], None]
    answer: Callable[[], None]


@contextlib.contextmanager
def setup(case: str, folder: Path) -> Iterator[Setup]:
    datasets: dict[str, str | Path] = {name: folder / name for name in FILES}
    if case in FOLDERS:
        below, flags = FOLDERS[case]
        hanging = HangingFolder(folder / below, compiled("hang", folder, "-ldl"), folder / "hangs")
        yield Setup(datasets, flags, hanging.environment, hanging.hang, hanging.answer)
        return
    with s3_server(folder / "s3.log") as endpoint:
        gate = Gate(endpoint.removeprefix("http://"))
        bucket = make_bucket(endpoint, "hung")
        bucket.upload_folder(folder / "hung", "data")
        datasets["hung"] = bucket.url("data")
        environment = {**bucket.environment, "AWS_ENDPOINT": f"http://{gate.address}"}
        yield Setup(datasets, {"cache_memory": "20MiB", "cache_disk": 0}, environment, gate.close, gate.open)


def ratios(case: str, pairs: int, seconds: float) -> list[float]:
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        for dataset, files in FILES.items():
            for part in range(files):
                path = folder / dataset / f"part-{part}.parquet"
                write_good(path, rows=FILE_ROWS, start=part * FILE_ROWS, row_group_size=GROUP_ROWS)
        made = opened.enter_context(setup(case, folder))
        config = folder / "forebay.toml"
        config.write_text('[loader]\ndisk_writes = "always"\ndecode_bytes = 268435456\n[storage]\nrequest_timeout = "1h"\n')
        pool = Pool(folder)
        try:
            server = pool.start(
                made.datasets, cache_dir=folder / "cache", config=config, env=made.environment, **made.flags
            )
            other = Reader(server.location, 0.0, dataset="other")
            readers = [Reader(server.location, READER_PAUSE_S, dataset="hung", seed=seed) for seed in range(READERS)]
            with running([other, *readers]):
                rate(other, seconds)
                found = []
                for pair in range(pairs):
                    measured = {}
                    # The order alternates, so that a drift cancels out.
                    for hangs in (pair % 2 == 0, pair % 2 == 1):
                        made.hang() if hangs else made.answer()
                        measured[hangs] = rate(other, seconds)
                    found.append(measured[True] / measured[False])
                made.answer()
            return found
        finally:
            pool.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases to measure (default: all)")
    parser.add_argument("--pairs", type=int, default=9, help="number of pairs of turns per case (default: 9)")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of a turn in seconds (default: 2)")
    parser.add_argument("--least", type=float, default=0.0, help="least median that passes (default: 0, every median)")
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"no case {case!r}, expected one of {', '.join(CASES)}")
    least = 1e9
    for case in options.cases or CASES:
        found = ratios(case, options.pairs, options.seconds)
        least = min(least, statistics.median(found))
        print(f"{case:8} median {statistics.median(found):.3f}, {min(found):.3f} to {max(found):.3f}", flush=True)
    return 0 if least >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
