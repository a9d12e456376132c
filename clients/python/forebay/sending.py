"""Conversion of keys and replies to what the native part accepts.

A value is sent exactly or not at all. NumPy never chooses the type of Python values, because it would convert `[1, 2**63]` to floats.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any, Callable, Iterable, Mapping, Sequence, Tuple

import numpy as np

from forebay.errors import RequestError

ARROW = ("__arrow_c_array__", "__arrow_c_stream__")
# Units of NumPy's dates and of its coarse times, which Arrow does not have.
DAYS, MINUTES = ("Y", "M", "W", "D"), ("h", "m")
EPOCH = datetime.datetime(1970, 1, 1)
UTC_EPOCH = EPOCH.replace(tzinfo=datetime.timezone.utc)
MICROSECOND = datetime.timedelta(microseconds=1)
# Decimal digits of Arrow's Decimal128.
MAX_DIGITS = 38
SCALARS = (str, bytes, bytearray, Mapping)

# A column: its name and Python or Arrow values, or its name, type, shape, plain values as bytes, and a byte per value that is 0 for
# a null, or None without nulls.
Sent = Tuple[Any, ...]


def keys(rows: Any) -> Any:
    """Converts a dict of columns to a list of columns. Objects with the Arrow PyCapsule interface are returned unchanged.

    Raises:
        RequestError: `rows` is neither, or a column is a scalar or cannot be sent exactly.
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


def _column(name: str, values: Any) -> Sent:
    """Returns one column with the type of its array, or with the type of all its Python values."""
    if any(hasattr(values, method) for method in ARROW):
        return name, values
    if hasattr(values, "to_frame") and hasattr(values, "array"):
        # pandas before 3.0 exports data frames only. Its own arrays have masks that NumPy would drop.
        frame = values.to_frame()
        if not isinstance(values.array, np.ndarray) and hasattr(frame, "__arrow_c_stream__") and values.dtype.kind != "M":
            return name, frame
    if hasattr(values, "detach"):
        values = _from_torch(values)
    if not hasattr(values, "__array__"):
        if isinstance(values, SCALARS) or not isinstance(values, Iterable):
            raise RequestError(f"column '{name}' is a single value, expected one value per row")
        return _listed(name, list(values))
    array = np.asarray(values)
    if array.ndim == 0:
        raise RequestError(f"column '{name}' is a single value, expected one value per row")
    if isinstance(values, np.ma.MaskedArray):
        return _plain(name, array, ~np.ma.getmaskarray(values))
    return _listed(name, array.tolist()) if array.dtype.kind in "SUOT" else _plain(name, array)


def _plain(name: str, array: np.ndarray, valid: np.ndarray | None = None) -> Sent:
    """Returns a column of an array of numbers, booleans or times, with their type."""
    kind = array.dtype.kind
    if kind in "mM":
        missing = np.isnat(array)
        if missing.any():
            valid = ~missing if valid is None else valid & ~missing
    if kind == "M" and np.datetime_data(array.dtype)[0] in DAYS:
        return _whole(name, "date32", array.astype("datetime64[D]").astype(np.int64), np.dtype("<i4"), valid)
    if kind in "mM" and np.datetime_data(array.dtype)[0] in MINUTES:
        array = array.astype(f"{kind}8[s]")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return _sent(name, array.dtype.str, array, valid)


def _whole(name: str, kind: str, array: np.ndarray, dtype: np.dtype, valid: np.ndarray | None) -> Sent:
    """Returns a column of integers that are stored in a narrower type."""
    bounds, used = np.iinfo(dtype), array if valid is None else array[valid]
    if used.size and not bounds.min <= used.min() <= used.max() <= bounds.max:
        raise RequestError(f"column '{name}' has a date that {kind} cannot represent, expected 32-bit days since 1970")
    return _sent(name, kind, np.ascontiguousarray(array, dtype=dtype), valid)


def _sent(name: str, kind: str, array: np.ndarray, valid: np.ndarray | None = None) -> Sent:
    return name, kind, array.shape, array.tobytes(), None if valid is None else valid.astype(np.uint8).tobytes()


def _listed(name: str, values: list[Any]) -> Sent:
    """Returns a column of Python values of one type, or of rows of equal length."""
    given = [value for value in values if value is not None]
    if given and all(hasattr(value, "detach") or isinstance(value, (np.ndarray, list, tuple)) and np.ndim(value) for value in given):
        return _matrix(name, values)
    types = {type(value) for value in given}
    if len(types) == 1 and issubclass(next(iter(types)), np.generic) and len(given) == len(values):
        # Scalars of NumPy of one type keep it.
        array = np.array(values)
        return _listed(name, array.tolist()) if array.dtype.kind in "SUO" else _plain(name, array)
    values = [_python(value) for value in values]
    given = [value for value in values if value is not None]
    if not given:
        return name, "null", (len(values),), b"", None
    valid = None if len(given) == len(values) else np.array([value is not None for value in values])
    for is_one, made in CONVERSIONS:
        if all(map(is_one, given)):
            return made(name, values, valid)
    found = ", ".join(sorted({type(value).__name__ for value in given}))
    raise RequestError(
        f"column '{name}' has values of the types {found}, expected only integers, floats, decimals, booleans, strings, bytes, dates or "
        f"datetimes, and None"
    )


