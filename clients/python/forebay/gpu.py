"""How busy a GPU is, by NVML."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import Any, Callable

from forebay import _forebay

INTERVAL_S = 1.0


class Gpu:
    """The GPU that CUDA gives this number, as NVML sees it. Where there is no `nvidia-ml-py`, no driver or no such GPU, nothing is
    known of it."""

    def __init__(self, number: int) -> None:
        self._handle = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, _handle(pynvml, number)
        except Exception:  # Whatever is missing, nothing else depends on it.
            pass

    @property
    def is_known(self) -> bool:
        return self._handle is not None

    def utilization(self) -> float | None:
        """The share of the last moments, of 1, in which something ran on it."""
        if self._handle is None:
            return None
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except Exception:
            return None


def number_in_use(cuda: int | None) -> int | None:
    """The GPU that this thread computes on: the CUDA device that it named, or else the one that PyTorch has begun to use. Others may
    have a GPU of this machine; their work is none of this process'."""
    torch = sys.modules.get("torch")
    if cuda is None and torch is not None and torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return cuda


def watch(told: _forebay.Utilization, number: int | None, asked: Callable[[], float | None] | None) -> threading.Event:
    """Tells `told` once a second how busy the GPU of this number is, or what `asked` says, until the event is set or the stream is
    gone. A thread of its own waits for either, and nobody for it: drivers hang, too."""
    done = threading.Event()
    if asked is not None or number is not None:
        threading.Thread(target=_watch, args=(told, number or 0, asked, done), name="forebay-gpu", daemon=True).start()
    return done


def _watch(
    told: _forebay.Utilization, number: int, asked: Callable[[], float | None] | None, done: threading.Event
) -> None:
    if asked is None:
        gpu = Gpu(number)
        if not gpu.is_known:
            return
        asked = gpu.utilization
    while not done.wait(INTERVAL_S):
        try:
            share = float(asked())  # type: ignore[arg-type]
        except Exception:  # It may be the user's: what it can't tell is not known.
            share = math.nan
        if not told.set(share):
            return


def _handle(nvml: Any, number: int) -> Any:
    """CUDA counts the devices that CUDA_VISIBLE_DEVICES leaves it, NVML counts all. Where GPUs of several kinds are in one machine,
    both count alike only with CUDA_DEVICE_ORDER=PCI_BUS_ID, or by UUIDs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = str(number) if visible is None else visible.split(",")[number].strip()
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)
