"""Batches and their columns, as the frameworks see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forebay import _forebay
from forebay.errors import RequestError

if TYPE_CHECKING:
    import jax
    import pyarrow as pa
    import torch


class Column:
    """One column, `[rows]`, or tensor, `[rows, values]`, of a batch. Every view is of the received memory, which lives as
    long as any of them; writing to one changes this batch and no other. On a GPU, what takes it by DLPack is ordered
    behind its copy."""

    __slots__ = ("_column",)

    def __init__(self, column: _forebay.Column | _forebay.DeviceColumn) -> None:
        self._column = column

    @property
    def name(self) -> str:
        return self._column.name

    @property
    def type(self) -> str:
        """Arrow's word for its type."""
        return self._column.type

    def __len__(self) -> int:
        return len(self._column)

    def __repr__(self) -> str:
        return repr(self._column)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.to_numpy()
        if copy or (dtype is not None and array.dtype != dtype):
            return array.astype(dtype if dtype is not None else array.dtype)
        return array

    def __dlpack__(self, **options: Any) -> Any:
        return self._column.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._column.__dlpack_device__()

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._on_host().__arrow_c_array__(requested_schema)

    def _on_host(self) -> _forebay.Column:
        if isinstance(self._column, _forebay.DeviceColumn):
            raise RequestError(f"{self._column!r} is not in the memory of the host: take it by to_torch, to_jax or DLPack")
        return self._column

    def to_numpy(self) -> np.ndarray:
        """As a NumPy array, without a copy. Strings, lists, decimals, dates, booleans and columns with nulls have no such
        view: take them by `to_arrow`."""
        return np.asarray(self._on_host())

    def to_torch(self, device: Any = None, non_blocking: bool = True) -> torch.Tensor:
        """As a PyTorch tensor, without a copy; with `device`, copied there. A column of lists is a jagged nested tensor of
        its items, for which PyTorch 2.4 is needed."""
        import torch

        if self.type.startswith(("List(", "LargeList(")):
            if not hasattr(torch, "nested") or not hasattr(torch.nested, "nested_tensor_from_jagged"):
                raise RequestError(f"{self._column!r}: PyTorch {torch.__version__} has no jagged tensors, 2.4 has; take `ragged()`")
            items, offsets = (part.to_torch(device, non_blocking) for part in self.ragged())
            return torch.nested.nested_tensor_from_jagged(items, offsets.long())
        tensor = torch.from_dlpack(self)
        return tensor if device is None else tensor.to(device, non_blocking=non_blocking)

    def to_jax(self) -> jax.Array:
        """As a JAX array, without a copy."""
        import jax.numpy as jnp

        return jnp.from_dlpack(self)

    def ragged(self) -> tuple[Column, Column]:
        """Of a column of lists: the items of all rows, one row's behind the other's, and offsets, one more than there are rows:
        row i has `items[offsets[i]:offsets[i + 1]]`. Both are views without a copy; `numpy.diff(offsets)` are the lengths."""
        items, offsets = self._on_host().ragged()
        return Column(items), Column(offsets)

    def to_arrow(self) -> pa.Array:
        """As a pyarrow array, without a copy."""
        import pyarrow as pa

        return pa.array(self._on_host())


class Batch:
    """One batch: its rows, as columns and tensors by name."""

    __slots__ = ("_batch",)

    def __init__(self, batch: _forebay.Batch) -> None:
        self._batch = batch

    @property
    def epoch(self) -> int:
        return self._batch.epoch

    @property
    def step(self) -> int:
        """Its step in the epoch."""
        return self._batch.step

    @property
    def position(self) -> int:
        """The position of its first row in the order of the epoch."""
        return self._batch.position

    @property
    def group_offsets(self) -> Column | None:
        """With `group_by`: where each group of the batch begins, and last where all end, one number (int32) more than there
        are groups; in the memory of the host."""
        offsets = self._batch.group_offsets
        return None if offsets is None else Column(offsets)

    @property
    def mixed_positions(self) -> list[int]:
        """With `mix`: for each of the other datasets, how many rows of it come before this batch's, over all its epochs."""
        return self._batch.mixed_positions

    @property
    def nbytes(self) -> int:
        return self._batch.nbytes

    @property
    def device(self) -> str:
        """Where it lies: "cpu", or "cuda:0"."""
        kind, number = self._batch.device
        return "cpu" if kind == 1 else f"cuda:{number}"

    @property
    def num_rows(self) -> int:
        return len(self._batch)

    def keys(self) -> list[str]:
        """Names of its columns and tensors."""
        return self._batch.names

    def __len__(self) -> int:
        return len(self._batch)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._batch

    def __getitem__(self, name: str) -> Column:
        return Column(self._batch.column(name))

    def __repr__(self) -> str:
        return repr(self._batch)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._batch.__arrow_c_array__(requested_schema)

    def expand(self, name: str, output: str = "numpy") -> Any:
        """A tensor that is de-duplicated, with a row for every row of the batch: the same bytes as without `dedupe`. It is a
        new array, of "numpy", "torch" or "jax", made where the batch lies."""
        rows, index = self[name], self[f"{name}_index"]
        if output == "numpy":
            return np.take(rows.to_numpy(), index.to_numpy(), axis=0)
        if output == "torch":
            return rows.to_torch().index_select(0, index.to_torch())
        if output == "jax":
            import jax.numpy as jnp

            return jnp.take(rows.to_jax(), index.to_jax(), axis=0)
        raise ValueError(f"output is {output!r}, expected numpy, torch or jax")

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Every column as a NumPy array; see `Column.to_numpy`."""
        return {name: self[name].to_numpy() for name in self.keys()}

    def to_torch(self, device: Any = None, non_blocking: bool = True) -> dict[str, torch.Tensor]:
        """Every column as a PyTorch tensor; see `Column.to_torch`."""
        return {name: self[name].to_torch(device, non_blocking) for name in self.keys()}

    def to_jax(self) -> dict[str, jax.Array]:
        """Every column as a JAX array; see `Column.to_jax`."""
        return {name: self[name].to_jax() for name in self.keys()}

    def to_arrow(self) -> pa.RecordBatch:
        """The batch as a pyarrow record batch, without a copy."""
        import pyarrow as pa

        return pa.record_batch(self._batch)
