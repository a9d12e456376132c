"""Results of lookups and batch queues, and the batches that a worker computes."""

from __future__ import annotations

import json
import logging
import weakref
from collections import deque
from typing import Any, Iterator

from forebay import _forebay, sending
from forebay.batch import Batch

LOG = logging.getLogger("forebay")


class Rows(Batch):
    """One row per key, in the order of the keys, with the metadata of the answer."""

    __slots__ = ("_metadata",)

    def __init__(self, batch: _forebay.Batch, metadata: str) -> None:
        super().__init__(batch)
        self._metadata = metadata

    def __repr__(self) -> str:
        return f"<forebay.Rows: {len(self)} of {', '.join(self.keys())}>"

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the answer, with the field names of the protocol.

        LookupMetadata for `Client.lookup`, InferResult for `Client.infer`, and BatchRequest for `Client.worker`.
        """
        return json.loads(self._metadata)

    @property
    def snapshot(self) -> str:
        """Id of the snapshot of the rows, or of the features that they were computed from. Empty if there is none."""
        return self._lookup_metadata.get("snapshot", "")

    @property
    def snapshot_age_seconds(self) -> float | None:
        """Seconds since the server last verified that this snapshot is current. None if unknown."""
        return self._lookup_metadata.get("snapshot_age_seconds")

    @property
    def _lookup_metadata(self) -> dict[str, Any]:
        metadata = self.metadata
        return metadata.get("features", metadata)


class InferenceBatch(Rows):
    """A batch of features that a worker has to compute. It has exactly one reply.

    The first `valid_rows` rows are requested; the rows after them pad the batch.
    """

    __slots__ = ("_native", "_valid_rows", "__weakref__")

    def __init__(self, native: _forebay.InferenceBatch) -> None:
        super().__init__(native.batch, native.metadata)
        self._native, self._valid_rows = native, int(self.metadata.get("valid_rows", 0))
        # A batch that is released without a reply fails at once, although the iterator keeps its native part.
        weakref.finalize(self, _end, native, repr(self)).atexit = False

    def __repr__(self) -> str:
        return f"<forebay.InferenceBatch: {self._valid_rows} rows of {', '.join(self.keys())}>"

    @property
    def valid_rows(self) -> int:
        """Number of requested rows, which come first. At most `num_rows`."""
        return self._valid_rows

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the batch's most urgent request, at the time when the server sent the batch."""
        return float(self.metadata.get("seconds_left", 0.0))

    def reply(self, rows: Any) -> None:
        """Sends the reply, without waiting for the server.

        If the server has disconnected, another worker receives the batch. The reply is then discarded with a warning in the log. So is
        a reply that is larger than `limits.max_exchange_bytes` of the server (16 MiB). The batch has then failed, and the server divides
        its requests into smaller batches.

        Args:
            rows: One row per valid row, or one per row of the batch. A NumPy, PyTorch or JAX array of shape `[rows]`
                or `[rows, values]` becomes the column `score`. A dict maps column names to arrays. An Arrow batch or table of
                any library is sent unchanged. All replies to a queue must have the same columns. 64-bit integers and floats, and columns of
                None, are converted to the type of the first reply if it holds them exactly.

        Raises:
            RequestError: The rows do not match the batch. Its requests fail with this error.
            RuntimeError: The batch already has a reply.
        """
        discarded = self._native.reply(sending.reply(rows))
        if discarded is not None:
            LOG.warning("reply discarded: %s", discarded)

    def fail(self, message: str) -> None:
        """Fails the requests of the batch. Has no effect after a reply.

        Args:
            message: Error message that the callers receive.
        """
        self._native.fail(message)


def inference_batches(worker: _forebay.Worker, max_unanswered: int) -> Iterator[InferenceBatch]:
    """Iterates over the batches of a queue.

    When the next batch is requested and `max_unanswered` batches have no reply, the oldest of them fails. All of them fail at
    the end of the iteration.
    """
    unanswered: deque[_forebay.InferenceBatch] = deque()
    try:
        for native in worker:
            unanswered.append(native)
            yield InferenceBatch(native)
            unanswered = deque(batch for batch in unanswered if batch.is_open)
            while len(unanswered) >= max_unanswered:
                _end(unanswered.popleft(), "a batch")
    finally:
        for native in unanswered:
            _end(native, "a batch")
        worker.close()


def _end(native: _forebay.InferenceBatch, description: str) -> None:
    """Fails a batch that has no reply."""
    if native.fail("the worker did not reply to the batch"):
        LOG.warning("%s failed: the worker did not reply", description)
