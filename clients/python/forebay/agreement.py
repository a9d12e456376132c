"""Ranks agree on what they read before the first of them takes a step."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, MutableMapping, Protocol, Union

from forebay import _forebay
from forebay.errors import DisagreementError

POLL_SECONDS = 0.05


class KeyValue(Protocol):
    """`torch.distributed.Store` is one."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> Any:
        """Waits until the key is set."""


# What has no `set` is taken for a mapping.
Store = Union[KeyValue, MutableMapping[str, str]]


def default_store() -> Store | None:
    """The store of `torch.distributed`, when that is initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.distributed_c10d._get_default_store()


def agree(
    store: Store,
    name: str,
    rank: int,
    world_size: int,
    plan: Callable[[str | None], _forebay.Plan],
    at: tuple[int, int],
    patience: float,
) -> _forebay.Plan:
    """Rank 0 plans; the others plan with its snapshot; all fail unless all have the same order of the same rows.

    `plan` takes a snapshot to pin, or None. `at` is the epoch and step where this rank begins. `name` is the same for all ranks and new for each agreement."""
    until = time.monotonic() + patience
    key = "forebay/" + name
    if rank == 0:
        made, seen = _attempt(lambda: plan(None), world_size, at)
        _set(store, f"{key}/plan", json.dumps(seen))
        others = {other: json.loads(_get(store, f"{key}/rank/{other}", until)) for other in range(1, world_size)}
        _set(store, f"{key}/verdict", _verdict({0: seen, **others}))
    else:
        first = json.loads(_get(store, f"{key}/plan", until))
        made, seen = _attempt(lambda: plan(first.get("snapshot")), world_size, at)
        _set(store, f"{key}/rank/{rank}", json.dumps(seen))
    verdict = _get(store, f"{key}/verdict", until)
    if isinstance(made, Exception):
        raise made
    if verdict:
        raise DisagreementError(verdict)
    return made


def _attempt(plan: Callable[[], _forebay.Plan], world_size: int, at: tuple[int, int]) -> tuple[Any, dict[str, Any]]:
    """A plan, or why there is none, and what the others are told of it."""
    try:
        made = plan()
    except Exception as error:  # Raised once the others know.
        return error, {"error": f"{type(error).__name__}: {error}"}
    summary = json.loads(made.summary)
    seen = {"snapshot": summary["snapshot"], "plan_hash": summary["plan_hash"], "world_size": world_size}
    return made, {**seen, "at": list(at), "columns": [list(column) for column in made.columns]}


def _verdict(seen: dict[int, dict[str, Any]]) -> str:
    """Empty when all agree."""
    first = seen[0]
    for rank, found in seen.items():
        if "error" in found:
            return f"rank {rank} has no plan: {found['error']}"
        if found != first:
            return f"rank 0 and rank {rank} would not read the same: {_words(first)}, and {_words(found)}"
    return ""


def _words(seen: dict[str, Any]) -> str:
    epoch, step = seen["at"]
    columns = ", ".join(f"{name} {kind}" for name, kind in seen["columns"])
    return (
        f"snapshot {seen['snapshot']} with plan {seen['plan_hash']} for {seen['world_size']} ranks "
        f"from epoch {epoch}, step {step} ({columns})"
    )


def _set(store: Store, key: str, value: str) -> None:
    # Some stores know no empty value.
    value = "=" + value
    if hasattr(store, "set"):
        store.set(key, value)
    else:
        store[key] = value


def _get(store: Store, key: str, until: float) -> str:
    if hasattr(store, "set"):
        try:
            value = store.get(key)
        except Exception as error:  # Every kind of store has its own.
            raise DisagreementError(f"the other ranks did not answer: '{key}': {error}") from error
        return (value.decode() if isinstance(value, bytes) else value)[1:]
    while (value := store.get(key)) is None:
        if time.monotonic() > until:
            raise DisagreementError(f"the other ranks did not answer in time: nobody set '{key}'")
        time.sleep(POLL_SECONDS)
    return value[1:]
