"""Errors for arguments that a function does not have, with what to use in their place."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
from typing import Any, Callable, Mapping, Sequence, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

_RANKS = "use rank= and world_size=, which the launcher and torch.distributed give by default"
_WORKERS = "the server decodes in its own threads; use .map(f, workers=...) for a function of yours, or num_workers of a DataLoader"
# Arguments of loaders of other libraries, with what to use in their place.
HINTS = {
    "batch_sampler": "use shuffle=, filter= or mix=",
    "buffer_size": "use shuffle=NUMBER, a number of rows",
    "collate_fn": "batches are already collated; use tensors=, or .map(f) for a function of a batch",
    "cur_shard": _RANKS,
    "drop_last": "use remainder='DROP'",
    "filters": "use filter=, a condition in SQL",
    "generator": "use seed=",
    "num_epochs": "use epochs=",
    "num_replicas": "use world_size=",
    "num_workers": _WORKERS,
    "persistent_workers": _WORKERS,
    "predicate": "use filter=, a condition in SQL",
    "prefetch_factor": "batches are prefetched; prefetch_batches= and prefetch_bytes= of forebay.open and forebay.connect limit that",
    "sampler": "use shuffle=, filter= or mix=",
    "schema_fields": "use columns=",
    "shard_count": _RANKS,
    "shuffle_row_groups": "use shuffle=",
    "transform": "use select= or .map(f)",
    "transform_fn": "use select= or .map(f)",
    "transform_spec": "use select= or .map(f)",
    "where": "use filter=",
    "workers_count": _WORKERS,
    "world": "use world_size=",
}


def checked(method: Method) -> Method:
    """Wraps a method: for an unknown argument, its TypeError names the argument to use instead.

    Raises:
        TypeError: On a call with such an argument.
    """
    parameters = inspect.signature(method).parameters.values()
    known = keywords(method)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    most = sum(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)

    @functools.wraps(method)
    def call(*positional: Any, **options: Any) -> Any:
        if len(positional) > most:
            raise TypeError(_of_position(method.__name__, positional[most]))
        if not takes_any:
            check_known(method.__name__, [name for name in options if name not in _positional(parameters)], known, HINTS)
        return method(*positional, **options)

    return call  # type: ignore[return-value]


def keywords(method: Any) -> list[str]:
    """Returns the names of the arguments of a function that are passed by keyword only."""
    return [name for name, parameter in inspect.signature(method).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]


def check_known(function: str, options: Sequence[str], known: Sequence[str], hints: Mapping[str, str]) -> None:
    """Checks the names of the options of a function.

    Raises:
        TypeError: It has no such option. The message has what to use in its place, or a similar name.
    """
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; {hints[name]}" if name in hints else f", did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{hint}")


def _positional(parameters: Any) -> list[str]:
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _of_position(function: str, value: Any) -> str:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return f"{function}() got {value} without a name, expected a keyword argument, such as batch_size={value}"
    return f"{function}() got a {type(value).__name__} without a name, expected a keyword argument, such as columns=[...]"
