"""One epoch of a training dataset as an Arrow stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from forebay import _forebay
    from forebay.batch import Batch


def epoch_stream(plan: _forebay.Plan, batches: Iterator[Batch]) -> Any:
    """Exports the batches of an iteration by the Arrow PyCapsule interface.

    The iteration begins with the first read of the consumer, so that a consumer that only asks for the schema skips no epoch. It
    ends with the epoch, or when the consumer releases the stream.

    Args:
        plan: Plan of the batches, which has their schema.
        batches: Iteration over one epoch, which has not begun.

    Returns:
        A capsule with the name `arrow_array_stream`.
    """
    return plan.arrow_stream(batch._batch for batch in batches)
