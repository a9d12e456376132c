"""Conversion of columns in host memory to arrays of NumPy, PyTorch and JAX. Every type of column has a representation."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

if TYPE_CHECKING:
    from forebay import _forebay

Strings = Literal["list", "array"]
Missing = Union[Literal["nan", "mask"], float]

# Values, the NumPy type to view them as or "", and a byte per value that is 0 for a null.
Numbers = "tuple[_forebay.Column, str, _forebay.Column | None]"


@dataclass(frozen=True)
class Conversion:
    """The options that select the representation of text and of missing values.

    Attributes:
        strings: `"list"` for lists of Python's `str` or `bytes`, `"array"` for NumPy arrays of these objects. A null is None.
        missing: What replaces the nulls of numbers, booleans and times: `"nan"`, `"mask"` or a number.

    Raises:
        ValueError: An option has another value.
    """

    strings: Strings = "list"
    missing: Missing = "nan"

    def __post_init__(self) -> None:
        if self.strings not in ("list", "array"):
            raise ValueError(f"strings is {self.strings!r}, expected 'list' or 'array'")
        is_number = isinstance(self.missing, (numbers.Real, np.bool_))
        if not is_number and not (isinstance(self.missing, str) and self.missing in ("nan", "mask")):
            raise ValueError(f"missing is {self.missing!r}, expected 'nan', 'mask' or a number")
        if is_number and math.isnan(float(self.missing)):
            object.__setattr__(self, "missing", "nan")

    def to_numpy(self, column: _forebay.Column) -> np.ndarray | list[Any]:
        """Returns an array of numbers, booleans or times, a list of arrays for lists of numbers, or a list of Python objects."""
        plain, lists = column.numbers(), column.lists()
        if plain is not None:
            return self._array(*plain)
        if lists is not None:
            return self._arrays(*lists)
        return self._objects(column)

    def to_torch(self, column: _forebay.Column) -> Any:
        """Returns the same as `to_numpy`, with a tensor for an array, and a jagged tensor for a list of arrays."""
        import torch

        plain, lists = column.numbers(), column.lists()
        if plain is not None:
            return self._tensor(*plain)
        if lists is None:
            return self._objects(column)
        if not _has_jagged():
            return [None if array is None else torch.from_numpy(_as_integers(array)) for array in self._arrays(*lists)]
        items, offsets, _ = lists
        return jagged(self._of_items()._tensor(*items), torch.from_dlpack(offsets))

    def to_jax(self, column: _forebay.Column) -> Any:
        """Returns the same as `to_numpy`, with a JAX array for an array. A list of arrays remains one of NumPy arrays."""
        import jax
        import jax.numpy as jnp

        plain = column.numbers()
        if plain is None:
            return self.to_numpy(column)
        array = self._array(*plain)
        # An array that JAX imports is bound to the memory of the host: on a machine with a GPU, JAX would compute there.
        if _is_exported(array, *plain) and jax.default_backend() == "cpu":
            return jnp.from_dlpack(plain[0])
        if array.dtype.kind not in "mM":
            return jnp.asarray(array)
        # Without 64-bit types, JAX would silently drop the upper half of each time.
        has_64_bits = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        return jnp.asarray(_as_integers(array)) if has_64_bits else array

    def _array(self, values: _forebay.Column, dtype: str, valid: _forebay.Column | None) -> np.ndarray:
        """Returns a view of the values, or a copy with the nulls replaced."""
        array = np.asarray(values)
        if dtype:
            array = array.view(dtype)
        if valid is None:
            return array
        nulls, is_time = np.asarray(valid) == 0, array.dtype.kind in "mM"
        if self.missing == "nan":
            array = array.astype(array.dtype if is_time or array.dtype.kind == "f" else np.float64)
            array[nulls] = "NaT" if is_time else np.nan
            return array
        value = 0 if self.missing == "mask" else self.missing
        if is_time:
            array = array.copy()
            array[nulls] = np.array(int(value)).astype(array.dtype) if float(value).is_integer() else "NaT"
            return array
        array = array.astype(_holding(array.dtype, value))
        array[nulls] = value
        return array

    def _arrays(self, items: Any, offsets: _forebay.Column, valid: _forebay.Column | None) -> list[Any]:
        """Returns the array of each list, a view of the items. A null list is None."""
        values, bounds = self._of_items()._array(*items), np.asarray(offsets).tolist()
        arrays: list[Any] = [values[start:end] for start, end in zip(bounds, bounds[1:])]
        if valid is not None:
            arrays = [array if is_valid else None for array, is_valid in zip(arrays, np.asarray(valid).tolist())]
        return arrays

    def _of_items(self) -> Conversion:
        """Returns the conversion of the items of lists, whose nulls no mask of rows can show."""
        return Conversion(self.strings, "nan") if self.missing == "mask" else self

    def _tensor(self, values: _forebay.Column, dtype: str, valid: _forebay.Column | None) -> Any:
        import torch

        array = self._array(values, dtype, valid)
        if _is_exported(array, values, dtype, valid):
            return torch.from_dlpack(values)
        return torch.from_numpy(_as_integers(array))

    def _objects(self, column: _forebay.Column) -> np.ndarray | list[Any]:
        values = column.objects()
        return object_array(values) if column.is_text and self.strings == "array" else values


def jagged(items: Any, offsets: Any) -> Any:
    """Returns tensors of items and offsets as a jagged nested tensor, or with PyTorch before 2.4 as a list of tensors."""
    import torch

    if _has_jagged():
        return torch.nested.nested_tensor_from_jagged(items, offsets.long())
    bounds = offsets.tolist()
    return [items[start:end] for start, end in zip(bounds, bounds[1:])]


def moved(found: Any, device: Any, non_blocking: bool) -> Any:
    """Returns a tensor, or the tensors in a list, on another device of PyTorch. Other objects stay as they are."""
    import torch

    # A copy to the host that does not wait would return memory that is not written yet.
    non_blocking = non_blocking and torch.device(device).type != "cpu"
    if torch.is_tensor(found):
        return found.to(device, non_blocking=non_blocking)
    if isinstance(found, list) and torch.is_tensor(next((each for each in found if each is not None), None)):
        return [each.to(device, non_blocking=non_blocking) if torch.is_tensor(each) else each for each in found]
    return found


def _has_jagged() -> bool:
    import torch

    return hasattr(torch, "nested") and hasattr(torch.nested, "nested_tensor_from_jagged")


def mask_of(column: _forebay.Column) -> np.ndarray | None:
    """Returns an array that is True where a column has a value, or None if the column becomes a list of Python objects."""
    plain, lists = column.numbers(), column.lists()
    if plain is None and lists is None:
        return None
    values, _, valid = plain if plain is not None else lists  # type: ignore[misc]
    if valid is not None:
        return np.asarray(valid).view(np.bool_)
    return np.ones(np.asarray(values).shape if plain is not None else len(column), np.bool_)


def object_array(values: list[Any]) -> np.ndarray:
    """Returns a one-dimensional array of Python objects, also if the objects are lists."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def _is_exported(array: np.ndarray, values: _forebay.Column, dtype: str, valid: _forebay.Column | None) -> bool:
    """Returns True if DLPack exports `values` as they are in `array`."""
    return valid is None and not dtype and array.dtype.kind in "iuf"


def _as_integers(array: np.ndarray) -> np.ndarray:
    """Returns times as integers in their unit, without a copy. The smallest integer is a missing time."""
    return array.view(np.int64) if array.dtype.kind in "mM" else array


def _holding(dtype: np.dtype, value: Any) -> np.dtype:
    """Returns `dtype` if it holds `value`, otherwise the type to which NumPy promotes both."""
    if dtype.kind == "f" or (dtype.kind == "b" and value in (0, 1)):
        return dtype
    if dtype.kind in "iu" and float(value).is_integer() and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return dtype
    promoted = np.result_type(dtype, np.min_scalar_type(value))
    return np.dtype(np.float64) if promoted.kind == "O" else promoted
