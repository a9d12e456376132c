"""Arrays of NumPy, PyTorch, JAX, Arrow and polars are views of the received memory and keep it alive."""

from __future__ import annotations

import gc
import importlib.util
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


def has(name: str) -> Any:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not in this environment; the other one has it")


@pytest.fixture
def batch(client: forebay.Client) -> forebay.Batch:
    return next(iter(client.train("flights", batch_size=1000, columns=["delay", "origin"], tensors=TENSOR)))


def address(array: pa.Array) -> int:
    return array.buffers()[1].address


def test_numpy_and_arrow_arrays_are_views_of_the_received_memory(batch: forebay.Batch) -> None:
    matrix, table = batch["x"].to_numpy(), batch.to_arrow()
    assert matrix.shape == (1000, 2) and matrix.dtype == np.float32
    assert address(table["x"].flatten()) == matrix.ctypes.data == address(batch["x"].to_arrow().flatten())
    assert address(table["delay"]) == batch["delay"].to_numpy().ctypes.data
    for column in table.columns:
        for buffer in column.buffers():
            assert buffer is None or buffer.address % 64 == 0
    np.testing.assert_array_equal(matrix[:, 0], table["delay"].to_numpy().astype(np.float32))


@has("torch")
def test_torch_tensors_are_views_of_the_received_memory(batch: forebay.Batch) -> None:
    import torch

    tensor = batch["x"].to_torch()
    assert tensor.shape == (1000, 2) and tensor.dtype == torch.float32
    assert tensor.data_ptr() == batch["x"].to_numpy().ctypes.data
    assert torch.from_dlpack(batch["delay"]).data_ptr() == batch["delay"].to_numpy().ctypes.data


@has("jax")
def test_jax_arrays_are_views_of_the_received_memory(batch: forebay.Batch) -> None:
    array = batch["x"].to_jax()
    assert array.shape == (1000, 2)
    assert array.unsafe_buffer_pointer() == batch["x"].to_numpy().ctypes.data


@has("polars")
def test_polars_frames_are_views_of_the_received_memory(batch: forebay.Batch) -> None:
    import polars as pl

    frame = pl.DataFrame(batch)
    assert frame.shape == (1000, 3)
    assert frame["delay"].to_numpy(allow_copy=False).ctypes.data == batch["delay"].to_numpy().ctypes.data


@pytest.mark.parametrize("view", ["numpy", "arrow", "torch", "jax"])
def test_a_view_keeps_its_memory_after_batch_and_dataset_are_dropped(client: forebay.Client, view: str) -> None:
    if view in ("torch", "jax"):
        pytest.importorskip(view, reason=f"{view} is not in this environment; the other one has it")
    ds = client.train("flights", batch_size=65_536, tensors=TENSOR, shuffle={"none": {}})
    expected = [batch["x"].to_numpy().copy() for batch in ds]
    again = client.train("flights", batch_size=65_536, tensors=TENSOR, shuffle={"none": {}})
    views = [getattr(batch["x"], f"to_{view}")() for batch in again]
    del again
    gc.collect()
    for kept, wanted in zip(views, expected):
        found = kept.flatten().to_numpy().reshape(-1, 2) if view == "arrow" else np.asarray(kept)
        np.testing.assert_array_equal(found, wanted)


def test_an_unused_capsule_frees_its_memory_once(batch: forebay.Batch) -> None:
    for _ in range(1000):
        batch["x"].__dlpack__()
        batch["x"].__arrow_c_array__()
        batch.__arrow_c_array__()
    assert batch["x"].to_numpy().shape == (1000, 2)


