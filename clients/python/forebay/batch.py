"""Batches and their columns, as arrays of the frameworks."""

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
    """One column `[rows]` or tensor `[rows, values]` of a batch.

    All conversions without a device argument return views of the received memory, which is freed when the last view is gone.
    Writing to a view changes this batch and no other. On a GPU, consumers of DLPack are ordered after the copy to the device.
    """

    __slots__ = ("_column",)

    def __init__(self, column: _forebay.Column | _forebay.DeviceColumn) -> None:
        self._column = column

    @property
    def name(self) -> str:
        """Name of the column or tensor."""
        return self._column.name

    @property
    def type(self) -> str:
        """Arrow type of the column, such as `"Int64"` or `"List(Int64)"`. On a device: the type of the values."""
        return self._column.type

    def __len__(self) -> int:
        """Number of rows."""
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
            raise RequestError(f"{self._column!r} is not in host memory; use to_torch, to_jax or DLPack")
        return self._column

    def to_numpy(self) -> np.ndarray:
        """Returns the column as a NumPy array, without a copy.

        Raises:
            ValueError: The type has no NumPy equivalent (strings, lists, decimals, dates, booleans), or the column has
                nulls. Use `to_arrow`.
            RequestError: The batch is on a device.
        """
        return np.asarray(self._on_host())

    def to_torch(self, device: Any = None, non_blocking: bool = True) -> torch.Tensor:
        """Returns the column as a PyTorch tensor, without a copy.

        Args:
            device: Device to copy the tensor to. Default: no copy.
            non_blocking: With `device`, passed to `torch.Tensor.to`.

        Returns:
            A tensor. A column of lists is a jagged nested tensor of its items, which requires PyTorch 2.4 or later.

        Raises:
            ValueError: The type has no DLPack equivalent, or the column has nulls. Use `to_arrow`.
            RequestError: The column has lists, and this PyTorch has no jagged tensors. Use `ragged`.
        """
        import torch

        if self.type.startswith(("List(", "LargeList(")):
            if not hasattr(torch, "nested") or not hasattr(torch.nested, "nested_tensor_from_jagged"):
                version = torch.__version__
                raise RequestError(f"{self._column!r}: jagged tensors require PyTorch 2.4, found {version}; use ragged()")
            items, offsets = (part.to_torch(device, non_blocking) for part in self.ragged())
            return torch.nested.nested_tensor_from_jagged(items, offsets.long())
        tensor = torch.from_dlpack(self)
        return tensor if device is None else tensor.to(device, non_blocking=non_blocking)

    def to_jax(self) -> jax.Array:
        """Returns the column as a JAX array, without a copy.

        Raises:
            ValueError: The type has no DLPack equivalent, or the column has nulls. Use `to_arrow`.
        """
        import jax.numpy as jnp

        return jnp.from_dlpack(self)

    def ragged(self) -> tuple[Column, Column]:
        """Returns the items and the offsets of a column of lists, as views without a copy.

        The list of row i is `items[offsets[i]:offsets[i + 1]]`; `numpy.diff(offsets)` are the lengths.

        Returns:
            The items of all rows in order, and the offsets, which have one element more than there are rows.

        Raises:
            ValueError: The column has no lists, or some lists are null.
            RequestError: The batch is on a device.
        """
        items, offsets = self._on_host().ragged()
        return Column(items), Column(offsets)

    def to_arrow(self) -> pa.Array:
        """Returns the column as a pyarrow array, without a copy.

        Raises:
            RequestError: The batch is on a device.
        """
        import pyarrow as pa

        return pa.array(self._on_host())


class Batch:
    """One batch of rows, with columns and tensors by name: `batch["x"]` returns a `Column`.

    `len(batch)` is the number of rows, including padding. `name in batch` tests for a column. Batches support the Arrow
    PyCapsule interface, so that libraries such as polars import them without a copy.
    """

    __slots__ = ("_batch",)

    def __init__(self, batch: _forebay.Batch) -> None:
        self._batch = batch

    @property
    def epoch(self) -> int:
        """Epoch of the batch, from 0."""
        return self._batch.epoch

    @property
    def step(self) -> int:
        """Step of the batch within its epoch, from 0."""
        return self._batch.step

    @property
    def position(self) -> int:
        """Position of the first row, group or pack of the batch in the epoch's global order, from 0."""
        return self._batch.position

    @property
    def group_offsets(self) -> Column | None:
        """First row of each group in the batch, followed by the end of the last group: int32, in host memory.

        None without `group_by`.
        """
        offsets = self._batch.group_offsets
        return None if offsets is None else Column(offsets)

    @property
    def mixed_positions(self) -> list[int]:
        """Number of rows of each further dataset that precede this batch, over all its epochs. Empty without `mix`."""
        return self._batch.mixed_positions

    @property
    def nbytes(self) -> int:
        """Size of the batch in bytes."""
        return self._batch.nbytes

    @property
    def device(self) -> str:
        """Device of the batch's memory: `"cpu"`, or a CUDA device such as `"cuda:0"`."""
        kind, number = self._batch.device
        return "cpu" if kind == 1 else f"cuda:{number}"

    @property
    def num_rows(self) -> int:
        """Number of rows, including padding."""
        return len(self._batch)

    def keys(self) -> list[str]:
        """Returns the names of the columns and tensors, in order."""
        return self._batch.names

    def __len__(self) -> int:
        """Number of rows, including padding."""
        return len(self._batch)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._batch

    def __getitem__(self, name: str) -> Column:
        """Returns a column or tensor.

        Raises:
            KeyError: There is no such column.
        """
        return Column(self._batch.column(name))

    def __repr__(self) -> str:
        return repr(self._batch)

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._batch.__arrow_c_array__(requested_schema)

    def expand(self, name: str, output: str = "numpy") -> Any:
        """Returns a de-duplicated tensor with one row per row of the batch, equal to the tensor without `dedupe`.

        Args:
            name: Name of a tensor in `dedupe`.
            output: Type of the array: `"numpy"`, `"torch"` or `"jax"`.

        Returns:
            A new array on the device of the batch.

        Raises:
            KeyError: There is no such tensor, or it is not de-duplicated.
            ValueError: `output` is not one of the three.
        """
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
        """Returns all columns as NumPy arrays by name. See `Column.to_numpy`."""
        return {name: self[name].to_numpy() for name in self.keys()}

    def to_torch(self, device: Any = None, non_blocking: bool = True) -> dict[str, torch.Tensor]:
        """Returns all columns as PyTorch tensors by name. See `Column.to_torch`."""
        return {name: self[name].to_torch(device, non_blocking) for name in self.keys()}

    def to_jax(self) -> dict[str, jax.Array]:
        """Returns all columns as JAX arrays by name. See `Column.to_jax`."""
        return {name: self[name].to_jax() for name in self.keys()}

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the batch as a pyarrow record batch, without a copy.

        Raises:
            RequestError: The batch is on a device.
        """
        import pyarrow as pa

        return pa.record_batch(self._batch)
