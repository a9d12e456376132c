"""The current server reads the tickets, requests, manifests, counts, job records and indexes of an earlier version.

`compatibility/COMMIT` holds data, a cache directory, tickets and hashes of batches, as `compatibility/record.py` recorded
them with the server and the Python package of that commit.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from client import Client
from server import Pool, Server

FOLDER = Path(__file__).resolve().parent / "compatibility" / "39b7b77"
RECORDED = json.loads((FOLDER / "recorded.json").read_text())
REQUESTS: dict[str, Any] = RECORDED["requests"]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A current server over the data and the cache directory of the earlier one."""
    folder = tmp_path_factory.mktemp("earlier")
    shutil.copytree(FOLDER / "data", folder / "data")
    shutil.copytree(FOLDER / "cache", folder / "cache")
    for path in (folder / "data").rglob("*.parquet"):
        os.utime(path, ns=(RECORDED["mtime_ns"], RECORDED["mtime_ns"]))
    config = folder / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    pool = Pool(folder)
    try:
        datasets = {name: folder / "data" / name for name in ("events", "other")}
        yield pool.start(
            datasets,
            cache_dir=folder / "cache",
            config=config,
            cache_disk="64MiB",
            cache_memory="64MiB",
            online="other=id",
        )
    finally:
        pool.close()


@pytest.fixture(scope="module")
def client(earlier: Server) -> Any:
    with Client(f"grpc://{earlier.grpc.removeprefix('grpc://')}") as connected:
        yield connected


def hashes(client: Client, ticket: bytes) -> list[str]:
    return [str(batch.meta.content_hash) for batch in client.read(ticket)]


@pytest.mark.parametrize("name", REQUESTS)
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
    same = ("snapshot", "plan_hash", "plan_version", "rows", "steps", "windows")
    assert {field: plan.summary.get(field) for field in same} == {field: then.get(field) for field in same}


def test_a_resolved_request_has_no_field_that_the_earlier_version_lacks(client: Client) -> None:
    """Compares the names of the fields, apart from the renamed ones."""
    renamed = {"job_name": "job", "content_hash": "hash", "label_column": "label"}
    for recorded in REQUESTS.values():
        plan = client.plan(**recorded["request"])
        now = json.loads(plan.tickets[0].ticket)["train"]
        then = json.loads(recorded["streams"][0]["json"])["train"]
        new = {"max_pack_rows": "batch_rows"} if "batch_rows" in then else {}
        assert {{**renamed, **new}.get(field, field) for field in now} == set(then)


def test_a_snapshot_with_a_manifest_of_an_earlier_server_can_be_requested(client: Client) -> None:
    snapshot = REQUESTS["default"]["summary"]["snapshot"]
    assert client.plan(dataset="events", batch_size=64, snapshot=snapshot).snapshot == snapshot


def test_row_counts_equal_those_of_an_earlier_server(client: Client) -> None:
    then = REQUESTS["filter"]["count"]
    now = client.action("count-rows", {"train": REQUESTS["filter"]["request"]})[-1]
    assert [int(now[field]) for field in ("blocks", "rows", "rows_kept")] == [
        int(then[field]) for field in ("blocks", "rows", "rows_kept")
    ]


def test_jobs_that_an_earlier_server_recorded_are_listed_and_explained(earlier: Server) -> None:
    status, body = earlier.http_get("/api/v1/jobs")
    assert status == 200, body
    listed = {job["job_name"] for job in json.loads(body)["jobs"]}
    assert listed >= {f"job {name}" for name in REQUESTS}
    status, body = earlier.http_get("/api/v1/explain?job_name=job%20groups&step=1")
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