def test_writing_to_a_batch_changes_no_other(client: forebay.Client) -> None:
    def batches() -> list[forebay.Batch]:
        return list(islice(client.train("flights", batch_size=1000, tensors=TENSOR), 3))

    # All are held at the same time: two streams of the same batches, and batches that follow each other in one stream.
    held = [batch["x"].to_numpy() for batch in (*batches(), *batches())]
    before = [array.copy() for array in held]
    held[1][:] = -1
    before[1][:] = -1
    for array, expected in zip(held, before):
        np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(batches()[1]["x"].to_numpy(), before[4])


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of all kinds of Parquet types, with and without nulls."""
    numbers = range(5)
    table = pa.table(
        {
            "int8": pa.array(numbers, pa.int8()),
            "uint64": pa.array(numbers, pa.uint64()),
            "float64": pa.array(numbers, pa.float64()),
            "time": pa.array(numbers, pa.timestamp("us")),
            "bool": pa.array([True, False, True, True, False]),
            "date": pa.array(numbers, pa.date32()),
            "decimal": pa.array([Decimal(number) for number in numbers], pa.decimal128(10, 2)),
            "text": pa.array(["a", "b", None, "d", "e"]),
            "list": pa.array([[1], [2, 3], [], None, [4]], pa.list_(pa.int64())),
            "null": pa.array([1, None, 3, 4, 5], pa.int64()),
        }
    )
    path = tmp_path_factory.mktemp("types") / "types.parquet"
    pq.write_table(table, path)
    return path


def test_every_type_converts_to_arrow_and_those_without_an_array_have_no_dlpack(types: Path, pool: Pool) -> None:
    client = forebay.connect(pool.start({"types": types}).location)
    batch = next(iter(client.train("types", batch_size=5, shuffle={"none": {}})))
    assert batch.to_arrow().to_pydict() == pq.read_table(types).to_pydict()
    for name in ("int8", "uint64", "float64", "time"):
        wanted = pq.read_table(types)[name].to_numpy()
        np.testing.assert_array_equal(batch[name].to_numpy(), wanted)
        assert batch[name].to_numpy().dtype == wanted.dtype
    for name in ("date", "decimal", "text", "list", "null"):
        with pytest.raises(ValueError, match=f"'{name}'.*to_arrow"):
            batch[name].__dlpack__()
    with pytest.raises(KeyError, match="no column 'nosuch', expected one of int8, uint64"):
        batch["nosuch"]
    assert "int8" in batch and "nosuch" not in batch and len(batch) == 5
    assert len(batch.keys()) == 10 and "epoch 0 step 0: 5 rows" in repr(batch)


@pytest.mark.parametrize("output", ["batch", "numpy", "torch", "jax", "arrow"])
def test_the_output_option_selects_the_type_of_the_items(client: forebay.Client, output: str) -> None:
    if output in ("torch", "jax"):
        pytest.importorskip(output, reason=f"{output} is not in this environment; the other one has it")
    found = next(iter(client.train("flights", batch_size=100, tensors=TENSOR, output=output)))
    if output in ("batch", "arrow"):
        assert found.num_rows == 100
    else:
        assert found["x"].shape == (100, 2)
    with pytest.raises(ValueError, match="expected one of batch, numpy"):
        client.train("flights", batch_size=100, output="tensorflow")


def test_lists_are_returned_as_items_and_offsets_without_a_copy(pool: Pool, tmp_path: Path) -> None:
    lists = [list(range(row % 5)) for row in range(1000)]
    rows = pa.table({"items": pa.array(lists, pa.list_(pa.int64())), "holes": pa.array([None, *lists[1:]]), "n": range(1000)})
    pq.write_table(rows, tmp_path / "lists.parquet")
    client = forebay.connect(pool.start({"lists": tmp_path / "lists.parquet"}).location)
    batch = next(iter(client.train("lists", batch_size=1000, seed=3)))
    items, offsets = batch["items"].ragged()
    table = batch.to_arrow()
    assert items.to_numpy().ctypes.data == address(table["items"].flatten())
    assert offsets.to_numpy().ctypes.data == table["items"].buffers()[1].address
    assert np.diff(offsets.to_numpy()).tolist() == [len(row) for row in table["items"].to_pylist()]
    assert items.to_numpy().tolist() == [item for row in table["items"].to_pylist() for item in row]
    with pytest.raises(ValueError, match="'holes' contains null lists"):
        batch["holes"].ragged()
    with pytest.raises(ValueError, match="'n' has type Int64, expected a list"):
        batch["n"].ragged()
