"""Where does a training loop's time go? One line around any loader."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Generic, Iterable, Iterator, TypeVar

from forebay.gpu import Gpu

T = TypeVar("T")

# DESIGN: below 5 % the trainer is the limit, above 20 % the input is.
TRAINER_BOUND, INPUT_BOUND = 0.05, 0.20


@dataclass
class Report:
    """What a loop did, in seconds, and what that says."""

    steps: int = 0
    rows: int = 0
    first: float = 0.0
    wait: float = 0.0
    compute: float = 0.0
    copy: float = 0.0
    gpu: list[float] = field(default_factory=list)

    @property
    def stall(self) -> float:
        """The part of the time, after the first batch, in which the loop waited."""
        total = self.wait + self.compute + self.copy
        return self.wait / total if total > 0 else 0.0

    @property
    def verdict(self) -> str:
        if self.steps < 2:
            return "too few steps to tell"
        if self.stall < TRAINER_BOUND:
            return "the trainer is the limit: a faster loader would gain nothing"
        share = f"the loop waits {self.stall:.0%} of its time for data"
        gain = f"data that is always there would make it {1 / max(1 - self.stall, 1e-9):.2f} times as fast"
        if self.stall < INPUT_BOUND:
            return f"{share}: {gain}"
        return f"{share}, so the loader is the limit: {gain}"

    def __str__(self) -> str:
        total = self.wait + self.compute + self.copy

        def line(name: str, seconds: float) -> str:
            share = f"{seconds / total:6.1%}" if total > 0 else ""
            each = f"{seconds / self.steps * 1e3:8.2f} ms a step" if self.steps else ""
            return f"  {name:<10}{seconds:9.3f} s {share} {each}"

        lines = [f"{self.steps} steps, {self.rows} rows; the first batch took {self.first:.3f} s"]
        lines += [line("waiting", self.wait), line("computing", self.compute), line("copying", self.copy)]
        if self.gpu:
            lines.append(f"  GPU        {sum(self.gpu) / len(self.gpu):9.0f} % busy")
        else:
            lines.append("  GPU utilization: not known (no NVML here)")
        return "\n".join([*lines, self.verdict])


class Profiled(Generic[T]):
    """An iterable that is timed; its `report` adds up over all loops."""

    def __init__(self, loader: Iterable[T], say: bool = True) -> None:
        self._loader, self._say = loader, say
        self.report = Report()
        self._gpu, self._looked = Gpu(0), 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        report = self.report
        asked = time.perf_counter()
        try:
            batches = iter(self._loader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                given = time.perf_counter()
                if report.steps == 0:
                    report.first = given - asked
                else:
                    report.wait += given - asked
                report.steps += 1
                report.rows += _rows(batch)
                self._look()
                copied = _copied(self._loader)
                yield batch
                asked = time.perf_counter()
                copied = _copied(self._loader) - copied
                report.copy += copied
                report.compute += asked - given - copied
        finally:
            if self._say:
                print(f"forebay.profile: {report}", file=sys.stderr)

    def _look(self) -> None:
        """At the first GPU, at most once a second."""
        if time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        utilization = self._gpu.utilization()
        if utilization is not None:
            self.report.gpu.append(100 * utilization)


def profile(loader: Iterable[T], say: bool = True) -> Profiled[T]:
    """Wraps any iterable loader, of any library: `for batch in forebay.profile(loader): ...`. When a loop ends, it says on
    standard error where its time went; `.report` has the figures. What the loop does between two batches counts as
    computing; kernels of a GPU that run on meanwhile do not show, but in its utilization."""
    return Profiled(loader, say)


def _copied(loader: Any) -> float:
    """Seconds of copies to a device, as far as the loader tells."""
    stats = getattr(loader, "stats", None)
    try:
        return float(stats()["copy_seconds"]) if callable(stats) else 0.0
    except (KeyError, TypeError):
        return 0.0


def _rows(batch: Any) -> int:
    """Rows of a batch of whatever shape: the length of it, or of its first part."""
    if isinstance(batch, dict) or hasattr(batch, "keys") and not hasattr(batch, "num_rows"):
        batch = next(iter(batch.values()), ())
    elif isinstance(batch, (list, tuple)) and batch and hasattr(batch[0], "__len__"):
        batch = batch[0]
    try:
        return len(batch)
    except TypeError:
        return 1


def main(arguments: list[str]) -> None:
    """The same Parquet through a plain loader and through Forebay, and what each spends its time on."""
    from forebay.trial import trial

    parser = argparse.ArgumentParser(prog="python -m forebay profile", description=main.__doc__)
    parser.add_argument("path", help="Parquet: a file, or a folder of them")
    parser.add_argument("--try", dest="url", metavar="URL", help="a Forebay server; without it, one is started for this")
    parser.add_argument("--dataset", help="the name of the data at that server (default: the name of the file or folder)")
    parser.add_argument("--columns", nargs="*", help="columns to read (default: all of a plain type)")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=500, help="at most that many steps of each (default: 500)")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="what a step of your trainer takes, in ms")
    trial(parser.parse_args(arguments))
