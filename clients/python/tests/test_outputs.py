"""Every column has a representation in every output: one that no array can hold is a list, and never fails the batch."""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib.util
import math
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool, Server

ROWS = 7
FRAMEWORKS = ["numpy", "torch", "jax"]
DAYS = [datetime.date(1970, 1, 1 + row) for row in range(ROWS)]
MOMENTS = [datetime.datetime(2026, 3, 29, row, 30, 59, 123456) for row in range(ROWS)]
# Times outside the range of Python's `datetime`.
BEYOND = [253_402_300_800, -62_135_596_801]


def integers_of_64_bits(output: str) -> Any:
    """Within this context, JAX has 64-bit types."""
    if output != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


def skip_without(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not in this environment; the other one has it")


def columns() -> dict[str, pa.Array]:
    """A column of each type that Parquet files have, without nulls."""
    numbers = list(range(ROWS))
    decimals = [Decimal(f"{number}.{number}5") for number in numbers]
    lists = [[], [1], [2, 3], [4], [], [5, 6, 7], [8]]
    made = {
        f"{kind}{bits}": pa.array(numbers, getattr(pa, f"{kind}{bits}")())
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    }
    return {
        **made,
        "float16": pa.array(np.arange(ROWS, dtype=np.float16)),
        "float32": pa.array(numbers, pa.float32()),
        "float64": pa.array(numbers, pa.float64()),
        "bool": pa.array([number % 3 == 0 for number in numbers]),
        "date32": pa.array(DAYS, pa.date32()),
        "date64": pa.array(DAYS, pa.date64()),
        "time_ms": pa.array([1000 * number for number in numbers], pa.time32("ms")),
        "time_us": pa.array([86_399_999_999 - number for number in numbers], pa.time64("us")),
        "timestamp_ms": pa.array([moment.replace(microsecond=0) for moment in MOMENTS], pa.timestamp("ms")),
        "timestamp_us": pa.array(MOMENTS, pa.timestamp("us")),
        "timestamp_berlin": pa.array(MOMENTS, pa.timestamp("us", "Europe/Berlin")),
        "timestamp_offset": pa.array(MOMENTS, pa.timestamp("us", "-02:30")),
        "duration": pa.array([datetime.timedelta(seconds=number) for number in numbers], pa.duration("us")),
        "decimal": pa.array(decimals, pa.decimal128(9, 2)),
        "wide_decimal": pa.array([Decimal(number * 10**30) / 7 for number in numbers], pa.decimal256(76, 20)),
        "text": pa.array(["", "a", "ä", "日本", "e" * 300, "f\0", "g"]),
        "bytes": pa.array([b"", b"\0", b"\xff", b"c\0", b"d", b"e", b"f"]),
        "fixed_bytes": pa.array([bytes([number] * 3) for number in numbers], pa.binary(3)),
        "list": pa.array(lists, pa.list_(pa.int64())),
        "float_list": pa.array(lists, pa.large_list(pa.float32())),
        "text_list": pa.array([[str(each) for each in row] for row in lists]),
        "nested_list": pa.array([[row, row] for row in lists]),
        "fixed_list": pa.array([[number, -number] for number in numbers], pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"a": number, "b": {"c": [str(number)], "d": DAYS[number]}} for number in numbers]),
        "map": pa.array([[(str(number), number), ("x", None)] for number in numbers], pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(["x", "y", "x", "x", "z", "y", "x"]).dictionary_encode(),
    }


def with_nulls(array: pa.Array) -> pa.Array:
    """Returns the same column with a null in the second and the last row."""
    if pa.types.is_dictionary(array.type):
        array = array.cast(pa.string())
    return pa.array([None if row in (1, ROWS - 1) else value.as_py() for row, value in enumerate(array)], array.type)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    full = columns()
    nulls = {f"{name}_null": with_nulls(array) for name, array in full.items() if name != "float16"}
    nothing = {"nothing": pa.nulls(ROWS), "float16_null": pa.array([np.float16(1), None, *[np.float16(2)] * 4, None], pa.float16())}
    items = {
        "list_null_items": pa.array([[1, None], None, [], [None], [2], [3], None], pa.list_(pa.int16())),
        "fixed_list_null_items": pa.array([[1, None], None, [2, 3], [None, 4], [5, 6], [7, 8], None], pa.list_(pa.int32(), 2)),
        "beyond": pa.array([[BEYOND[0], None, BEYOND[1], 0]] * ROWS, pa.list_(pa.timestamp("s"))).cast(pa.list_(pa.timestamp("ms"))),
        "nanoseconds": pa.array([[1]] * ROWS, pa.list_(pa.timestamp("ns"))),
    }
    return pa.table({**full, **nulls, **nothing, **items})


