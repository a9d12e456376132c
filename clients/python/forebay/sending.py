"""Rows that are sent: keys to look up, and what a model has computed."""

from __future__ import annotations

import datetime
from typing import Any, Mapping

import numpy as np

from forebay.errors import RequestError

ARROW = ("__arrow_c_array__", "__arrow_c_stream__")


def keys(rows: Any) -> Any:
    """Keys as the native part takes them: what speaks Arrow's PyCapsule interface as it is, a dict of columns as a list."""
    if isinstance(rows, Mapping):
        return [_column(name, values) for name, values in rows.items()]
    if any(hasattr(rows, method) for method in ARROW):
        return rows
    raise RequestError(f"keys are a {type(rows).__name__}, expected a dict of columns, or an Arrow batch or table")


def reply(rows: Any) -> Any:
    """A reply as the native part takes it. One array is the column "score"."""
    if isinstance(rows, Mapping) or any(hasattr(rows, method) for method in ARROW):
        return keys(rows)
    return [_column("score", rows)]


def _column(name: str, values: Any) -> tuple[Any, ...]:
    """`(name, type, shape, bytes)`, or `(name, values)` where NumPy has no array of plain values for them."""
    if hasattr(values, "__arrow_c_array__"):
        return name, values
    if isinstance(values, (list, tuple)) and any(value is None or isinstance(value, (str, bytes)) for value in values):
        # NumPy would cut bytes short, and make strings of numbers beside strings.
        return name, list(values)
    if hasattr(values, "detach"):
        values = _of_torch(values)
    array = np.asarray(values)
    if array.ndim == 0:
        raise RequestError(f"column '{name}' is a single value, expected one for each row")
    if array.dtype.kind == "O":
        array = _of_dates(array)
    if array.dtype.kind in "SUO":
        return name, array.tolist()
    if array.dtype.kind == "M" and np.datetime_data(array.dtype)[0] in ("Y", "M", "W", "D"):
        days = np.ascontiguousarray(array.astype("datetime64[D]").astype(np.int64), dtype="<i4")
        return name, "date32", days.shape, days.tobytes()
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return name, array.dtype.str, array.shape, array.tobytes()


def _of_torch(tensor: Any) -> Any:
    """A PyTorch tensor in the memory of the host, of a type that NumPy has, too."""
    tensor = tensor.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def _of_dates(array: np.ndarray) -> np.ndarray:
    """Python's dates and times as NumPy's; all else as it is."""
    kinds = {type(value) for value in array.flat}
    if kinds == {datetime.datetime}:
        return array.astype("datetime64[us]")
    if kinds == {datetime.date}:
        return array.astype("datetime64[D]")
    return array
