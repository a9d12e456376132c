"""Every type and codec that pyarrow writes is delivered with the values that pyarrow reads."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import random
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client
from digest import digest_of, is_list, is_variable_width, plain_type
from server import Pool

ROWS = 1009
GROUP_ROWS = 400
BATCH_ROWS = 137
CHANCE = random.Random(1)
DAY = datetime.date(2001, 2, 3)
UNITS = ["s", "ms", "us", "ns"]


def int_between(bits: int, signed: bool) -> Callable[[], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda: CHANCE.choice([low, high, 0, CHANCE.randint(low, high)])


def a_float() -> float:
    return CHANCE.choice([0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan"), 1024.0])


def a_text() -> str:
    return CHANCE.choice(["", "a", "naïve", "水", "a longer text of forty characters or more"]) * CHANCE.randint(0, 3)


def some_bytes() -> bytes:
    return CHANCE.randbytes(CHANCE.randint(0, 40))


def a_decimal(digits: int, scale: int) -> Callable[[], decimal.Decimal]:
    return lambda: decimal.Decimal(CHANCE.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(
        -scale, decimal.Context(prec=digits)
    )


def whole_units(unit: str) -> Callable[[], int]:
    """Returns a random time up to about 30 years before or after 1970, in the given unit."""
    bound = 10**9 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return lambda: CHANCE.randint(-bound, bound)


def list_of(value: Callable[[], Any], length: int | None = None) -> Callable[[], list]:
    return lambda: [value() for _ in range(CHANCE.randint(0, 4) if length is None else length)]


def or_null(value: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: None if CHANCE.random() < 0.2 else value()


def a_nested() -> list:
    return list_of(
        or_null(lambda: {"words": or_null(list_of(or_null(a_text)))(), "n": or_null(int_between(32, True))()})
    )()


NESTED = pa.list_(pa.struct([("words", pa.list_(pa.string())), ("n", pa.int32())]))

TYPES: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), int_between(bits, True)) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), int_between(bits, False)) for bits in (8, 16, 32, 64)},
    "float16": (pa.float16(), lambda: np.float16(a_float())),
    "float32": (pa.float32(), a_float),
    "float64": (pa.float64(), a_float),
    "bool": (pa.bool_(), lambda: CHANCE.random() < 0.5),
    "decimal128-9": (pa.decimal128(9, 2), a_decimal(9, 2)),
    "decimal128-18": (pa.decimal128(18, 4), a_decimal(18, 4)),
    "decimal128-38": (pa.decimal128(38, 10), a_decimal(38, 10)),
    "decimal256": (pa.decimal256(60, 5), a_decimal(60, 5)),
    "date32": (pa.date32(), lambda: DAY + datetime.timedelta(days=CHANCE.randint(-9999, 9999))),
    "date64": (pa.date64(), lambda: DAY + datetime.timedelta(days=CHANCE.randint(-9999, 9999))),
    "time32-s": (pa.time32("s"), lambda: CHANCE.randint(0, 86_399)),
    "time32-ms": (pa.time32("ms"), lambda: CHANCE.randint(0, 86_399_999)),
    "time64-us": (pa.time64("us"), lambda: CHANCE.randint(0, 86_399_999_999)),
    "time64-ns": (pa.time64("ns"), lambda: CHANCE.randint(0, 86_399_999_999_999)),
    **{
        f"timestamp-{unit}{suffix}": (pa.timestamp(unit, zone), whole_units(unit))
        for unit in UNITS
        for suffix, zone in (("", None), ("-utc", "UTC"), ("-paris", "Europe/Paris"))
    },
    **{f"duration-{unit}": (pa.duration(unit), whole_units(unit)) for unit in UNITS},
    "string": (pa.string(), a_text),
    "large_string": (pa.large_string(), a_text),
    "string_view": (pa.string_view(), a_text),
    "binary": (pa.binary(), some_bytes),
    "large_binary": (pa.large_binary(), some_bytes),
    "binary_view": (pa.binary_view(), some_bytes),
    "fixed_size_binary": (pa.binary(7), lambda: CHANCE.randbytes(7)),
    "dictionary-string": (pa.dictionary(pa.int32(), pa.string()), a_text),
    "dictionary-int64": (pa.dictionary(pa.int8(), pa.int64()), lambda: CHANCE.randint(-9, 9)),
    "list": (pa.list_(pa.int32()), list_of(or_null(int_between(32, True)))),
    "large_list": (pa.large_list(pa.float64()), list_of(lambda: CHANCE.random())),
    "fixed_size_list": (pa.list_(pa.float32(), 3), list_of(lambda: float(CHANCE.randint(0, 99)), 3)),
    "list-string": (pa.list_(pa.string()), list_of(or_null(a_text))),
    "struct": (
        pa.struct([("x", pa.int16()), ("y", pa.string())]),
        lambda: {"x": or_null(int_between(16, True))(), "y": or_null(a_text)()},
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        lambda: [(f"k{key}", or_null(int_between(64, True))()) for key in range(CHANCE.randint(0, 3))],
    ),
    "nested": (NESTED, a_nested),
    "null": (pa.null(), lambda: None),
}

CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]
ENCODINGS: dict[str, dict[str, Any]] = {
    "data-page-v2": {"data_page_version": "2.0"},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "real": "BYTE_STREAM_SPLIT"},
    },
    "plain": {"use_dictionary": False},
    "small-pages": {"data_page_size": 64, "dictionary_pagesize_limit": 64, "write_batch_size": 16},
    "checksums": {"write_page_checksum": True},
    "format-1.0": {"version": "1.0"},
}


def array_of(name: str, nulls: bool) -> pa.Array:
    kind, value = TYPES[name]
    if pa.types.is_null(kind):
        return pa.nulls(ROWS)
    draw = or_null(value) if nulls else value
    plain_values = [draw() for _ in range(ROWS)]
    if pa.types.is_dictionary(kind):
        return pa.array(plain_values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(plain_values, kind)


def mixed_table() -> pa.Table:
    return pa.table(
        {
            "id": np.arange(ROWS),
            "text": pa.array([or_null(a_text)() for _ in range(ROWS)], pa.string()),
            "real": pa.array(np.random.default_rng(3).normal(size=ROWS)),
            "flag": pa.array([or_null(lambda: CHANCE.random() < 0.5)() for _ in range(ROWS)]),
            "words": pa.array([or_null(list_of(a_text))() for _ in range(ROWS)], pa.list_(pa.string())),
        }
    )


def write(table: pa.Table, path: Path, **options: Any) -> Path:
    pq.write_table(table, path, **{"row_group_size": GROUP_ROWS, "compression": "snappy", **options})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One dataset per type, with and without nulls, and one per codec and encoding.

    Types that an older pyarrow cannot write are omitted.
    """
    folder = tmp_path_factory.mktemp("types")
    made: dict[str, Path] = {}
    for name in TYPES:
        for nulls in (True, False):
            dataset = f"{name}{'-nulls' if nulls else ''}"
            table = pa.table({"id": np.arange(ROWS), "value": array_of(name, nulls)})
            with contextlib.suppress(pa.ArrowNotImplementedError):
                made[dataset] = write(table, folder / f"{dataset}.parquet")
    for codec in CODECS:
        made[f"codec-{codec}"] = write(mixed_table(), folder / f"{codec}.parquet", compression=codec)
    for encoding, options in ENCODINGS.items():
        made[f"encoding-{encoding}"] = write(mixed_table(), folder / f"{encoding}.parquet", **options)
    stamps = pa.array([None if row % 5 == 0 else row * 10**9 + row for row in range(ROWS)], pa.timestamp("ns"))
    int96 = pa.table({"id": np.arange(ROWS), "value": stamps})
    made["int96"] = write(int96, folder / "int96.parquet", use_deprecated_int96_timestamps=True)
    return made


