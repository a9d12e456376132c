"""A dataset in memory, as one contiguous batch in the layout of a request."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TILE_ROWS = 1024


def needed(request: dict) -> list[str]:
    """Returns all columns that a request reads."""
    return request["columns"] + [name for tensor in request["tensors"] for name in tensor["columns"]]


def matrix(table: pa.Table | pa.RecordBatch, tensor: dict) -> np.ndarray:
    """Returns the columns of a tensor as a row-major matrix."""
    columns = [table.column(name).to_numpy().astype(tensor["dtype"], copy=False) for name in tensor["columns"]]
    out = np.empty((table.num_rows, len(columns)), dtype=tensor["dtype"])
    # Tiles: whole columns would cause a cache miss per value.
    for first in range(0, table.num_rows, TILE_ROWS):
        tile = slice(first, first + TILE_ROWS)
        np.stack([column[tile] for column in columns], axis=1, out=out[tile])
    return out


def plain(table: pa.Table) -> pa.Table:
    """Converts views to plain strings, because `take` does not support views."""
    if not hasattr(pa.types, "is_string_view"):
        return table  # This pyarrow has no views.
    schema = table.schema
    for at, field in enumerate(schema):
        if pa.types.is_string_view(field.type):
            schema = schema.set(at, field.with_type(pa.string()))
        elif pa.types.is_binary_view(field.type):
            schema = schema.set(at, field.with_type(pa.binary()))
    return table if schema is table.schema else table.cast(schema)


def load(request: dict) -> pa.RecordBatch:
    """Reads the whole dataset."""
    parts = [plain(pq.read_table(file, columns=needed(request))) for file in request["files"]]
    return deliver(pa.concat_tables(parts), request)


def deliver(table: pa.Table, request: dict) -> pa.RecordBatch:
    """Returns `table` as one contiguous batch: plain columns, then tensors."""
    plain = table.select(request["columns"]).combine_chunks()
    names, arrays = list(plain.column_names), [_one(column) for column in plain.columns]
    for tensor in request["tensors"]:
        values = pa.array(matrix(table, tensor).reshape(-1))
        names.append(tensor["name"])
        arrays.append(pa.FixedSizeListArray.from_arrays(values, len(tensor["columns"])))
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
