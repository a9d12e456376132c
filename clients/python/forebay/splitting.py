"""Splits of a dataset into two parts, as row conditions."""

from __future__ import annotations

import datetime
import math
from typing import Union

# Number of parts that hash values are divided into. A fraction is rounded to it.
BUCKETS = 1_000_000

Border = Union[int, float, str, datetime.date, datetime.datetime]


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
        ValueError: Neither or both of `fraction` and `at` are given, or the fraction is not between 0 and 1.
    """
    column = '"' + by.replace('"', '""') + '"'
    if (fraction is None) == (at is None):
        raise ValueError("split() requires either a fraction or at")
    if fraction is not None:
        parts = round(fraction * BUCKETS)
        if not 0 < parts < BUCKETS:
            raise ValueError(f"fraction is {fraction}, expected more than 0 and less than 1")
        first = f"hash_bucket({column}, {BUCKETS}, {int(seed)}) < {parts}"
    else:
        first = f"{column} < {_literal(at)}"
    return f"({first}) IS NOT FALSE", f"({first}) IS FALSE"


def _literal(value: Border | None) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"at is {value!r}, expected a finite number")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is None and value.time() != datetime.time():
        # A string would become a date in the comparison with a column of dates.
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if isinstance(value, (datetime.date, datetime.datetime)):
        value = value.isoformat()
    if not isinstance(value, str):
        raise ValueError(f"at is {value!r}, expected a number, a string, a date or a time")
    return "'" + value.replace("'", "''") + "'"
