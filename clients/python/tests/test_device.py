"""Batches in the memory of a GPU."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool

ROOT = Path(__file__).resolve().parents[3]


def test_iteration_without_the_device_raises_device_error(client: forebay.Client) -> None:
    with pytest.raises(forebay.errors.DeviceError, match="no CUDA device 99: this machine has"):
        next(iter(client.train("flights", batch_size=1000, device="cuda:99")))


def test_a_device_that_the_output_does_not_support_is_rejected(client: forebay.Client) -> None:
    for output, device in (("numpy", "cuda"), ("arrow", "cuda:0"), ("jax", "mps"), ("batch", "cuda:x")):
        with pytest.raises(ValueError, match="device|host memory"):
            client.train("flights", batch_size=1000, output=output, device=device)


def test_prefetch_and_page_locked_memory_are_refused_where_they_have_no_effect(client: forebay.Client) -> None:
    for options, message in (
        ({"device": "cuda", "device_prefetch": 0}, "device_prefetch is 0, expected a whole number from 1 to 64"),
        ({"device": "cuda", "device_prefetch": 65}, "device_prefetch is 65, expected a whole number from 1 to 64"),
        ({"device_prefetch": 2}, "device_prefetch is 2, but device is None, expected a CUDA device"),
        ({"device": "cuda", "pin_memory": True}, "pin_memory is for batches in host memory, but device is 'cuda'"),
    ):
        with pytest.raises(ValueError, match=message):
            client.train("flights", batch_size=1000, **options)
    with pytest.raises(ValueError, match="pin_memory is for this process"):
        client.train("flights", batch_size=1000, pin_memory=True).map(len, workers=1)


def test_page_locked_memory_without_a_driver_is_a_device_error(flights_server) -> None:
    code = f"""
import forebay
ds = forebay.connect({flights_server.location!r}).train("flights", batch_size=1000, pin_memory=True)
try:
    next(iter(ds))
except forebay.errors.DeviceError as error:
    print(error)
"""
    # Without a device, whatever this machine has.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("no CUDA device 0: "), done.stdout + done.stderr


def with_mock_driver(script: str, location: str, tmp_path: Path) -> None:
    """Runs a script that compares batches, with a mock driver that executes copies late and in pieces."""
    # As in clients/rust/tests/device.rs.
    library, source = tmp_path / "libcuda.so", ROOT / "clients" / "rust" / "tests" / "device" / "driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), location, library],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and "equal" in done.stdout, done.stdout + done.stderr


def test_batches_on_a_device_equal_those_on_the_host(flights_server, tmp_path: Path) -> None:
    with_mock_driver("on_device.py", flights_server.location, tmp_path)


def test_columns_of_all_types_on_a_device_equal_those_on_the_host(pool: Pool, tmp_path: Path) -> None:
    rows = range(1000)
    table = pa.table(
        {
            "n": rows,
            "text": [None if row % 7 == 0 else f"row {row}" for row in rows],
            "holes": [None if row % 3 == 0 else row for row in rows],
            "flag": [row % 2 == 0 for row in rows],
            "time": pa.array(rows, pa.timestamp("ms")),
            "price": pa.array([Decimal(row) / 100 for row in rows], pa.decimal128(12, 2)),
            "items": pa.array([np.arange(row % 5, dtype=np.float32) for row in rows], pa.list_(pa.float32())),
            "wide": pa.array([list(range(row % 3)) for row in rows], pa.large_list(pa.int64())),
            "gaps": [None if row % 4 == 0 else list(range(row % 5)) for row in rows],
            "lists_with_gaps": [[None, row] for row in rows],
            "point": [{"x": row, "y": None} for row in rows],
        }
    )
    pq.write_table(table, tmp_path / "types.parquet")
    with_mock_driver("on_device_types.py", pool.start({"types": tmp_path / "types.parquet"}).location, tmp_path)


@pytest.mark.timeout(1200)
def test_the_acceptance_of_a_gpu_passes_or_says_that_the_machine_has_none() -> None:
    script = Path(__file__).with_name("gpu_acceptance.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("skipped: no CUDA device 0") or done.stdout.endswith("no check failed\n"), done.stdout


@pytest.mark.skipif(ctypes.util.find_library("cuda") is None, reason="no NVIDIA driver on this machine")
def test_pytorch_computes_on_the_device(client: forebay.Client) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch is built without CUDA")
    request = {"batch_size": 50_000, "tensors": {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}}
    on_host, on_device = (client.train("flights", **request, output="torch", device=device) for device in ("cpu", "cuda"))
    for host, device in zip(on_host, on_device):
        # The kernel is still queued when the batch is dropped.
        device = (device["x"] + 1).cpu()
        assert torch.equal(device, host["x"] + 1)