def _python(value: Any) -> Any:
    """Returns the Python value of a scalar of NumPy, and None for the missing values of NumPy and pandas."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _matrix(name: str, rows: list[Any]) -> Sent:
    """Returns a column with several values per row."""
    if any(row is None for row in rows):
        raise RequestError(f"column '{name}' has None among rows of several values, expected a row")
    rows = [_from_torch(row) if hasattr(row, "detach") else row for row in rows]
    if len({np.shape(row) for row in rows}) != 1:
        raise RequestError(f"column '{name}' has rows of different shapes, expected the same number of values in each row")
    if all(isinstance(row, np.ndarray) for row in rows) and len({row.dtype for row in rows}) == 1:
        return _plain(name, np.stack(rows))
    flat = [value for row in rows for value in row]
    _, kind, _, values, valid = (*_listed(name, flat), None, None, None)[:5]
    if values is None or kind == "null":
        raise RequestError(f"column '{name}' has rows without numbers, expected integers, floats or booleans")
    return name, kind, (len(rows), len(flat) // len(rows)), values, valid


def _booleans(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    return _sent(name, "|b1", np.array([value is True for value in values], np.bool_), valid)


def _integers(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    """Returns integers in the first type that holds all of them: int64, uint64, or a decimal without fraction."""
    whole = [0 if value is None else value for value in values]
    least, most = min(whole), max(whole)
    for kind in ("<i8", "<u8"):
        bounds = np.iinfo(kind)
        if bounds.min <= least and most <= bounds.max:
            return _sent(name, kind, np.array(whole, kind), valid)
    return _decimals(name, [decimal.Decimal(value) for value in whole], valid)


def _floats(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    """Returns floats, and integers between them that a float represents exactly."""
    for value in values:
        if value is not None and _as_float(value) != value and value == value:
            raise RequestError(f"column '{name}' has the integer {value} between floats, which no float represents exactly")
    return _sent(name, "<f8", np.array([0.0 if value is None else float(value) for value in values], "<f8"), valid)


def _as_float(value: Any) -> float | None:
    """Returns the nearest float; None for an integer that is larger than all of them."""
    try:
        return float(value)
    except OverflowError:
        return None


def _decimals(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    """Returns decimals with the largest number of fractional digits among them."""
    given = [decimal.Decimal(0) if value is None else decimal.Decimal(value) for value in values]
    if not all(value.is_finite() for value in given):
        raise RequestError(f"column '{name}' has a decimal that is not finite")
    scale = max(0, *(-int(value.as_tuple().exponent) for value in given))
    context = decimal.Context(prec=decimal.MAX_PREC if scale > MAX_DIGITS else 4 * MAX_DIGITS + scale, traps=[decimal.Inexact])
    try:
        whole = [int(value.scaleb(scale, context)) for value in given]
    except decimal.DecimalException:
        whole = [10**MAX_DIGITS]
    if scale > MAX_DIGITS or any(abs(value) >= 10**MAX_DIGITS for value in whole):
        raise RequestError(f"column '{name}' has numbers of more than {MAX_DIGITS} decimal digits, expected at most {MAX_DIGITS}")
    encoded = b"".join(value.to_bytes(16, "little", signed=True) for value in whole)
    return name, f"decimal128({scale})", (len(whole),), encoded, None if valid is None else valid.astype(np.uint8).tobytes()


def _dates(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    days = [0 if value is None else value.toordinal() - EPOCH.toordinal() for value in values]
    return _sent(name, "date32", np.array(days, "<i4"), valid)


def _datetimes(epoch: datetime.datetime, kind: str) -> Callable[[str, Sequence[Any], np.ndarray | None], Sent]:
    def made(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
        if any(getattr(value, "nanosecond", 0) for value in values):
            raise RequestError(f"column '{name}' has times with nanoseconds, expected an array of datetime64[ns]")
        return _sent(name, kind, np.array([0 if value is None else (value - epoch) // MICROSECOND for value in values], "<i8"), valid)

    return made


def _as_they_are(name: str, values: Sequence[Any], valid: np.ndarray | None) -> Sent:
    return name, values


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# The first conversion whose condition holds for all values of a column is used.
CONVERSIONS: list[tuple[Callable[[Any], bool], Callable[[str, Sequence[Any], Any], Sent]]] = [
    (lambda value: isinstance(value, bool), _booleans),
    (_is_integer, _integers),
    (lambda value: isinstance(value, float) or _is_integer(value), _floats),
    (lambda value: isinstance(value, decimal.Decimal) or _is_integer(value), _decimals),
    (lambda value: isinstance(value, str), _as_they_are),
    (lambda value: isinstance(value, bytes), _as_they_are),
    (lambda value: isinstance(value, datetime.datetime) and value.tzinfo is None, _datetimes(EPOCH, "<M8[us]")),
    (lambda value: isinstance(value, datetime.datetime) and value.tzinfo is not None, _datetimes(UTC_EPOCH, "<M8[us] UTC")),
    (lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime), _dates),
]


def _from_torch(tensor: Any) -> Any:
    """Copies a PyTorch tensor to the host, with a type that NumPy supports."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
