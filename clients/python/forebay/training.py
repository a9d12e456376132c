"""The training dataset: an iterable over epochs with a small state for checkpoints."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Generator, Generic, Iterator, Mapping, TypeVar

from forebay import _forebay, ranks
from forebay.arguments import whole_number
from forebay.agreement import RendezvousStore, agree, default_store, process_count
from forebay.batch import Batch
from forebay.checkpoint import CURSOR, STATE_VERSION, check, check_dataset, check_form, check_step, merged, raise_with_remedy, with_names_of
from forebay.cluster import Cluster
from forebay.cuda import cuda_number, is_cuda
from forebay.conversion import Conversion, Missing, Strings
from forebay.counted_iterator import CountedIterator
from forebay.epoch_stream import epoch_stream
from forebay.errors import CheckpointMismatchError, NotFoundError, RequestError, SnapshotUnavailableError
from forebay.gpu import number_in_use, watch
from forebay.html import described
from forebay.loading import LoadingShown, shown_while_counting
from forebay.mapped import MappedDataset
from forebay.source import WAS_RELOADED, Received, Source

Item = TypeVar("Item")
Result = TypeVar("Result")

LOG = logging.getLogger("forebay")

# Maximum number of batches that the native part copies ahead.
MAX_DEVICE_PREFETCH = 64

# Largest number of epochs or steps of an iteration, whose `len` is an integer of 64 bits.
MAX_COUNT = 2**63 - 1

# Keys of `TrainingDataset.stats` besides `stall`.
COUNTERS = ("batches", "rows", "bytes", "retries")
DURATIONS = ("wait_seconds", "compute_seconds", "copy_seconds")

OUTPUTS: dict[str, Callable[..., Any]] = {
    "batch": lambda batch, device, **options: batch,
    "numpy": lambda batch, device, **options: batch.to_numpy(**options),
    "torch": lambda batch, device, **options: batch.to_torch(device, **options),
    "jax": lambda batch, device, **options: batch.to_jax(**options),
    "arrow": lambda batch, device, **options: batch.to_arrow(),
}


class Items:
    """The batches of one iteration over a training dataset, in the form of `output`."""

    def __init__(self, dataset: TrainingDataset[Any], last: int | None, output: str) -> None:
        self._dataset, self._received, self._make = dataset, Received(dataset, last), OUTPUTS[output]

    def next(self) -> Any:
        """Waits for a batch, and converts it."""
        ds = self._dataset
        batch = Batch(self._received.next(), ds._state_after, ds._pin_memory)
        if ds._device is None:
            return self._make(batch, None, **ds._conversion)
        started_at = time.perf_counter()
        item = self._make(batch, ds._device, **ds._conversion)
        if self._received.stream is not None:
            self._received.stream.record_copy(time.perf_counter() - started_at)
        return item

    def stop(self) -> None:
        """Closes the stream."""
        self._dataset.close()


class TrainingDataset(Generic[Item]):
    """The batches of one rank, as `Client.train` returns them.

    Each iteration is the next epoch. After `load_state_dict`, or after an error, it is the rest of the current epoch. An
    iteration that is left early is followed by the next epoch. At most one iteration is active: a new one ends the earlier one.

    While it waits for a batch, other Python threads run and Ctrl-C works. Lost connections and server restarts are retried
    until the retry deadline of `connect` expires.

    The dataset can be pickled, and used in a forked child, between iterations. With several ranks and a store (see
    `rendezvous_store` of `Client.train`), the ranks agree on a plan at the first iteration or the first use of `len`,
    `summary`, `columns`, `steps_per_epoch` or `state_dict`. This blocks until all ranks have done so.

    Iteration raises `DeadlineError` when the retry deadline expires, `SnapshotUnavailableError` when a file has changed,
    `RankMismatchError` when the ranks disagree, and any other error of `forebay.errors` according to the server's status.
    """

    _mapped_class: type[MappedDataset[Any]] = MappedDataset

    def __init__(
        self,
        cluster: Cluster,
        request: Mapping[str, Any],
        *,
        place: ranks.Place | None = None,
        epochs: int | None = None,
        output: str = "batch",
        strings: Strings = "list",
        missing: Missing = "keep",
        device: Any = None,
        device_prefetch: int = 1,
        pin_memory: bool = False,
        rendezvous_store: RendezvousStore | None = None,
        progress: bool = False,
        callbacks: tuple[Callable[[TrainingDataset[Any]], None], ...] = (),
        gpu_utilization: Callable[[], float | None] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise ValueError(f"output is {output!r}, expected one of {', '.join(OUTPUTS)}")
        on_cuda = is_cuda(device)
        if on_cuda and output in ("numpy", "arrow"):
            raise ValueError(f"output is {output!r}, which requires host memory, but device is {str(device)!r}")
        if device is not None and not on_cuda and output != "torch" and str(device) != "cpu":
            raise ValueError(f"device is {str(device)!r}, which requires output 'torch', but output is {output!r}")
        device_prefetch = whole_number("device_prefetch", device_prefetch, least=1, most=MAX_DEVICE_PREFETCH)
        if device_prefetch > 1 and not on_cuda:
            raise ValueError(f"device_prefetch is {device_prefetch}, but device is {device!r}, expected a CUDA device")
        if pin_memory and device is not None and str(device) != "cpu":
            raise ValueError(f"pin_memory is for batches in host memory, but device is {str(device)!r}")
        epochs = None if epochs is None else whole_number("epochs", epochs, least=1)
        for callback in callbacks:
            if not callable(callback):
                raise RequestError(f"callbacks has {callback!r}, expected functions of the dataset")
        if rendezvous_store is not None and not hasattr(rendezvous_store, "set") and not hasattr(rendezvous_store, "__setitem__"):
            raise RequestError(f"rendezvous_store is {rendezvous_store!r}, expected a store such as torch.distributed.TCPStore, or a dict")
        self._cluster, self._request = cluster, dict(request)
        self._epochs, self._store, self._progress, self._callbacks = epochs, rendezvous_store, progress, callbacks
        self._gpu_utilization = gpu_utilization
        self._watched: threading.Event | None = None
        # Batches are prefetched into CUDA devices. PyTorch copies tensors to other devices.
        Conversion(strings, missing)
        self._conversion = {"strings": strings, "missing": missing}
        self._device_prefetch, self._pin_memory = device_prefetch, pin_memory
        self._output, self._cuda, self._device = output, device if on_cuda else None, None if on_cuda else device
        # The place of the arguments, and otherwise what is found at the first use, when frameworks are initialized.
        self._given_place, self._found_place, self._placed_in = place, place, os.getpid()
        self._epoch, self._step = int(request["epoch"]), 0
        self._last = None if epochs is None else self._epoch + epochs
        # The plan that the ranks have agreed on, and the last one that a state was compared with.
        self._planned: dict[str, Any] | None = None
        self._loaded: dict[str, Any] | None = None
        # The stream, and the end of its epochs as an argument of `_open`.
        self._stream: _forebay.Stream | None = None
        self._stream_last: int | None = None
        self._process = os.getpid()
        # True if the next iteration continues at the current position instead of the next epoch.
        self._fresh = True
        # True after the first loop that follows the last of `epochs`.
        self._end_is_logged = False
        self._loops = 0
        self._past: dict[str, float] = {}
        # Agreements on datasets of the same name so far, at the first agreement of this one; and its own agreements.
        self._number: int | None = None
        self._agreed_times = 0

    def __getstate__(self) -> dict[str, Any]:
        self._check_place()
        # Another process may be one of several ranks, although this one is alone.
        is_alone = self._planned is None and self._given_place is None and self._place().source == ranks.ALONE
        found = None if is_alone else self._found_place
        return {**self.__dict__, "_stream": None, "_store": None, "_past": {}, "_watched": None, "_found_place": found}

    def __repr__(self) -> str:
        # Nothing here blocks, or finds the rank earlier than the first use does.
        place = "" if self._found_place is None else f", rank {self._found_place.rank} of {self._found_place.world_size}"
        return (
            f"<forebay.TrainingDataset of {self._request['dataset']}: batch_size {self._request['batch_size']}{place}, "
            f"epoch {self._epoch}, step {self._step}, output {self._output!r}>"
        )

    def _repr_html_(self) -> str:
        # The columns are shown once the plan is known, because planning waits for the other ranks.
        return described(repr(self), None if self._planned is None else dict(self._planned["columns"]))

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self._place().rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._place().world_size

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self._epoch

    @property
    def step(self) -> int:
        """Step of the next batch within its epoch. Equal to `steps_per_epoch` at the end of an epoch."""
        return self._step

    @property
    def summary(self) -> dict[str, Any]:
        """The server's PlanSummary: snapshot, plan hash, rows and steps per epoch, windows. Blocks at the first use."""
        return dict(self._plan()["summary"])

    @property
    def columns(self) -> dict[str, str]:
        """Arrow types of the columns and tensors, by name. Blocks at the first use."""
        return dict(self._plan()["columns"])

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch, equal on all ranks. Blocks at the first use."""
        return int(self._plan()["summary"].get("steps", 0))

    @property
    def num_rows(self) -> int:
        """Number of rows per epoch over all ranks, after the filter. Blocks at the first use."""
        return int(self._plan()["summary"].get("rows", 0))

    def __bool__(self) -> bool:
        # Python would call `__len__`, which blocks.
        return True

    def __len__(self) -> int:
        """Number of steps per epoch, equal on all ranks. Blocks at the first use."""
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Item]:
        """Starts the next epoch, or continues the current one after `load_state_dict` or an error.

        Yields:
            The next batch, in the form that `output` of `Client.train` selects.

        Raises:
            RuntimeError: The dataset was closed or reloaded during the iteration, or a later iteration has started.
        """
        self._begin()
        return self._iterate(self._items)

    def epochs(self, count: int) -> CountedIterator[Item]:
        """Iterates over the batches of `count` epochs without a pause between them.

        The iteration starts with the batch after the last one that was received, and ends with epoch `count`, counted from the
        first epoch of the training. After `load_state_dict`, the same loop therefore continues and ends as it would have
        without an interruption.

            for batch in ds.epochs(3):
                print(batch.epoch, batch.step)

        Args:
            count: Number of epochs of the training.

        Returns:
            An iterator over the batches, as in `for batch in ds`. Its `len` is the number of batches from its start to its end.

        Raises:
            RequestError: `count` is no whole number of at least 0; on iteration: an epoch has no steps.
        """
        return self._through(count, "epochs", self._items)

    def steps(self, count: int) -> CountedIterator[Item]:
        """Iterates over the batches of `count` steps, over as many epochs as they need, without a pause between these.

        The iteration starts with the batch after the last one that was received, and ends with step `count`, counted from the
        first step of the training, as in `epochs`.

        Args:
            count: Number of steps of the training.

        Returns:
            An iterator over the batches, as in `for batch in ds`. Its `len` is the number of batches from its start to its end.

        Raises:
            RequestError: `count` is no whole number of at least 0; on iteration: an epoch has no steps.
        """
        return self._through(count, "steps", self._items)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Exports the next epoch as a stream of record batches by the Arrow PyCapsule interface, whatever `output` is."""
        self._begin()
        return epoch_stream(self._request_plan(self._pinned()), self._iterate(lambda last: Items(self, last, "batch")))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. Blocks at the first use.

        Prefetched batches do not count: the state continues with the batch after the last one that the loop received.

        Returns:
            A dict that can be written as JSON. It is the same on every rank.
        """
        return self._state_at(self._epoch, self._step)

    def _state_after(self, batch: Batch) -> dict[str, Any]:
        return self._state_at(batch.epoch, batch.step + 1)

    def _state_at(self, epoch: int, step: int) -> dict[str, Any]:
        plan = self._plan()
        summary, request = plan["summary"], dict(plan["request"])
        url = self._cluster.url_of(self._request["dataset"])
        for name in (*CURSOR, "rank"):
            request.pop(name, None)
        return {
            "version": STATE_VERSION,
            "snapshot": summary["snapshot"],
            "plan_version": int(summary.get("plan_version", 0)),
            "plan_hash": summary["plan_hash"],
            "global_batch": self._global_batch(request),
            "request": request,
            "epoch": epoch,
            "step": step,
            **({} if url is None else {"url": url}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position of a state, also in another process, on another server or with other ranks.

        The rows and their order, and the global batch (`batch_size * world_size`), have to be the same. The columns may be
        others. Blocks until a server has confirmed the plan.

        Args:
            state: A result of `state_dict`, of this or an earlier version of the package.

        Raises:
            CheckpointMismatchError: The state was saved with other data, another order or another global batch.
            SnapshotUnavailableError: The snapshot of the state is no longer available.
            TypeError: `state` is no result of `state_dict`.
        """
        check_form(state)
        state = with_names_of(state, self._request)
        check_dataset(state, self._request, self._cluster.url_of(self._request["dataset"]))
        ours, theirs = self._global_batch({**self._request, "world_size": self.world_size}), int(state["global_batch"])
        if ours != theirs:
            raise CheckpointMismatchError(
                f"the state was saved with a global batch of {theirs}, but batch_size {self._request['batch_size']} "
                f"and world_size {self.world_size} make a global batch of {ours}"
            )
        request = merged(state, self._request)
        plan = self._request_plan({**request, **self._rank_and_world_size()})
        self._loaded = _description(plan)
        check(state, self._loaded["request"], self._loaded["summary"]["plan_hash"])
        check_step(state, int(self._loaded["summary"].get("steps", 0)) + self._steps_after_the_end())
        self.close()
        self._request, self._planned, self._fresh, self._end_is_logged = request, None, True, False
        self._epoch, self._step = int(state["epoch"]), int(state["step"])

    def stats(self) -> dict[str, float]:
        """Returns counters and durations since the dataset was created.

        Returns:
            `batches`, `rows` and `bytes` that were delivered; `wait_seconds`, `compute_seconds` and `copy_seconds` of the loop;
            `stall`, the waiting fraction of that time, 0 to 1; and `retries`, the number of failed attempts that were retried.
        """
        total = {**dict.fromkeys(COUNTERS, 0), **dict.fromkeys(DURATIONS, 0.0), **self._past}
        if self._stream is not None:
            _add(total, self._stream.stats())
        wait, compute, copy = (total.get(f"{part}_seconds", 0.0) for part in ("wait", "compute", "copy"))
        total["stall"] = wait / (wait + compute + copy) if wait > 0 else 0.0
        return total

    def map(self, f: Callable[[Any], Result], *, workers: int = 0, prefetch: int = 2) -> MappedDataset[Result]:
        """Returns the results `f(batch)` of all batches, computed in worker processes, in the order of the batches.

        Each worker process reads its part of the batches itself and calls `f`. Results return through shared memory. The
        processes are started by the "spawn" method: `f` is a function at the top level of a module, or another object that
        can be pickled, and a main module has its code below `if __name__ == "__main__":`.

        Results depend on the batch alone: `f` may be called more than once for a batch, and in any process. For random numbers,
        use a seed from `batch.epoch` and `batch.step`.

        Args:
            f: Function of an item, in the form that `output` of `Client.train` selects. It returns NumPy arrays, PyTorch
                tensors, dicts and lists of these, or anything else that can be pickled.
            workers: Number of processes, 0 to 256. 0 calls `f` in this process. With processes, `lanes` of `Client.train` is
                not used.
            prefetch: Maximum number of finished results per worker that the loop has not received, at least 1. Each occupies
                memory of the size of the largest result.

        Returns:
            An iterable with the position of this dataset: both share epoch, step and `state_dict`.

        Raises:
            TypeError: `f` cannot be pickled, and `workers` is not 0.
            ValueError: `workers` or `prefetch` is invalid, or `device` or `pin_memory` of `Client.train` requires this process.
        """
        if self._pin_memory and workers > 0:
            raise ValueError("pin_memory is for this process, but map receives the batches in workers")
        if self._cuda is not None or (workers > 0 and self._device is not None and str(self._device) != "cpu"):
            raise ValueError("map runs on the host, but the dataset has a device; copy the results to it instead")
        item = functools.partial(_item, self._output, self._device, self._conversion)
        return self._mapped_class(self, item, f, workers, prefetch)

    def close(self) -> None:
        """Closes the connections and stops the threads of the current iteration, if there is one.

        This also happens when an iteration ends or is left early, and when the dataset is dropped.
        """
        if self._stream is not None:
            _add(self._past, self._stream.stats())
            self._stream.close()
            self._stream = None
            if self._watched is not None:
                self._watched.set()

    def _begin(self) -> None:
        """Called before each iteration. Subclasses can raise here."""

    def _steps_after_the_end(self) -> int:
        """Number of steps after the end of an epoch at which a state can be, because it takes every n-th step only."""
        return 0

    def _moved(self) -> None:
        """Called when an iteration has started, and when its end changes where the next one starts."""

    def _items(self, last: int | None) -> Items:
        return Items(self, last, self._output)

    def _through(self, count: int, unit: str, source: Callable[[int | None], Source]) -> CountedIterator[Any]:
        """Returns the items of a source up to a number of epochs or steps of the training."""
        count = whole_number(f"{unit}()", count, most=MAX_COUNT)
        self._begin()
        return CountedIterator(self._iterate_through(count, unit == "epochs", source), lambda: self._rest(count, unit == "epochs")[0])

    def _rest(self, count: int, are_epochs: bool) -> tuple[int, int]:
        """Returns the number of steps to the end of a number of epochs or steps of the training, and the epoch that ends there."""
        per_epoch, first = self.steps_per_epoch, int(self._request["epoch"])
        if per_epoch == 0:
            return 0, first
        end = first * per_epoch + count * (per_epoch if are_epochs else 1)
        last = -(-end // per_epoch)
        if self._last is not None:
            last, end = min(last, self._last), min(end, self._last * per_epoch)
        return max(0, end - (self._epoch * per_epoch + self._step)), last

    def _iterate_through(
        self, count: int, are_epochs: bool, source: Callable[[int | None], Source]
    ) -> Generator[Any, None, None]:
        if self.steps_per_epoch == 0 and count > 0:
            raise RequestError(f"{self._without_steps()}; {'epochs' if are_epochs else 'steps'}({count}) would deliver nothing")
        # Continues after the last batch that was received, although the loop around it may have been left early.
        self._fresh = True
        while (rest := self._rest(count, are_epochs))[0] > 0:
            yield from self._iterate(source, *rest)
        self._fresh = True
        self._moved()

    def _without_steps(self) -> str:
        """Returns why an epoch has no steps."""
        summary, request = self._plan()["summary"], self._plan()["request"]
        rows, step = int(summary.get("rows", 0)), self._global_batch({**request, **self._rank_and_world_size()})
        reason = summary.get("empty_reason") or (
            f"the {rows} rows are fewer than the {step} of a step, and remainder is {request.get('remainder', 'DROP')}"
            if rows
            else "no row matches the filter"
            if request.get("filter")
            else "the dataset has no rows"
        )
        return f"the training of '{self._request['dataset']}' has no steps: {reason}"

    def _log_end(self, last: int) -> None:
        message = "the training of '%s' has ended: all epochs up to %s were delivered, and further loops deliver nothing"
        LOG.warning(message, self._request["dataset"], last - 1)

    def _iterate(
        self, source: Callable[[int | None], Source], most: int | None = None, last: int | None = None
    ) -> Iterator[Any]:
        """Yields the items of one epoch, or of the rest of it, and `most` items if that is less.

        Args:
            source: Returns what delivers the items, given the end of the epochs that follow without a pause.
            most: Maximum number of items.
            last: End of the epochs that follow without a pause. Default: that of `epochs` of `Client.train`.
        """
        steps, last = self.steps_per_epoch, self._last if last is None else last
        self._check_place()
        if steps == 0:
            LOG.warning("%s", self._without_steps())
        # The next iteration is the next epoch, unless this one fails.
        is_started, self._fresh = self._advance(steps), False
        self._moved()
        if not is_started:
            if steps > 0 and last is not None and not self._end_is_logged:
                self._end_is_logged = True
                self._log_end(last)
            return
        self._loops += 1
        was_left = False
        loop, items, bar = self._loops, source(last), None
        end = steps if most is None else min(steps, self._step + most)
        shown: LoadingShown | None = None
        try:
            bar = self._bar(steps)
            shown = self._loading_shown(bar).__enter__()
            while self._step < end:
                epoch, step = self._epoch, self._step
                shown.begin()
                try:
                    try:
                        item = items.next()
                    except NotFoundError as error:
                        if not self._cluster.open_again(error):
                            raise
                        self.close()
                        items = source(last)
                        item = items.next()
                except SnapshotUnavailableError as error:
                    raise_with_remedy(error, self._cluster.is_of_open)
                shown.end()
                self._step = step + 1
                if bar is not None:
                    bar.update()
                yield item
                if loop != self._loops:
                    raise RuntimeError("a later iteration over this dataset has started and ended this one")
                if (self._epoch, self._step) != (epoch, step + 1):
                    raise RuntimeError(WAS_RELOADED)
                for callback in self._callbacks:
                    callback(self)
        except GeneratorExit:
            was_left = True
            raise
        except BaseException:
            # A later iteration has its own position.
            if loop == self._loops:
                self._fresh = True
                self._moved()
            raise
        finally:
            if shown is not None:
                shown.__exit__()
            if bar is not None:
                bar.close()
            is_continued = not was_left and self._step == steps and last is not None and self._epoch + 1 < last
            if loop == self._loops and not is_continued:
                items.stop()

    def _advance(self, steps: int) -> bool:
        """Moves to the start of the next iteration. Returns false if all epochs were delivered."""
        if not self._fresh or self._step >= steps > 0:
            self._epoch, self._step = self._epoch + 1, 0
        if self._last is not None and self._epoch >= self._last:
            self._epoch, self._step = self._last - 1, steps
            return False
        return True

    def _open(self, last: int | None) -> _forebay.Stream:
        """Returns the stream that delivers the next batch, and those up to epoch `last`, or up to the end of the epoch."""
        if self._process != os.getpid():
            # The stream belongs to the parent of this forked process.
            self._stream, self._process = None, os.getpid()
        if self._stream is not None:
            if self._stream.cursor == (self._epoch, self._step) and self._stream_last == last:
                return self._stream
            self.close()
        epochs, self._stream_last = 1 if last is None else last - self._epoch, last
        request = {**self._pinned(), "epoch": self._epoch, "start_step": self._step, "epochs": epochs}
        cuda = None if self._cuda is None else cuda_number(self._cuda)
        pins_for = cuda_number("cuda") if self._pin_memory else None
        plan = self._request_plan(request)
        self._stream = plan.stream(pins_for if self._pin_memory else cuda, self._device_prefetch, self._pin_memory)
        if self._cluster.options.get("report", True):
            self._watched = watch(self._stream.utilization(), number_in_use(cuda), self._gpu_utilization)
        return self._stream

    def _place(self) -> ranks.Place:
        """Returns rank and number of ranks, which are found at the first use unless the arguments of `train` give them."""
        if self._found_place is None:
            self._found_place, self._placed_in = ranks.find(), os.getpid()
        return self._found_place

    def _check_place(self) -> None:
        """Checks that the rank that was found is still that of this process.

        Raises:
            RuntimeError: A launcher or a framework has given it another rank since then.
        """
        found = self._place()
        # A process that a rank starts, for example to load data, reads for this rank.
        is_same = self._placed_in == os.getpid() or found.source == ranks.ALONE
        if self._given_place is None and is_same:
            now = ranks.find()
            if now[:2] != found[:2]:
                raise RuntimeError(
                    f"the dataset was first used as rank {found.rank} of {found.world_size}, from {found.source}, but this is "
                    f"rank {now.rank} of {now.world_size}, from {now.source}; use the dataset after the initialization only"
                )

    def _rank_and_world_size(self) -> dict[str, int]:
        return {"rank": self.rank, "world_size": self.world_size}

    def _pinned(self) -> dict[str, Any]:
        """Returns the request with all defaults resolved and the snapshot pinned."""
        return {**self._plan()["request"], **self._rank_and_world_size()}

    def _plan(self) -> dict[str, Any]:
        """Returns the plan, which is requested once. Several ranks agree on it first."""
        if self._planned is None:
            self._planned = _description(self._agreed())
        return self._planned

    def _agreed(self) -> _forebay.Plan:
        def plan(snapshot: str | None) -> _forebay.Plan:
            pinned = {} if snapshot is None or "snapshot" in self._request else {"snapshot": snapshot}
            return self._request_plan({**self._request, **self._rank_and_world_size(), **pinned})

        place = self._place()
        store = self._store if self._store is not None else default_store()
        is_ambiguous = self._given_place is not None and place.source == ranks.ARGUMENTS
        if self._store is None and store is not None and is_ambiguous and place.members not in (1, process_count()):
            # Several processes may have the same rank, because the arguments give it. The store has one key per rank.
            LOG.warning("the ranks are not compared, because rank and world_size are arguments; pass mesh or rendezvous_store")
            store = None
        if store is None or place.members == 1:
            return plan(None)
        name = self._request.get("job_name") or self._request["dataset"]
        if self._number is None:
            # Processes use the datasets that they share in the same order. A dataset of one process alone does not count.
            self._number = next(_agreements.setdefault(name, itertools.count()))
        self._agreed_times += 1
        key = f"{name}/{place.group}{self._number}/{self._agreed_times}"
        timeout = float(self._cluster.options.get("retry_deadline", 300))
        return agree(store, key, place.member, place.members, plan, (self._epoch, self._step), timeout)

    def _request_plan(self, request: Mapping[str, Any]) -> _forebay.Plan:
        """Requests a plan from a server, and shows the progress of its counting of rows."""
        with shown_while_counting(self._request["dataset"], self._progress) as show:
            try:
                return self._cluster.plan(request, progress=show)
            except SnapshotUnavailableError as error:
                raise_with_remedy(error, self._cluster.is_of_open)

    def _loading_shown(self, bar: Any) -> LoadingShown:
        """Returns a context in which the progress of windows is shown that the loop waits for."""

        def read() -> dict[str, Any] | None:
            # The stream is opened while this is shown.
            stream = self._stream
            return None if stream is None else stream.loading()

        return LoadingShown(self._request["dataset"], read, bar)

    def _bar(self, steps: int) -> Any:
        if not self._progress:
            return None
        from tqdm.auto import tqdm

        return tqdm(total=steps, initial=self._step, desc=f"epoch {self._epoch}", unit="step")

    @staticmethod
    def _global_batch(request: Mapping[str, Any]) -> int:
        return int(request["batch_size"]) * int(request.get("world_size") or 1)


_agreements: dict[str, itertools.count[int]] = {}


def _description(plan: _forebay.Plan) -> dict[str, Any]:
    """Returns summary, resolved request and columns of a plan."""
    return {"summary": json.loads(plan.summary), "request": json.loads(plan.resolved)["train"], "columns": plan.columns}


def _item(output: str, device: Any, conversion: Mapping[str, Any], batch: Batch) -> Any:
    """Returns a batch in the form that `output` selects."""
    return OUTPUTS[output](batch, device, **conversion)


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
