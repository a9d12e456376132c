"""Names of CUDA devices."""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from forebay import ranks


def is_cuda(device: Any) -> bool:
    """True for a CUDA device that is named as in PyTorch.

    Raises:
        ValueError: The number after `cuda:` is none.
    """
    kind, _, number = str(device).partition(":")
    if kind == "cuda" and not number.isdecimal() and (number or ":" in str(device)):
        raise ValueError(f"device is {str(device)!r}, expected 'cuda' or 'cuda:NUMBER'")
    return kind == "cuda"


def cuda_number(device: Any) -> int:
    """Returns the number of a CUDA device. Without one in its name, it is that of this process among those of its host."""
    number = str(device).partition(":")[2]
    if number:
        return int(number)
    torch = cast(Any, sys.modules.get("torch"))
    has_cuda = hasattr(torch, "cuda") and torch.cuda.is_available()
    if has_cuda and torch.cuda.current_device() > 0:
        return torch.cuda.current_device()
    local, visible = ranks.local_rank() or 0, os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = torch.cuda.device_count() if has_cuda else None if visible is None else len(visible.split(","))
    # A launcher may show each process its own device only.
    return local if devices is None or local < devices else 0
