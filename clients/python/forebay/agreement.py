"""Agreement of the ranks of a job on snapshot and order, before the first step of any rank."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, MutableMapping, Protocol, Union

from forebay import _forebay
from forebay.errors import RankMismatchError

LOG = logging.getLogger("forebay")

POLL_SECONDS = 0.05
# Times after which a wait for other ranks is logged, first and again.
FIRST_LOG_S, LOG_INTERVAL_S = 3.0, 30.0


class KeyValueStore(Protocol):
    """A store with a blocking `get`, such as `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> Any:
        """Sets the value of a key."""

    def get(self, key: str) -> Any:
        """Returns the value of a key, as str or bytes. Blocks until the key is set."""


# An object without a method `set` is used as a mapping.
RendezvousStore = Union[KeyValueStore, MutableMapping[str, str]]


def default_store() -> RendezvousStore | None:
    """Returns the store of `torch.distributed` if that is initialized, otherwise None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


def process_count() -> int:
    """Returns the number of processes that share the default store."""
    return sys.modules["torch.distributed"].get_world_size()


def agree(
    store: RendezvousStore,
    name: str,
    rank: int,
    world_size: int,
    plan: Callable[[str | None], _forebay.Plan],
    start: tuple[int, int],
    timeout: float,
) -> _forebay.Plan:
    """Creates a plan that all ranks share. Rank 0 plans first; the other ranks pin its snapshot.

    Args:
        store: Store that all ranks share.
        name: Name of this agreement: the same on all ranks, and unused in the store.
        rank: Rank of this process.
        world_size: Number of ranks.
        plan: Function that creates a plan on the given snapshot, or on the current one for None.
        start: Epoch and step at which this rank starts.
        timeout: Time limit for the other ranks in seconds. Not used if the store has a blocking `get`.

    Returns:
        The plan of this rank.

    Raises:
        RankMismatchError: The ranks have different plans, columns or start positions, or a rank did not answer.
        Exception: The error of `plan` on this rank. The other ranks raise RankMismatchError with its message.
    """
    until = time.monotonic() + timeout
    key = "forebay/" + name
    if rank == 0:
        outcome, seen = _attempt(lambda: plan(None), world_size, start)
        _set(store, f"{key}/plan", json.dumps(seen))
        others = {}
        for other in range(1, world_size):
            with _logged(f"rank {other}" if other + 1 == world_size else f"rank {other} and perhaps later ones", world_size):
                others[other] = json.loads(_get(store, f"{key}/rank/{other}", until))
        _set(store, f"{key}/verdict", _difference({0: seen, **others}))
    else:
        with _logged("rank 0", world_size):
            first = json.loads(_get(store, f"{key}/plan", until))
        outcome, seen = _attempt(lambda: plan(first.get("snapshot")), world_size, start)
        _set(store, f"{key}/rank/{rank}", json.dumps(seen))
    with _logged("rank 0, which waits for the others", world_size):
        difference = _get(store, f"{key}/verdict", until)
    if isinstance(outcome, Exception):
        raise outcome
    if difference:
        raise RankMismatchError(difference)
    return outcome


@contextmanager
def _logged(waits_for: str, world_size: int) -> Iterator[None]:
    """Logs a wait for other ranks until the context ends: after 3 s and every 30 s."""
    has_ended, began = threading.Event(), time.monotonic()

    def log() -> None:
        interval = FIRST_LOG_S
        while not has_ended.wait(interval):
            interval = LOG_INTERVAL_S
            LOG.warning(
                "waiting for %s of %s ranks for %.0f s to agree on the order of the batches: each rank has to use its dataset",
                waits_for, world_size, time.monotonic() - began,
            )  # fmt: skip

    # `get` of a store blocks.
    thread = threading.Thread(target=log, name="forebay-agreement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _attempt(plan: Callable[[], _forebay.Plan], world_size: int, start: tuple[int, int]) -> tuple[Any, dict[str, Any]]:
    """Returns the plan or the error, and the description of either for the other ranks."""
    try:
        made = plan()
    except Exception as error:  # Raised after the other ranks have received it.
        return error, {"error": f"{type(error).__name__}: {error}"}
    summary = json.loads(made.summary)
    seen = {"snapshot": summary["snapshot"], "plan_hash": summary["plan_hash"], "world_size": world_size}
    return made, {**seen, "at": list(start), "columns": [list(column) for column in made.columns]}


def _difference(seen: dict[int, dict[str, Any]]) -> str:
    """Returns the first difference between rank 0 and another rank, or an empty string."""
    first = seen[0]
    for rank, found in seen.items():
        if "error" in found:
            return f"rank {rank} failed to create a plan: {found['error']}"
        if found != first:
            return f"rank 0 and rank {rank} would read different data: {_description(first)}, and {_description(found)}"
    return ""


def _description(seen: dict[str, Any]) -> str:
    epoch, step = seen["at"]
    columns = ", ".join(f"{name} {kind}" for name, kind in seen["columns"])
    return (
        f"snapshot {seen['snapshot']} with plan {seen['plan_hash']} for {seen['world_size']} ranks "
        f"from epoch {epoch}, step {step} ({columns})"
    )


def _set(store: Any, key: str, value: str) -> None:
    # Some stores do not support empty values.
    value = "=" + value
    if hasattr(store, "set"):
        store.set(key, value)
    else:
        store[key] = value


def _get(store: Any, key: str, until: float) -> str:
    if hasattr(store, "set"):
        try:
            value: Any = store.get(key)
        except Exception as error:  # Each kind of store has its own exceptions.
            raise RankMismatchError(f"the other ranks did not answer: reading '{key}' failed: {error}") from error
        return (value.decode() if isinstance(value, bytes) else value)[1:]
    while (value := store.get(key)) is None:
        if time.monotonic() > until:
            raise RankMismatchError(f"the other ranks did not answer in time: '{key}' was not set")
        time.sleep(POLL_SECONDS)
    return value[1:]
