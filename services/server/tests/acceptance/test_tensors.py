"""Tensors: named groups of columns of one dtype, which a trainer views as a matrix without a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from server import Pool

ROWS = 50_000
BATCH_ROWS = 4096
DTYPES = ["float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
INTEGERS = ["i0", "i1", "i2", "i3", "i4"]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    chance = np.random.default_rng(8)
    small = {
        name: pa.array(chance.integers(0, 100, ROWS).astype(dtype))
        for name, dtype in zip(INTEGERS, ["int8", "int16", "int32", "int64", "uint8"])
    }
    reals = {
        "f0": pa.array(chance.normal(size=ROWS).astype(np.float32)),
        "f1": pa.array(chance.normal(size=ROWS).astype(np.float32)),
    }
    nulls = chance.random(ROWS) < 0.1
    return pa.table(
        {
            "row": np.arange(ROWS),
            **small,
            **reals,
            "flag": chance.random(ROWS) < 0.5,
            "wide": chance.integers(-(2**62), 2**62, ROWS),
            "large": pa.array(np.full(ROWS, 300, np.int32)),
            "not_a_number": pa.array(np.where(np.arange(ROWS) == 777, np.nan, 1.0)),
            "holed": pa.array(chance.integers(0, 100, ROWS).astype(np.int32), mask=nulls),
            "holed_real": pa.array(chance.normal(size=ROWS), mask=nulls),
            "text": pa.array([f"t{row % 7}" for row in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def client(module_pool: Pool, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path: Path = tmp_path_factory.mktemp("tensors") / "table.parquet"
    pq.write_table(table, path, row_group_size=20_000)
    with Client(module_pool.start({"table": path}).location) as opened:
        yield opened


def request(*tensors: dict[str, Any], columns: tuple[str, ...] = ("row",), **more: Any) -> dict[str, Any]:
    return {
        "dataset": "table",
        "batch_size": BATCH_ROWS,
        "seed": 4,
        "columns": columns,
        "tensors": list(tensors),
        **more,
    }


def matrix(column: pa.Array) -> np.ndarray:
    """Returns a matrix view of a tensor column, without a copy."""
    return column.values.to_numpy(zero_copy_only=True).reshape(len(column), column.type.list_size)


def received(client: Client, *tensors: dict[str, Any], **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row ids and the matrix of the first tensor for one epoch."""
    batches = [batch.data for batch in client.batches(**request(*tensors, **more))]
    ids = np.concatenate([batch.column("row").to_numpy() for batch in batches])
    assert len(ids) == ROWS
    return ids, np.concatenate([matrix(batch.column(tensors[0]["name"])) for batch in batches])


