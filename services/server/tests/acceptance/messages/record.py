"""Records the streams of this folder that other Python packages write: `python record.py` with Polars and nanoarrow installed.

Each stream has a column `id` of the integers 0, 7, 14 and so on, next to columns of other types.
"""

from pathlib import Path

import nanoarrow as na
import polars as pl
from nanoarrow.ipc import StreamWriter

HERE = Path(__file__).parent
ROWS = 50


def polars() -> None:
    texts = [None if row % 3 == 0 else f"a longer text of row {row}" for row in range(ROWS)]
    frame = pl.DataFrame(
        {
            "text": texts,
            "category": pl.Series(texts, dtype=pl.Categorical),
            "id": [row * 7 for row in range(ROWS)],
            "list": [None if row % 5 == 0 else list(range(row % 4)) for row in range(ROWS)],
            "struct": [{"a": row, "b": texts[row]} for row in range(ROWS)],
            "null": pl.Series([None] * ROWS, dtype=pl.Null),
            "flag": [row % 2 == 0 for row in range(ROWS)],
            "array": pl.Series([[row, row + 1] for row in range(ROWS)], dtype=pl.Array(pl.Int32, 2)),
            "decimal": pl.Series(range(ROWS), dtype=pl.Decimal(20, 2)),
            "bytes": [b"abc"] * ROWS,
        }
    )
    frame.write_ipc_stream(HERE / "polars.arrows")
    frame.slice(13, 21).write_ipc_stream(HERE / "polars-sliced.arrows")


def nanoarrow() -> None:
    schema = na.struct({"text": na.string(), "id": na.int64(), "number": na.float64()})
    rows = [{"text": f"row {row}", "id": row * 7, "number": row / 2} for row in range(ROWS)]
    columns = [
        na.c_array([row[name] for row in rows], type_)
        for name, type_ in [("text", na.string()), ("id", na.int64()), ("number", na.float64())]
    ]
    array = na.c_array_from_buffers(schema, ROWS, [None], children=columns)
    with StreamWriter.from_path(HERE / "nanoarrow.arrows") as writer:
        writer.write_array(array)


polars()
nanoarrow()
