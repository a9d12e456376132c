"""Access to batch queues: who may ask, who may answer, and what ends when a token is revoked."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from client import status_of
from server import Pool, Server, replace, until

QUEUE = """
[online.users]
key = ["user_id"]
[queues.ranker.features]
dataset = "users"
columns = ["x"]
"""
# Tokens with their permissions in the token file.
TOKENS = {
    "reader": {"datasets": ["users"]},
    "stranger": {"datasets": ["items"]},
    "worker": {"datasets": ["users"], "serves": ["ranker"]},
    "blind-worker": {"datasets": ["items"], "serves": ["ranker"]},
    "other-worker": {"datasets": ["users"], "serves": ["other-*"]},
}
ALLOWED, DENIED, HIDDEN, UNKNOWN = "OK", "PERMISSION_DENIED", "NOT_FOUND", "UNAUTHENTICATED"
# Status of an exchange for each token: reader, stranger, worker, blind-worker, other-worker, unknown. A queue is hidden from
# tokens that may not read its features.
ACCESS = {
    "infer": (ALLOWED, HIDDEN, ALLOWED, HIDDEN, ALLOWED, UNKNOWN),
    "lookup": (ALLOWED, DENIED, ALLOWED, DENIED, ALLOWED, UNKNOWN),
    "worker": (DENIED, HIDDEN, ALLOWED, HIDDEN, DENIED, UNKNOWN),
}
COMMANDS = {
    "infer": {"infer": {"queue": "ranker"}},
    "lookup": {"lookup": {"dataset": "users"}},
    "worker": {"worker": {"queue": "ranker"}},
}


def write_tokens(path: Path, tokens: dict[str, dict[str, list[str]]]) -> None:
    def entry(name: str, rights: dict[str, list[str]]) -> str:
        fields = {"sha256": hashlib.sha256(name.encode()).hexdigest(), **rights}
        return "\n".join([f"[{name}]", *(f"{field} = {json.dumps(value)}" for field, value in fields.items())])

    replace(path, "\n".join(entry(name, rights) for name, rights in tokens.items()))


@pytest.fixture
def guarded(pool: Pool, tmp_path: Path) -> tuple[Server, Path]:
    users = tmp_path / "users"
    users.mkdir()
    pq.write_table(pa.table({"user_id": np.arange(1000), "x": np.arange(1000) / 2}), users / "a.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text(f'credentials_reload_interval = "100ms"\n{QUEUE}')
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, TOKENS)
    return pool.start({"users": users}, config=config, tokens=tokens), tokens


KEYS = pa.record_batch({"user_id": pa.array([7], pa.int64())})
# Without a worker, a request to the queue is soon answered with an error.
REQUEST = b'{"timeout_seconds": 0.1}'


def exchange(stack: contextlib.ExitStack, server: Server, kind: str, token: str) -> tuple[Any, Any]:
    """Opens an exchange and returns its ends when the server has accepted it."""
    client = stack.enter_context(fl.connect(server.location))
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    descriptor = fl.FlightDescriptor.for_command(json.dumps(COMMANDS[kind]))
    writer, reader = client.do_exchange(descriptor, options)
    stack.callback(reader.cancel)
    writer.begin(KEYS.schema)
    if kind == "infer":
        writer.write_with_metadata(KEYS, REQUEST)
        reader.read_chunk()
    else:
        _ = reader.schema
    return writer, reader


@pytest.mark.parametrize("kind", ACCESS)
def test_each_kind_of_exchange_requires_its_permission(guarded: tuple[Server, Path], kind: str) -> None:
    server, _ = guarded
    found = {}
    for token in [*TOKENS, "unknown"]:
        with contextlib.ExitStack() as stack:
            try:
                exchange(stack, server, kind, token)
                found[token] = ALLOWED
            except (fl.FlightError, pa.ArrowException) as error:
                found[token] = status_of(error)
    assert tuple(found.values()) == ACCESS[kind], found


@pytest.mark.parametrize(("kind", "token"), [("infer", "reader"), ("lookup", "reader"), ("worker", "worker")])
def test_an_exchange_ends_when_its_token_is_revoked(guarded: tuple[Server, Path], kind: str, token: str) -> None:
    server, tokens = guarded
    with contextlib.ExitStack() as stack:
        writer, reader = exchange(stack, server, kind, token)
        write_tokens(tokens, {name: rights for name, rights in TOKENS.items() if name != token})
        def is_rejected() -> bool:
            with contextlib.ExitStack() as again:
                try:
                    exchange(again, server, kind, token)
                except (fl.FlightError, pa.ArrowException) as error:
                    return status_of(error) == UNKNOWN
                return False

        def ask() -> None:
            # The metadata of keys and of requests differ.
            writer.write_batch(KEYS) if kind == "lookup" else writer.write_with_metadata(KEYS, REQUEST)

        until(is_rejected)
        with pytest.raises((fl.FlightError, pa.ArrowException)) as caught:
            if kind == "worker":
                # A request of a permitted caller is not sent to the worker.
                exchange(stack, server, "infer", "reader")
            else:
                ask()
            while True:
                reader.read_chunk()
                if kind != "worker":
                    ask()
        assert status_of(caught.value) == UNKNOWN, caught.value


def test_reports_are_accepted_only_with_a_token(guarded: tuple[Server, Path]) -> None:
    server, _ = guarded
    found = {}
    for token in ["reader", "unknown"]:
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
        with fl.connect(server.location) as client:
            try:
                list(client.do_action(fl.Action("report", b'{"session": 1}'), options))
                found[token] = ALLOWED
            except (fl.FlightError, pa.ArrowException) as error:
                found[token] = status_of(error)
    assert found["unknown"] == UNKNOWN
    assert found["reader"] not in (UNKNOWN, DENIED)


def test_events_of_workers_name_the_token_and_not_the_address(guarded: tuple[Server, Path]) -> None:
    server, _ = guarded

    def messages(kind: str) -> list[str]:
        status, body = server.http_get("/api/v1/events", authorization="Bearer reader")
        assert status == 200, body
        return [event["message"] for event in json.loads(body)["events"] if event["kind"] == kind]

    with contextlib.ExitStack() as stack:
        exchange(stack, server, "worker", "worker")
        until(lambda: messages("worker_joined") == ["worker 0 (token 'worker') connected, credits 2"])
    until(lambda: messages("worker_left") == ["worker 0 (token 'worker') disconnected"])
