"""Compares an epoch on a device, read through DLPack, with the same epoch on the host: `on_device.py URL DRIVER`.

DRIVER is the mock driver of clients/rust/tests/device, whose device memory this process can read.
"""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any, Callable, Iterator

import numpy as np

import forebay

LEGACY_DEFAULT = 1


class Tensor(ctypes.Structure):
    """`DLTensor` of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


# Kinds of NumPy by the codes of DLPack.
KINDS = {0: "i", 1: "u", 2: "f"}


def values(driver: ctypes.CDLL, column: Any) -> np.ndarray:
    """Returns a column of numbers as a consumer on the default stream reads it."""
    capsule = column.__dlpack__(stream=LEGACY_DEFAULT)
    tensor = Tensor.from_address(pointer_of(capsule, b"dltensor"))
    assert (tensor.device_type, tensor.device_id) == column.__dlpack_device__() == (2, 0)
    assert (tensor.lanes, tensor.strides) == (1, None)
    assert driver.cuStreamSynchronize(ctypes.c_void_p(LEGACY_DEFAULT)) == 0
    shape = tensor.shape[: tensor.ndim]
    count = int(np.prod(shape)) * tensor.bits // 8
    return np.frombuffer(ctypes.string_at(tensor.data, count), f"{KINDS[tensor.code]}{tensor.bits // 8}").reshape(shape)


def refused(kind: type[Exception], take: Callable[[], Any]) -> None:
    """Checks that a function raises an exception."""
    try:
        take()
    except kind:
        return
    raise AssertionError("device memory was exported")


def streams(driver: ctypes.CDLL, batches: Iterator[forebay.Batch]) -> None:
    """Checks that `record_stream` makes a stream of any library wait for the copy, and the memory for its work."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    batch = next(batches)
    default = driver.driver_given(None)
    # The attributes of streams of PyTorch and CuPy, handles, and the default stream in each of these forms.
    forms = (SimpleNamespace(cuda_stream=stream.value), SimpleNamespace(ptr=stream.value), stream.value)
    for given, form in enumerate(forms):
        assert driver.driver_given(stream) == given
        batch.record_stream(form)
    for form in (SimpleNamespace(cuda_stream=0), SimpleNamespace(ptr=0), 0):
        batch.record_stream(form)
    assert (driver.driver_given(stream), driver.driver_given(None)) == (3, default + 3)
    # At its release, each stream gets one event that precedes the reuse of the memory, however often it was recorded.
    batch = next(batches)
    assert (driver.driver_given(stream), driver.driver_given(None)) == (4, default + 4)
    assert driver.cuStreamDestroy_v2(stream) == 0
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0


def main(url: str, library: str) -> None:
    driver = ctypes.CDLL(library)
    request: dict[str, Any] = {"batch_size": 100_000, "tensors": {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}}
    client = forebay.connect(url)
    on_host, on_device = client.train("flights", **request), client.train("flights", **request, device="cuda")
    steps = 0
    for host, device in zip(on_host, on_device):
        assert (host.device, device.device) == ("cpu", "cuda:0")
        assert (host.step, host.position, len(host), host.nbytes) == (device.step, device.position, len(device), device.nbytes)
        assert np.array_equal(values(driver, device["x"]), host["x"].to_numpy())
        for take in (device.to_numpy, device.to_arrow, device["x"].to_numpy):
            refused(forebay.errors.RequestError, take)
        # The exception of DLPack: an ambiguous stream, another device, and a copy.
        for options in ({"stream": 0}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}, {"copy": True}):
            refused(BufferError, lambda: device["x"].__dlpack__(**options))
        device["x"].__dlpack__(stream=1, dl_device=(2, 0), copy=False)
        steps += 1
    assert steps == len(on_host) == 30 and on_device.stats()["batches"] == 30
    state = on_device.state_dict()
    state["step"] = 7
    on_device.load_state_dict(state)
    on_host.load_state_dict(state)
    host, batches = next(iter(on_host)), iter(on_device)
    device = next(batches)
    assert host.step == device.step == 7
    assert np.array_equal(values(driver, device["x"]), host["x"].to_numpy())
    streams(driver, batches)
    # The current context of the thread, which may belong to a framework, is unchanged.
    assert driver.driver_current() == 0
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
