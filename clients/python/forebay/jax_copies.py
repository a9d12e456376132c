"""Copies of device memory by JAX."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


class _Pending:
    """Copies of one device that are perhaps not made yet, in their order, with the memory that they read."""

    def __init__(self) -> None:
        self.copies: deque[tuple[jax.Array, jax.Array]] = deque()

    def release(self) -> None:
        """Releases the sources of all copies up to the last one that is known to be made."""
        for made in range(len(self.copies), 0, -1):
            # JAX has no types for its method is_ready.
            copy: Any = self.copies[made - 1][0]
            # A copy that a computation has taken over does not say whether it is made.
            if not copy.is_deleted() and copy.is_ready():
                for _ in range(made):
                    self.copies.popleft()
                return


_lock = threading.Lock()
_pending: dict[Any, _Pending] = {}


def copied_by_jax(column: Any) -> jax.Array:
    """Returns a copy of a column in the memory of JAX.

    JAX computes on streams of its own, and may release a foreign array while kernels that read it are still queued. The source
    of the copy is therefore kept until the copy is made. This does not block: sources of earlier copies are released by later
    calls.
    """
    import jax.numpy as jnp

    source = jnp.from_dlpack(column)
    with _lock:
        pending = _pending.setdefault(source.device, _Pending())
        pending.release()
        copy = jnp.array(source, copy=True)
        pending.copies.append((copy, source))
    return copy


def to_jax_device(found: Any, number: int) -> Any:
    """Returns a JAX array on the CUDA device with this number, if JAX has it. Other objects stay as they are."""
    import jax

    if not isinstance(found, jax.Array):
        return found
    devices = [device for device in jax.local_devices() if device.platform == "gpu" and device.local_hardware_id == number]
    return jax.device_put(found, devices[0]) if devices else found