@pytest.fixture(scope="module")
def server(table: pa.Table, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("outputs")
    pq.write_table(table, folder / "types.parquet", version="2.6")
    pool = Pool(folder)
    yield pool.start({"types": folder / "types.parquet"})
    pool.close()


@pytest.fixture
def client(server: Server) -> forebay.Client:
    return forebay.connect(server.location)


def first(client: forebay.Client, **options: Any) -> Any:
    return next(iter(client.train("types", **{"batch_size": ROWS, "shuffle": {"none": {}}, **options})))


@pytest.fixture
def batch(client: forebay.Client) -> forebay.Batch:
    return first(client)


def test_python_objects_equal_those_of_pyarrow_for_every_type(batch: forebay.Batch, table: pa.Table) -> None:
    for name, column in zip(table.column_names, table.columns):
        found = batch[name].to_list()
        if name not in ("beyond", "nanoseconds"):
            expected = column.to_pylist()
            assert found == expected, name
            assert [type(value) for value in found] == [type(value) for value in expected], name
    assert batch["timestamp_berlin"].to_list()[3].utcoffset() == datetime.timedelta(hours=2)
    assert batch["timestamp_offset"].to_list()[3].utcoffset() == datetime.timedelta(hours=-2.5)
    assert batch["beyond"].to_list()[0] == [
        np.datetime64(BEYOND[0] * 1000, "ms"), None, np.datetime64(BEYOND[1] * 1000, "ms"), datetime.datetime(1970, 1, 1),
    ]  # fmt: skip
    assert batch["nanoseconds"].to_list()[0] == [np.datetime64(1, "ns")]


def test_numbers_booleans_and_times_are_numpy_arrays_of_their_type(batch: forebay.Batch, table: pa.Table) -> None:
    found = batch.to_numpy()
    kinds = {
        "bool": "?", "date32": "<M8[D]", "date64": "<M8[ms]", "time_ms": "<m8[ms]", "time_us": "<m8[us]",
        "timestamp_ms": "<M8[ms]", "timestamp_us": "<M8[us]", "timestamp_berlin": "<M8[us]", "duration": "<m8[us]",
        "decimal": "<f8", "wide_decimal": "<f8", "nothing": "<f8",
    }  # fmt: skip
    for name, kind in kinds.items():
        assert found[name].dtype == np.dtype(kind), name
    for name in ("bool", "date32", "timestamp_ms", "timestamp_us", "timestamp_berlin", "duration", "int8", "uint64", "float16"):
        expected = table[name].to_numpy()
        np.testing.assert_array_equal(found[name], expected.astype(found[name].dtype), name)
    assert found["time_us"].tolist() == [
        datetime.timedelta(hours=each.hour, minutes=each.minute, seconds=each.second, microseconds=each.microsecond)
        for each in table["time_us"].to_pylist()
    ]
    for name in ("decimal", "wide_decimal"):
        assert found[name].tolist() == [float(value) for value in table[name].to_pylist()]
    assert found["fixed_list"].tolist() == table["fixed_list"].to_pylist()
    for name in ("int8", "uint64", "float32", "timestamp_us", "fixed_list"):
        assert found[name].base is not None and not found[name].flags.owndata, f"{name} is a copy"


def test_text_and_nested_values_are_lists_and_lists_of_numbers_are_lists_of_arrays(
    batch: forebay.Batch, table: pa.Table
) -> None:
    found = batch.to_numpy()
    for name in ("text", "bytes", "fixed_bytes", "dictionary", "text_list", "nested_list", "struct", "map"):
        for each in (name, f"{name}_null"):
            assert isinstance(found[each], list) and found[each] == table[each].to_pylist(), each
    for name, dtype in (("list", np.int64), ("float_list", np.float32), ("list_null", np.int64)):
        assert [None if row is None else row.tolist() for row in found[name]] == table[name].to_pylist()
        assert all(row is None or row.dtype == dtype for row in found[name])
    items = found["list_null_items"]
    assert items[1] is None and items[0].dtype == np.int16 and items[0].tolist() == [1, None]
    items = batch["list_null_items"].to_numpy(missing="nan")
    assert items[0].dtype == items[2].dtype == np.float64 and items[0][0] == 1 and math.isnan(items[0][1])


def test_text_is_an_array_of_objects_on_request(client: forebay.Client, table: pa.Table) -> None:
    found = first(client, output="numpy", strings="array")
    for name in ("text", "bytes", "fixed_bytes", "dictionary", "text_null", "bytes_null"):
        assert found[name].dtype == object and found[name].tolist() == table[name].to_pylist(), name
    assert found["text"].astype("U")[3] == "日本"
    # Other lists remain lists, and NumPy's own conversion is an array of either.
    assert isinstance(found["nested_list"], list)
    batch = first(client)
    for name in ("text", "nested_list", "list"):
        assert np.asarray(batch[name]).dtype == object and np.asarray(batch[name]).shape == (ROWS,)


def test_integers_and_booleans_keep_their_type_and_nulls_are_masked(batch: forebay.Batch, table: pa.Table) -> None:
    found = batch.to_numpy()
    for name in ("int8", "uint64", "bool", "int32"):
        array = found[f"{name}_null"]
        assert isinstance(array, np.ma.MaskedArray) and array.dtype == table[name].type.to_pandas_dtype(), name
        assert array.tolist() == table[f"{name}_null"].to_pylist(), name
        with pytest.raises(forebay.errors.NullValueError, match=f"'{name}_null' has 2 nulls.*missing='mask'"):
            np.asarray(batch[f"{name}_null"])
    for name in ("float64", "decimal", "float32", "float16"):
        array = found[f"{name}_null"]
        assert not isinstance(array, np.ma.MaskedArray) and array.dtype == found[name].dtype
        expected = [math.nan if value is None else float(value) for value in table[f"{name}_null"].to_pylist()]
        np.testing.assert_array_equal(array, np.array(expected).astype(array.dtype), name)
    for name in ("date32", "date64", "time_ms", "time_us", "timestamp_us", "duration"):
        array = found[f"{name}_null"]
        assert array.dtype == found[name].dtype and np.isnat(array).tolist() == [row in (1, ROWS - 1) for row in range(ROWS)]
        np.testing.assert_array_equal(array[2:-1], found[name][2:-1])
    assert np.isnan(found["nothing"]).all()
    fixed = found["fixed_list_null_items"]
    assert fixed.shape == (ROWS, 2) and fixed.dtype == np.int32 and fixed.tolist()[:2] == [[1, None], [None, None]]


def test_nan_makes_floats_of_integers_that_may_be_null(batch: forebay.Batch, table: pa.Table) -> None:
    found = batch.to_numpy(missing="nan")
    for name in ("int8", "uint64", "bool", "float64", "decimal"):
        array = found[f"{name}_null"]
        expected = [math.nan if value is None else float(value) for value in table[f"{name}_null"].to_pylist()]
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, expected, name)
    fixed = found["fixed_list_null_items"]
    assert fixed.shape == (ROWS, 2) and fixed.dtype == np.float64
    assert np.isnan(fixed).tolist() == [[False, True], [True, True], [False, False], [True, False], *[[False] * 2] * 2, [True] * 2]