@pytest.fixture(scope="module")
def client(module_pool: Pool, files: dict[str, Path]) -> Iterator[Client]:
    with Client(module_pool.start(files).location) as opened:
        yield opened


@pytest.fixture
def file(files: dict[str, Path], dataset: str) -> Path:
    if dataset not in files:
        pytest.skip(f"pyarrow {pa.__version__} can't write {dataset} to Parquet")
    return files[dataset]


DATASETS = [
    *(f"{name}{suffix}" for name in TYPES for suffix in ("", "-nulls")),
    *(f"codec-{codec}" for codec in CODECS),
    *(f"encoding-{encoding}" for encoding in ENCODINGS),
    "int96",
]


def with_dates_as(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Casts date32 to date64 where `schema` has date64: pyarrow reads date64 columns as date32."""
    kinds = [
        pa.field(name, pa.date64()) if pa.types.is_date64(schema.field(name).type) else table.schema.field(name)
        for name in table.column_names
    ]
    return table.cast(pa.schema(kinds)) if pa.schema(kinds) != table.schema else table


def same_type(got: pa.DataType, expected: pa.DataType) -> bool:
    """Compares types except for the field names that Parquet gives to lists and maps."""
    expected = plain_type(expected)
    if got.id != expected.id or got.num_fields != expected.num_fields:
        return False
    if got.num_fields == 0:
        return got.equals(expected)
    sizes_agree = not pa.types.is_fixed_size_list(got) or got.list_size == expected.list_size
    return sizes_agree and all(
        same_type(got.field(index).type, expected.field(index).type) for index in range(got.num_fields)
    )


@pytest.mark.parametrize("dataset", DATASETS)
def test_values_equal_those_that_pyarrow_reads(client: Client, file: Path, dataset: str) -> None:
    got = client.table(dataset=dataset, batch_size=BATCH_ROWS, shuffle={"none": {}})
    expected = with_dates_as(got.schema, pq.read_table(file))
    assert got.column_names == expected.column_names
    for name in expected.column_names:
        received, read = got.schema.field(name), expected.schema.field(name)
        assert same_type(received.type, read.type), f"{name} is {received.type}, pyarrow reads {read.type}"
    assert digest_of(got.to_batches()) == digest_of(expected.to_batches())


@pytest.mark.parametrize("dataset", DATASETS)
def test_shuffled_rows_are_the_rows_of_the_table(client: Client, file: Path, dataset: str) -> None:
    got = client.table(dataset=dataset, batch_size=BATCH_ROWS, seed=9)
    expected = with_dates_as(got.schema, pq.read_table(file))
    order = got.column("id").to_numpy()
    assert np.array_equal(np.sort(order), np.arange(ROWS))
    assert not np.array_equal(order, np.arange(ROWS))
    assert digest_of(got.take(np.argsort(order)).to_batches()) == digest_of(expected.to_batches())


@pytest.mark.parametrize("dataset", DATASETS)
def test_buffers_depend_only_on_the_values(client: Client, file: Path, dataset: str) -> None:
    for batch in client.batches(dataset=dataset, batch_size=BATCH_ROWS, seed=9):
        for field, column in zip(batch.data.schema, batch.data.columns):
            assert list(impurities(column, field.name)) == []


def impurities(array: pa.Array, path: str, dead: np.ndarray | None = None) -> Iterator[str]:
    """Yields every part of the buffers that does not depend only on the values. `dead` marks rows under an outer null."""
    rows, kind = len(array), array.type
    if array.offset != 0:
        yield f"{path}: the array starts at {array.offset}"
        return
    if pa.types.is_null(kind):
        return
    buffers = array.buffers()
    if buffers[0] is not None and array.null_count == 0:
        yield f"{path}: a validity buffer without a null"
    if buffers[0] is not None and tail_bits(buffers[0], rows):
        yield f"{path}: bits after the last row in the validity buffer"
    dead = (np.zeros(rows, bool) if dead is None else dead) | ~array.is_valid().to_numpy(zero_copy_only=False)

    if pa.types.is_boolean(kind):
        if tail_bits(buffers[1], rows):
            yield f"{path}: bits after the last row"
        if rows and bits(buffers[1])[:rows][dead].any():
            yield f"{path}: values under nulls"
    elif is_variable_width(kind) or (is_list(kind) and not pa.types.is_fixed_size_list(kind)):
        yield from offset_impurities(array, path, dead)
        if is_list(kind):
            child = (
                pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
                if pa.types.is_map(kind)
                else array.values
            )
            yield from impurities(child, f"{path}[]")
    elif pa.types.is_fixed_size_list(kind):
        yield from impurities(array.values, f"{path}[]", np.repeat(dead, kind.list_size))
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from impurities(array.field(index), f"{path}.{kind.field(index).name}", dead)
    elif rows:
        width = kind.bit_width // 8
        values = np.frombuffer(buffers[1], np.uint8)[: rows * width].reshape(rows, width)
        if values[dead].any():
            yield f"{path}: values under nulls"


def offset_impurities(array: pa.Array, path: str, dead: np.ndarray) -> Iterator[str]:
    kind, rows = array.type, len(array)
    if rows == 0:
        return
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)[: rows + 1]
    if offsets[0] != 0:
        yield f"{path}: offsets start at {offsets[0]}"
    if np.diff(offsets)[dead].any():
        yield f"{path}: values under nulls"
    if is_variable_width(kind):
        data = array.buffers()[2]
        behind = np.frombuffer(data, np.uint8)[offsets[-1] :] if data is not None else np.empty(0)
        if behind.any():
            yield f"{path}: bytes after the last value"


def bits(buffer: pa.Buffer) -> np.ndarray:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")


def tail_bits(buffer: pa.Buffer, rows: int) -> bool:
    return bool(bits(buffer)[rows:].any())
