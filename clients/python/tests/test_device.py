"""Batches in the memory of a GPU."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).resolve().parents[3]


def test_iteration_without_the_device_raises_device_error(client: forebay.Client) -> None:
    with pytest.raises(forebay.errors.DeviceError, match="no CUDA device 99: this machine has"):
        next(iter(client.train("flights", batch_size=1000, device="cuda:99")))


def test_a_device_that_the_output_does_not_support_is_rejected(client: forebay.Client) -> None:
    for output, device in (("numpy", "cuda"), ("arrow", "cuda:0"), ("jax", "mps"), ("batch", "cuda:x")):
        with pytest.raises(ValueError, match="device|host memory"):
            client.train("flights", batch_size=1000, output=output, device=device)


def test_batches_on_a_device_equal_those_on_the_host(client: forebay.Client, flights_server, tmp_path: Path) -> None:
    # As in clients/rust/tests/device.rs: a mock driver that executes copies late and in pieces.
    library, source = tmp_path / "libcuda.so", ROOT / "clients" / "rust" / "tests" / "device" / "driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True)
    script = Path(__file__).with_name("on_device.py")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script, flights_server.location, library],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "equal" in done.stdout, done.stdout + done.stderr


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
