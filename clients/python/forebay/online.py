"""What comes of lookups and queues: rows, and batches to compute."""

from __future__ import annotations

import json
import logging
from typing import Any, Iterator

from forebay import _forebay, sending
from forebay.batch import Batch

LOG = logging.getLogger("forebay")


class Rows(Batch):
    """The rows of some keys, in their order, with what the server says of them."""

    __slots__ = ("_about",)

    def __init__(self, batch: _forebay.Batch, about: str) -> None:
        super().__init__(batch)
        self._about = about

    def __repr__(self) -> str:
        return f"<forebay.Rows: {len(self)} of {', '.join(self.keys())}>"

    @property
    def about(self) -> dict[str, Any]:
        """The server's LookupMetadata, InferResult or BatchRequest, with the names of docs/protocol.md."""
        return json.loads(self._about)

    @property
    def snapshot(self) -> str:
        """The snapshot that they, or the features they were made of, are of."""
        return self._features.get("snapshot", "")

    @property
    def age(self) -> float | None:
        """Seconds since that snapshot was last seen to be the current one, if that is known."""
        return self._features.get("age")

    @property
    def _features(self) -> dict[str, Any]:
        about = self.about
        return about.get("features", about)


class Work(Rows):
    """A batch to compute: features in `wanted` rows, and behind them others that pad it. It has one reply."""

    __slots__ = ("_work", "_wanted")

    def __init__(self, work: _forebay.Work) -> None:
        super().__init__(work.batch, work.about)
        self._work, self._wanted = work, int(self.about.get("rows", 0))

    def __repr__(self) -> str:
        return f"<forebay.Work: {self._wanted} rows of {', '.join(self.keys())}>"

    @property
    def wanted(self) -> int:
        """The rows that are asked for: the first ones."""
        return self._wanted

    @property
    def seconds_left(self) -> float:
        """Seconds in which the most urgent of its requests is to be answered, when it was sent."""
        return float(self.about.get("seconds_left", 0.0))

    def reply(self, rows: Any) -> None:
        """Sends the answer: a row for each wanted one, or for all that the batch has. An array (NumPy, PyTorch, JAX) of
        `[rows]` or `[rows, values]` is the column "score"; a dict of arrays are columns by name; an Arrow batch is what it is.
        Of all replies the columns are the same. It does not wait.

        Raises RequestError for what is no reply to this batch; its callers get that as an error. If the server is gone, another
        worker has the batch: that is logged, and the loop goes on."""
        if not self._work.reply(sending.reply(rows)):
            LOG.warning("the server of a batch is gone, its reply is of no use; another worker has it")

    def fail(self, why: str) -> None:
        """Tells the callers that there is no answer, and why."""
        self._work.fail(why)


def works(serving: _forebay.Serving) -> Iterator[Work]:
    """The batches of a queue. What has no reply when the next one is asked for, or when the loop is left, has failed."""
    try:
        for received in serving:
            work = Work(received)
            try:
                yield work
            finally:
                if received.fail("the worker went on without a reply"):
                    LOG.warning("%r had no reply: its callers got an error", work)
    finally:
        serving.close()
