"""Sources of copies by JAX are kept until the copies are made, and batches of the host are not bound to it if JAX has a GPU."""

from __future__ import annotations

import weakref
from typing import Any
from unittest import mock

import numpy as np
import pytest

import forebay
from forebay import jax_copies

pytestmark = pytest.mark.once


class Copy:
    """The attributes of a `jax.Array` that tell whether it is made."""

    def __init__(self) -> None:
        self.made = self.deleted = False

    def is_ready(self) -> bool:
        if self.deleted:
            raise RuntimeError("Array has been deleted.")
        return self.made

    def is_deleted(self) -> bool:
        return self.deleted


class Source:
    """Memory that a copy reads."""


def pending(count: int) -> tuple[jax_copies._Pending, list[Copy], list[weakref.ref[Source]]]:
    """Returns copies that are not made, and their sources, to which only the pending copies refer."""
    made, copies, sources = jax_copies._Pending(), [], []
    for _ in range(count):
        copy, source = Copy(), Source()
        made.copies.append((copy, source))  # type: ignore[arg-type]
        copies.append(copy)
        sources.append(weakref.ref(source))
    return made, copies, sources


def released(found: jax_copies._Pending, sources: list[weakref.ref[Source]]) -> list[bool]:
    found.release()
    return [source() is None for source in sources]


def test_a_source_is_released_after_its_copy_and_those_before_it() -> None:
    found, copies, sources = pending(4)
    assert released(found, sources) == [False] * 4
    copies[0].made = True
    assert released(found, sources) == [True, False, False, False]
    # The device makes the copies in their order.
    copies[2].made = True
    assert released(found, sources) == [True, True, True, False]
    copies[3].made = True
    assert released(found, sources) == [True] * 4 and not found.copies
    assert released(found, sources) == [True] * 4


def test_a_copy_that_was_donated_keeps_its_source_until_a_later_copy_is_made() -> None:
    found, copies, sources = pending(2)
    copies[0].deleted = True
    assert released(found, sources) == [False, False]
    copies[1].made = True
    assert released(found, sources) == [True, True]


def test_copies_of_jax_have_their_own_memory(client: forebay.Client) -> None:
    jax = pytest.importorskip("jax", reason="jax is not in this environment; the other one has it")
    jax_copies._pending.clear()
    copies, expected = [], []
    for batch in client.train("flights", batch_size=500_000, tensors={"x": {"columns": ["delay"], "dtype": "float32"}}):
        view = batch["x"].to_numpy()
        copies.append(jax_copies.copied_by_jax(batch["x"]))
        expected.append(view.copy())
        jax.block_until_ready(copies)
        assert copies[-1].unsafe_buffer_pointer() != view.ctypes.data
        # At most the source of the last copy is kept.
        assert [len(each.copies) for each in jax_copies._pending.values()] == [1]
        del view
    assert len(copies) == 6
    for found, values in zip(copies, expected):
        np.testing.assert_array_equal(np.asarray(found), values)
    jax_copies._pending.clear()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_arrays_of_a_batch_on_the_host_go_to_the_default_device_of_jax(client: forebay.Client, backend: str) -> None:
    jax = pytest.importorskip("jax", reason="jax is not in this environment; the other one has it")
    batch = next(iter(client.train("flights", batch_size=1000, tensors={"x": {"columns": ["delay"], "dtype": "float32"}})))
    with mock.patch.object(jax, "default_backend", lambda: backend):
        found: Any = batch["x"].to_jax()
    np.testing.assert_array_equal(np.asarray(found), batch["x"].to_numpy())
    is_view = found.unsafe_buffer_pointer() == batch["x"].to_numpy().ctypes.data
    # An array that is bound to a device would make `jit` compute there.
    assert (is_view, found.committed) == ((True, True) if backend == "cpu" else (is_view, False))
