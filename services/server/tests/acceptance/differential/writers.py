"""Files of a dataset, written by pyarrow, DuckDB, Polars and the writer of this package, or by each in turn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as at

from differential import own_writer
from differential.datasets import Dataset
from differential.kinds import DURATIONS, FIXED, INTERVAL, KINDS, NESTED, Kind


def with_text_as(table: pa.Table, arrow: pa.DataType) -> pa.Table:
    """Casts the texts of a table, which changes nothing but the type that the writer embeds as a hint."""
    kinds = [pa.field(each.name, arrow) if at.is_string(each.type) else each for each in table.schema]
    return table.cast(pa.schema(kinds)) if not at.is_dictionary(arrow) else pa.table(
        {
            each.name: table[each.name].combine_chunks().dictionary_encode() if at.is_string(each.type) else table[each.name]
            for each in table.schema
        }
    )


def by_pyarrow(table: pa.Table, path: Path, group_rows: int, rng: random.Random) -> None:
    hint = rng.choice([pa.string(), pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
    dictionary = rng.random() < 0.6
    floats = [each.name for each in table.schema if at.is_floating(each.type)]
    pq.write_table(
        with_text_as(table, hint),
        path,
        row_group_size=group_rows,
        compression=rng.choice(["none", "snappy", "gzip", "brotli", "lz4", "zstd"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
        use_dictionary=dictionary,
        use_byte_stream_split=not dictionary and rng.random() < 0.3 and floats,
        write_statistics=rng.random() < 0.8,
        write_page_index=rng.random() < 0.5,
        write_page_checksum=rng.random() < 0.3,
        data_page_size=rng.choice([64, 1 << 20]),
        write_batch_size=rng.choice([4, 1024]),
        store_decimal_as_integer=rng.random() < 0.5,
        store_schema=rng.random() < 0.7 or any(needs_schema(each.type) for each in table.schema),
        use_deprecated_int96_timestamps=False,
    )


def needs_schema(arrow: pa.DataType) -> bool:
    """Returns true for types that are others without the embedded schema. Files that differ in them contradict each other."""
    return at.is_duration(arrow) or (at.is_timestamp(arrow) and arrow.tz not in (None, "UTC"))


def by_duckdb(table: pa.Table, path: Path, group_rows: int, rng: random.Random) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("part", table)
        codec = rng.choice(["uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli"])
        options = f"FORMAT parquet, ROW_GROUP_SIZE {group_rows}, CODEC {codec}"
        connection.execute(f"COPY (SELECT * FROM part) TO '{path}' ({options}, PARQUET_VERSION {rng.choice(['v1', 'v2'])})")


def by_polars(table: pa.Table, path: Path, group_rows: int, rng: random.Random) -> None:
    import polars

    frame = polars.from_arrow(table)
    frame.write_parquet(
        path,
        compression=rng.choice(["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"]),
        row_group_size=group_rows,
        data_page_size=rng.choice([64, 1 << 20]),
        statistics=rng.random() < 0.8,
    )


def all_but(excluded: Callable[[Kind], bool]) -> list[Kind]:
    return [kind for kind in KINDS.values() if not excluded(kind)]


def digits(kind: Kind) -> int:
    return kind.arrow.precision if at.is_decimal(kind.arrow) else 0


# Types that a writer stores without a loss. DuckDB reads timestamps and durations into microseconds, Polars dates of 64 bits into
# timestamps. Of these, only our own writer stores intervals as they are: DuckDB turns 24 hours into a day.
ALLOWED: dict[str, list[Kind]] = {
    "pyarrow": all_but(lambda kind: kind is INTERVAL),
    "duckdb": all_but(
        lambda kind: kind.float_bits == 16
        or digits(kind) > 38
        or kind.name in ("time_ns", "timestamp_s")
        or kind.family == "span"
        or (kind.family == "zoned" and kind.arrow.unit != "us")
    ),
    "polars": all_but(
        lambda kind: digits(kind) > 38 or kind.name in ("date64", "duration_s") or kind is INTERVAL or kind in NESTED[2:]
    ),
    "own": all_but(lambda kind: kind in NESTED or kind in DURATIONS),
}
LIBRARIES = {"pyarrow": by_pyarrow, "duckdb": by_duckdb, "polars": by_polars}


def write(dataset: Dataset, folder: Path, writer: str) -> None:
    """Writes the files of a dataset, each by `writer`, or by a random one if it is `mixed`."""
    folder.mkdir(parents=True)
    start = 0
    for number, (end, table) in enumerate(zip(dataset.ends, dataset.parts())):
        rng = random.Random(f"file {dataset.seed} {number}")
        name = rng.choice([*ALLOWED]) if writer == "mixed" else writer
        path = folder / f"{number}-{name}.parquet"
        if name == "own":
            own_writer.write(path, dataset.columns, range(start, end), dataset.group_rows, own_writer.draw_layout(rng), rng)
        else:
            LIBRARIES[name](table, path, dataset.group_rows, rng)
        start = end


def allowed_for(writer: str) -> list[Kind]:
    """Returns the types that a writer can store; for `mixed`, those that all store in the same way.

    DuckDB stores times of day as microseconds, and Polars as nanoseconds. Both store bytes of one length as bytes of any length. Files of
    different Parquet types are no dataset. Only some writers embed the schema that has the zone of a timestamp.
    """
    if writer == "mixed":
        common = [kind for kind in KINDS.values() if all(kind in kinds for kinds in ALLOWED.values())]
        return [kind for kind in common if kind.family != "time" and kind is not FIXED and not needs_schema(kind.arrow)]
    return ALLOWED[writer]


WRITERS = ("pyarrow", "pyarrow", "duckdb", "polars", "own", "own", "own", "mixed")
