"""Conversion of columns in host memory to arrays of NumPy, PyTorch and JAX. Every type of column has a representation.

The type of an array depends on the type of the column, on whether its schema allows nulls, and on the options. It never depends
on the values of a batch.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np

from forebay.errors import NullValueError

if TYPE_CHECKING:
    from forebay import _forebay

Strings = Literal["list", "array"]
Missing = Union[Literal["keep", "nan", "mask"], float]

# Values, the NumPy type to view them as or "", a byte per value that is 0 for a null, and true if the schema allows nulls.
Numbers = "tuple[_forebay.Column, str, _forebay.Column | None, bool]"


@dataclass(frozen=True)
class Conversion:
    """The options that select the representation of text and of missing values.

    Attributes:
        strings: `"list"` for lists of Python's `str` or `bytes`, `"array"` for NumPy arrays of these objects. A null is None.
        missing: Representation of the nulls of numbers, booleans and times: `"keep"`, `"nan"`, `"mask"` or a number.

    Raises:
        ValueError: An option has another value.
    """

    strings: Strings = "list"
    missing: Missing = "keep"

    def __post_init__(self) -> None:
        if self.strings not in ("list", "array"):
            raise ValueError(f"strings is {self.strings!r}, expected 'list' or 'array'")
        is_number = isinstance(self.missing, (numbers.Real, np.bool_))
        if not is_number and not (isinstance(self.missing, str) and self.missing in ("keep", "nan", "mask")):
            raise ValueError(f"missing is {self.missing!r}, expected 'keep', 'nan', 'mask' or a number")
        if is_number and math.isnan(float(self.missing)):
            object.__setattr__(self, "missing", "nan")

    def to_numpy(self, column: _forebay.Column) -> Any:
        """Returns an array of numbers, booleans or times, or a list of arrays or of Python objects."""
        plain, lists = column.numbers(), column.lists()
        if plain is not None:
            return self._array(*plain)
        if lists is not None:
            return self._arrays(*lists)
        return self._objects(column)

    def to_torch(self, column: _forebay.Column) -> Any:
        """Returns the same as `to_numpy`, with a tensor for an array, and a jagged tensor for a list of arrays.

        Raises:
            NullValueError: Nulls are kept, and an integer or boolean is null.
        """
        import torch

        plain, lists = column.numbers(), column.lists()
        if plain is not None:
            return self._tensor(*plain)
        if lists is None:
            return self._objects(column)
        if not _has_jagged():
            arrays = (None if array is None else without_nulls(array, column.name, True) for array in self._arrays(*lists))
            return [None if array is None else torch.from_numpy(_as_integers(array)) for array in arrays]
        items, offsets, _ = lists
        return jagged(self.of_items()._tensor(*items, are_items=True), torch.from_dlpack(offsets))

    def to_jax(self, column: _forebay.Column) -> Any:
        """Returns the same as `to_numpy`, with a JAX array for an array. A list of arrays remains one of NumPy arrays.

        Raises:
            NullValueError: Nulls are kept, and an integer or boolean is null.
            OverflowError: JAX has no 64-bit types, and an integer or a float is outside of the range of 32 bits.
        """
        import jax
        import jax.numpy as jnp

        plain = column.numbers()
        if plain is None:
            return self.to_numpy(column)
        array = without_nulls(self._array(*plain), column.name)
        has_64_bits = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
        if not has_64_bits and array.dtype.kind in "iu":
            _check_32_bits(column.name, array)
        if not has_64_bits and array.dtype == np.float64:
            array = _as_float32(column.name, array)
        # An array that JAX imports is bound to the memory of the host: on a machine with a GPU, JAX would compute there.
        if _is_exported(array, *plain) and jax.default_backend() == "cpu":
            return jnp.from_dlpack(plain[0])
        if array.dtype.kind not in "mM":
            return jnp.asarray(array)
        # Without 64-bit types, JAX would silently drop the upper half of each time.
        return jnp.asarray(_as_integers(array)) if has_64_bits else array

    def dtype(self, dtype: np.dtype, is_nullable: bool) -> np.dtype:
        """Returns the type of the array for a column of `dtype`, which depends on the schema and the options only."""
        if not is_nullable or dtype.kind not in "iub" or self.missing in ("keep", "mask"):
            return dtype
        return np.dtype(np.float64) if self.missing == "nan" else _holding(dtype, self.missing)

    def _array(self, values: _forebay.Column, dtype: str, valid: _forebay.Column | None, is_nullable: bool) -> np.ndarray:
        """Returns a view of the values, or a copy with another type or with the nulls replaced."""
        array = np.asarray(values)
        if dtype:
            array = array.view(dtype)
        nulls = None if valid is None else np.asarray(valid) == 0
        if self.missing == "keep" and is_nullable and array.dtype.kind in "iub":
            return np.ma.MaskedArray(array, np.ma.nomask if nulls is None else nulls)
        promoted = self.dtype(array.dtype, is_nullable)
        if nulls is None:
            return array.astype(promoted, copy=False)
        array = array.astype(promoted)
        array[nulls] = self._replacement(array.dtype)
        return array

    def _replacement(self, dtype: np.dtype) -> Any:
        """Returns what replaces a null in an array of a type that holds it."""
        is_time = dtype.kind in "mM"
        if self.missing in ("keep", "nan"):
            return "NaT" if is_time else np.nan
        value: Any = 0 if self.missing == "mask" else self.missing
        if is_time:
            if not float(value).is_integer():
                return "NaT"
            if not -(2**63) <= int(value) < 2**63:
                raise OverflowError(f"missing is {value}, which is outside of the range of times, whose numbers have 64 bits")
            return np.array(int(value)).astype(dtype)
        if dtype.kind == "f" and math.isfinite(value):
            with np.errstate(over="ignore"):
                is_infinite = np.isinf(np.array(value, dtype))
            if is_infinite:
                raise OverflowError(f"missing is {value}, which is outside of the range of {dtype}")
        return value

    def _arrays(self, items: Any, offsets: _forebay.Column, valid: _forebay.Column | None) -> list[Any]:
        """Returns the array of each list, a view of the items. A null list is None."""
        values, bounds = self.of_items()._array(*items), np.asarray(offsets).tolist()
        arrays: list[Any] = [values[start:end] for start, end in zip(bounds, bounds[1:])]
        if valid is not None:
            arrays = [array if is_valid else None for array, is_valid in zip(arrays, np.asarray(valid).tolist())]
        return arrays

    def of_items(self) -> Conversion:
        """Returns the conversion of the items of lists, whose nulls no mask of rows can show."""
        return Conversion(self.strings, "keep") if self.missing == "mask" else self

    def _tensor(
        self, values: _forebay.Column, dtype: str, valid: _forebay.Column | None, is_nullable: bool, are_items: bool = False
    ) -> Any:
        import torch

        array = without_nulls(self._array(values, dtype, valid, is_nullable), values.name, are_items)
        if _is_exported(array, values, dtype, valid, is_nullable):
            return torch.from_dlpack(values)
        return torch.from_numpy(_as_integers(array))

    def _objects(self, column: _forebay.Column) -> np.ndarray | list[Any]:
        values = column.objects()
        return object_array(values) if column.is_text and self.strings == "array" else values


def _check_32_bits(name: str, array: np.ndarray) -> None:
    """Checks that JAX can hold integers in 32 bits. It would drop the upper half of others without a word.

    Raises:
        OverflowError: A value needs more bits.
    """
    if array.dtype.itemsize < 8 or array.size == 0:
        return
    limits = np.iinfo(f"{array.dtype.kind}4")
    for value in (array.min(), array.max()):
        if not limits.min <= value <= limits.max:
            raise OverflowError(
                f"column {name!r} has {value}, which needs 64 bits, and JAX has them disabled: use jax.config.update('jax_enable_x64', "
                "True), or output='numpy'"
            )


def _as_float32(name: str, array: np.ndarray) -> np.ndarray:
    """Returns float64 as float32. JAX would turn large values into infinities without a word.

    Raises:
        OverflowError: A finite value is outside of the range of float32.
    """
    with np.errstate(over="ignore"):
        rounded = array.astype(np.float32)
    infinite = np.isinf(rounded)
    if infinite.any() and (found := array[infinite & np.isfinite(array)]).size:
        raise OverflowError(
            f"column {name!r} has {found[0]}, which is outside of the range of float32, and JAX has 64-bit types disabled: use "
            "jax.config.update('jax_enable_x64', True), or output='numpy'"
        )
    return rounded


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


def mask_of(column: _forebay.Column, converted: Any = None) -> np.ndarray:
    """Returns an array that is True where a column has a value.

    Args:
        column: The column.
        converted: What the column became, if it is converted already.
    """
    plain, lists = column.numbers(), column.lists()
    if plain is not None:
        valid, shape = plain[2], np.asarray(plain[0]).shape
    elif lists is not None:
        valid, shape = lists[2], (len(column),)
    else:
        objects = column.objects() if converted is None else converted
        return np.fromiter((value is not None for value in objects), np.bool_, len(column))
    return np.ones(shape, np.bool_) if valid is None else np.asarray(valid).view(np.bool_)


def object_array(values: list[Any]) -> np.ndarray:
    """Returns a one-dimensional array of Python objects, also if the objects are lists."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def _is_exported(
    array: np.ndarray, values: _forebay.Column, dtype: str, valid: _forebay.Column | None, is_nullable: bool
) -> bool:
    """Returns True if DLPack exports `values` as they are in `array`."""
    return valid is None and not dtype and array.dtype.kind in "iuf" and array.dtype == np.asarray(values).dtype


