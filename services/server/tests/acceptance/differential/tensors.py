"""Tensors: columns of numbers and truth values converted to one dtype, exactly or to the nearest value."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from differential.datasets import Dataset
from differential.duck import Refused
from differential.grammar import Column
from differential.judge import Difference
from differential.kinds import FLOATS, INTEGERS, plain_values, same
from differential.rounding import rounded
from differential.served import Served

DTYPES = {kind.name: kind.arrow for kind in (*INTEGERS, *FLOATS)}
NO_FIT = "no value"


def converted(value: Any, arrow: pa.DataType) -> Any:
    """Returns the value of a tensor for a plain value, or `NO_FIT`. Fractions are truncated to integers, and rounded to floats."""
    if at.is_floating(arrow):
        if isinstance(value, float) and (not math.isfinite(value) or value == 0):
            return value
        nearest = rounded(value, arrow.bit_width)
        return nearest if math.isfinite(nearest) else NO_FIT
    if not math.isfinite(value):
        return NO_FIT
    whole, bits = int(value), arrow.bit_width
    fits = 0 <= whole < 2**bits if at.is_unsigned_integer(arrow) else -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1)
    return whole if fits else NO_FIT


def check(dataset: Dataset, served: Served, rng: random.Random) -> Difference | None:
    """Requests a random tensor, and compares each of its values."""
    usable = [column for column in dataset.columns if column.kind.family in ("number", "bool")]
    columns = rng.sample(usable, min(len(usable), rng.randint(1, 3)))
    dtype = rng.choice([*DTYPES, "float64", "float32", "float64"])
    arrow, fill = DTYPES[dtype], 7
    expected = [[expected_value(column, row, arrow, fill) for column in columns] for row in range(dataset.rows)]
    names = [column.name for column in columns]
    what = f"{dtype} of {', '.join(names)}"
    shape = f"{dtype} of {', '.join(sorted({column.kind.name for column in columns}))}"
    tensor = {"name": "x", "columns": names, "dtype": dtype, "null_value": fill}
    must_fail = any(NO_FIT in row for row in expected)
    try:
        table = served.read(tensors=[tensor])
    except Refused as error:
        return None if must_fail else Difference("refused", "tensor", what, -1, error, expected[:3], shape=shape)
    if must_fail:
        row = next(row for row, values in enumerate(expected) if NO_FIT in values)
        return Difference("wrong", "tensor", what, row, plain_values(table["x"])[row], expected[row], shape=shape)
    for row, (ours, exact) in enumerate(zip(plain_values(table["x"]), expected)):
        if not all(map(same, ours, exact)):
            return Difference("wrong", "tensor", what, row, ours, [dataset.row_dicts[row][name] for name in names], shape=shape)
    return None


def expected_value(column: Column, row: int, arrow: pa.DataType, fill: int) -> Any:
    value = column.values[row]
    return converted(fill if value is None else value, arrow)
