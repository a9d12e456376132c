"""How busy a GPU is, by NVML."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable


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

    def utilization(self) -> float | None:
        """The share of the last moments, of 1, in which something ran on it."""
        if self._handle is None:
            return None
        try:
            return self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        except Exception:
            return None


def in_use(cuda: int | None) -> Callable[[], float | None] | None:
    """What says how busy the GPU is that a process computes on: the CUDA device that it named, or else the one that PyTorch has
    begun to use. Others may have a GPU of this machine; their work is none of this process'."""
    if cuda is not None:
        return Gpu(cuda).utilization
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return Gpu(torch.cuda.current_device()).utilization
    return None


def _handle(nvml: Any, number: int) -> Any:
    """CUDA counts the devices that CUDA_VISIBLE_DEVICES leaves it, NVML counts all. Where GPUs of several kinds are in one machine,
    both count alike only with CUDA_DEVICE_ORDER=PCI_BUS_ID, or by UUIDs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = str(number) if visible is None else visible.split(",")[number].strip()
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)
