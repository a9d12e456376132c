"""Columns that DuckDB writes with deltas of more than 32 bits.

Values of 32 bits in DELTA_BINARY_PACKED have deltas of 32 bits, which wrap around. With `PARQUET_VERSION v2`, DuckDB computes them with 64
bits: between both ends of the type they take 33 bits. Its own reader reads them; those of Arrow do not.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.types as at

from differential.datasets import Dataset
from differential.dialect import WIDE_DELTAS, Dialect
from differential.duck import Refused
from differential.grammar import Column
from differential.served import Served

MESSAGE = "integers of 32 bits whose encoding DELTA_BINARY_PACKED has differences of more than 32 bits"


def possible(dataset: Dataset, folder: Path) -> list[Column]:
    """Returns the columns that can have such deltas in a file of `folder`."""
    return [column for column in dataset.columns if column.name != "id" and any(are_wide(column, rows) for rows in by_duckdb(dataset, folder))]


def by_duckdb(dataset: Dataset, folder: Path) -> list[range]:
    """Returns the rows of each file that DuckDB wrote."""
    starts = [0, *dataset.ends[:-1]]
    written = {int(path.name.partition("-")[0]) for path in folder.glob("*-duckdb.parquet")}
    return [range(start, end) for number, (start, end) in enumerate(zip(starts, dataset.ends)) if number in written]


def are_wide(column: Column, rows: range) -> bool:
    arrow, values = column.kind.arrow, column.values[rows.start : rows.stop]
    if at.is_list(arrow):
        arrow, values = arrow.value_type, [item for value in values for item in value or ()]
    if not (at.is_int32(arrow) or at.is_uint32(arrow) or at.is_date(arrow)):
        return False
    there = [value for value in values if value is not None]
    # The first value of an unsigned type is not wrapped around, either.
    first = at.is_uint32(arrow) and there and there[0] >= 2**31
    return bool(first) or any(abs(after - before) >= 2**31 for before, after in zip(there, there[1:]))


def without_refused(dataset: Dataset, served: Served, folder: Path, dialect: Dialect) -> Dataset:
    """Returns a dataset without those of its columns that the server refuses because of such deltas, and counts them."""
    refused = [column for column in possible(dataset, folder) if is_refused(column, served)]
    for _ in refused:
        dialect.hit(WIDE_DELTAS)
    columns = [column for column in dataset.columns if column not in refused]
    return Dataset(dataset.seed, columns, dataset.ends, dataset.group_rows)


def is_refused(column: Column, served: Served) -> bool:
    try:
        served.read(columns=[column.name])
    except Refused as error:
        # Another error is a difference, which the comparison of all rows finds.
        return MESSAGE in str(error)
    return False