IDS = [2**53 + 1, None, 2**63 - 1, -(2**63), 5, 6, 7, 8]


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory):
    """A server with integers that floats can't represent. Of four batches, the first has a null; one column may have none."""
    folder = tmp_path_factory.mktemp("ids")
    schema = pa.schema([("id", pa.int64()), ("flag", pa.bool_()), pa.field("sure", pa.int64(), nullable=False), ("list", pa.list_(pa.int64()))])
    rows = {
        "id": IDS, "flag": [value if value is None else value % 2 == 0 for value in IDS], "sure": [value or 0 for value in IDS],
        "list": [[value] for value in IDS],
    }  # fmt: skip
    pq.write_table(pa.table(rows, schema), folder / "ids.parquet")
    pool = Pool(folder)
    yield pool.start({"ids": folder / "ids.parquet"})
    pool.close()


def batches_of(server: Server, **options: Any) -> list[Any]:
    return list(forebay.connect(server.location).train("ids", batch_size=2, shuffle={"none": {}}, **options))


def test_integers_with_nulls_are_exact(ids: Server) -> None:
    found = batches_of(ids, output="numpy")
    assert [value for batch in found for value in batch["id"].tolist()] == IDS
    assert [row.tolist() for batch in found for row in batch["list"]] == [[value] for value in IDS]
    masked = batches_of(ids, output="numpy", missing="mask")
    assert [value for batch in masked for value in batch["id"].tolist()] == [value or 0 for value in IDS]
    filled = batches_of(ids, output="numpy", missing=-1)
    assert [value for batch in filled for value in batch["id"].tolist()] == [-1 if value is None else value for value in IDS]


@pytest.mark.parametrize("missing", ["keep", "nan", "mask", 0, -1, 0.5])
def test_the_type_of_an_array_is_the_same_for_batches_with_and_without_nulls(ids: Server, missing: Any) -> None:
    def types(batch: dict[str, Any]) -> dict[str, Any]:
        first = {name: array[0] if isinstance(array, list) else array for name, array in batch.items()}
        return {name: (type(array), array.dtype) for name, array in first.items()}

    found = batches_of(ids, output="numpy", missing=missing)
    assert len(found) == 4 and all(types(batch) == types(found[0]) for batch in found)
    # A column that its schema declares as required is a plain array.
    assert types(found[0])["sure"] == (np.ndarray, np.int64)
    # Without a null, an array is a view whatever its class is.
    if missing in ("keep", "mask", 0, -1):
        batch = batches_of(ids)[1]
        assert np.shares_memory(batch["id"].to_numpy(missing=missing), batch["id"].to_numpy(missing="mask"))


