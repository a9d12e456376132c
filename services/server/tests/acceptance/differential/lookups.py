"""Lookups by key: which rows are found for keys of the column's type and of every other type that can hold their values."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from client import FAILURES, Client
from differential.datasets import Dataset
from differential.grammar import Column
from differential.judge import Difference
from differential.keys import exact_keys, fitting, is_key, others, types_of_keys
from differential.kinds import plain_values


def key_column(dataset: Dataset, excluded: list[Column]) -> Column:
    """Returns the column that the server indexes, which is none of `excluded`."""
    usable = [column for column in dataset.columns if is_key(column.kind) and column.name != "id" and column not in excluded]
    return random.Random(f"key {dataset.seed}").choice(usable)


def check(column: Column, client: Client, name: str, rng: random.Random) -> Difference | None:
    """Looks up stored and other keys in a random type in the indexed column, and compares the ids that are found."""
    stored = exact_keys(column.kind.arrow, column.values)
    last = {key: row for row, key in enumerate(stored) if key is not None}
    arrow = rng.choice(types_of_keys(column.kind))
    keys = fitting(arrow, [None, *rng.sample(sorted(last), min(len(last), 20)), *others(column.kind)])
    wanted = exact_keys(arrow, plain_values(keys))
    what = f"{column.name} by keys of type {arrow}"
    shape = f"{column.kind.name} by {arrow}"
    expected = [last.get(key) for key in wanted]
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
