"""Lookups and requests to batch queues for asyncio.

    from forebay import aio

    client = aio.connect("grpc://127.0.0.1:8815")
    rows = await client.lookup("users", {"user_id": [7, 42]}, columns=["name"])

Any number of calls can be in flight. They need no thread each: one native thread receives all answers and wakes the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Literal, Mapping, Sequence

from forebay import _forebay, sending
from forebay.client import Client as BlockingClient
from forebay.client import Tensors, is_low_priority, lookup_command
from forebay.client import connect as connect_blocking
from forebay.online import Rows

Answer = tuple[_forebay.Batch, str]
Done = Callable[["Answer | None", "Exception | None"], None]


def connect(*urls: str, **options: Any) -> Client:
    """Returns a client of the cluster whose servers are at `urls`. Does not block: connections are opened on demand.

    Args:
        *urls: URLs of the servers, the preferred one first, as in `forebay.connect`.
        **options: Options of `forebay.connect`.

    Returns:
        A client. It can be pickled, forked, and used by several event loops.

    Raises:
        RequestError: A URL or an option is invalid.
        TypeError: There is no such option.
        ValueError: A duration is negative.
    """
    return Client(connect_blocking(*urls, **options))


class Client:
    """A client for asyncio, as `connect` returns it. It shares the connections of the client that it is created from."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client).replace("<forebay.", "<forebay.aio.", 1)

    async def lookup(
        self,
        dataset: str,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        tensors: Tensors | None = None,
        select: Sequence[str] | None = None,
        filter: str | None = None,
        max_age_seconds: float | None = None,
        key: Sequence[str] | None = None,
        joins: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Returns one row per key, in the order of the keys, with the same values as in training.

        If the task is cancelled, its request no longer counts towards `max_in_flight` once the server has answered it, or has
        sent nothing for `attempt_timeout`.

        Args:
            dataset: Name of a dataset that the server offers for lookups.
            keys: Keys, as in `forebay.Client.lookup`.
            columns: Plain columns, as in `forebay.Client.train`.
            tensors: Tensors, as in `forebay.Client.train`.
            select: SQL expressions, as in `forebay.Client.train`.
            filter: Row condition in SQL. A key whose row does not match counts as missing.
            max_age_seconds: Maximum time in seconds since the snapshot was last verified to be current. Default: no limit.
            key: Columns of `keys` that are the dataset's key, in the order of the key.
            joins: Rows of further datasets, as in `forebay.Client.lookup`.
            timeout: Time limit for the answer in seconds, including all attempts. Default: `retry_deadline`, which also limits it.

        Returns:
            The rows, with the snapshot that they are from.

        Raises:
            DeadlineError: No server answered in time.
            Error: Any other error of `forebay.Client.lookup`.
        """
        command = lookup_command(dataset, columns, tensors, select, filter, max_age_seconds, key, joins)
        native, sent = self._client._cluster.native, sending.keys(keys)
        return await _answer(lambda done: native.start_lookup(done, command, sent, timeout))

    async def infer(
        self, queue: str, keys: Any, *, timeout: float | None = None, priority: Literal["normal", "low"] = "normal"
    ) -> Rows:
        """Returns one row per key, as the workers of a batch queue compute them.

        A request is not sent a second time. If the task is cancelled, the request leaves the queue.

        Args:
            queue: Name of the queue.
            keys: Keys of the features and request columns, as in `forebay.Client.infer`.
            timeout: Time limit for the answer in seconds. Default: the queue's `default_timeout`.
            priority: A request of low priority waits for the others, and is the first to be rejected when the queue is full.

        Returns:
            The rows of the reply. Names and types of the columns depend on the workers.

        Raises:
            RequestRejectedError: There is no answer: the queue is full, the timeout expired, or the worker failed.
            UnavailableError: The connection was lost after the request was sent.
        """
        is_low = is_low_priority(priority)
        native, sent = self._client._cluster.native, sending.keys(keys)
        return await _answer(lambda done: native.start_infer(done, queue, sent, timeout, is_low))


async def _answer(start: Callable[[Done], _forebay.Request]) -> Rows:
    """Starts a request and waits for its answer. Cancels the request if the waiting task is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def done(answer: Answer | None, error: Exception | None) -> None:
        # Called on the native thread.
        try:
            loop.call_soon_threadsafe(_settle, future, answer, error)
        except RuntimeError:
            pass  # The loop was closed, so nothing waits for the answer.

    request = start(done)
    try:
        return Rows(*await future)
    finally:
        request.cancel()


def _settle(future: asyncio.Future[Answer], answer: Answer | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    elif answer is not None:
        future.set_result(answer)