@pytest.mark.parametrize("output", ["torch", "jax"])
def test_a_tensor_has_the_type_of_its_column_and_a_null_is_an_error_with_its_remedies(ids: Server, output: str) -> None:
    skip_without(output)
    client = forebay.connect(ids.location)
    options = {"batch_size": 2, "shuffle": {"none": {}}, "columns": ["id", "flag", "sure"], "output": output}
    with integers_of_64_bits(output):
        with pytest.raises(forebay.errors.NullValueError, match="column 'id' has 1 nulls in this batch.*missing='mask'.*'\"id\" IS NOT NULL' as filter"):
            next(iter(client.train("ids", **options)))
        kept = list(client.train("ids", filter="id IS NOT NULL", **options))
        masked = list(client.train("ids", missing="mask", **options))
        floats = list(client.train("ids", missing="nan", **options))
    assert all(str(batch["id"].dtype).removeprefix("torch.") == "int64" for batch in [*kept, *masked])
    assert all(str(batch["flag"].dtype).removeprefix("torch.") == "bool" for batch in [*kept, *masked])
    assert [value for batch in kept for value in batch["id"].tolist()] == [value for value in IDS if value is not None]
    assert masked[0]["id"].tolist() == [2**53 + 1, 0] and masked[0]["id_mask"].tolist() == [True, False]
    assert len({str(batch["id"].dtype) for batch in floats}) == 1 and "float" in str(floats[0]["id"].dtype)


def test_nulls_become_a_mask_and_types_remain(client: forebay.Client, batch: forebay.Batch, table: pa.Table) -> None:
    found = first(client, output="numpy", missing="mask")
    for name in ("int8", "uint64", "bool", "float32", "decimal", "date32", "timestamp_us"):
        mask, array = found[f"{name}_null_mask"], found[f"{name}_null"]
        assert mask.dtype == bool and mask.tolist() == [row not in (1, ROWS - 1) for row in range(ROWS)]
        assert array.dtype == found[name].dtype and not array.astype(np.int64)[~mask].any()
        np.testing.assert_array_equal(array[mask], found[name][mask])
    assert found["fixed_list_null_items_mask"].tolist()[:4] == [[True, False], [False, False], [True, True], [False, True]]
    assert found["list_null_mask"].tolist() == [row not in (1, ROWS - 1) for row in range(ROWS)]
    assert not found["nothing_mask"].any()
    for name in ("text_null", "bytes_null", "struct_null", "text_list_null", "map_null"):
        assert found[f"{name}_mask"].tolist() == [row is not None for row in table[name].to_pylist()]
        assert [row is not None for row in found[name]] == found[f"{name}_mask"].tolist()
    # Columns that cannot have nulls have no mask, and those that can have one in every batch.
    for name, column in zip(table.column_names, table.columns):
        assert (f"{name}_mask" in found) == batch[name].nullable
        assert batch[name].nullable or column.null_count == 0
    rows = first(client, output="numpy", missing="mask", batch_size=1, columns=["int8_null"])
    assert rows["int8_null_mask"].tolist() == [True]


@pytest.mark.parametrize(
    ("name", "value", "dtype"),
    [
        ("int8_null", -1, np.int8), ("uint8_null", -1, np.int16), ("int8_null", 1000, np.int32), ("int32_null", 0.5, np.float64),
        ("int32_null", 7.0, np.int32), ("float32_null", 0.5, np.float32), ("bool_null", False, np.bool_),
        ("bool_null", -1, np.int8), ("uint64_null", -1, np.float64), ("int64_null", float("inf"), np.float64),
        ("int8_null", 0.1, np.float64), ("bool_null", 0.5, np.float64), ("float16_null", 0.5, np.float16), ("int64_null", 10**30, np.float64), ("decimal_null", 2, np.float64), ("int16_null", True, np.int16),
    ],
)  # fmt: skip
def test_nulls_become_a_number_and_a_type_that_cannot_hold_it_is_promoted(
    batch: forebay.Batch, table: pa.Table, name: str, value: float, dtype: type
) -> None:
    array = batch[name].to_numpy(missing=value)
    assert array.dtype == dtype
    expected = [value if each is None else float(each) for each in table[name].to_pylist()]
    np.testing.assert_array_equal(array.astype(np.float64), np.array(expected, np.float64))
    # The schema allows nulls in this column, too, although it has none.
    assert batch[name.removesuffix("_null")].to_numpy(missing=value).dtype == dtype


