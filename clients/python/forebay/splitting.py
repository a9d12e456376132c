"""Splits of a dataset into two parts, as row conditions."""

from __future__ import annotations

import datetime
import decimal
import math
import numbers
from typing import Any, Union

import numpy as np

from forebay import arguments

# Number of parts that hash values are divided into. A fraction is rounded to it.
BUCKETS = 1_000_000

Border = Union[int, float, decimal.Decimal, str, datetime.date, datetime.datetime, np.generic]
# Largest number of a division by hash, which is an integer of 64 bits in SQL.
MAX_SEED = 2**63 - 1


def split(fraction: float | None = None, *, by: str, at: Border | None = None, seed: int = 0) -> tuple[str, str]:
    """Returns two row conditions in SQL. Each row of a dataset matches exactly one of them.

        train, test = forebay.split(0.9, by="user_id")
        ds = client.train("clicks", batch_size=4096, filter=train)

    The conditions depend on the value of one column alone, so rows stay in their part when files are added. The condition is
    part of the plan hash of a training, and a state only loads with the same one.

    Args:
        fraction: Fraction of the values of `by` whose rows are in the first part, above 0 and below 1. The values are divided by
            their hash, so that all rows of a user, for example, are in the same part.
        by: Column that divides the rows. Rows without a value are in the first part.
        at: Instead of a fraction: the first part has the rows whose value of `by` is smaller, for example the days before a date.
        seed: With a fraction: number of the division. Other numbers divide independently. To divide a part again by the same column,
            use another number: with the same one, all rows of the first part are in its first part again.

    Returns:
        The conditions of the first and of the second part, for the argument `filter` of `Client.train`.

    Raises:
        ValueError: Neither or both of `fraction` and `at` are given, or one of them is no value of its kind.
        RequestError: `by` is not the name of a column, or `seed` is no whole number.
    """
    if not arguments.text("by", by):
        raise arguments.RequestError(f"by is {by!r}, expected the name of a column")
    seed = arguments.whole_number("seed", seed, most=MAX_SEED)
    column = '"' + by.replace('"', '""') + '"'
    if (fraction is None) == (at is None):
        raise ValueError("split() requires either a fraction or at")
    if fraction is not None:
        is_number = isinstance(fraction, numbers.Real) and not isinstance(fraction, bool) and math.isfinite(fraction)
        parts = round(float(fraction) * BUCKETS) if is_number else 0
        if not 0 < parts < BUCKETS:
            raise ValueError(f"fraction is {fraction!r}, expected a number of more than 0 and less than 1")
        first = f"hash_bucket({column}, {BUCKETS}, {seed}) < {parts}"
    else:
        first = f"{column} < {_literal(at)}"
    return f"({first}) IS NOT FALSE", f"({first}) IS FALSE"


def _literal(value: Any) -> str:
    """Returns a border in SQL. A scalar of NumPy is that of Python with the same value."""
    given = value
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _time_of_numpy(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (float, decimal.Decimal)) and not math.isfinite(value):
        raise ValueError(f"at is {given!r}, expected a finite number")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime) and value.tzinfo is None and value.time() != datetime.time():
        # A string would become a date in the comparison with a column of dates.
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, (datetime.date, datetime.datetime)):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ValueError(f"at is {given!r}, expected a number, a string, a date or a time")
    return "'" + value.replace("'", "''") + "'"


def _time_of_numpy(value: np.datetime64 | np.timedelta64) -> str:
    if isinstance(value, np.timedelta64) or np.isnat(value):
        raise ValueError(f"at is {value!r}, expected a number, a string, a date or a time")
    day = value.astype("datetime64[D]")
    if day == value:
        return f"'{day}'"
    return f"TIMESTAMP '{str(value).replace('T', ' ')}'"
