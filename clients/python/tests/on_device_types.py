"""Compares all types of columns on a device with those on the host: `on_device_types.py URL DRIVER`.

DRIVER is the mock driver of clients/rust/tests/device, whose device memory this process can read.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Any
from unittest import mock

import numpy as np

import forebay
from on_device import values

# Columns that have nulls, or a type that is not a number, and their conversion without a framework.
ON_HOST = ("text", "holes", "flag", "time", "price", "gaps", "lists_with_gaps", "point")


def raised(kind: type[Exception], function: Any) -> str:
    """Returns the message of the exception that a function has to raise."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"expected {kind.__name__}")


def compare(driver: ctypes.CDLL, host: forebay.Batch, device: forebay.Batch) -> None:
    """Compares a batch on the device with the same one on the host."""
    assert (host.device, device.device, device.keys()) == ("cpu", "cuda:0", host.keys())
    for name in host.keys():
        assert (device[name].nullable, len(device[name])) == (host[name].nullable, len(host[name])), name
        np.testing.assert_array_equal(device[name].mask(), host[name].mask())
    for name in ("n", "x"):
        np.testing.assert_array_equal(values(driver, device[name]), host[name].to_numpy())
        assert "expected a list" in raised(ValueError, device[name].ragged)
        raised(forebay.errors.RequestError, device[name].to_numpy)
    # Lists: items and offsets in the memory of the device.
    for name in ("items", "wide"):
        for found, expected in zip(device[name].ragged(), host[name].ragged()):
            assert found.__dlpack_device__() == (2, 0)
            np.testing.assert_array_equal(values(driver, found), expected.to_numpy())
        assert "export the two columns of ragged()" in raised(BufferError, device[name].__dlpack__)
        assert device[name].type == host[name].type, (device[name].type, host[name].type)
    for name in ON_HOST:
        for options in ({}, {"missing": -1}, {"missing": "mask", "strings": "array"}):
            found, expected = device[name].to_numpy(**options), host[name].to_numpy(**options)
            assert type(found) is type(expected), name
            if isinstance(found, list):
                assert repr(found) == repr(expected), name
            else:
                np.testing.assert_array_equal(found, expected)
        assert device[name].to_list() == host[name].to_list(), name


def moves_of(batch: forebay.Batch) -> list[tuple[Any, bool]]:
    """Returns where a copy of a tensor to a device goes, and whether it returns before it has ended."""
    import torch

    moves: list[tuple[Any, bool]] = []

    def to(tensor: torch.Tensor, place: Any, non_blocking: bool) -> torch.Tensor:
        moves.append((place, non_blocking))
        return tensor

    with mock.patch.object(torch.Tensor, "to", to):
        batch["x"].to_torch("cuda:0")
    return moves


def with_torch(host: forebay.Batch, device: forebay.Batch) -> None:
    """Compares the tensors, except those that only a PyTorch with CUDA can import."""
    import torch

    for name in ON_HOST:
        found, expected = device[name].to_torch("cpu", missing="nan"), host[name].to_torch(missing="nan")
        assert type(found) is type(expected), name
        if torch.is_tensor(found) and not found.is_nested:
            assert torch.equal(found.nan_to_num(-7), expected.nan_to_num(-7)), name
    moves: list[Any] = []

    def to(tensor: torch.Tensor, place: Any, non_blocking: bool) -> torch.Tensor:
        moves.append((place, non_blocking))
        return tensor

    with mock.patch.object(torch.Tensor, "to", to):
        assert device["text"].to_torch() == host["text"].to_torch() and moves == []
        device["holes"].to_torch(missing=0)
        device["time"].to_torch("cuda:1")
        # The copies wait, because the memory may be received into again.
        assert moves == [("cuda:0", False), ("cuda:1", False)]


def with_jax(host: forebay.Batch, device: forebay.Batch) -> None:
    """Compares the arrays, except those that only a JAX with CUDA can import."""
    for name in (*ON_HOST, "items", "wide"):
        found, expected = device[name].to_jax(missing="nan"), host[name].to_jax(missing="nan")
        assert type(found) is type(expected), name
        if isinstance(found, list):
            assert repr(found) == repr(expected), name
        else:
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def main(url: str, library: str) -> None:
    driver = ctypes.CDLL(library)
    driver.driver_is_pinned.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    client = forebay.connect(url)
    request: dict[str, Any] = {"batch_size": 100, "seed": 3, "tensors": {"x": {"columns": ["n"], "dtype": "float32"}}}
    request["columns"] = ["n", "items", "wide", *ON_HOST]
    on_host, on_device = client.train("types", **request), client.train("types", **request, device="cuda", device_prefetch=3)
    frameworks = {"torch": with_torch, "jax": with_jax}
    present = [compare_arrays for name, compare_arrays in frameworks.items() if importlib.util.find_spec(name) is not None]
    steps = 0
    for host, device in zip(on_host, on_device):
        compare(driver, host, device)
        if steps == 0:
            for compare_arrays in present:
                compare_arrays(host, device)
        steps += 1
    assert steps == 10
    # A column of the host is valid after its batch and the training are gone.
    text, expected = device["text"], host["text"].to_list()
    on_device.close()
    del device
    assert text.to_list() == expected
    for pin_memory in (False, True):
        for batch in client.train("types", **request, pin_memory=pin_memory):
            array = batch["x"].to_numpy()
            assert (driver.driver_is_pinned(array.ctypes.data, array.nbytes) == 1) is pin_memory
            assert batch.device == "cpu"
            if importlib.util.find_spec("torch") is not None:
                assert moves_of(batch) == [("cuda:0", not pin_memory)]
    # The current context of the thread, which may belong to a framework, is unchanged.
    assert driver.driver_current() == 0
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
