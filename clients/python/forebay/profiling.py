"""Wait and compute time of a training loop, measured around any loader."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, Generic, Iterable, Iterator, TypeVar, cast

from forebay.gpu import Gpu

T = TypeVar("T")

# Wait fractions below the first make the trainer the bottleneck, above the second the loader.
TRAINER_BOUND, INPUT_BOUND = 0.05, 0.20


@dataclass
class Report:
    """Where the time of a loop went."""

    steps: int = 0
    """Number of batches."""
    rows: int = 0
    """Number of rows."""
    first: float = 0.0
    """Wait for the first batch, in seconds. It includes one-time costs and is not part of `wait`."""
    wait: float = 0.0
    """Time waiting for the other batches, in seconds."""
    compute: float = 0.0
    """Time between batches, in seconds, without `copy`."""
    copy: float = 0.0
    """Time copying batches to a device, in seconds, if the loader reports it."""
    gpu: list[float] = field(default_factory=list)
    """Samples of the first GPU's utilization in percent, at most one per second. Empty if unknown."""

    @property
    def stall(self) -> float:
        """Fraction of the time after the first batch that the loop waited, 0 to 1."""
        total = self.wait + self.compute + self.copy
        return self.wait / total if total > 0 else 0.0

    @property
    def verdict(self) -> str:
        """The bottleneck and the possible speedup, as a sentence."""
        if self.steps < 2:
            return "too few steps for a verdict"
        if self.stall < TRAINER_BOUND:
            return "the trainer is the bottleneck: a faster loader would not help"
        share = f"the loop waits {self.stall:.0%} of its time for data"
        gain = f"without waiting it would be {1 / max(1 - self.stall, 1e-9):.2f} times as fast"
        if self.stall < INPUT_BOUND:
            return f"{share}: {gain}"
        return f"{share}, so the loader is the bottleneck: {gain}"

    def __str__(self) -> str:
        total = self.wait + self.compute + self.copy

        def line(name: str, seconds: float) -> str:
            share = f"{seconds / total:6.1%}" if total > 0 else ""
            each = f"{seconds / self.steps * 1e3:8.2f} ms per step" if self.steps else ""
            return f"  {name:<10}{seconds:9.3f} s {share} {each}"

        lines = [f"{self.steps} steps, {self.rows} rows; the first batch took {self.first:.3f} s"]
        lines += [line("waiting", self.wait), line("computing", self.compute), line("copying", self.copy)]
        if self.gpu:
            lines.append(f"  GPU       {sum(self.gpu) / len(self.gpu):9.0f}% busy")
        else:
            lines.append("  GPU utilization: unknown (NVML is not available)")
        return "\n".join([*lines, self.verdict])


class Profiled(Generic[T]):
    """An iterable around a loader. Other attributes are those of the loader."""

    report: Report
    """Sums over all iterations."""

    def __init__(self, loader: Iterable[T], print_report: bool = True) -> None:
        self._loader, self._print_report = loader, print_report
        self.report = Report()
        self._gpu, self._sampled_at = Gpu(0), 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        """Length of the loader."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        report = self.report
        requested_at = time.perf_counter()
        try:
            batches = iter(self._loader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                received_at = time.perf_counter()
                if report.steps == 0:
                    report.first = received_at - requested_at
                else:
                    report.wait += received_at - requested_at
                report.steps += 1
                report.rows += _rows(batch)
                self._sample_gpu()
                copied = _copy_seconds(self._loader)
                yield batch
                requested_at = time.perf_counter()
                copied = _copy_seconds(self._loader) - copied
                report.copy += copied
                report.compute += requested_at - received_at - copied
        finally:
            if self._print_report:
                print(f"forebay.profile: {report}", file=sys.stderr)

    def _sample_gpu(self) -> None:
        """Samples the first GPU, at most once per second."""
        if time.monotonic() - self._sampled_at < 1:
            return
        self._sampled_at = time.monotonic()
        utilization = self._gpu.utilization()
        if utilization is not None:
            self.report.gpu.append(100 * utilization)


def profile(loader: Iterable[T], print_report: bool = True) -> Profiled[T]:
    """Wraps a loader of any library and measures how long the loop waits and computes.

        for batch in forebay.profile(loader):
            ...

    The time between two batches counts as compute time. GPU kernels that run asynchronously only show in the GPU utilization,
    which requires `nvidia-ml-py`.

    Args:
        loader: Any iterable of batches.
        print_report: Print the report to standard error at the end of each iteration.

    Returns:
        An iterable with the attribute `report` (a `forebay.profiling.Report`) and the attributes of the loader.
    """
    return Profiled(loader, print_report)


def _copy_seconds(loader: Any) -> float:
    """Returns the duration of copies to a device in seconds, or 0 if the loader does not report it."""
    stats = getattr(loader, "stats", None)
    try:
        return float(cast(Any, stats)()["copy_seconds"]) if callable(stats) else 0.0
    except (KeyError, TypeError):
        return 0.0


def _rows(batch: Any) -> int:
    """Returns the length of a batch, or of its first element if it is a dict or a tuple of arrays."""
    if isinstance(batch, dict) or hasattr(batch, "keys") and not hasattr(batch, "num_rows"):
        batch = next(iter(batch.values()), ())
    elif isinstance(batch, (list, tuple)) and batch and hasattr(batch[0], "__len__"):
        batch = batch[0]
    try:
        return len(batch)
    except TypeError:
        return 1
