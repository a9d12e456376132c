"""A simulated accelerator with MLPerf Storage's rule, as in `src/accelerator.rs`, and the loop that feeds it."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Iterable, Iterator

PREFETCHED = 2
Batch = tuple[int, int, Any]  # rows, bytes, and the buffers, which must live during the computation


class Accelerator:
    """An accelerator with its own clock: an available batch begins at the end of the previous one."""

    def __init__(self, compute_s: float) -> None:
        self.compute_s = compute_s
        self.done: float | None = None
        self.since: float | None = None
        self.counted = 0

    def begin(self, now: float, was_waiting: bool) -> float:
        start = self.done if self.done is not None and (was_waiting or self.done > now) else now
        self.done = start + self.compute_s
        if self.since is None:
            self.since = self.done
        else:
            self.counted += 1
        return self.done

    def utilization(self, now: float) -> float | None:
        if self.since is None or self.done is None or self.counted == 0:
            return None
        return self.counted * self.compute_s / (max(now, self.done) - self.since)


def prefetched(batches: Iterable[Batch]) -> Iterator[tuple[bool, Batch]]:
    """Yields batches that a thread receives, each with True if it was available."""
    waiting: queue.Queue = queue.Queue(PREFETCHED)
    end = object()

    def receive() -> None:
        try:
            for batch in batches:
                waiting.put(batch)
            waiting.put(end)
        except Exception as error:  # raised in the consumer
            waiting.put(error)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        try:
            batch, was_waiting = waiting.get_nowait(), True
        except queue.Empty:
            batch, was_waiting = waiting.get(), False
        if batch is end:
            return
        if isinstance(batch, Exception):
            raise batch
        yield was_waiting, batch


def directly(batches: Iterable[Batch], is_waiting: Callable[[], bool]) -> Iterator[tuple[bool, Batch]]:
    """Yields batches, each with True if it was available."""
    iterator = iter(batches)
    while True:
        was_waiting = is_waiting()
        batch = next(iterator, None)
        if batch is None:
            return
        yield was_waiting, batch


def consume(
    open_batches: Callable[[], Iterable[Batch]],
    compute_ms: float | None,
    is_waiting: Callable[[], bool] | None = None,
) -> dict:
    """Performs one run. `is_waiting` returns True if a batch is available. Without it, a thread prefetches batches during the
    computation."""
    asked = time.monotonic()
    accelerator = Accelerator(compute_ms / 1e3) if compute_ms is not None else None
    rows = size = count = 0
    first_s = 0.0
    if accelerator is not None and is_waiting is None:
        source = prefetched(open_batches())
    else:
        source = directly(open_batches(), is_waiting or (lambda: False))
    for was_waiting, batch in source:
        now = time.monotonic()
        if count == 0:
            first_s = now - asked
        count += 1
        rows += batch[0]
        size += batch[1]
        if accelerator is not None:
            left = accelerator.begin(now, was_waiting) - time.monotonic()
            if left > 0:
                time.sleep(left)
    end = time.monotonic()
    return {
        "rows": rows,
        "bytes": size,
        "batches": count,
        "seconds": end - asked,
        "first_batch_seconds": first_s,
        "au": accelerator.utilization(end) if accelerator is not None else None,
    }
