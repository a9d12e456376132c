"""The results of a function of each batch, as an iterable with the position of the training dataset."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any, Callable, Generic, Iterator, Mapping, TypeVar

from forebay.batch import Batch
from forebay.counted_iterator import CountedIterator
from forebay.errors import WorkerError
from forebay.source import WAS_RELOADED, Received
from forebay.workers import Workers

# Maximum number of lanes of the protocol.
MAX_WORKERS = 256


Result = TypeVar("Result")


class MappedDataset(Generic[Result]):
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
        self, dataset: Any, item: Callable[[Batch], Any], f: Callable[[Any], Result], workers: int, prefetch: int
    ) -> None:
        if not 0 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers is {workers}, expected 0 to {MAX_WORKERS}")
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}, expected at least 1")
        self._dataset, self._function = dataset, functools.partial(_apply, f, item)
        self._count, self._prefetch = workers, prefetch
        self._pickled = _pickled(self._function, f) if workers else b""
        self._workers: Workers | None = None
        # The plan of the results of the workers, and the end of their epochs.
        self._plan: dict[str, Any] | None = None
        self._workers_last: int | None = None
        self._stats = {"batches": 0, "rows": 0, "bytes": 0, "wait_seconds": 0.0, "compute_seconds": 0.0}
        self._stats |= {"retries": 0, "restarts": 0}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_workers": None}

    def __repr__(self) -> str:
        function = self._function.args[0]
        name = getattr(function, "__qualname__", repr(function))
        return f"<forebay.MappedDataset of {self._dataset!r} by {name}: {self._count} workers>"

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

    def __iter__(self) -> Iterator[Result]:
        """Starts the next epoch, or continues the current one after `load_state_dict` or an error.

        Yields:
            The next result. Its arrays have memory of their own.

        Raises:
            RuntimeError: The dataset was closed or reloaded during the iteration, or a later iteration has started.
        """
        self._begin()
        self._dataset._begin()
        return self._dataset._iterate(self._results)

    def epochs(self, count: int) -> CountedIterator[Result]:
        """Iterates over the results of `count` epochs without a pause between them. See `TrainingDataset.epochs`.

        Args:
            count: Number of epochs of the training.

        Returns:
            An iterator over the results, with a `len`.

        Raises:
            ValueError: `count` is negative.
            RequestError: On iteration: an epoch has no steps.
        """
        self._begin()
        return self._dataset._through(count, "epochs", self._results)

    def steps(self, count: int) -> CountedIterator[Result]:
        """Iterates over the results of `count` steps, over as many epochs as they need. See `TrainingDataset.steps`.

        Args:
            count: Number of steps of the training.

        Returns:
            An iterator over the results, with a `len`.

        Raises:
            ValueError: `count` is negative.
            RequestError: On iteration: an epoch has no steps.
        """
        self._begin()
        return self._dataset._through(count, "steps", self._results)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: that of the training dataset, without the results that the loop has not received.

        It can be loaded with any number of workers, and by the training dataset itself.
        """
        return self._dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position of a state.

        Args:
            state: A result of `state_dict`, of this dataset or of a training dataset.

        Raises:
            Error: As in `TrainingDataset.load_state_dict`.
        """
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

    def _begin(self) -> None:
        """Called before each iteration. Subclasses can raise here."""

    def _results(self, last: int | None) -> Results:
        return Results(self, last)

    def _count_batch(self, rows: int, size: int, retries: int) -> None:
        for name, value in (("batches", 1), ("rows", rows), ("bytes", size), ("retries", retries)):
            self._stats[name] += value


class Results:
    """The results of one iteration over a mapped dataset."""

    def __init__(self, mapped: MappedDataset[Any], last: int | None) -> None:
        self._mapped, self._dataset, self._last = mapped, mapped._dataset, last
        self._received = Received(self._dataset, last)
        self._workers: Workers | None = None
        # Time when the loop received the last result.
        self._delivered: float | None = None

    def next(self) -> Any:
        """Waits for the next result."""
        self._end_compute()
        requested, position = time.perf_counter(), (self._dataset.epoch, self._dataset.step)
        result = self._in_worker(position) if self._mapped._count else self._in_this_process(position)
        self._delivered = time.perf_counter()
        self._mapped._stats["wait_seconds"] += self._delivered - requested
        return result

    def stop(self) -> None:
        """Closes the stream, or stops the workers, which are kept for the next iteration."""
        self._end_compute()
        self._dataset.close()
        workers = self._mapped._workers
        if workers is not None and workers.is_of_this_process:
            workers.stop()

    def _end_compute(self) -> None:
        if self._delivered is not None:
            self._mapped._stats["compute_seconds"] += time.perf_counter() - self._delivered
            self._delivered = None

    def _in_this_process(self, position: tuple[int, int]) -> Any:
        batch = Batch(self._received.next(), is_pinned=self._dataset._pin_memory)
        try:
            result = self._mapped._function(batch)
        except Exception as error:
            place = f"at epoch {position[0]}, step {position[1]}"
            cause = WorkerError(f"{place}: {type(error).__name__}", None, *position)
            cause.__cause__ = error.__cause__
            raise error from cause
        self._mapped._count_batch(len(batch), batch.nbytes, 0)
        return result

    def _in_worker(self, position: tuple[int, int]) -> Any:
        mapped = self._mapped
        workers, plan = self._workers_of(mapped), self._dataset._plan()
        # The plan is another one after `load_state_dict`.
        if (workers.cursor, mapped._workers_last) != (position, self._last) or mapped._plan is not plan:
            mapped._plan, mapped._workers_last = plan, self._last
            epoch, step = position
            epochs = 1 if self._last is None else self._last - epoch
            request = {**self._dataset._pinned(), "epoch": epoch, "start_step": step, "epochs": epochs}
            workers.start(request, self._dataset.steps_per_epoch)
        before = workers.restarts
        message, value = workers.next()
        if (message.epoch, message.step) != position:
            raise RuntimeError(f"a worker delivered epoch {message.epoch}, step {message.step}, expected {position}")
        mapped._stats["restarts"] += workers.restarts - before
        mapped._count_batch(message.rows, message.bytes, message.retries)
        return value

    def _workers_of(self, mapped: MappedDataset[Any]) -> Workers:
        """Returns the workers, which are started in the first iteration of a process."""
        workers = mapped._workers
        if self._workers is not None and workers is not self._workers:
            raise RuntimeError(WAS_RELOADED)
        if workers is None or workers.is_closed or not workers.is_of_this_process:
            workers = Workers(mapped._count, mapped._prefetch, mapped._pickled, self._dataset._cluster)
            mapped._workers = workers
        self._workers = workers
        return workers


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
