"""Conversion of keys and replies to what the native part accepts."""

from __future__ import annotations

import datetime
from typing import Any, Mapping

import numpy as np

from forebay.errors import RequestError

ARROW = ("__arrow_c_array__", "__arrow_c_stream__")


def keys(rows: Any) -> Any:
    """Converts a dict of columns to a list of columns. Objects with the Arrow PyCapsule interface are returned unchanged.

    Raises:
        RequestError: `rows` is neither, or a column is a scalar.
    """
    if isinstance(rows, Mapping):
        return [_column(name, values) for name, values in rows.items()]
    if any(hasattr(rows, method) for method in ARROW):
        return rows
    raise RequestError(f"keys has type {type(rows).__name__}, expected a dict of columns, or an Arrow batch or table")


def reply(rows: Any) -> Any:
    """Converts a reply in the same way. A single array becomes the column `score`."""
    if isinstance(rows, Mapping) or any(hasattr(rows, method) for method in ARROW):
        return keys(rows)
    return [_column("score", rows)]


def _column(name: str, values: Any) -> tuple[Any, ...]:
    """Returns `(name, type, shape, bytes)`, or `(name, values)` for values without a NumPy type of fixed width."""
    if hasattr(values, "__arrow_c_array__"):
        return name, values
    if isinstance(values, (list, tuple)) and any(value is None or isinstance(value, (str, bytes)) for value in values):
        # NumPy would truncate bytes at trailing zeros and convert numbers next to strings.
        return name, list(values)
    if hasattr(values, "detach"):
        values = _from_torch(values)
    array = np.asarray(values)
    if array.ndim == 0:
        raise RequestError(f"column '{name}' is a single value, expected one value per row")
    if array.dtype.kind == "O":
        array = _from_dates(array)
    if array.dtype.kind in "SUO":
        return name, array.tolist()
    if array.dtype.kind == "M" and np.datetime_data(array.dtype)[0] in ("Y", "M", "W", "D"):
        days = np.ascontiguousarray(array.astype("datetime64[D]").astype(np.int64), dtype="<i4")
        return name, "date32", days.shape, days.tobytes()
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return name, array.dtype.str, array.shape, array.tobytes()


def _from_torch(tensor: Any) -> Any:
    """Copies a PyTorch tensor to the host, with a type that NumPy supports."""
    tensor = tensor.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def _from_dates(array: np.ndarray) -> np.ndarray:
    """Converts Python's dates and datetimes to NumPy's. Other arrays are returned unchanged."""
    kinds = {type(value) for value in array.flat}
    if kinds == {datetime.datetime}:
        return array.astype("datetime64[us]")
    if kinds == {datetime.date}:
        return array.astype("datetime64[D]")
    return array
