"""Columns of a batch, as arrays of the frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forebay import _forebay
from forebay.conversion import Conversion, Missing, Strings, jagged, mask_of, moved, object_array, without_nulls
from forebay.errors import RequestError
from forebay.jax_copies import copied_by_jax, to_jax_device

if TYPE_CHECKING:
    import jax
    import pyarrow as pa
    import torch


class Column:
    """One column `[rows]` or tensor `[rows, values]` of a batch.

    Every type has a representation in NumPy, PyTorch and JAX. Arrays of numbers without nulls are views of the received memory,
    which is freed when the last view is gone. Writing to a view changes this batch and no other.

    In a batch on a GPU, numbers without nulls and lists of them are in the memory of the GPU. Consumers of DLPack are ordered after
    the copy to the device. Other columns are in host memory. Their tensors and arrays are copied to the GPU when they are made,
    and their lists of Python objects, such as text, remain on the host.
    """

    __slots__ = ("_column", "_cuda", "_is_pinned")

    def __init__(
        self,
        column: _forebay.Column | _forebay.DeviceColumn | _forebay.DeviceLists,
        cuda: int | None = None,
        is_pinned: bool = False,
    ) -> None:
        # Number of the CUDA device of the batch; None for a batch on the host.
        self._column, self._cuda = column, cuda
        # The memory on the host from which batches are copied to a device is page-locked, too.
        self._is_pinned = is_pinned or cuda is not None

    @property
    def name(self) -> str:
        """Name of the column or tensor."""
        return self._column.name

    @property
    def type(self) -> str:
        """Arrow type of the column, such as `"Int64"` or `"List(Int64)"`. For a tensor on a device: the type of its values."""
        return self._column.type

    @property
    def nullable(self) -> bool:
        """True if the column may have nulls, in this batch or another one of the stream."""
        return self._column.nullable

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._column)

    def __repr__(self) -> str:
        return repr(self._column)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.to_numpy(strings="array")
        if isinstance(array, list):
            array = object_array(array)
        if isinstance(array, np.ma.MaskedArray):
            # NumPy would drop the mask.
            array = without_nulls(array, self.name)
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
        if isinstance(self._column, _forebay.Column):
            return self._column
        raise RequestError(f"{self._column!r} is not in host memory; use to_torch, to_jax or DLPack")

    def to_numpy(self, *, strings: Strings = "list", missing: Missing = "keep") -> np.ndarray | Any:
        """Returns the column as a NumPy array, or as a list if its values have no NumPy type.

        Numbers, timestamps and durations without nulls are a view of the received memory, and other arrays a copy.

        Args:
            strings: Type of text and bytes: `"list"` for a list of `str` or `bytes`, `"array"` for an array of these objects. A
                null is None.
            missing: Representation of the nulls of numbers, booleans, decimals and times. `"keep"`: a masked element for
                integers and booleans, NaN for floats and decimals, NaT for times. `"nan"`: NaN also for integers and booleans,
                which become float64. `"mask"`: 0; see `mask`. A number: this number, for which integers that cannot hold it are
                promoted as by NumPy, or to float64 for a fraction. A time takes an integer in its unit, otherwise NaT. Nulls of text
                and of nested values always are None.

        Returns:
            An array of numbers, of bool, of `datetime64` for dates and timestamps, of `timedelta64` for times and durations, or
            of float64 for decimals. With `"keep"`, a `numpy.ma.MaskedArray` for integers and booleans that are `nullable`, also
            in a batch without nulls. Lists of these are a list of one array per row, None for a null. Other nested values are
            a list of Python objects, as in `to_list`. The type of the array is the same for every batch.

        Raises:
            ValueError: An option has another value.
            RequestError: The column is in the memory of a device.
        """
        return Conversion(strings, missing).to_numpy(self._on_host())

    def to_torch(
        self, device: Any = None, non_blocking: bool = True, *, strings: Strings = "list", missing: Missing = "keep"
    ) -> torch.Tensor | Any:
        """Returns the column as a PyTorch tensor, or as a list if its values have no PyTorch type.

        Numbers, timestamps and durations without nulls are a view of the received memory, and other tensors a copy.

        Args:
            device: Device to copy a tensor to. Default: that of the batch.
            non_blocking: With `device`, passed to `torch.Tensor.to`. A copy from page-locked memory, which `pin_memory` and
                `device` of `Client.train` use, always waits, because the memory is reused when the batch is released. So does a
                copy to the host.
            strings: Type of text and bytes, as in `to_numpy`.
            missing: Representation of nulls, as in `to_numpy`. With `"keep"`, integers and booleans must not be null, because
                a tensor has no mask. NaT is the smallest int64.

        Returns:
            A tensor of numbers, of bool, of int64 for dates and times in their unit, or of float64 for decimals. Lists of these
            are a jagged nested tensor of their items, in which a null list is empty. With PyTorch before 2.4 they are a list of
            tensors. Text and other nested values are as in `to_numpy`.

        Raises:
            ValueError: An option has another value.
            NullValueError: `missing` is `"keep"`, and an integer or boolean is null.
        """
        import torch

        options = Conversion(strings, missing)
        if isinstance(self._column, _forebay.DeviceColumn):
            found = torch.from_dlpack(self)
            own = np.dtype(str(found.dtype).removeprefix("torch."))
            promoted = options.dtype(own, self.nullable)
            found = found if promoted == own else found.to(getattr(torch, promoted.name))
        elif isinstance(self._column, _forebay.DeviceLists):
            items, offsets = self.ragged()
            found = jagged(items.to_torch(missing=options.of_items().missing), torch.from_dlpack(offsets))
        else:
            found = options.to_torch(self._column)
            if device is None and self._cuda is not None:
                device = f"cuda:{self._cuda}"
            if self._is_pinned:
                # The batch may be released, and its memory received into again, before such a copy would end.
                non_blocking = False
        return found if device is None else moved(found, device, non_blocking)

    def to_jax(self, *, strings: Strings = "list", missing: Missing = "keep") -> jax.Array | Any:
        """Returns the column as a JAX array, or as a list if its values have no JAX type.

        On the host, numbers without nulls are a view of the received memory, and other arrays a copy. If the default backend of
        JAX is a GPU, arrays are copied to it. Arrays of a batch on a GPU are on that GPU. Without `jax_enable_x64`, JAX has 32-bit
        numbers: floats are rounded, and numbers outside of the range are an error. There is no such error for arrays of a batch on a
        GPU: JAX truncates the integers, and the floats become infinite.

        Args:
            strings: Type of text and bytes, as in `to_numpy`.
            missing: Representation of nulls, as in `to_numpy`. With `"keep"`, integers and booleans must not be null, because
                a tensor has no mask. NaT is the smallest int64.

        Returns:
            An array of numbers, of bool, of int64 for dates and times in their unit, or of float64 for decimals. Without
            `jax_enable_x64`, dates and times remain a NumPy array. Lists, text and nested values are as in `to_numpy`, so that
            lists on a GPU are copied to the host; `ragged` has their items and offsets on the GPU.

        Raises:
            ValueError: An option has another value.
            NullValueError: `missing` is `"keep"`, and an integer or boolean is null.
            OverflowError: JAX has no 64-bit types, and an integer or a float is outside of the range of 32 bits.
        """
        options = Conversion(strings, missing)
        if isinstance(self._column, _forebay.DeviceColumn):
            copy = copied_by_jax(self)
            return copy.astype(options.dtype(copy.dtype, self.nullable))
        if isinstance(self._column, _forebay.DeviceLists):
            items, offsets = self._column.ragged()
            values = Column(items.to_host()).to_numpy(missing=options.of_items().missing)
            bounds = np.asarray(offsets.to_host()).tolist()
            return [values[start:end] for start, end in zip(bounds, bounds[1:])]
        found = options.to_jax(self._column)
        return found if self._cuda is None else to_jax_device(found, self._cuda)

    def to_list(self) -> list[Any]:
        """Returns one Python object per row: None for a null, a dict for a struct, a list of pairs for a map.

        Decimals are exact. Timestamps with a time zone are in this zone. Nanoseconds, and values outside the range of Python's
        `datetime` classes, are `numpy.datetime64` and `numpy.timedelta64`.

        Raises:
            RequestError: The column is in the memory of a device.
        """
        return self._on_host().objects()

    def mask(self) -> np.ndarray:
        """Returns an array of bool that is False for each null: of the shape of `to_numpy`, or one per row for lists, text and nested values.

        Always in host memory.
        """
        return self._mask(None)

    def _mask(self, converted: Any) -> np.ndarray:
        """Returns the mask. `converted` is what `to_numpy` or another conversion returned, if there was one."""
        if isinstance(self._column, _forebay.Column):
            return mask_of(self._column, converted)
        # A column with nulls is not in the memory of a device.
        shape = self._column.shape if isinstance(self._column, _forebay.DeviceColumn) else len(self._column)
        return np.ones(shape, np.bool_)

    def ragged(self) -> tuple[Column, Column]:
        """Returns the items and the offsets of a column of lists, as views without a copy.

        The list of row i is `items[offsets[i]:offsets[i + 1]]`; `numpy.diff(offsets)` are the lengths.

        Returns:
            The items of all rows in order, and the offsets, which have one element more than there are rows. Both are in the memory
            of a device if the column is.

        Raises:
            ValueError: The column has no lists, or some lists are null.
        """
        if isinstance(self._column, _forebay.DeviceColumn):
            raise ValueError(f"column '{self.name}' has type {self.type}, expected a list")
        items, offsets = self._column.ragged()
        return Column(items, self._cuda, self._is_pinned), Column(offsets, self._cuda, self._is_pinned)

    def to_arrow(self) -> pa.Array:
        """Returns the column as a pyarrow array, without a copy.

        Raises:
            RequestError: The column is in the memory of a device.
        """
        import pyarrow as pa

        return pa.array(self._on_host())