def expected_matrix(table: pa.Table, names: list[str], dtype: str, ids: np.ndarray) -> np.ndarray:
    return np.stack([table.column(name).to_numpy()[ids].astype(dtype) for name in names], axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_view_equals_the_columns_for_every_dtype(client: Client, table: pa.Table, dtype: str) -> None:
    ids, values = received(client, {"name": "dense", "columns": ["i*"], "dtype": dtype})
    assert values.dtype == np.dtype(dtype)
    assert np.array_equal(values, expected_matrix(table, INTEGERS, dtype, ids))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rounding_to_a_float_is_to_the_nearest(client: Client, table: pa.Table, dtype: str) -> None:
    names = ["f0", "f1"] if dtype == "float16" else ["f0", "wide", "f1"]
    ids, values = received(client, {"name": "dense", "columns": names, "dtype": dtype})
    assert np.array_equal(values, expected_matrix(table, names, dtype, ids))


def test_the_tensor_column_is_a_non_null_fixed_size_list_after_the_plain_columns(client: Client) -> None:
    asked = request(
        {"name": "dense", "columns": ["i*"], "dtype": "float32"},
        {"name": "real", "columns": ["f1", "f0"]},
        columns=("text", "row"),
    )
    schema = client.schema(**asked)
    assert schema.names == ["text", "row", "dense", "real"]
    for name, width in (("dense", 5), ("real", 2)):
        field = schema.field(name)
        assert not field.nullable
        assert pa.types.is_fixed_size_list(field.type) and field.type.list_size == width
        assert field.type.value_type == pa.float32()
        assert not field.type.value_field.nullable
    assert next(client.batches(**asked)).data.schema.equals(schema)


def test_without_columns_only_the_tensors_are_sent(client: Client) -> None:
    asked = request({"name": "dense", "columns": ["i*"], "dtype": "float32"})
    del asked["columns"]
    assert client.schema(**asked).names == ["dense"]


def test_columns_keep_the_order_of_the_request(client: Client, table: pa.Table) -> None:
    names = ["i3", "i0", "f1"]
    ids, values = received(client, {"name": "dense", "columns": names, "dtype": "float64"})
    assert np.array_equal(values, expected_matrix(table, names, "float64", ids))


def test_tensors_and_plain_columns_have_the_same_order(client: Client, table: pa.Table) -> None:
    plain = client.table(**request(columns=("row", "f0", "f1")))
    ids, values = received(client, {"name": "real", "columns": ["f0", "f1"]})
    assert np.array_equal(ids, plain.column("row").to_numpy())
    assert np.array_equal(values[:, 1], plain.column("f1").to_numpy())


def test_a_bool_is_0_or_1(client: Client, table: pa.Table) -> None:
    ids, values = received(client, {"name": "dense", "columns": ["flag", "i0"], "dtype": "int8"})
    assert np.array_equal(values, expected_matrix(table, ["flag", "i0"], "int8", ids))


@pytest.mark.parametrize(
    ("column", "dtype", "null_value"), [("holed", "int32", -1), ("holed", "float32", 0.5), ("holed_real", "float64", 0)]
)
def test_null_value_replaces_nulls_and_nothing_else(
    client: Client, table: pa.Table, column: str, dtype: str, null_value: float
) -> None:
    ids, values = received(client, {"name": "dense", "columns": ["i0", column], "dtype": dtype, "null_value": null_value})
    source = table.column(column)
    is_null = source.is_null().to_numpy()[ids]
    assert 0 < is_null.sum() < ROWS
    assert (values[is_null, 1] == null_value).all()
    assert np.array_equal(values[~is_null, 1], source.fill_null(0).to_numpy()[ids].astype(dtype)[~is_null])
    assert np.array_equal(values[:, 0], table.column("i0").to_numpy()[ids].astype(dtype))


def test_a_null_without_null_value_is_rejected_by_get_flight_info_with_the_column(client: Client) -> None:
    with refused("INVALID_ARGUMENT", "holed", "null_value"):
        client.plan(**request({"name": "dense", "columns": ["i0", "holed"], "dtype": "float32"}))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"name": "t", "columns": ["large"], "dtype": "int8"}, ["large", "300", "int8"]),
        ({"name": "t", "columns": ["wide"], "dtype": "uint64"}, ["wide", "uint64"]),
        ({"name": "t", "columns": ["not_a_number"], "dtype": "int32"}, ["not_a_number", "nan"]),
    ],
    ids=["overflow", "negative to unsigned", "NaN to an integer"],
)
def test_values_that_do_not_fit_are_errors_that_name_the_column(client: Client, tensor: dict, words: list[str]) -> None:
    with refused({"INVALID_ARGUMENT", "OUT_OF_RANGE"}, *words):
        plan = client.plan(**request(tensor))
        for _ in client.read(plan.tickets[0]):
            pass
    assert sum(1 for _ in client.batches(**request(columns=("row",)))) == -(-ROWS // BATCH_ROWS)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"name": "t", "columns": ["i*"]}, ["dtype"]),
        ({"name": "t", "columns": ["i*"], "dtype": "float31"}, ["float31", "float32"]),
        ({"name": "t", "columns": ["zz*"], "dtype": "float32"}, ["zz"]),
        ({"name": "t", "columns": ["f00"], "dtype": "float32"}, ["f00", "f0"]),
        ({"name": "t", "columns": ["text"], "dtype": "float32"}, ["text"]),
        ({"name": "t", "columns": [], "dtype": "float32"}, ["columns"]),
        ({"columns": ["f0"], "dtype": "float32"}, ["name"]),
        ({"name": "t", "columns": ["i0"], "dtype": "int8", "null_value": 1000}, ["null_value"]),
        ({"name": "t", "columns": ["i0"], "dtype": "int8", "null_value": 0.5}, ["null_value"]),
        ({"name": "row", "columns": ["f0"], "dtype": "float32"}, ["row"]),
    ],
    ids=[
        "mixed types without dtype",
        "unknown dtype",
        "prefix without a match",
        "unknown column",
        "text column",
        "no columns",
        "no name",
        "fill that overflows",
        "fill that is no integer",
        "name of a plain column",
    ],
)
def test_an_invalid_tensor_is_rejected_by_name(client: Client, tensor: dict, words: list[str]) -> None:
    with refused("INVALID_ARGUMENT", *words):
        client.plan(**request(tensor))