def test_missing_times_take_an_integer_in_their_unit(batch: forebay.Batch) -> None:
    assert batch["date32_null"].to_numpy(missing=-1)[1] == np.datetime64("1969-12-31")
    assert np.isnat(batch["timestamp_us_null"].to_numpy(missing=0.5)[1])


@pytest.mark.parametrize("output", FRAMEWORKS)
@pytest.mark.parametrize("missing", ["nan", "mask", -1])
def test_a_batch_without_rows_has_all_columns(client: forebay.Client, table: pa.Table, output: str, missing: Any) -> None:
    if output != "numpy":
        skip_without(output)
    # The only row of the last step is divided among two ranks.
    options = {"batch_size": 3, "world_size": 2, "rank": 0, "remainder": "SHORT", "shuffle": {"none": {}}}
    # A jagged tensor has no mask for its items.
    names = [name for name in table.column_names if name != "list_null_items" or (output, missing) != ("torch", "mask")]
    full, empty = client.train("types", output=output, missing=missing, columns=names, **options)
    assert (full.num_rows, empty.num_rows) == (3, 0) and list(empty) == list(full)
    for name in names:
        assert len(empty[name]) == 0 and type(empty[name]) is type(full[name]), name


def test_a_mask_never_replaces_a_column(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, None], "x_mask": [3, 4]}), tmp_path / "x.parquet")
    client = forebay.connect(pool.start({"x": tmp_path / "x.parquet"}).location)
    with pytest.raises(ValueError, match="'x_mask', the name of the mask of 'x', is a column"):
        next(iter(client.train("x", batch_size=2, output="numpy", missing="mask")))
    assert next(iter(client.train("x", batch_size=2, output="numpy", missing="mask", columns=["x"])))["x_mask"].sum() == 1


