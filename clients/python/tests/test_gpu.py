"""The server is told how busy the GPU is that a training computes on."""

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

# NVML where there is no driver: two GPUs, busy to 30 and 80 %.
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


def said(server: Server) -> float | None:
    """What the server knows of the only trainer's GPU."""
    sessions = json.loads(server.http_get("/api/v1/sessions")[1])["sessions"]
    clients = [session["client"] for session in sessions if session["client"]]
    return clients[-1]["gpu_utilization"] if clients else None


def busy_share(metrics: str) -> float:
    """Of the time whose reports say how busy the trainers' GPUs were."""
    seconds = re.findall(r'^forebay_trainer_gpu_seconds_total{dataset="flights",state="(\w+)"} (\S+)$', metrics, re.M)
    of = {state: float(value) for state, value in seconds}
    return of["busy"] / sum(of.values()) if of else 0.0


def busy() -> float:
    return 0.42


def test_the_server_is_told_how_busy_the_gpu_is(client: forebay.Client, flights_server: Server) -> None:
    ds = client.train("flights", batch_size=4096, columns=["delay"], gpu_utilization=busy)
    assert pickle.loads(pickle.dumps(ds))._gpu_utilization is busy
    deadline, seen, share = time.monotonic() + 20, None, 0.0
    for _ in ds:
        time.sleep(0.05)
        seen = said(flights_server)
        share = busy_share(flights_server.http_get("/metrics")[1])
        if seen is not None and share or time.monotonic() > deadline:
            break
    assert seen == pytest.approx(0.42) and share == pytest.approx(0.42)


# What hangs does so until then.
RELEASED = threading.Event()


def fails(asked: threading.Event) -> float:
    asked.set()
    raise OSError("no driver")


def says_nonsense(asked: threading.Event) -> float:
    asked.set()
    return 42.0


def hangs(asked: threading.Event) -> float:
    asked.set()
    RELEASED.wait()
    return 0.5


def knows_nothing(asked: threading.Event) -> None:
    asked.set()


@pytest.mark.parametrize("utilization", [fails, says_nonsense, knows_nothing, hangs])
def test_what_cannot_tell_how_busy_the_gpu_is_stops_no_loop(
    client: forebay.Client, flights_server: Server, utilization: Callable[[threading.Event], float | None]
) -> None:
    asked = threading.Event()
    RELEASED.clear()
    ds = client.train("flights", batch_size=4096, columns=["delay"], gpu_utilization=lambda: utilization(asked))
    steps_after, deadline = 0, time.monotonic() + 20
    for _ in ds:
        time.sleep(0.05)
        steps_after += asked.is_set()
        # Long enough for a report.
        if steps_after > 40 or time.monotonic() > deadline:
            break
    assert said(flights_server) is None
    began = time.monotonic()
    ds.close()
    took = time.monotonic() - began
    RELEASED.set()
    assert asked.is_set() and steps_after > 40
    assert took < 5


def test_nobody_is_asked_once_a_loop_is_over(client: forebay.Client) -> None:
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
            thread.join(10)
    assert "forebay-gpu" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.parametrize("says", [0.5, None])
def test_nobody_is_asked_for_a_training_that_is_gone(says: float | None) -> None:
    class Gone:
        """The stream of a training that nobody has any more."""

        def set(self, share: float) -> bool:
            assert share == says if says is not None else math.isnan(share)
            return False

    before = set(threading.enumerate())
    done = watch(Gone(), None, lambda: says)
    (thread,) = set(threading.enumerate()) - before
    thread.join(10)
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
def test_the_gpu_is_the_one_that_cuda_means(
    tmp_path: Path, visible: str | None, number: int, expected: float | None
) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    env |= {"PYTHONPATH": str(tmp_path)} | ({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})
    code = f"from forebay.gpu import Gpu, number_in_use; print(Gpu({number}).utilization(), number_in_use(None))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == [str(expected), "None"], done.stderr


def test_without_nvml_nothing_is_known() -> None:
    code = textwrap.dedent("""
        import sys
        sys.modules["pynvml"] = None
        from forebay.gpu import Gpu
        print(Gpu(0).utilization())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "None", done.stderr
