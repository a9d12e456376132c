"""The current server reads the tickets, requests, manifests, counts, job records and indexes of an earlier version.

`compatibility/COMMIT` holds data, a cache directory, tickets and hashes of batches, as `compatibility/record.py` recorded
them with the server and the Python package of that commit. `clients/python/tests/test_checkpoint.py` reads the training
states.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import earlier
from client import Client, refused
from earlier import EXPRESSIONS, RECORDED, REQUESTS, WITHOUT_EXPRESSIONS
from server import Pool, StartError


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, module_pool: Pool) -> Iterator[Client]:
    """A client of a current server over the data and the cache directory of the earlier one."""
    folder = tmp_path_factory.mktemp("earlier")
    earlier.copy(folder)
    with Client(earlier.start(module_pool, folder).location) as connected:
        yield connected


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy whose datasets have further files, so that no server can take the recorded snapshots again."""
    earlier.copy(tmp_path)
    earlier.add_files(tmp_path)
    return tmp_path


def hashes(client: Client, ticket: bytes) -> list[str]:
    return [str(batch.meta.content_hash) for batch in client.read(ticket)]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_tickets_of_an_earlier_server_with_expressions_are_refused_by_name(client: Client, name: str) -> None:
    for stream in REQUESTS[name]["streams"]:
        for ticket in (stream["json"].encode(), bytes.fromhex(stream["protobuf"])):
            with refused("INVALID_ARGUMENT", EXPRESSIONS[name], "a version before 4", "This server has version 4"):
                list(client.flight.do_get(flight.Ticket(ticket)))


@pytest.mark.parametrize("name", WITHOUT_EXPRESSIONS)
def test_tickets_of_an_earlier_server_give_the_same_bytes(client: Client, name: str) -> None:
    for stream in REQUESTS[name]["streams"]:
        assert hashes(client, stream["json"].encode()) == stream["hashes"]
        ticket = flight.Ticket(bytes.fromhex(stream["protobuf"]))
        metadata = [chunk.app_metadata.to_pybytes() for chunk in client.flight.do_get(ticket)]
        # The hash is a fixed64, which protobuf encodes in little-endian order.
        expected = [int(recorded).to_bytes(8, "little") for recorded in stream["hashes"]]
        assert len(metadata) == len(expected) and all(map(bytes.__contains__, metadata, expected))


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_with_earlier_names_have_the_same_plan(client: Client, name: str) -> None:
    plan = client.plan(**REQUESTS[name]["request"])
    then = REQUESTS[name]["summary"]
    same = ("snapshot", "plan_version", "rows", "steps", "windows")
    assert (plan.summary["plan_hash"] == then["plan_hash"]) == (name not in EXPRESSIONS)
    assert {field: plan.summary.get(field) for field in same} == {field: then.get(field) for field in same}


def test_a_resolved_request_without_expressions_has_no_field_that_the_earlier_version_lacks(client: Client) -> None:
    """Compares the names of the fields, apart from the renamed ones."""
    renamed = {"job_name": "job", "content_hash": "hash", "label_column": "label"}
    for recorded in REQUESTS.values():
        plan = client.plan(**recorded["request"])
        now = json.loads(plan.tickets[0].ticket)["train"]
        then = json.loads(recorded["streams"][0]["json"])["train"]
        new = {"max_pack_rows": "batch_rows"} if "batch_rows" in then else {}
        expected = {*then, "semantics"} if recorded["request"]["job"].removeprefix("job ") in EXPRESSIONS else set(then)
        assert {{**renamed, **new}.get(field, field) for field in now} == expected


def test_the_manifests_of_an_earlier_server_are_read(pool: Pool, changed: Path) -> None:
    with Client(earlier.start(pool, changed).location) as client:
        for recorded in REQUESTS.values():
            snapshot = recorded["summary"]["snapshot"]
            assert client.plan(dataset="events", batch_size=64).snapshot != snapshot
            assert client.plan(dataset="events", batch_size=64, snapshot=snapshot).snapshot == snapshot
        for name in WITHOUT_EXPRESSIONS:
            for stream in REQUESTS[name]["streams"]:
                assert hashes(client, stream["json"].encode()) == stream["hashes"]


def test_a_ticket_whose_manifest_is_missing_is_refused_with_the_current_snapshot(pool: Pool, changed: Path) -> None:
    shutil.rmtree(changed / "cache" / "state" / "snapshots")
    recorded = REQUESTS["default"]
    with Client(earlier.start(pool, changed).location) as client:
        current = client.plan(dataset="events", batch_size=64).snapshot
        snapshot = f"dataset events has no snapshot {recorded['summary']['snapshot']}"
        with refused("FAILED_PRECONDITION", snapshot, f"the current snapshot is {current}"):
            hashes(client, recorded["streams"][0]["json"].encode())


def test_row_counts_equal_those_of_an_earlier_server(client: Client) -> None:
    then = REQUESTS["filter"]["count"]
    now = client.action("count-rows", {"train": REQUESTS["filter"]["request"]})[-1]
    assert [int(now[field]) for field in ("blocks", "rows", "rows_kept")] == [
        int(then[field]) for field in ("blocks", "rows", "rows_kept")
    ]


def test_jobs_that_an_earlier_server_recorded_are_listed_and_explained(pool: Pool, changed: Path) -> None:
    """Nothing is streamed here, because a stream writes the record of its job again."""
    server = earlier.start(pool, changed)
    status, body = server.http_get("/api/v1/jobs")
    assert status == 200, body
    listed = {job["id"]: job for job in json.loads(body)["jobs"]}
    records = [path.read_bytes() for path in (earlier.FOLDER / "cache" / "state" / "jobs").iterdir()]
    recorded = [json.loads(record.split(b"\n", 1)[1]) for record in records]
    assert set(listed) == {record["id"] for record in recorded}
    for record in recorded:
        job = listed[record["id"]]
        assert job["job_name"] == record["request"]["job"]
        assert job["first_seen"] == pytest.approx(record["first_seen"], rel=0, abs=0.001)
    status, body = server.http_get("/api/v1/explain?job_name=job%20groups&step=1")
    assert status == 200, body


def test_lookups_over_an_index_of_an_earlier_server_find_the_same_rows(client: Client) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": {"dataset": "other", "columns": ["s"]}}))
    writer, reader = client.flight.do_exchange(descriptor)
    keys = pa.record_batch({"id": pa.array([5, 1, 10_000], pa.int64())})
    with writer:
        writer.begin(keys.schema)
        writer.write_batch(keys)
        writer.done_writing()
        assert reader.read_all().to_pydict() == RECORDED["lookup"]


def test_renamed_settings_of_an_earlier_server_are_rejected_with_their_current_names(pool: Pool) -> None:
    """`settings/renamed.rs` tests every name."""
    with pytest.raises(StartError, match="it was renamed to 'blocking_threads'") as rejected:
        pool.start({}, config=earlier.FOLDER / "forebay.toml")
    assert "it was renamed to 'loader.buffer_pool_bytes'" in str(rejected.value)
