"""The audit log has a line for each attempt to change something, permitted or not, with the caller, the object and the error."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from api import tune
from client import FAILURES, command
from server import Pool, Server

# The operator may do everything, the reader reads another dataset.
TOKENS = {"operator": 'datasets = ["*"]\nadmin = true', "reader": 'datasets = ["items"]'}
QUEUE = '[online.users]\nkey = ["user_id"]\n[queues.ranker.features]\ndataset = "users"\ncolumns = ["x"]\n'
TRAIN = command(dataset="users", batch_size=10)


@pytest.fixture(scope="module")
def server(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("audit")
    pq.write_table(pa.table({"user_id": np.arange(1000), "x": np.arange(1000) / 2}), folder / "users.parquet")
    digest = lambda name: hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
    entries = (f'[{name}]\nsha256 = "{digest(name)}"\n{rights}\n' for name, rights in TOKENS.items())
    (folder / "tokens.toml").write_text("".join(entries))
    (folder / "forebay.toml").write_text(QUEUE)
    return module_pool.start({"users": folder / "users.parquet"}, config=folder / "forebay.toml", tokens=folder / "tokens.toml")


def act(name: str, body: bytes) -> Callable[[Server, str], bool]:
    def call(server: Server, token: str) -> bool:
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer token-of-{token}".encode())])
        try:
            with flight.connect(server.location) as client:
                list(client.do_action(flight.Action(name, body), options))
        except FAILURES:
            return False
        return True

    return call


def patch(change: dict, query: str = "") -> Callable[[Server, str], bool]:
    return lambda server, token: tune(server, change, token, query).status == 200


# The changes, each with the action and the object in the log.
CHANGES: dict[str, tuple[Callable[[Server, str], bool], str, str]] = {
    "refresh": (act("refresh", b'{"dataset": "users"}'), "refresh", "users"),
    "drop-cache": (act("drop-cache", b'{"dataset": "users"}'), "drop-cache", "users"),
    "warm": (act("warm", TRAIN), "warm", "users"),
    "pin": (act("pin", TRAIN), "pin", "users"),
    "unpin": (act("unpin", TRAIN), "unpin", "users"),
    "pin-lookups": (act("pin-lookups", b'{"dataset": "users"}'), "pin-lookups", "users"),
    "queue settings": (patch({"max_batch_rows": 512}), "queue settings", "ranker"),
}


def logged(server: Server, from_line: int) -> list[str]:
    return [line for line in server.log().splitlines()[from_line:] if " audit: " in line]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("change", CHANGES)
def test_each_attempt_to_change_something_is_logged_once(server: Server, change: str, token: str) -> None:
    call, action, on = CHANGES[change]
    if change == "unpin":
        assert act("pin", TRAIN)(server, "operator")
    before = len(server.log().splitlines())
    assert call(server, token) == (token == "operator")
    (line,) = logged(server, before)
    for field in (f"token '{token}'", "127.0.0.1", f'action="{action}"', f'object="{on}"'):
        assert field in line, line
    # Why it was refused.
    assert ("error=" in line and re.search("may not (read|change)", line) is not None) == (token == "reader"), line


def test_an_invalid_change_of_a_queue_is_logged_and_a_dry_run_is_not(server: Server) -> None:
    before = len(server.log().splitlines())
    assert not patch({"max_batch_rows": 0})(server, "operator")
    assert patch({"max_batch_rows": 8}, "?dry_run")(server, "operator")
    (line,) = logged(server, before)
    assert "max_batch_rows is 0" in line and 'object="ranker"' in line, line
