"""The results of a function of each batch, as an iterable with the position of the training dataset."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any, Callable, Iterator, Mapping

from forebay.batch import Batch
from forebay.errors import WorkerError
from forebay.workers import Workers

# Maximum number of lanes of the protocol.
MAX_WORKERS = 256


class MappedDataset:
    """The results `f(batch)` for the batches of a training dataset, in their order, as `TrainingDataset.map` returns them.

    It is used like the training dataset, and both have one position: each iteration is the next epoch, and `state_dict`
    continues with the result after the last one that the loop received. The results, their order and the state do not depend
    on the number of workers.

    The worker processes start with the first iteration and are kept until `close`, until the dataset is dropped, or until this
    process ends. A worker that is killed is restarted at its position, at most three times in a row.

    Iteration raises what the training dataset raises, the exceptions of `f`, and `WorkerError`. After an error, the next
    iteration continues with the result that is missing.
    """

    def __init__(
        self, dataset: Any, item: Callable[[Batch], Any], f: Callable[[Any], Any], workers: int, prefetch: int
    ) -> None:
        if not 0 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers is {workers}, expected 0 to {MAX_WORKERS}")
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}, expected at least 1")
        self._dataset, self._function = dataset, functools.partial(_apply, f, item)
        self._count, self._prefetch = workers, prefetch
        self._pickled = _pickled(self._function, f) if workers else b""
        self._workers: Workers | None = None
        self._plan: dict[str, Any] | None = None
        self._stats = {"batches": 0, "rows": 0, "bytes": 0, "wait_seconds": 0.0, "compute_seconds": 0.0}
        self._stats |= {"retries": 0, "restarts": 0}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None}

    @property
    def epoch(self) -> int:
        """Epoch of the next result."""
        return self._dataset.epoch

    @property
    def step(self) -> int:
        """Step of the next result within its epoch."""
        return self._dataset.step

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, equal on all ranks. Blocks at the first use."""
        return self._dataset.steps_per_epoch

    def __len__(self) -> int:
        """Number of steps per epoch, equal on all ranks. Blocks at the first use."""
        return self._dataset.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch, or continues the current one after `load_state_dict` or an error.

        Yields:
            The next result. Its arrays have memory of their own.

        Raises:
            RuntimeError: The dataset was closed or reloaded during the iteration, or a later iteration has started.
        """
        self._dataset._begin()
        return self._iterate()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: that of the training dataset, without the results that the loop has not received.

        It can be loaded with any number of workers, and by the training dataset itself.
        """
        return self._dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position of a state. See `TrainingDataset.load_state_dict`."""
        self._dataset.load_state_dict(state)

    def stats(self) -> dict[str, float]:
        """Returns counters and durations since the dataset was created.

        Returns:
            `batches`, `rows` and `bytes` of which the results were delivered; `wait_seconds` and `compute_seconds` of the loop;
            `stall`, the waiting fraction of that time, 0 to 1; `retries`, the number of failed attempts to receive a batch that
            were retried; and `restarts`, the number of workers that were restarted. Without workers, waiting includes `f`.
        """
        wait, compute = self._stats["wait_seconds"], self._stats["compute_seconds"]
        return {**self._stats, "stall": wait / (wait + compute) if wait > 0 else 0.0}

    def close(self) -> None:
        """Ends the worker processes, and the current iteration if there is one. The next iteration starts new ones."""
        self._dataset.close()
        if self._workers is not None:
            workers, self._workers = self._workers, None
            if workers.is_of_this_process:
                workers.close()

    def _iterate(self) -> Iterator[Any]:
        """Yields the results of one epoch, or of the rest of it."""
        ds, steps = self._dataset, self._dataset.steps_per_epoch
        ds._check_place()
        if not ds._advance(steps):
            return
        ds._fresh = True
        ds._loops += 1
        loop, bar, requested = ds._loops, ds._bar(steps), time.perf_counter()
        try:
            while ds._step < steps:
                position = ds._epoch, ds._step
                result = self._next(position, steps)
                ds._step, ds._fresh = ds._step + 1, False
                if bar is not None:
                    bar.update()
                delivered = time.perf_counter()
                self._stats["wait_seconds"] += delivered - requested
                yield result
                requested = time.perf_counter()
                self._stats["compute_seconds"] += requested - delivered
                if loop != ds._loops:
                    raise RuntimeError("a later iteration over this dataset has started and ended this one")
                if (ds._epoch, ds._step) != (position[0], position[1] + 1):
                    raise RuntimeError("the dataset was closed or reloaded during the iteration")
                for callback in ds._callbacks:
                    callback(ds)
        except GeneratorExit:
            raise
        except BaseException:
            # A later iteration has its own position.
            ds._fresh = ds._fresh or loop == ds._loops
            raise
        finally:
            if bar is not None:
                bar.close()
            is_continued = ds._step == steps and ds._last is not None and ds._epoch + 1 < ds._last
            if loop == ds._loops and not is_continued:
                ds.close()
                if self._workers is not None and self._workers.is_of_this_process:
                    self._workers.stop()

    def _next(self, position: tuple[int, int], steps: int) -> Any:
        """Returns the result of the batch at a position."""
        return self._in_this_process(position) if self._count == 0 else self._in_worker(position, steps)

    def _in_this_process(self, position: tuple[int, int]) -> Any:
        received = next(self._dataset._open(self._dataset._last), None)
        if received is None:
            raise RuntimeError("the dataset was closed or reloaded during the iteration")
        batch = Batch(received)
        try:
            result = self._function(batch)
        except Exception as error:
            place = f"at epoch {position[0]}, step {position[1]}"
            cause = WorkerError(f"{place}: {type(error).__name__}", None, *position)
            cause.__cause__ = error.__cause__
            raise error from cause
        self._count_batch(len(batch), batch.nbytes, 0)
        return result

    def _in_worker(self, position: tuple[int, int], steps: int) -> Any:
        if self._workers is None or self._workers.is_closed or not self._workers.is_of_this_process:
            self._workers = Workers(self._count, self._prefetch, self._pickled, self._dataset._cluster)
        # The plan is another one after `load_state_dict`.
        if self._workers.cursor != position or self._plan is not self._dataset._plan():
            self._plan = self._dataset._plan()
            epoch, step = position
            epochs = 1 if self._dataset._last is None else self._dataset._last - epoch
            request = {**self._dataset._pinned(), "epoch": epoch, "start_step": step, "epochs": epochs}
            self._workers.start(request, steps)
        before = self._workers.restarts
        message, value = self._workers.next()
        if (message.epoch, message.step) != position:
            raise RuntimeError(f"a worker delivered epoch {message.epoch}, step {message.step}, expected {position}")
        self._stats["restarts"] += self._workers.restarts - before
        self._count_batch(message.rows, message.bytes, message.retries)
        return value

    def _count_batch(self, rows: int, size: int, retries: int) -> None:
        for name, value in (("batches", 1), ("rows", rows), ("bytes", size), ("retries", retries)):
            self._stats[name] += value


def _apply(f: Callable[[Any], Any], item: Callable[[Batch], Any], batch: Batch) -> Any:
    return f(item(batch))


def _pickled(function: Callable[[Batch], Any], f: Callable[[Any], Any]) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:  # Any error of the methods of an object of the user.
        raise TypeError(
            f"f is {f!r}, which cannot be pickled for worker processes: {error}. Define it at the top level of a module, or "
            f"use workers=0"
        ) from error
