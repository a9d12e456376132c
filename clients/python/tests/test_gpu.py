"""The client reports the utilization of the GPU that a training runs on."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Callable

import pytest

import forebay
from forebay.gpu import watch
from server import Server

# A mock of NVML with two GPUs, at 30% and 80%.
NVML = """
class Rates:
    def __init__(self, gpu):
        self.gpu = gpu

GPUS = {0: 30, 1: 80, "GPU-8f": 80}

def nvmlInit(): pass
def nvmlDeviceGetHandleByIndex(index): return GPUS[index]
def nvmlDeviceGetHandleByUUID(uuid): return GPUS[uuid]
def nvmlDeviceGetUtilizationRates(handle): return Rates(handle)
"""


def reported_utilization(server: Server) -> float | None:
    """Returns the GPU utilization of the only trainer, as the server has it."""
    sessions = json.loads(server.http_get("/api/v1/sessions")[1])["sessions"]
    clients = [session["client"] for session in sessions if session["client"]]
    return clients[-1]["gpu_utilization"] if clients else None


def busy_share(metrics: str) -> float:
    """Returns the busy fraction of the time with reported GPU utilization."""
    seconds = re.findall(r'^forebay_trainer_gpu_seconds_total{dataset="flights",state="(\w+)"} (\S+)$', metrics, re.M)
    by_state = {state: float(value) for state, value in seconds}
    return by_state["busy"] / sum(by_state.values()) if by_state else 0.0


def busy() -> float:
    return 0.42


def test_gpu_utilization_is_reported_to_the_server(client: forebay.Client, flights_server: Server) -> None:
    ds = client.train("flights", batch_size=2048, columns=["delay"], gpu_utilization=busy)
    assert pickle.loads(pickle.dumps(ds))._gpu_utilization is busy
    deadline, seen, share = time.monotonic() + 60, None, 0.0
    for _ in ds:
        time.sleep(0.05)
        seen = reported_utilization(flights_server)
        share = busy_share(flights_server.http_get("/metrics")[1])
        if seen is not None and share or time.monotonic() > deadline:
            break
    assert seen == pytest.approx(0.42) and share == pytest.approx(0.42)


# Ends the callback that hangs.
RELEASED = threading.Event()


def fails(asked: threading.Event) -> float:
    asked.set()
    raise OSError("no driver")


def is_out_of_range(asked: threading.Event) -> float:
    asked.set()
    return 42.0


def hangs(asked: threading.Event) -> float:
    asked.set()
    RELEASED.wait()
    return 0.5


def is_unknown(asked: threading.Event) -> None:
    asked.set()


@pytest.mark.parametrize("utilization", [fails, is_out_of_range, is_unknown, hangs])
def test_a_broken_utilization_callback_does_not_stop_the_loop(
    client: forebay.Client, flights_server: Server, utilization: Callable[[threading.Event], float | None]
) -> None:
    asked = threading.Event()
    RELEASED.clear()
    ds = client.train("flights", batch_size=2048, columns=["delay"], gpu_utilization=lambda: utilization(asked))
    steps_after, deadline = 0, time.monotonic() + 60
    for _ in ds:
        time.sleep(0.05)
        steps_after += asked.is_set()
        # Wait long enough for a report.
        if steps_after > 40 or time.monotonic() > deadline:
            break
    assert reported_utilization(flights_server) is None
    began = time.monotonic()
    ds.close()
    took = time.monotonic() - began
    RELEASED.set()
    assert asked.is_set() and steps_after > 40
    assert took < 60


def test_the_callback_is_not_called_after_the_iteration(client: forebay.Client) -> None:
    asked: list[float] = []
    before = set(threading.enumerate())

    def counts() -> float:
        asked.append(time.monotonic())
        return 0.5

    ds = client.train("flights", batch_size=4096, columns=["delay"], gpu_utilization=counts)
    for _ in ds:
        time.sleep(0.02)
        if asked:
            break
    for thread in set(threading.enumerate()) - before:
        if thread.name == "forebay-gpu":
            thread.join(60)
    assert "forebay-gpu" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.parametrize("value", [0.5, None])
def test_the_callback_is_not_called_after_the_stream_is_dropped(value: float | None) -> None:
    class Gone:
        """The handle of a stream that was dropped."""

        def set(self, share: float) -> bool:
            assert share == value if value is not None else math.isnan(share)
            return False

    before = set(threading.enumerate())
    done = watch(Gone(), None, lambda: value)
    (thread,) = set(threading.enumerate()) - before
    thread.join(60)
    assert not thread.is_alive() and not done.is_set()


@pytest.mark.parametrize(
    ("visible", "number", "expected"),
    [
        (None, 0, 0.3),
        (None, 1, 0.8),
        ("1,0", 0, 0.8),
        ("GPU-8f", 0, 0.8),
        ("1", 1, None),
        ("", 0, None),
        (None, 7, None),
    ],
)
def test_gpu_numbers_are_those_of_cuda(
    tmp_path: Path, visible: str | None, number: int, expected: float | None
) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"PYTHONPATH": str(tmp_path)} | ({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})
    code = f"from forebay.gpu import Gpu, number_in_use; print(Gpu({number}).utilization(), number_in_use(None))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == [str(expected), "None"], done.stderr


def test_without_nvml_the_utilization_is_unknown() -> None:
    code = textwrap.dedent("""
        import sys
        sys.modules["pynvml"] = None
        from forebay.gpu import Gpu
        print(Gpu(0).utilization())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "None", done.stderr
