"""Lookups and requests to queues for asyncio."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Coroutine

import numpy as np
import pytest

import forebay
from forebay import _forebay, aio, errors, sending
from forebay.cluster import to_json
from ports import free_port
from server import Pool, Server, until

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

pytestmark = pytest.mark.once

USERS = 5000
LIMIT_S = 60

QUEUE = """
[online.users]
key = ["user_id"]
[queues.ranker.features]
dataset = "users"
columns = ["score"]
[queues.ranker.batching]
default_timeout = "60s"
"""


@pytest.fixture
def users(pool: Pool, tmp_path: Path) -> Server:
    ids = np.arange(USERS)
    pq.write_table(pa.table({"user_id": ids, "name": [f"user {id}" for id in ids], "score": ids * 2.0}), tmp_path / "users.parquet")
    (tmp_path / "forebay.toml").write_text(QUEUE)
    # Workers outlive their test. No later server uses this port, so they cannot connect to one.
    place = f"127.0.0.1:{free_port()}"
    return pool.start({"users": tmp_path / "users.parquet"}, config=tmp_path / "forebay.toml", grpc=place)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(main, LIMIT_S)

    return asyncio.run(limited())


async def names(client: aio.Client, ids: list[int], **options: Any) -> list[str]:
    rows = await client.lookup("users", {"user_id": ids}, columns=["name"], **options)
    return rows["name"].to_arrow().to_pylist()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def start_worker(server: Server, model: Callable[[forebay.InferenceBatch], None]) -> None:
    def work() -> None:
        try:
            for batch in forebay.connect(server.location, retry_deadline=60).worker("ranker"):
                model(batch)
        except forebay.Error:
            pass  # The server was stopped.

    threading.Thread(target=work, daemon=True).start()


def test_concurrent_lookups_return_their_own_rows(users: Server) -> None:
    async def main() -> None:
        client = aio.connect(users.location, max_in_flight=16)
        assert repr(client).startswith("<forebay.aio.Client of grpc://")
        asked = [[id, id + 1] for id in range(500)]
        found = await asyncio.gather(*(names(client, ids) for ids in asked))
        assert found == [[f"user {id}" for id in ids] for ids in asked]
        assert await names(pickle.loads(pickle.dumps(client)), [7]) == ["user 7"]

    run(main())


@pytest.mark.alone
def test_calls_in_flight_need_no_thread_each(users: Server) -> None:
    async def main() -> None:
        client = aio.connect(users.location)
        assert await names(client, [1]) == ["user 1"]
        before = threads()
        asked = [asyncio.ensure_future(client.infer("ranker", {"user_id": [id]})) for id in range(200)]
        # Without a worker, all of them wait.
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in asked) and threads() == before
        for each in asked:
            each.cancel()
        assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*asked, return_exceptions=True))

    run(main())


def test_a_request_to_a_queue_returns_the_reply_of_its_worker(users: Server) -> None:
    start_worker(users, lambda batch: batch.reply({"doubled": batch["score"].to_numpy() * 2}))

    async def main() -> None:
        client = aio.connect(users.location)
        found = await asyncio.gather(*(client.infer("ranker", {"user_id": [id]}) for id in range(50)))
        assert [rows["doubled"].to_numpy().tolist() for rows in found] == [[id * 4.0] for id in range(50)]
        with pytest.raises(errors.RequestError, match="priority is 'high'"):
            await client.infer("ranker", {"user_id": [1]}, priority="high")

    run(main())


def test_a_cancelled_request_gives_its_place_to_another_one(users: Server) -> None:
    async def main() -> None:
        client = aio.connect(users.location, max_in_flight=1)
        first = asyncio.ensure_future(client.infer("ranker", {"user_id": [1]}))
        await asyncio.sleep(0.1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        start_worker(users, lambda batch: batch.reply({"users": batch["score"].to_numpy()}))
        rows = await client.infer("ranker", {"user_id": [2]})
        assert rows["users"].to_numpy().tolist() == [4.0]

    run(main())


def test_errors_are_those_of_the_blocking_client(users: Server) -> None:
    async def main() -> None:
        client = aio.connect(users.location)
        with pytest.raises(errors.NotFoundError):
            await client.lookup("usrs", {"user_id": [1]})
        with pytest.raises(errors.RequestError, match="expected a dict of columns"):
            await client.lookup("users", [1])
        with pytest.raises(errors.RequestError, match="f9"):
            await client.lookup("users", {"user_id": [1]}, columns=["f9"])
        # This request opens the exchange, so the timeout of the next request does not include the time for that.
        with pytest.raises(errors.RequestRejectedError, match="4096"):
            await client.infer("ranker", {"user_id": [0] * 5000})
        with pytest.raises(errors.RequestRejectedError) as rejected:
            await client.infer("ranker", {"user_id": [1]}, timeout=3)
        assert rejected.value.code == "DEADLINE_EXCEEDED"
        assert await names(client, [3]) == ["user 3"]

    run(main())
    with pytest.raises(TypeError, match="no_option"):
        aio.connect(users.location, no_option=1)


def test_a_server_that_does_not_answer_is_a_deadline_error_after_the_timeout() -> None:
    async def main(url: str) -> None:
        client = aio.connect(url)
        late = [client.lookup("users", {"user_id": [id]}, timeout=0.2) for id in range(3)]
        for error in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(error, errors.DeadlineError), error

    with socket.create_server(("127.0.0.1", 0)) as silent:
        run(main(f"grpc://127.0.0.1:{silent.getsockname()[1]}"))


def test_a_client_serves_several_event_loops(users: Server) -> None:
    client = aio.connect(users.location)
    for id in range(3):
        assert run(names(client, [id])) == [f"user {id}"]


def test_a_loop_that_is_closed_before_the_answer_does_not_disturb_others(users: Server) -> None:
    client = aio.connect(users.location, max_in_flight=1)

    async def abandon() -> None:
        asyncio.ensure_future(client.infer("ranker", {"user_id": [1]}))
        await asyncio.sleep(0.05)

    asyncio.run(abandon())
    assert run(names(client, [5])) == ["user 5"]


@pytest.mark.alone
def test_a_client_can_be_collected_on_the_native_thread(users: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    before, native, called = threads(), [_forebay.Cluster([users.location], {})], threading.Event()

    def done(answer: Any, error: Exception | None) -> None:
        assert error is None and len(answer[0]) == 1
        native.clear()
        called.set()

    native[0].start_lookup(done, to_json({"lookup": {"dataset": "users"}}), sending.keys({"user_id": [1]}), None)
    assert called.wait(60)
    until(lambda: threads() == before)
    assert not raised


@pytest.mark.alone
def test_a_dropped_client_leaves_no_thread(users: Server) -> None:
    before = threads()
    run(names(aio.connect(users.location), [1]))
    # The kernel lists a joined thread for a moment longer.
    until(lambda: threads() == before)
