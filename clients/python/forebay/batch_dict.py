"""The columns of a batch as a dict of arrays."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable


class BatchDict(Dict[str, Any]):
    """A dict of arrays by name, with the position of their batch as attributes.

    A loader that collates or pins the dict keeps the attributes. For JAX, the class is a pytree like a dict. The trees
    that JAX makes from it have no attributes, because they would be constants of a compiled function.

    Attributes:
        epoch: Epoch of the batch, from 0.
        step: Step of the batch within its epoch, from 0.
        position: Position of the first row, group or pack of the batch in the epoch's global order, from 0.
        num_rows: Number of rows, including padding.
    """

    __slots__ = ("epoch", "num_rows", "position", "step")

    epoch: int
    step: int
    position: int
    num_rows: int

    def __getattr__(self, name: str) -> Any:
        if name in BatchDict.__slots__:
            raise AttributeError(f"this BatchDict has no '{name}': only those that a dataset or a Batch returned have it")
        raise AttributeError(f"'BatchDict' object has no attribute '{name}'")


_registered = False


def register_pytree() -> None:
    """Makes `BatchDict` a pytree of JAX, if JAX is imported."""
    global _registered
    tree = getattr(sys.modules.get("jax"), "tree_util", None)
    if _registered or tree is None:
        return
    _registered = True

    def flatten(batch: BatchDict) -> tuple[list[Any], tuple[str, ...]]:
        names = tuple(sorted(batch))
        return [batch[name] for name in names], names

    def flatten_with_keys(batch: BatchDict) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        values, names = flatten(batch)
        return [(tree.DictKey(name), value) for name, value in zip(names, values)], names

    def unflatten(names: tuple[str, ...], values: Iterable[Any]) -> BatchDict:
        return BatchDict(zip(names, values))

    tree.register_pytree_with_keys(BatchDict, flatten_with_keys, unflatten, flatten)