@pytest.mark.parametrize("options", [{"strings": "tuple"}, {"missing": "none"}, {"missing": None}, {"missing": [0]}])
def test_unknown_options_are_rejected_before_the_server_is_asked(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is .*, expected '"):
        forebay.connect("grpc://127.0.0.1:1").train("types", batch_size=1, **options)


def test_decimals_are_the_nearest_floats(pool: Pool, tmp_path: Path) -> None:
    texts = ["0.1", "1e-9", "123456789012345678901234567.123456789", "-0.3", "9007199254740993", "0.000000001", "-1e27"]
    values = [Decimal(text) for text in texts]
    rows = {f"p{precision}": pa.array(values, kind(precision, 9)) for precision, kind in ((38, pa.decimal128), (60, pa.decimal256))}
    rows["small"] = pa.array([Decimal("0.3"), None, *[Decimal("-99999.99")] * 5], pa.decimal128(7, 2))
    pq.write_table(pa.table(rows), tmp_path / "d.parquet", store_decimal_as_integer=True)
    client = forebay.connect(pool.start({"d": tmp_path / "d.parquet"}).location)
    batch = next(iter(client.train("d", batch_size=len(values), shuffle={"none": {}})))
    for name in ("p38", "p60"):
        assert batch[name].to_numpy().tolist() == [float(value) for value in values]
        assert batch[name].to_list() == values
    assert batch["small"].to_numpy(missing=0).tolist() == [0.3, 0.0, *[-99999.99] * 5]


def test_torch_has_tensors_for_all_but_text_and_nested_values(client: forebay.Client, table: pa.Table) -> None:
    skip_without("torch")
    import torch

    options = {"missing": "nan"}
    found, arrays = first(client, output="torch", **options), first(client, output="numpy", **options)
    for name, array in arrays.items():
        tensor = found[name]
        if isinstance(array, np.ndarray):
            expected = array.view(np.int64) if array.dtype.kind in "mM" else array
            assert tensor.dtype == torch.from_numpy(expected).dtype, name
            np.testing.assert_array_equal(tensor.numpy(), expected, name)
        elif "list" in name and "text" not in name and "nested" not in name:
            assert tensor.layout == torch.jagged
            assert [row.numel() for row in tensor.unbind()] == [len(row or []) for row in table[name].to_pylist()]
        elif name not in ("beyond", "nanoseconds"):
            assert tensor == array, name
    exact = first(client, output="torch", columns=["bool", "int8", "date32"])
    assert (exact["bool"].dtype, exact["int8"].dtype) == (torch.bool, torch.int8)
    assert found["date32"].dtype == torch.int64 and found["decimal"].dtype == torch.float64
    assert found["date32"].tolist() == list(range(ROWS)) and found["date32_null"][1] == torch.iinfo(torch.int64).min
    with pytest.raises(forebay.errors.NullValueError, match="has 2 null items in this batch.*expected missing=NUMBER"):
        first(client, output="torch", missing="mask", columns=["list_null_items"])
    masked = first(client, output="torch", missing="mask", strings="array", columns=["int8_null", "text"])
    assert masked["int8_null"].dtype == torch.int8 and masked["int8_null_mask"].dtype == torch.bool
    assert isinstance(masked["text"], np.ndarray)
    assert torch.from_dlpack(first(client)["bool"]).tolist() == table["bool"].to_pylist()
    with pytest.raises(BufferError, match="'bool' has booleans.*copy is False"):
        first(client)["bool"].__dlpack__(copy=False)


def test_jax_has_arrays_for_all_but_text_lists_and_nested_values(client: forebay.Client) -> None:
    skip_without("jax")
    import jax

    found, arrays = first(client, output="jax", missing="nan"), first(client, output="numpy", missing="nan")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            assert isinstance(found[name], list) and len(found[name]) == ROWS, name
        elif array.dtype.kind in "mM":
            # JAX without 64-bit types would drop half of each value.
            assert isinstance(found[name], np.ndarray) and found[name].dtype == array.dtype, name
        else:
            assert isinstance(found[name], jax.Array), name
            np.testing.assert_array_equal(np.asarray(found[name]), array.astype(found[name].dtype), name)
    with jax.enable_x64(True):
        found = first(client, output="jax", missing="nan")
        for name in ("date32", "timestamp_us", "timestamp_us_null", "duration", "time_ms_null"):
            assert isinstance(found[name], jax.Array) and found[name].dtype == np.int64, name
            np.testing.assert_array_equal(np.asarray(found[name]), arrays[name].view(np.int64), name)


def test_jax_without_64_bit_types_rejects_integers_that_need_them(pool: Pool, tmp_path: Path) -> None:
    skip_without("jax")
    import jax

    columns = {"fits": pa.array([2**31 - 1, -(2**31)]), "large": pa.array([2**31, 1]), "unsigned": pa.array([2**63, 0], pa.uint64())}
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    pq.write_table(pa.table(list(columns.values()), schema=pa.schema(fields)), tmp_path / "wide.parquet")
    client = forebay.connect(pool.start({"wide": tmp_path / "wide.parquet"}).location)

    def read(**request: Any) -> Any:
        return next(iter(client.train("wide", batch_size=2, output="jax", shuffle=False, **request)))

    assert read(columns="fits")["fits"].tolist() == [2**31 - 1, -(2**31)]
    for request in ({"columns": "large"}, {"columns": "unsigned"}, {"tensors": {"x": ["fits", "large"]}}):
        with pytest.raises(OverflowError, match=r"column '(large|unsigned|x)' has \d+, which needs 64 bits.*jax_enable_x64"):
            read(**request)
    with jax.enable_x64(True):
        assert read(columns="unsigned")["unsigned"].tolist() == [2**63, 0]


def test_jax_without_64_bit_types_rejects_floats_that_it_would_make_infinite(pool: Pool, tmp_path: Path) -> None:
    skip_without("jax")
    import jax

    largest = float(np.finfo(np.float32).max)
    columns = {
        "fits": [largest, -largest, math.inf, -math.inf, math.nan, 1e-300, 1 / 3],
        "large": [0.0, -1e300, 1.0, 2.0, 3.0, 4.0, math.inf],
        "null": [None, 1e39, 1.0, 2.0, 3.0, 4.0, math.inf],
    }
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    client = forebay.connect(pool.start({"wide": tmp_path / "wide.parquet"}).location)

    def read(**request: Any) -> Any:
        return next(iter(client.train("wide", batch_size=7, output="jax", shuffle=False, **request)))

    fits = read(columns="fits")["fits"]
    assert fits.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(fits), np.array(columns["fits"], np.float32))
    for request in ({"columns": "large"}, {"columns": "null"}, {"tensors": {"large": ["fits", "large"]}}):
        with pytest.raises(OverflowError, match=r"column '(large|null)' has -?1e\+\d+, which is outside of the range of float32.*jax_enable_x64"):
            read(**request)
    with jax.enable_x64(True):
        assert read(columns="large")["large"].tolist() == columns["large"]


@pytest.mark.parametrize("output", FRAMEWORKS)
def test_a_dict_of_arrays_has_the_position_of_its_batch_and_is_a_plain_dict_otherwise(
    client: forebay.Client, output: str
) -> None:
    if output != "numpy":
        skip_without(output)
    ds = client.train("types", batch_size=3, columns=["int64", "text"], output=output, shuffle={"none": {}}, epoch=4)
    for step, found in enumerate(ds):
        rows = 3 if step < 2 else 1
        assert (found.epoch, found.step, found.position, found.num_rows) == (4, step, 3 * step, rows)
        assert isinstance(found, dict) and list(found) == ["int64", "text"] and len(found["text"]) == len(found["int64"]) == rows
        assert {**found} == dict(found.items()) == dict(found)
        for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert type(twin) is forebay.BatchDict and (twin.step, twin.position) == (step, 3 * step)
    assert not hasattr(found, "nosuch")
    with pytest.raises(AttributeError, match="has no 'step': only those that a dataset"):
        forebay.BatchDict(found).step


