"""DuckDB as the second opinion: the same text over the same rows, read by its own parser and with its own coercions."""

from __future__ import annotations

import functools

import duckdb
import pyarrow as pa

from differential.datasets import Dataset
from differential.grammar import Column
from differential.kinds import NANOSECONDS, array_of, plain_values, same


class Refused(Exception):
    """An engine refused an expression. The text is its message."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


def given(column: Column) -> pa.Array:
    array = array_of(column.kind, column.values)
    # DuckDB has no type of 16 bits.
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def has_infinite(column: Column) -> bool:
    """Returns true if DuckDB takes a timestamp for an infinite one."""
    arrow = column.kind.arrow
    if not pa.types.is_timestamp(arrow):
        return False
    bound = (2**63 - 1) * NANOSECONDS[arrow.unit]
    return any(value is not None and abs(value) == bound for value in column.values)


class Duck:
    """A table of DuckDB with those columns of a dataset that it holds without a loss.

    Attributes:
        columns: Names of the columns.
        finite: Names of those without infinite timestamps, which are not those of the calendar.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        self.columns = {column.name for column in dataset.columns if self.holds(column)}
        self.finite = self.columns - {column.name for column in dataset.columns if has_infinite(column)}
        table = pa.table({column.name: given(column) for column in dataset.columns if column.name in self.columns})
        self.connection.register("given", table)
        self.connection.execute("CREATE TABLE rows AS SELECT * FROM given")
        self.values = functools.lru_cache(maxsize=1000)(self.compute)

    def holds(self, column: Column) -> bool:
        # An infinite timestamp equals that of another unit.
        if has_infinite(column) and column.kind.arrow.unit != "us":
            return False
        try:
            self.connection.register("given", pa.table({"value": given(column)}))
            self.connection.execute("CREATE OR REPLACE TABLE probe AS SELECT value FROM given")
            stored = plain_values(self.connection.execute("SELECT value FROM probe").to_arrow_table()["value"])
        except (duckdb.Error, pa.ArrowException):
            return False
        return all(map(same, stored, column.values))

    def compute(self, text: str) -> list:
        """Returns the values of an expression for all rows, or raises `Refused`."""
        try:
            table = self.connection.execute(f"SELECT ({text}) AS value FROM rows").to_arrow_table()
        except duckdb.Error as error:
            raise Refused(str(error)) from error
        return plain_values(table["value"])

    def close(self) -> None:
        self.connection.close()
