"""A stopping server answers the lookups that it has received, and waits for no request that its client leaves open."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import FAILURES, Client, refused, status_of
from hanging import HangingFolder
from online import Online
from preload import compiled
from server import Pool, until
from test_lookups import Lookup
from test_unary import get

USERS = 1000
# A deadline of the store must not end a lookup.
SETTINGS = '[storage]\nrequest_timeout = "1h"\n'
KEYS = [{"name": "user_id", "integers": [3, 7]}]
TIMEOUT_S = 60


def test_a_reflection_stream_that_its_client_leaves_open_does_not_delay_the_end_of_the_server(pool: Pool) -> None:
    server = pool.start({}, grace_period="1h")
    requested = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"\x3a\x01*"
        requested.wait(TIMEOUT_S)

    with Online(server.grpc) as online:
        reflect = online.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        answers = reflect(requests())
        assert b"forebay.v1.Online" in next(answers)
        try:
            assert server.stop() == 0
        finally:
            requested.set()


def test_lookups_that_run_at_sigterm_are_answered_and_loading_actions_end(pool: Pool, tmp_path: Path) -> None:
    # A hanging disk keeps them running until after SIGTERM.
    rows = {"user_id": range(USERS), **{name: range(USERS) for name in ("unary", "ticket", "exchange", "warmed")}}
    (tmp_path / "users").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "users" / "0.parquet")
    (tmp_path / "forebay.toml").write_text(SETTINGS)
    hanging = HangingFolder(tmp_path / "users", compiled("hang", tmp_path, "-ldl"), tmp_path / "hangs")
    server = pool.start(
        {"users": tmp_path / "users"},
        online="users=user_id",
        config=tmp_path / "forebay.toml",
        cache_disk=0,
        grace_period="60s",
        env=hanging.environment,
    )
    used = lambda: {each["resource"]: each["used"] for each in json.loads(server.http_get("/api/v1/callers")[1])["resources"]}
    with ThreadPoolExecutor(8) as executor, Client(server.location) as client, Online(server.grpc) as online:
        try:
            hanging.hang()
            # Each reads a column of its own, which is not in memory.
            unary = executor.submit(online, dataset="users", columns=["unary"], keys=KEYS)
            ticket = executor.submit(get, Client(server.location), dataset="users", columns=["ticket"], keys=KEYS)
            warm = {"train": {"dataset": "users", "batch_size": 10, "columns": ["warmed"]}}
            warmed = executor.submit(Client(server.location).action, "warm", warm)
            exchange = Lookup(client, dataset="users", columns=["exchange"])
            for start in range(3):
                exchange.send(user_id=[start, start + 1])
            # The connection delivers in order, so that the keys have arrived before this call.
            client.flight.get_schema(flight.FlightDescriptor.for_path("users"))
            until(lambda: (used()["calls"], used()["exchanges"]) == (3, 1), failure=lambda: str(used()))
            server.terminate()

            def rejects_calls() -> bool:
                try:
                    client.flight.get_schema(flight.FlightDescriptor.for_path("users"))
                except FAILURES as error:
                    return status_of(error) == "UNAVAILABLE"
                return False

            until(rejects_calls)
            with refused("UNAVAILABLE", "the server is stopping"):
                warmed.result(TIMEOUT_S)
            assert not unary.done() and not ticket.done(), "the disk does not hang"
        finally:
            hanging.answer()
        assert unary.result(TIMEOUT_S).metadata.found == 2
        assert ticket.result(TIMEOUT_S)[0]["ticket"].to_pylist() == [3, 7]
        for start in range(3):
            assert exchange.receive()[0]["exchange"].to_pylist() == [start, start + 1]
        with refused("UNAVAILABLE", "the server is stopping"):
            exchange.receive()
    assert server.wait() == 0