def test_columns_may_have_the_names_of_attributes(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [7], "keys": [8], "position": [9]}), tmp_path / "names.parquet")
    client = forebay.connect(pool.start({"names": tmp_path / "names.parquet"}).location)
    (found,) = client.train("names", batch_size=1, output="numpy")
    assert (found["step"][0], found["keys"][0], found["position"][0]) == (7, 8, 9) and (found.step, found.position) == (0, 0)


def test_data_loaders_collate_and_pin_a_dict_of_all_types(client: forebay.Client, table: pa.Table) -> None:
    skip_without("torch")
    import torch
    from torch.utils.data._utils.collate import default_collate, default_convert
    from torch.utils.data._utils.pin_memory import pin_memory

    ds = client.train("types", batch_size=4, output="torch", missing=0, shuffle={"none": {}})
    for step, found in enumerate(torch.utils.data.DataLoader(ds, batch_size=None)):
        assert (type(found), found.step, found.position) == (forebay.BatchDict, step, 4 * step)
        assert found["text"] == table["text"].to_pylist()[4 * step : 4 * step + 4]
    batch = first(client, output="torch", columns=["int64", "bool", "text"])
    for convert in (default_convert, lambda item: default_collate([item]), *([pin_memory] if torch.cuda.is_available() else [])):
        made = convert(batch)
        assert type(made) is forebay.BatchDict and made.step == 0 and made["int64"].flatten().tolist() == list(range(ROWS))

    @torch.compile(backend="eager")
    def total(arrays: dict[str, Any]) -> Any:
        return arrays["int64"].sum() + arrays["bool"].sum()

    assert total(batch).item() == sum(range(ROWS)) + 3


def test_a_dict_of_arrays_is_a_pytree_of_jax_whose_position_is_no_constant(client: forebay.Client) -> None:
    skip_without("jax")
    import jax

    ds = client.train("types", batch_size=2, output="jax", columns=["int32", "float32"], shuffle={"none": {}}, remainder="DROP")
    traced = []

    @jax.jit
    def double(batch: forebay.BatchDict) -> Any:
        traced.append(batch)
        return jax.tree.map(lambda array: array * 2, batch)

    for batch in ds:
        made = double(batch)
        assert made["int32"].tolist() == [4 * batch.step, 4 * batch.step + 2]
        # A position in the tree would compile the function for each batch, or be that of the first one.
        assert len(traced) == 1 and not hasattr(made, "step")
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    assert names == ["['float32']", "['int32']"]
    assert jax.tree.structure(batch) == jax.tree.structure(made)
    assert jax.device_put(batch)["int32"].tolist() == batch["int32"].tolist()
    assert jax.tree.map(len, first(client, output="numpy", columns=["int32"])) == {"int32": ROWS}


def test_batches_are_arrow_streams_and_data_frames(client: forebay.Client, batch: forebay.Batch, table: pa.Table) -> None:
    for _ in range(2):
        assert pa.table(batch).equals(pa.Table.from_batches([batch.to_arrow()]))
    assert pa.RecordBatchReader.from_stream(batch).read_all()["text_null"].to_pylist() == table["text_null"].to_pylist()
    skip_without("polars")
    # polars has no decimals of 256 bits.
    batch = first(client, columns=["int64", "text", "text_null", "fixed_list", "struct"])
    assert batch.to_polars()["text_null"].to_list() == table["text_null"].to_pylist()
    skip_without("pandas")
    frame = batch.to_pandas()
    assert frame["int64"].tolist() == list(range(ROWS)) and frame["text"].tolist() == table["text"].to_pylist()


def test_a_missing_package_is_named(batch: forebay.Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=f"to_{name} requires .*{name} is not installed|which is not installed"):
            getattr(batch, f"to_{name}")()


