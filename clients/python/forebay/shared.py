"""Memory that processes share: anonymous files, and the results that travel through them."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
from multiprocessing import reduction
from typing import Any, Sequence

import numpy as np

from forebay.batch import Batch, Column

# Out-of-band buffers begin at multiples of this many bytes, as the memory of batches does.
ALIGNMENT = 64


class SharedFile:
    """A file in memory without a name, which a spawned process receives as an argument and a forked one inherits.

    It is freed with the last process that has it, however that process ends.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _anonymous() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)

    def __del__(self) -> None:
        # At the end of the interpreter, or after an error in the constructor, there may be nothing to close.
        if getattr(self, "descriptor", None) is not None and os is not None:
            os.close(self.descriptor)

    def view(self, size: int) -> mmap.mmap:
        """Returns a view of at least the first `size` bytes. The file grows if it is smaller, and never shrinks."""
        if self._map is None or len(self._map) < size:
            self._map = None
            size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
        return self._map


def write(file: SharedFile, result: Any) -> list[int]:
    """Writes a result to the start of a file.

    Returns:
        The sizes of its parts in bytes: its pickle, and then the memory of each of its arrays.

    Raises:
        Exception: The result cannot be pickled.
    """
    pickled = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(result)
    parts = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    view, start = file.view(_end(sizes)), 0
    for part in parts:
        view[start : start + part.nbytes] = part
        start += _aligned(part.nbytes)
    return sizes


def read(file: SharedFile, sizes: Sequence[int]) -> Any:
    """Returns the result that `write` wrote. Its arrays have memory of their own."""
    view, start = memoryview(file.view(_end(sizes))), 0
    parts: list[memoryview] = []
    for size in sizes:
        part = np.empty(size, np.uint8)
        part[:] = np.frombuffer(view, np.uint8, size, start) if size else 0
        parts.append(part.data)
        start += _aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])


class _Pickler(pickle.Pickler):
    """Pickles the memory of NumPy arrays and of PyTorch tensors out of band."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (Batch, Column)):
            kind = type(value).__name__
            raise TypeError(f"a forebay.{kind} is a view of received memory; return arrays instead, such as to_numpy()")
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or not _is_plain(torch, value):
            return NotImplemented
        # Bytes, because NumPy lacks some types of PyTorch.
        array = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (array, value.dtype, tuple(value.shape))


def _is_plain(torch: Any, tensor: Any) -> bool:
    is_on_host = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested
    return is_on_host and not tensor.requires_grad and not tensor.is_quantized


def _tensor(array: np.ndarray, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(array).view(dtype).reshape(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _end(sizes: Sequence[int]) -> int:
    return sum(map(_aligned, sizes))


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("forebay", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="forebay-")
    os.unlink(path)
    return descriptor


def _received(duplicate: Any) -> SharedFile:
    return SharedFile(duplicate.detach())
