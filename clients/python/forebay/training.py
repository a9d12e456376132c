"""A training: an iterable whose loops are epochs, and whose state is a few words."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping

from forebay import _forebay
from forebay.agreement import Store, agree, default_store
from forebay.batch import Batch
from forebay.errors import StateError
from forebay.gpu import number_in_use, watch

if TYPE_CHECKING:
    from forebay.client import Client

STATE_VERSION = 1

# What may differ when a state is loaded: the same global batches for another number of ranks.
PLACE = ("rank", "world_size", "batch_size", "lanes", "job", "label", "hash")
# What says where a job stands.
CURSOR = ("epoch", "epochs", "start_step", "steps", "lane")

OUTPUTS: dict[str, Callable[[Batch, Any], Any]] = {
    "batch": lambda batch, device: batch,
    "numpy": lambda batch, device: batch.to_numpy(),
    "torch": lambda batch, device: batch.to_torch(device),
    "jax": lambda batch, device: batch.to_jax(),
    "arrow": lambda batch, device: batch.to_arrow(),
}


class Training:
    """The batches of one rank. Each loop over it is the next epoch, or what is left of one after `load_state_dict` or after
    an error.

    It may be pickled and forked between loops. Where ranks agree (see `store` of `Client.train`), they do so when the
    first thing is asked that needs a plan: a loop, `len`, `summary`, `columns` or `state_dict`. All ranks have to get there."""

    def __init__(
        self,
        client: Client,
        request: Mapping[str, Any],
        *,
        epochs: int | None = None,
        output: str = "batch",
        device: Any = None,
        store: Store | None = None,
        progress: bool = False,
        callbacks: tuple[Callable[[Training], None], ...] = (),
        gpu_utilization: Callable[[], float | None] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise ValueError(f"output is {output!r}, expected one of {', '.join(OUTPUTS)}")
        cuda = _cuda(device)
        if cuda is not None and output in ("numpy", "arrow"):
            raise ValueError(f"output {output!r} lies in the memory of the host, and not on {device}")
        if device is not None and cuda is None and output != "torch" and str(device) != "cpu":
            raise ValueError(f"device {str(device)!r} is for output 'torch', not for {output!r}")
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs is {epochs}, expected at least 1")
        self._client, self._request = client, dict(request)
        self._epochs, self._store, self._progress, self._callbacks = epochs, store, progress, callbacks
        self._gpu_utilization = gpu_utilization
        self._watched: threading.Event | None = None
        # To CUDA devices batches are copied ahead; to others PyTorch copies them.
        self._output, self._cuda, self._device = output, cuda, None if cuda is not None else device
        self._epoch, self._step = int(request["epoch"]), 0
        self._last = None if epochs is None else self._epoch + epochs
        self._planned: dict[str, Any] | None = None
        self._stream: _forebay.Stream | None = None
        self._process = os.getpid()
        # Whether the next loop begins where this stands, and not at the next epoch.
        self._fresh = True
        self._loops = 0
        self._past: dict[str, float] = {}
        # Every rank makes its trainings in the same order, and each agrees anew when a state was loaded.
        self._number, self._agreed_times = next(_numbers), 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_store": None, "_past": {}, "_watched": None}

    @property
    def rank(self) -> int:
        return self._request["rank"]

    @property
    def world_size(self) -> int:
        return self._request["world_size"]

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next."""
        return self._epoch

    @property
    def step(self) -> int:
        """Its step."""
        return self._step

    @property
    def summary(self) -> dict[str, Any]:
        """What the server says of the job: snapshot, plan hash, rows, steps an epoch, windows."""
        return dict(self._plan()["summary"])

    @property
    def columns(self) -> dict[str, str]:
        """Arrow's types of what batches hold, by name."""
        return dict(self._plan()["columns"])

    @property
    def steps_per_epoch(self) -> int:
        return int(self._plan()["summary"].get("steps", 0))

    def __len__(self) -> int:
        """Steps an epoch."""
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        return self._loop()

    def state_dict(self) -> dict[str, Any]:
        """All that it takes to go on with the batch after the last one that a loop was given: plain JSON, the same on every
        rank."""
        plan = self._plan()
        summary, request = plan["summary"], dict(plan["request"])
        for name in (*CURSOR, "rank"):
            request.pop(name, None)
        return {
            "version": STATE_VERSION,
            "snapshot": summary["snapshot"],
            "plan_version": int(summary.get("plan_version", 0)),
            "plan_hash": summary["plan_hash"],
            "global_batch": self._global_batch(request),
            "request": request,
            "epoch": self._epoch,
            "step": self._step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken, by another process, on another server, with another number of ranks: as long as
        the global batch (batch_size * world_size) is the same.

        Raises StateError when the state is of other data, another order or another global batch."""
        if state.get("version") != STATE_VERSION:
            raise StateError(f"the state is of version {state.get('version')}, expected {STATE_VERSION}")
        ours, theirs = self._global_batch(self._request), int(state["global_batch"])
        if ours != theirs:
            raise StateError(
                f"the state was taken with global batches of {theirs}, this training has {ours} "
                f"(batch_size {self._request['batch_size']} * world_size {self.world_size})"
            )
        saved, given = state["request"], self._request
        if given.get("snapshot", state["snapshot"]) != state["snapshot"]:
            raise StateError(f"the state is of snapshot {state['snapshot']}, this training of {given['snapshot']}")
        ours_now = {**{name: saved[name] for name in saved if name not in PLACE}, **given, "snapshot": state["snapshot"]}
        names = [[mixed["dataset"] for mixed in request.get("mix", ())] for request in (given, saved)]
        if names[0] and names[0] == names[1]:
            pinned = zip(given["mix"], saved["mix"])
            ours_now["mix"] = [{**mixed, "snapshot": mixed.get("snapshot", then["snapshot"])} for mixed, then in pinned]
        plan = self._client._plan(ours_now)
        resolved, plan_hash = json.loads(plan.resolved)["train"], json.loads(plan.summary)["plan_hash"]
        for name in sorted({*saved, *resolved} - {*PLACE, *CURSOR}):
            if saved.get(name) != resolved.get(name):
                raise StateError(f"the state was taken with {name} {saved.get(name)!r}, this is {resolved.get(name)!r}")
        if plan_hash != state["plan_hash"]:
            raise StateError(f"the state is of plan {state['plan_hash']}, this training would follow plan {plan_hash}")
        self.close()
        self._request, self._planned, self._fresh = ours_now, None, True
        self._epoch, self._step = int(state["epoch"]), int(state["step"])

    def stats(self) -> dict[str, float]:
        """Batches, rows and bytes so far, the seconds in which the loop waited, computed and copied, of which `stall` is the
        waiting part, and `retries`: how often a connection failed and the loop went on."""
        total = dict(self._past)
        if self._stream is not None:
            _add(total, self._stream.stats())
        wait, compute, copy = (total.get(f"{part}_seconds", 0.0) for part in ("wait", "compute", "copy"))
        total["stall"] = wait / (wait + compute + copy) if wait > 0 else 0.0
        return total

    def close(self) -> None:
        """Ends the stream, if one is running. Leaving a loop early, or dropping the training, does so, too."""
        if self._stream is not None:
            _add(self._past, self._stream.stats())
            self._stream.close()
            self._stream = None
            if self._watched is not None:
                self._watched.set()

    def _begin(self) -> None:
        """Before a loop."""

    def _loop(self) -> Iterator[Any]:
        """One epoch, or what is left of it."""
        steps = self.steps_per_epoch
        if not self._fresh or self._step >= steps > 0:
            self._epoch, self._step = self._epoch + 1, 0
        if self._last is not None and self._epoch >= self._last:
            self._epoch, self._step = self._last - 1, steps
            return
        # Until a batch has come, and after a failure, the next loop begins here.
        self._fresh = True
        self._loops += 1
        loop, bar, make = self._loops, self._bar(steps), OUTPUTS[self._output]
        try:
            stream = self._open()
            while self._step < steps:
                received = next(stream, None)
                if received is None:
                    raise RuntimeError("the training was closed, or given another state, within its loop")
                batch, self._fresh = Batch(received), False
                self._step = batch.step + 1
                if bar is not None:
                    bar.update()
                made_at = time.perf_counter()
                made = make(batch, self._device)
                if self._device is not None:
                    stream.copied(time.perf_counter() - made_at)
                yield made
                if loop != self._loops:
                    raise RuntimeError("a later loop over this training has begun; this one is over")
                for callback in self._callbacks:
                    callback(self)
        except GeneratorExit:
            raise
        except BaseException:
            # Of a later loop, this one knows nothing.
            self._fresh = self._fresh or loop == self._loops
            raise
        finally:
            if bar is not None:
                bar.close()
            goes_on = self._step == steps and self._last is not None and self._epoch + 1 < self._last
            if loop == self._loops and not goes_on:
                self.close()

    def _open(self) -> _forebay.Stream:
        """The stream that brings the next batch."""
        if self._process != os.getpid():
            # Of the process that this one was forked from.
            self._stream, self._process = None, os.getpid()
        if self._stream is not None:
            if self._stream.cursor == (self._epoch, self._step):
                return self._stream
            self.close()
        epochs = 1 if self._last is None else self._last - self._epoch
        request = {**self._pinned(), "epoch": self._epoch, "start_step": self._step, "epochs": epochs}
        self._stream = self._client._plan(request).stream(self._cuda)
        if self._client._options.get("report", True):
            self._watched = watch(self._stream.utilization(), number_in_use(self._cuda), self._gpu_utilization)
        return self._stream

    def _pinned(self) -> dict[str, Any]:
        """The request, with every default resolved and the snapshot pinned."""
        return {**self._plan()["request"], "rank": self.rank}

    def _plan(self) -> dict[str, Any]:
        """Asked once; with several ranks they agree on it first."""
        if self._planned is None:
            plan = self._agreed()
            summary, request = json.loads(plan.summary), json.loads(plan.resolved)["train"]
            self._planned = {"summary": summary, "request": request, "columns": plan.columns}
        return self._planned

    def _agreed(self) -> _forebay.Plan:
        def plan(snapshot: str | None) -> _forebay.Plan:
            pinned = {} if snapshot is None or "snapshot" in self._request else {"snapshot": snapshot}
            return self._client._plan({**self._request, **pinned})

        store = self._store if self._store is not None else default_store()
        if store is None or self.world_size == 1:
            return plan(None)
        self._agreed_times += 1
        name = f"{self._request.get('job') or self._request['dataset']}/{self._number}/{self._agreed_times}"
        patience = float(self._client._options.get("deadline", 300))
        return agree(store, name, self.rank, self.world_size, plan, (self._epoch, self._step), patience)

    def _bar(self, steps: int) -> Any:
        if not self._progress:
            return None
        from tqdm.auto import tqdm

        return tqdm(total=steps, initial=self._step, desc=f"epoch {self._epoch}", unit="step")

    @staticmethod
    def _global_batch(request: Mapping[str, Any]) -> int:
        return int(request["batch_size"]) * int(request.get("world_size") or 1)


_numbers = itertools.count()


def _cuda(device: Any) -> int | None:
    """The number of a CUDA device, spelled as PyTorch does."""
    kind, _, number = str(device).partition(":")
    if kind != "cuda":
        return None
    if not number.isdecimal():
        if number or ":" in str(device):
            raise ValueError(f"device is {str(device)!r}, expected 'cuda' or 'cuda:NUMBER'")
        return _current_cuda()
    return int(number)


def _current_cuda() -> int:
    """The device that PyTorch uses, where it is in use; else the first."""
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value
