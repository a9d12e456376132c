"""GPU utilization, from NVML."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import Any, Callable

from forebay import _forebay

INTERVAL_S = 1.0


class Gpu:
    """The GPU with a CUDA device number. Its utilization is unknown without `nvidia-ml-py`, a driver or such a GPU."""

    def __init__(self, number: int) -> None:
        self._handle = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._handle = pynvml, _handle(pynvml, number)
        except Exception:  # The utilization is optional, whatever the reason is.
            pass

    @property
    def is_known(self) -> bool:
        """True if NVML has this GPU."""
        return self._handle is not None

    def utilization(self) -> float | None:
        """Returns the fraction of the last sample period in which a kernel ran, 0 to 1. None if unknown."""
        if self._handle is None:
            return None
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except Exception:
            return None


def number_in_use(cuda: int | None) -> int | None:
    """Returns `cuda`, otherwise the current device of PyTorch if that uses CUDA, otherwise None.

    Other processes may use the machine's GPUs, so there is no default device.
    """
    torch = sys.modules.get("torch")
    if cuda is None and torch is not None and torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return cuda


def watch(
    sink: _forebay.Utilization, number: int | None, callback: Callable[[], float | None] | None
) -> threading.Event:
    """Reports GPU utilization once per second, on a daemon thread, because calls into a driver can hang.

    Args:
        sink: Handle that receives the utilization. The thread ends when its stream is closed.
        number: CUDA device whose utilization NVML returns, or None.
        callback: Function that returns the utilization, 0 to 1, instead of NVML.

    Returns:
        An event that stops the thread when it is set. No thread is started if `number` and `callback` are None.
    """
    done = threading.Event()
    if callback is not None or number is not None:
        arguments = (sink, number or 0, callback, done)
        threading.Thread(target=_watch, args=arguments, name="forebay-gpu", daemon=True).start()
    return done


def _watch(
    sink: _forebay.Utilization, number: int, callback: Callable[[], float | None] | None, done: threading.Event
) -> None:
    if callback is None:
        gpu = Gpu(number)
        if not gpu.is_known:
            return
        callback = gpu.utilization
    while not done.wait(INTERVAL_S):
        try:
            share = float(callback())  # type: ignore[arg-type]
        except Exception:  # The callback may be the user's. Its errors must not end the training.
            share = math.nan
        if not sink.set(share):
            return


def _handle(nvml: Any, number: int) -> Any:
    """Returns NVML's handle for a CUDA device number.

    CUDA numbers the devices in CUDA_VISIBLE_DEVICES, NVML numbers all. On a machine with different GPUs the numbers agree only
    with CUDA_DEVICE_ORDER=PCI_BUS_ID, or if CUDA_VISIBLE_DEVICES has UUIDs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = str(number) if visible is None else visible.split(",")[number].strip()
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)
