"""The training dataset as a PyTorch `IterableDataset`."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any, Iterator, Mapping, cast

import torch.utils.data

from forebay import _forebay
from forebay.batch import Batch
from forebay.loops import LoaderLoops
from forebay.mapped import MappedDataset
from forebay.training import LOG, OUTPUTS, TrainingDataset


class Overtaken(Exception):
    """A worker of a DataLoader begins a loop that has ended."""


class TorchMappedDataset(MappedDataset[Any], torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The results of `TrainingDataset.map`, for `DataLoader(results, batch_size=None, num_workers=0)`.

    Raises:
        RuntimeError: On iteration in a worker process of a DataLoader, because the results have workers of their own, or by a
            DataLoader that Accelerate has prepared.
    """

    def __iter__(self) -> Iterator[Any]:
        _check_not_collated()
        return super().__iter__()

    def _begin(self) -> None:
        _check_not_prepared(self)
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("num_workers must be 0: use the argument workers of map instead")


class TorchTrainingDataset(TrainingDataset[Any], torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A training dataset for `DataLoader(ds, batch_size=None)`, with any number of workers.

    `Client.train` returns this class if PyTorch was imported before the call. Worker w of n reads the batches w, w + n, w + 2n
    and so on of the loop. The DataLoader restores the order. Each loop over a DataLoader is the next epoch.

    With workers, the position is in their processes, and a DataLoader receives batches ahead of the loop. Therefore
    `state_dict` raises RuntimeError in this process after such a loop. With the StatefulDataLoader of torchdata, the state of
    the loader is exact. A DataLoader that `Accelerator.prepare` returned is rejected: its first process would read for all.
    """

    _mapped_class = TorchMappedDataset

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loader_loops = LoaderLoops()
        # In a worker: number of iterations, and true from a call of `load_state_dict` to the next iteration.
        self._iterations, self._has_own_state = 0, False

    def __iter__(self) -> Iterator[Any]:
        _check_not_collated()
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return super().__iter__()
        if worker.dataset is self and self._output in ("batch", "jax"):
            raise RuntimeError(f"output {self._output!r} cannot leave a worker process; use 'torch', 'numpy' or 'arrow'")
        _check_not_prepared(self)
        self._check_place()
        if self._cuda is not None:
            raise RuntimeError("num_workers must be 0 with a CUDA device, into which the dataset prefetches batches itself")
        if self._pin_memory:
            raise RuntimeError("num_workers must be 0 with pin_memory; use the argument pin_memory of the DataLoader instead")
        lane, lanes = worker.id, worker.num_workers
        steps = self.steps_per_epoch
        try:
            with self._loader_loops.entry(_main_process()) as entry:
                start = self._start(entry, lane, steps)
                # Only one worker logs, and it logs the end of the training only once.
                logs_end = lane == 0 and entry.get("has_ended", False) and not entry.get("end_is_logged", False)
                if logs_end:
                    entry["end_is_logged"] = True
        except Overtaken:
            return iter(())
        if lane == 0 and steps == 0:
            LOG.warning("%s", self._without_steps())
        elif logs_end and self._last is not None:
            self._log_end(self._last)
        if start is None:
            start, lane = self._step, 0
        self._step = start + lane
        if self._step >= steps:
            return iter(())
        place = {"epoch": self._epoch, "start_step": start, "epochs": 1, "lanes": lanes, "lane": lane}
        return self._iterate_lane({**self._pinned(), **place}, lanes)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. In a worker of a DataLoader: the state of its part of the batches.

        Raises:
            RuntimeError: Workers of a DataLoader have read the batches, so that this process does not have their position.
        """
        if torch.utils.data.get_worker_info() is None:
            with self._loader_loops.entry(os.getpid()) as entry:
                is_in_workers = entry.get("loop") is not None
            if is_in_workers:
                raise RuntimeError(
                    "the position is in the workers of a DataLoader: use torchdata's StatefulDataLoader and its state_dict, "
                    "or a state from before the loop with the epoch and step that the loop has reached"
                )
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position of a state. See `TrainingDataset.load_state_dict`.

        In a worker of a DataLoader, the state is that of a worker with the same number, of the same number of workers.
        """
        super().load_state_dict(state)
        if torch.utils.data.get_worker_info() is not None:
            self._has_own_state = True
            return
        with self._loader_loops.entry(os.getpid()) as entry:
            entry.update(self._place_of_loop(), planned=self._loaded, end_is_logged=False)

    def _steps_after_the_end(self) -> int:
        worker = torch.utils.data.get_worker_info()
        return 0 if worker is None else worker.num_workers - 1

    def _begin(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError(
                "epochs(), steps() and Arrow streams are not divided among the workers of a DataLoader, expected a loop over ds"
            )
        _check_not_prepared(self)
        with self._loader_loops.entry(os.getpid()) as entry:
            if entry.get("loop") is not None:
                # Loops over DataLoaders are iterations, too.
                self._epoch, self._step, self._fresh = entry["epoch"] + 1, 0, True
                entry.update(self._place_of_loop())

    def _moved(self) -> None:
        # Workers that a DataLoader keeps have the position of their last loop.
        with self._loader_loops.entry(os.getpid()) as entry:
            entry.update(self._place_of_loop())

    def _place_of_loop(self) -> dict[str, Any]:
        """Returns the position in this process as an entry of `LoaderLoops`."""
        return {"loop": None, "epoch": self._epoch, "step": self._step, "is_fresh": self._fresh}

    def _start(self, entry: dict[str, Any], worker: int, steps: int) -> int | None:
        """Moves to the epoch of this loop. Returns its first step, or None if this worker has a state of its own."""
        # The workers of a DataLoader have consecutive numbers. One that keeps its workers starts several loops with them.
        first = multiprocessing.current_process()._identity[-1] - worker  # type: ignore[attr-defined]
        loop, self._iterations = [first, self._iterations], self._iterations + 1
        last = entry.get("loop")
        if self._has_own_state:
            self._has_own_state = False
            entry.update(loop=loop, epoch=self._epoch, step=self._step, has_ended=False)
            return None
        if last == loop:
            self._epoch = entry["epoch"]
            return entry["step"]
        if last is not None and first == last[0] and loop[1] < last[1]:
            # The other workers are in a later loop. PyTorch will start this worker for that loop, too.
            raise Overtaken
        if last is not None and loop[1] == 0 and first < last[0]:
            raise RuntimeError("a later loop over this dataset has started and ended this one")
        if "epoch" in entry:
            self._planned = entry.get("planned", self._planned)
            self._epoch, self._step, self._fresh = entry["epoch"], entry["step"], last is None and entry["is_fresh"]
        is_started = self._advance(steps)
        self._fresh = False
        entry.update(loop=loop, epoch=self._epoch, step=self._step, has_ended=not is_started)
        return self._step

    def _iterate_lane(self, request: Mapping[str, Any], lanes: int) -> Iterator[Any]:
        stream, make = self._cluster.plan(request).stream(None), OUTPUTS[self._output]
        try:
            for received in stream:
                batch = Batch(received, self._state_after)
                self._step = batch.step + lanes
                yield make(batch, self._device, **self._conversion)
        finally:
            stream.close()

    def _plan(self) -> dict[str, Any]:
        # A request of a loaded state has a snapshot, so that all processes have the same plan.
        if self._planned is None and "snapshot" not in self._request:
            is_worker = torch.utils.data.get_worker_info() is not None
            with self._loader_loops.entry(_main_process() if is_worker else os.getpid()) as entry:
                self._planned = entry.setdefault("planned", None) or super()._plan()
                entry["planned"] = self._planned
        return super()._plan()

    def _agreed(self) -> _forebay.Plan:
        if torch.utils.data.get_worker_info() is None:
            return super()._agreed()
        if self._place().members > 1 and "snapshot" not in self._request:
            raise RuntimeError("call len() of the dataset before the loop: the ranks agree on a plan in their main processes")
        return self._request_plan({**self._request, **self._rank_and_world_size()})


def _main_process() -> int:
    """Returns the id of the process that iterates over the DataLoader of this worker."""
    parent: Any = multiprocessing.parent_process()
    return int(parent.pid)


def _check_not_collated() -> None:
    """Checks that the iteration that begins is not that of a DataLoader which combines several items to a batch.

    The DataLoader does not tell its dataset. Its fetcher, which calls `__iter__`, knows it.

    Raises:
        RuntimeError: It is.
    """
    caller = sys._getframe(1).f_back
    # The locals of any other frame are not read: a frame keeps the values that were read alive.
    is_fetcher = caller is not None and caller.f_code.co_name == "__init__" and caller.f_code.co_filename.endswith("fetch.py")
    fetcher = caller.f_locals.get("self") if caller is not None and is_fetcher else None
    if fetcher is not None and type(fetcher).__name__ == "_IterableDatasetFetcher" and fetcher.auto_collation:
        raise RuntimeError(
            "the DataLoader would combine batches of this dataset to larger ones with one more dimension, because it has a "
            "batch_size, which is 1 by default; expected DataLoader(ds, batch_size=None), and the number of rows as batch_size of train()"
        )


def _check_not_prepared(dataset: torch.utils.data.IterableDataset[Any]) -> None:
    """Checks that an iteration over a dataset is not that of a DataLoader which Accelerate has prepared.

    Raises:
        RuntimeError: It is.
    """
    accelerate: Any = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return
    active = accelerate.GradientState().active_dataloader
    wrapped = cast(Any, getattr(active, "dataset", None))
    if isinstance(wrapped, accelerate.IterableDatasetShard):
        wrapped = wrapped.dataset
    if wrapped is dataset:
        active.end()
        raise RuntimeError(
            "Accelerate has prepared the DataLoader of this dataset, so the first process would read for all processes, and "
            "the rows of the others would be lost; iterate over the dataset itself, or over a DataLoader with "
            "batch_size=None that is not passed to prepare()"
        )
