"""Snapshots of lookups: a canary rejects broken ones, and operators pin one or roll back."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from metrics import scrape
from s3 import make_bucket, s3_server
from server import ROOT, Pool, Server, until
from slow import Gate
from test_lookups import Lookup

ROWS = 5000
CANARY = 'views = [{ columns = ["x"] }]\n[online.users.canary]\nkeys = 1000'


def write(folder: Path, number: int, x: Any) -> None:
    """Adds a file with all users, whose rows replace those of earlier files."""
    folder.mkdir(exist_ok=True)
    # A column that is constant within each snapshot would differ by infinitely many standard deviations.
    rows = {"user_id": np.arange(ROWS), "version": 10 * np.arange(ROWS) + number, "x": x}
    pq.write_table(pa.table(rows), folder / f"{number:03}.parquet")


def usual(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(10, 2, ROWS)


def state(server: Server) -> dict[str, Any]:
    (dataset,) = json.loads(server.http_get("/api/v1/datasets")[1])["datasets"]
    return dataset["online"]


def version(server: Server) -> int:
    with Client(server.location) as client:
        (found,) = Lookup(client, dataset="users")(user_id=[7])[0]["version"].to_pylist()
        return found - 70


def refresh(server: Server) -> str:
    with Client(server.location) as client:
        return client.refresh("users")["snapshot"]


@pytest.fixture
def start(pool: Pool, tmp_path: Path) -> Callable[..., Server]:
    def start_with(settings: str = "", **flags: Any) -> Server:
        config = tmp_path / "forebay.toml"
        config.write_text(f'[online.users]\nkey = ["user_id"]\n{settings}\n')
        flags = {"env": {"FOREBAY_INSECURE": "true"}, "cache_dir": tmp_path / "cache", **flags}
        return pool.start({"users": tmp_path / "users"}, config=config, **flags)

    return start_with


def pin(server: Server, snapshot: str, timeout: float | None = None, **headers: str) -> dict[str, Any]:
    encoded = [(name.encode(), text.encode()) for name, text in headers.items()]
    options = flight.FlightCallOptions(timeout=timeout, headers=encoded)
    with flight.connect(server.location) as client:
        body = json.dumps({"dataset": "users", "snapshot": snapshot}).encode()
        return json.loads(next(client.do_action(flight.Action("pin-lookups", body), options)).body.to_pybytes())


def outdated(server: Server) -> float:
    return scrape(server).value("forebay_lookup_outdated", dataset="users")


def test_a_snapshot_with_broken_values_is_rejected_and_can_be_accepted(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    write(tmp_path / "users", 1, usual(1))
    server = start(CANARY)
    first = state(server)["snapshot"]
    write(tmp_path / "users", 2, usual(2) * 1000)
    broken = refresh(server)
    until(lambda: state(server)["error"] is not None)
    error = state(server)["error"]
    assert error.startswith(f"snapshot {broken} was rejected: column 'x': the mean is "), error
    assert state(server)["snapshot"] == first and outdated(server) == 1
    assert version(server) == 1
    events = lambda: json.loads(server.http_get("/api/v1/events")[1])["events"]
    rejections = lambda: [event for event in events() if event["kind"] == "snapshot_rejected"]
    # The event is recorded a moment after the error.
    until(lambda: len(rejections()) > 0)
    (event,) = rejections()
    assert event["severity"] == "warning" and broken in event["message"] and "the mean is" in event["message"]
    # So is it after a restart, which answers from the snapshot before.
    server.stop()
    server = start(CANARY)
    until(lambda: state(server)["error"] is not None)
    assert state(server)["error"].startswith(f"snapshot {broken} was rejected: column 'x': the mean is ")
    assert state(server)["snapshot"] == first and version(server) == 1
    # The next one is compared with the one that answers.
    write(tmp_path / "users", 3, usual(3))
    third = refresh(server)
    # The error of the last snapshot is removed a moment after the next one answers.
    until(lambda: (now := state(server))["snapshot"] == third and now["error"] is None)
    assert outdated(server) == 0
    # An operator accepts a snapshot that breaks a rule.
    write(tmp_path / "users", 4, usual(4) * 1000)
    fourth = refresh(server)
    until(lambda: state(server)["error"] is not None)
    assert pin(server, fourth) == {"dataset": "users", "snapshot": fourth, "pinned": True}
    assert version(server) == 4


def test_a_dataset_whose_newest_file_is_damaged_is_named_while_lookups_are_answered_from_the_snapshot_before(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    write(tmp_path / "users", 1, usual(1))
    server = start('views = [{ columns = ["version"] }]')
    failed = lambda: scrape(server).value("forebay_lookup_failed", dataset="users")
    events = lambda: json.loads(server.http_get("/api/v1/events")[1])["events"]
    of_lookups = lambda: [event for event in events() if event["kind"] == "lookups_outdated"]
    first = state(server)["snapshot"]
    assert failed() == 0 and of_lookups() == []
    # The footer is whole, so that the snapshot can be opened.
    write(tmp_path / "new", 2, usual(2))
    data = bytearray((tmp_path / "new" / "002.parquet").read_bytes())
    first_page = pq.ParquetFile(tmp_path / "new" / "002.parquet").metadata.row_group(0).column(0)
    start_at = first_page.dictionary_page_offset or first_page.data_page_offset
    data[start_at : start_at + 64] = bytes(64)
    (tmp_path / "new" / "002.parquet").write_bytes(data)
    (tmp_path / "new" / "002.parquet").rename(tmp_path / "users" / "002.parquet")
    damaged = refresh(server)
    until(lambda: failed() == 1)
    until(lambda: len(of_lookups()) > 0)
    event = of_lookups()[0]
    assert event["severity"] == "warning" and event["dataset"] == "users"
    assert "002.parquet" in event["message"] and "002.parquet" in state(server)["error"]
    assert state(server)["snapshot"] == first != damaged and outdated(server) == 1 and version(server) == 1
    assert scrape(server).value("forebay_events_total", kind="lookups_outdated") >= 1
    # A whole file makes lookups follow the dataset again.
    write(tmp_path / "users", 2, usual(2))
    whole = refresh(server)
    until(lambda: (now := state(server))["snapshot"] == whole and now["error"] is None)
    assert version(server) == 2
    until(lambda: failed() == outdated(server) == 0)
    until(lambda: of_lookups()[-1]["severity"] == "info")


def test_an_operator_rolls_back_and_the_server_stays_at_this_snapshot(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write(tmp_path / "users", 1, usual(1))
    server = start()
    first = state(server)["snapshot"]
    with refused("FAILED_PRECONDITION", "no snapshot has answered lookups before the current one"):
        pin(server, "previous")
    write(tmp_path / "users", 2, usual(2))
    second = refresh(server)
    until(lambda: state(server)["snapshot"] == second)
    assert state(server)["previous_snapshot"] == first
    assert pin(server, "previous") == {"dataset": "users", "snapshot": first, "pinned": True}
    assert version(server) == 1 and state(server)["pinned"] and outdated(server) == 1
    write(tmp_path / "users", 3, usual(3))
    third = refresh(server)
    assert version(server) == 1
    with refused("FAILED_PRECONDITION", "has no snapshot 0000"):
        pin(server, "0" * 32)
    pin(server, "")
    until(lambda: version(server) == 3)
    assert not state(server)["pinned"] and state(server)["snapshot"] == third
    # The example of the documentation.
    page = (ROOT / "docs" / "how-to" / "lookups.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pin-lookups" in block]
    exec(block.replace("grpc://127.0.0.1:8815", server.location), {})
    printed = capsys.readouterr().out.splitlines()
    assert "'pinned': True" in printed[0] and "'pinned': False" in printed[1]
    server.stop()
    # From the start.
    server = start(f'snapshot = "{second}"')
    until(lambda: version(server) == 2)
    assert state(server)["pinned"]


def test_a_configured_snapshot_that_cannot_be_loaded_is_an_error_that_an_operator_can_override(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    write(tmp_path / "users", 1, usual(1))
    # The server is ready for everything else.
    server = start(f'snapshot = "{"0" * 32}"')
    until(lambda: state(server)["error"] is not None)
    assert f"has no snapshot {'0' * 32}" in state(server)["error"] and state(server)["snapshot"] is None
    with refused("FAILED_PRECONDITION", "has no snapshot"):
        version(server)
    pin(server, "")
    until(lambda: (now := state(server))["snapshot"] is not None and now["error"] is None)
    assert version(server) == 1


def test_pinning_requires_an_administrator(start: Callable[..., Server], tmp_path: Path) -> None:
    write(tmp_path / "users", 1, usual(1))
    tokens = tmp_path / "tokens.toml"
    entry = '[{0}]\nsha256 = "{1}"\ndatasets = ["users"]\n{2}'
    rights = {"reader": "", "operator": "admin = true\n"}
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in rights}
    tokens.write_text("".join(entry.format(name, digests[name], right) for name, right in rights.items()))
    server = start(tokens=tokens, env={})
    with refused("PERMISSION_DENIED", "admin"):
        pin(server, "previous", authorization="Bearer reader")
    with refused("FAILED_PRECONDITION", "no snapshot has answered"):
        pin(server, "previous", authorization="Bearer operator")


def test_after_a_restart_the_accepted_snapshot_is_awaited_while_the_state_does_not_answer(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    settings = CANARY + '\n[storage]\nrequest_timeout = "5s"'
    write(tmp_path / "users", 1, usual(1))
    server = start(settings)
    first = state(server)["snapshot"]
    write(tmp_path / "users", 2, usual(2) * 1000)
    broken = refresh(server)
    until(lambda: state(server)["error"] is not None)
    server.stop()
    # Opening a named pipe that has no writer hangs.
    manifest = tmp_path / "cache" / "state" / "snapshots" / "users" / f"{first}.manifest"
    manifest.rename(tmp_path / "manifest")
    os.mkfifo(manifest)
    server = start(settings)
    until(lambda: "did not answer" in (state(server)["error"] or ""))
    assert state(server)["snapshot"] is None, "the broken snapshot answers without a comparison"
    # The reads that hang end once the pipe has a writer.
    writer = os.open(manifest, os.O_RDWR)
    (tmp_path / "manifest").rename(manifest)
    until(lambda: state(server)["snapshot"] == first)
    until(lambda: (state(server)["error"] or "").startswith(f"snapshot {broken} was rejected"))
    assert version(server) == 1
    os.close(writer)


def test_a_pin_is_in_the_audit_log_although_its_caller_left_before_the_answer(pool: Pool, tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    write(tmp_path / "users", 1, usual(1))
    with s3_server(tmp_path / "s3.log") as endpoint:
        gate = Gate(endpoint.removeprefix("http://"))
        bucket = make_bucket(endpoint, "users")
        bucket.upload_folder(tmp_path / "users", "users")
        config = tmp_path / "forebay.toml"
        config.write_text('[online.users]\nkey = ["user_id"]\n')
        env = {"FOREBAY_INSECURE": "true", **bucket.environment, "AWS_ENDPOINT": f"http://{gate.address}"}
        start = lambda: pool.start({"users": bucket.url("users")}, config=config, env=env, state=tmp_path / "state")
        server = start()
        first = state(server)["snapshot"]
        # A server with another cache has no index of the first snapshot: it has to read the rows.
        write(tmp_path / "users", 2, usual(2))
        bucket.upload_folder(tmp_path / "users", "users")
        refresh(server)
        server.stop()
        server = start()
        assert state(server)["snapshot"] != first
        calls = lambda: sum(caller["calls"] for caller in json.loads(server.http_get("/api/v1/callers")[1])["callers"])
        body = json.dumps({"dataset": "users", "snapshot": first}).encode()
        action = b"\x0a\x0bpin-lookups\x12" + bytes([len(body)]) + body
        gate.close()
        with grpc.insecure_channel(server.grpc) as channel:
            call = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")(action)
            assert gate.holds.wait(60)
            assert calls() == 1
            call.cancel()
        until(lambda: calls() == 0)
        lines = lambda: [line for line in server.log().splitlines() if " audit: " in line and "pin-lookups" in line]
        assert lines() == [], "the pin has not ended"
        gate.open()
        until(lambda: len(lines()) == 1)
        assert "users" in lines()[0] and "127.0.0.1" in lines()[0] and "error" not in lines()[0], lines()
        assert state(server)["snapshot"] == first
