"""Lookups by key: which rows are found for keys of the column's type and of every other type that can hold their values."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.types as at

from client import FAILURES, Client
from differential.datasets import Dataset
from differential.grammar import Column
from differential.judge import Difference
from differential.kinds import INTEGERS, NANOSECONDS, Kind, arrow_array, plain_values

FAMILIES = ("text", "bytes", "date", "naive", "zoned", "bool")


def is_key(kind: Kind) -> bool:
    return at.is_integer(kind.arrow) or kind.family in FAMILIES


def key_column(dataset: Dataset) -> Column:
    """Returns the column that the server indexes."""
    usable = [column for column in dataset.columns if is_key(column.kind) and column.name != "id"]
    return random.Random(f"key {dataset.seed}").choice(usable)


def types_of_keys(kind: Kind) -> list[pa.DataType]:
    """Types in which a caller may send keys of a column."""
    if at.is_integer(kind.arrow):
        return [each.arrow for each in INTEGERS]
    if kind.family == "text":
        return [pa.string(), pa.large_string(), pa.string_view()]
    if kind.family == "bytes" and not at.is_fixed_size_binary(kind.arrow):
        return [pa.binary(), pa.large_binary(), pa.binary_view()]
    if kind.family in ("naive", "zoned"):
        return [pa.timestamp(unit, "UTC" if kind.family == "zoned" else None) for unit in NANOSECONDS]
    if kind.family == "date":
        return [pa.date32(), pa.date64()]
    return [kind.arrow]


def fitting(arrow: pa.DataType, values: list) -> pa.Array:
    """Returns an array of those values that a type holds."""
    there = []
    for value in values:
        with contextlib.suppress(pa.ArrowException, OverflowError):
            if plain_values(arrow_array(arrow, [value])) == [value]:
                there.append(value)
    return arrow_array(arrow, there)


def check(dataset: Dataset, client: Client, name: str, rng: random.Random) -> Difference | None:
    """Looks up stored and other keys in a random type, and compares the ids that are found."""
    column = key_column(dataset)
    last = {value: row for row, value in enumerate(column.values) if value is not None}
    arrow = rng.choice(types_of_keys(column.kind))
    candidates = [None, *rng.sample(sorted(last), min(len(last), 20)), *column.kind.extremes]
    candidates += [value for kind in INTEGERS for value in kind.extremes] if at.is_integer(column.kind.arrow) else []
    keys = fitting(arrow, candidates)
    wanted = plain_values(keys)
    what = f"{column.name} by keys of type {arrow}"
    shape = f"{column.kind.name} by {arrow}"
    expected = [last.get(value) for value in wanted]
    try:
        found = look_up(client, name, column.name, keys)
    except FAILURES as error:
        return Difference("refused", "lookup", what, -1, error, expected[:5], shape=shape)
    for row, (ours, exact) in enumerate(zip(found, expected)):
        if ours != exact:
            return Difference("wrong", "lookup", f"{what}, key {wanted[row]!r}", row, ours, exact, shape=shape)
    return None


def look_up(client: Client, dataset: str, column: str, keys: pa.Array) -> list[Any]:
    """Returns the id of the row of each key, or None."""
    request = json.dumps({"lookup": {"dataset": dataset, "columns": ["id"]}}).encode()
    writer, reader = client.flight.do_exchange(flight.FlightDescriptor.for_command(request))
    with writer:
        batch = pa.record_batch({column: keys})
        writer.begin(batch.schema)
        writer.write_batch(batch)
        rows = reader.read_chunk().data
        writer.done_writing()
    return [value if found else None for value, found in zip(rows["id"].to_pylist(), rows["found"].to_pylist())]