def without_nulls(array: np.ndarray, name: str, are_items: bool = False) -> np.ndarray:
    """Returns an array without a mask, for tensors, which have none. `are_items` is true for the items of lists.

    Raises:
        NullValueError: A value is masked.
    """
    if not isinstance(array, np.ma.MaskedArray):
        return array
    count = int(np.count_nonzero(np.ma.getmaskarray(array)))
    if count:
        quoted = '"' + name.replace('"', '""') + '"'
        what, others = ("null items", "") if are_items else ("nulls", f"missing='mask' for 0 and a mask, '{quoted} IS NOT NULL' as filter, ")
        raise NullValueError(
            f"column '{name}' has {count} {what} in this batch, which a tensor of {array.dtype} cannot represent; expected {others}"
            "missing=NUMBER, or missing='nan' for float64"
        )
    return array.data


def _as_integers(array: np.ndarray) -> np.ndarray:
    """Returns times as integers in their unit, without a copy. The smallest integer is a missing time."""
    return array.view(np.int64) if array.dtype.kind in "mM" else array


def _holding(dtype: np.dtype, value: Any) -> np.dtype:
    """Returns `dtype` if it holds `value`, otherwise float64 for a fraction, and the type to which NumPy promotes both for an integer."""
    if dtype.kind == "f" or (dtype.kind == "b" and value in (0, 1)):
        return dtype
    if not float(value).is_integer():
        # The smallest type of floats that NumPy chooses, such as float16 for int8, would round the number.
        return np.dtype(np.float64)
    if dtype.kind in "iu" and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        return dtype
    promoted = np.result_type(dtype, np.min_scalar_type(value))
    return np.dtype(np.float64) if promoted.kind == "O" else promoted
