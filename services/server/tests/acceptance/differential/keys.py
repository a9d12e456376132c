"""Types of keys: which columns can be keys, and the types in which a caller may send them.

An exact key is a plain value that is the same in all these types. For dates and timestamps it has nanoseconds.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from differential.kinds import DAY_NS, DECIMALS, INTEGERS, NANOSECONDS, Kind, arrow_array, plain_values

FAMILIES = ("text", "bytes", "date", "naive", "zoned", "bool")


def is_key(kind: Kind) -> bool:
    return at.is_integer(kind.arrow) or at.is_decimal(kind.arrow) or kind.family in FAMILIES


def types_of_keys(kind: Kind) -> list[pa.DataType]:
    """Types in which a caller may send keys of a column."""
    if kind.family == "number":
        return [each.arrow for each in (*INTEGERS, *DECIMALS)]
    if kind.family == "text":
        return [pa.string(), pa.large_string(), pa.string_view()]
    if kind.family == "bytes":
        return [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)]
    if kind.family == "zoned":
        return [pa.timestamp(unit, zone) for unit in NANOSECONDS for zone in ("UTC", "Europe/Paris")]
    if kind.family in ("naive", "date"):
        return [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in NANOSECONDS)]
    return [kind.arrow]


def exact_keys(arrow: pa.DataType, values: list) -> list:
    """Returns keys with the same value in every type: a date is midnight of its day."""
    return [None if value is None else value * DAY_NS for value in values] if at.is_date(arrow) else values


def of_type(arrow: pa.DataType, key: Any) -> Any:
    """Returns the plain value of a type for an exact key. One that the type does not have may become another value."""
    if at.is_date(arrow):
        return key // DAY_NS
    return int(key) if at.is_integer(arrow) else key


def fitting(arrow: pa.DataType, keys: list) -> pa.Array:
    """Returns an array of those exact keys that a type holds."""
    there = []
    for key in keys:
        with contextlib.suppress(pa.ArrowException, OverflowError):
            value = None if key is None else of_type(arrow, key)
            if exact_keys(arrow, plain_values(arrow_array(arrow, [value]))) == [key]:
                there.append(value)
    return arrow_array(arrow, there)


def others(kind: Kind) -> list:
    """Returns exact keys at the ends of the types in which keys of a column are sent."""
    if kind.family != "number":
        return exact_keys(kind.arrow, list(kind.extremes))
    return [value for each in (*INTEGERS, *DECIMALS) for value in each.extremes]
