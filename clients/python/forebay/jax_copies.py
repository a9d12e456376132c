"""Copies of device memory by JAX."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

# Copies that the device has perhaps not made yet, and the memory that they read.
_pending: deque[tuple[jax.Array, jax.Array]] = deque()


def copied_by_jax(column: Any) -> jax.Array:
    """Returns a copy of a column in the memory of JAX.

    JAX computes on streams of its own, and may release a foreign array while kernels that read it are still queued. The source
    of the copy is therefore kept until the copy is made. This does not block: sources of earlier copies are released by the
    next call.
    """
    import jax.numpy as jnp

    while _pending and _pending[0][0].is_ready():
        _pending.popleft()
    source = jnp.from_dlpack(column)
    copy = jnp.array(source, copy=True)
    _pending.append((copy, source))
    return copy
