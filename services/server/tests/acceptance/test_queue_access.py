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
from server import Pool, Server, until

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
    "worker": {"datasets": ["items"], "serves": ["ranker"]},
    "other-worker": {"datasets": ["users"], "serves": ["other-*"]},
}
ALLOWED, DENIED, UNKNOWN = "OK", "PERMISSION_DENIED", "UNAUTHENTICATED"
# Status of an exchange for each token.
ACCESS = {
    "infer": {"reader": ALLOWED, "stranger": DENIED, "worker": DENIED, "other-worker": ALLOWED, "unknown": UNKNOWN},
    "lookup": {"reader": ALLOWED, "stranger": DENIED, "worker": DENIED, "other-worker": ALLOWED, "unknown": UNKNOWN},
    "worker": {"reader": DENIED, "stranger": DENIED, "worker": ALLOWED, "other-worker": DENIED, "unknown": UNKNOWN},
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

    new = path.with_suffix(".new")
    new.write_text("\n".join(entry(name, rights) for name, rights in tokens.items()))
    new.replace(path)


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


def exchange(stack: contextlib.ExitStack, server: Server, kind: str, token: str) -> tuple[Any, Any]:
    """Opens an exchange and returns its ends when the server has accepted it."""
    client = stack.enter_context(fl.connect(server.location))
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    descriptor = fl.FlightDescriptor.for_command(json.dumps(COMMANDS[kind]))
    writer, reader = client.do_exchange(descriptor, options)
    stack.callback(reader.cancel)
    if kind != "worker":
        writer.begin(pa.schema([("user_id", pa.int64())]))
    _ = reader.schema
    return writer, reader


@pytest.mark.parametrize("kind", ACCESS)
def test_each_kind_of_exchange_requires_its_permission(guarded: tuple[Server, Path], kind: str) -> None:
    server, _ = guarded
    found = {}
    for token in ACCESS[kind]:
        with contextlib.ExitStack() as stack:
            try:
                exchange(stack, server, kind, token)
                found[token] = ALLOWED
            except (fl.FlightError, pa.ArrowException) as error:
                found[token] = status_of(error)
    assert found == ACCESS[kind]


@pytest.mark.parametrize(("kind", "token"), [("infer", "reader"), ("lookup", "reader"), ("worker", "worker")])
def test_an_exchange_ends_when_its_token_is_revoked(guarded: tuple[Server, Path], kind: str, token: str) -> None:
    server, tokens = guarded
    with contextlib.ExitStack() as stack:
        writer, reader = exchange(stack, server, kind, token)
        write_tokens(tokens, {name: rights for name, rights in TOKENS.items() if name != token})
        keys = pa.record_batch({"user_id": pa.array([7], pa.int64())})

        def is_rejected() -> bool:
            with contextlib.ExitStack() as again:
                try:
                    exchange(again, server, kind, token)
                except (fl.FlightError, pa.ArrowException) as error:
                    return status_of(error) == UNKNOWN
                return False

        until(is_rejected)
        with pytest.raises((fl.FlightError, pa.ArrowException)) as caught:
            for _ in range(2):
                if kind == "worker":
                    # The worker of a queue without requests only waits.
                    ask(stack, server)
                else:
                    writer.write_with_metadata(keys, b"{}")
                chunk = reader.read_chunk()
                error = json.loads(chunk.app_metadata.to_pybytes()).get("error") if chunk.app_metadata else None
                assert error is not None, "the exchange answered although its token was revoked"
        assert status_of(caught.value) == UNKNOWN, caught.value


def ask(stack: contextlib.ExitStack, server: Server) -> None:
    """Sends a request to the queue, which a worker would receive."""
    writer, _ = exchange(stack, server, "infer", "reader")
    writer.write_with_metadata(pa.record_batch({"user_id": pa.array([7], pa.int64())}), b"{}")


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