def test_a_dataset_is_a_stream_of_the_batches_of_one_epoch(client: forebay.Client, table: pa.Table) -> None:
    ds = client.train("types", batch_size=2, columns=["int64", "text_null"], shuffle={"none": {}}, output="numpy")
    # A consumer that only reads the schema skips no epoch.
    assert pa.RecordBatchReader.from_stream(ds).schema.names == ["int64", "text_null"]
    for epoch in range(2):
        reader = pa.RecordBatchReader.from_stream(ds)
        batches = list(reader)
        assert [batch.num_rows for batch in batches] == [2, 2, 2, 1] and (ds.epoch, ds.step) == (epoch, 4)
        assert pa.Table.from_batches(batches).to_pydict() == table.select(["int64", "text_null"]).to_pydict()
    # A stream that is released early ends its iteration; the next one is the next epoch.
    reader = pa.RecordBatchReader.from_stream(ds)
    reader.read_next_batch()
    assert ds.epoch == 2 and ds._stream is not None
    reader.close()
    del reader
    assert ds._stream is None and next(iter(ds)).epoch == 3


def test_the_stream_of_a_dataset_raises_the_error_of_its_loop(client: forebay.Client) -> None:
    ds = client.train("types", batch_size=2, columns=["int64"])
    reader = pa.RecordBatchReader.from_stream(ds)
    reader.read_next_batch()
    ds.close()
    with pytest.raises((OSError, pa.ArrowException), match="closed or reloaded during the iteration"):
        reader.read_next_batch()
    with pytest.raises(forebay.errors.NotFoundError, match="did you mean 'types'"):
        pa.RecordBatchReader.from_stream(client.train("typse", batch_size=2))


def test_duckdb_queries_batches_and_datasets(client: forebay.Client) -> None:
    skip_without("duckdb")
    import duckdb

    batch = first(client, columns=["int64", "text"])
    ds = client.train("types", batch_size=2, columns=["int64", "text"])
    assert duckdb.sql("select sum(int64), max(text) from batch").fetchall() == [(21, "日本")]
    for epoch in range(2):
        assert duckdb.sql("select count(*), sum(int64) from ds").fetchall() == [(ROWS, 21)]
        assert ds.epoch == epoch


def test_a_tensor_of_booleans_is_viewed_as_bool(client: forebay.Client) -> None:
    tensors = {"x": {"columns": ["bool"], "dtype": "uint8"}}
    batch = next(iter(client.train("types", batch_size=ROWS, tensors=tensors, columns=["bool"], shuffle={"none": {}})))
    found, expected = batch["x"].to_numpy().view(np.bool_), batch["bool"].to_numpy()
    assert found.dtype == np.bool_ and found[:, 0].tolist() == expected.tolist()
    assert np.shares_memory(found, batch["x"].to_numpy())
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    assert batch["x"].to_torch().view(torch.bool)[:, 0].tolist() == expected.tolist()


def test_a_number_for_missing_times_that_is_too_large_is_an_error_that_names_it(pool: Pool, tmp_path: Path) -> None:
    columns = {name: pa.array([None, 1], type) for name, type in (("day", pa.date32()), ("at", pa.timestamp("us")), ("long", pa.duration("s")))}
    pq.write_table(pa.table(columns), tmp_path / "times.parquet")
    client = forebay.connect(pool.start({"times": tmp_path / "times.parquet"}).location)
    batch = next(iter(client.train("times", batch_size=2, shuffle=False)))
    for name in columns:
        for number in (2**70, -(2**63) - 1):
            with pytest.raises(OverflowError, match=f"missing is {number}, which is outside of the range of times"):
                batch[name].to_numpy(missing=number)
        assert batch[name].to_numpy(missing=2**63 - 1).astype(np.int64).tolist() == [2**63 - 1, 1]


def test_a_number_for_missing_floats_that_would_be_infinite_is_an_error_that_names_it(batch: forebay.Batch) -> None:
    for name, number, kind in (("float16_null", 70_000, "float16"), ("float32_null", 1e300, "float32"), ("float32_null", -1e39, "float32")):
        with pytest.raises(OverflowError, match=re.escape(f"missing is {number}, which is outside of the range of {kind}")):
            batch[name].to_numpy(missing=number)
    assert np.isinf(batch["float16_null"].to_numpy(missing=float("inf"))).any()
    assert batch["float32_null"].to_numpy(missing=1e38).max() == np.float32(1e38)


def test_the_filter_in_the_error_for_nulls_quotes_the_name_of_the_column(pool: Pool, tmp_path: Path) -> None:
    skip_without("torch")
    names = ["trip distance", 'x"y', "select", "Delay", "ünï"]
    pq.write_table(pa.table({name: pa.array([1, None, 3]) for name in names}), tmp_path / "rows.parquet")
    client = forebay.connect(pool.start({"rows": tmp_path / "rows.parquet"}).location)
    for name in names:
        batch = next(iter(client.train("rows", batch_size=3, columns=name)))
        with pytest.raises(forebay.errors.NullValueError) as raised:
            batch[name].to_torch()
        (condition,) = re.findall("mask, '(.* IS NOT NULL)' as filter", str(raised.value))
        assert client.train("rows", batch_size=1, filter=condition).num_rows == 2
