"""Sources of the items of an iteration over a training dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from forebay import _forebay

WAS_RELOADED = "the dataset was closed or reloaded during the iteration"


class Source(Protocol):
    """The items of one iteration, beginning at the position of the dataset. The iteration moves the position."""

    def next(self) -> Any:
        """Waits for the item at the position.

        Raises:
            RuntimeError: The dataset was closed or reloaded.
            Exception: There is no item. The next iteration continues at this position.
        """

    def stop(self) -> None:
        """Ends the delivery, unless the next iteration continues with it."""


class Received:
    """The batches of one iteration, from the stream of the dataset.

    Args:
        dataset: The training dataset.
        last: End of the epochs that follow without a pause; None if the stream ends with the epoch.
    """

    def __init__(self, dataset: Any, last: int | None) -> None:
        self._dataset, self._last = dataset, last
        self.stream: _forebay.Stream | None = None

    def next(self) -> _forebay.Batch:
        """Waits for the batch at the position of the dataset. Opens the stream, unless it is open at this position.

        Raises:
            RuntimeError: The dataset was closed or reloaded.
        """
        stream = self.stream
        if stream is None:
            stream = self.stream = self._dataset._open(self._last)
        batch = next(stream, None)
        if batch is None:
            raise RuntimeError(WAS_RELOADED)
        return batch
