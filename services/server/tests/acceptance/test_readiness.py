"""A server reports that it is ready when all that it serves is loaded, and not before."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from hanging import HangingFolder
from online import Online
from preload import compiled
from server import Pool, Server, until
from test_queues import serve

NOT_SERVING, SERVING = b"\x08\x02", b"\x08\x01"
SERVICES = ["", "arrow.flight.protocol.FlightService", "forebay.v1.Online", "inference.GRPCInferenceService", "dataset/users"]
# A deadline of the store must not end a read.
SETTINGS = """
[storage]
request_timeout = "1h"
[limits]
open_timeout = "1h"
[online.users]
key = ["user_id"]
views = [{ columns = ["declared"] }]
[queues.ranker.features]
dataset = "users"
columns = ["features"]
"""
TIMEOUT_S = 60


@pytest.fixture
def hanging(tmp_path: Path) -> HangingFolder:
    (tmp_path / "users").mkdir()
    names = ("user_id", "declared", "features", "other")
    pq.write_table(pa.table({name: np.arange(1000) for name in names}), tmp_path / "users" / "0.parquet")
    (tmp_path / "forebay.toml").write_text(SETTINGS)
    return HangingFolder(tmp_path / "users", compiled("hang", tmp_path, "-ldl"), tmp_path / "hangs")


def start(pool: Pool, tmp_path: Path, hanging: HangingFolder) -> Server:
    config = tmp_path / "forebay.toml"
    return pool.start({"users": tmp_path / "users"}, config=config, cache_disk=0, env=hanging.environment)


def health(server: Server) -> set[bytes]:
    """Returns the statuses of the services by `grpc.health.v1`."""
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        requests = (b"\x0a" + bytes([len(name)]) + name.encode() if name else b"" for name in SERVICES)
        return {check(request, timeout=60) for request in requests}


def test_no_service_is_serving_before_the_server_is_ready(pool: Pool, tmp_path: Path, hanging: HangingFolder) -> None:
    hanging.hang()
    with ThreadPoolExecutor(1) as executor:
        try:
            starting = executor.submit(start, pool, tmp_path, hanging)
            until(lambda: bool(pool.servers) and bool(pool.servers[0].grpc), failure="the ports are not bound")
            (server,) = pool.servers
            status, body = server.http_get("/readyz")
            assert status == 503
            expected = ["datasets that are being opened for the first time: 1", "datasets that are being loaded for lookups for the first time: 1"]
            assert json.loads(body)["waiting_for"] == expected
            assert health(server) == {NOT_SERVING}
        finally:
            hanging.answer()
        assert starting.result(TIMEOUT_S) is server
    until(lambda: health(server) == {SERVING})
    assert json.loads(server.http_get("/readyz")[1])["waiting_for"] == []


def test_a_probe_without_a_token_reads_what_a_starting_server_waits_for_but_no_name(
    pool: Pool, tmp_path: Path, hanging: HangingFolder
) -> None:
    hanging.hang()
    (tmp_path / "tokens.toml").write_text(f'[one]\nsha256 = "{"12" * 32}"\ndatasets = ["*"]\n')
    flags = {"config": tmp_path / "forebay.toml", "cache_disk": 0, "tokens": tmp_path / "tokens.toml"}
    try:
        server = pool.start({"users": tmp_path / "users"}, env=hanging.environment, becomes_ready=False, **flags)
        status, body = server.http_get("/readyz")
        assert status == 503 and "users" not in body
        assert json.loads(body)["waiting_for"][0] == "datasets that are being opened for the first time: 1"
    finally:
        hanging.answer()


def test_a_dataset_whose_files_vanish_is_served_from_its_snapshot_and_listed_with_the_reason(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"n": range(10)}), folder / "0.parquet")
    server = pool.start({"rows": folder}, refresh_interval="100ms")
    shown = lambda: json.loads(server.http_get("/api/v1/datasets")[1])["datasets"][0]
    ready = lambda: json.loads(server.http_get("/readyz")[1])
    assert shown()["error"] is None and ready()["outdated"] == {}
    folder.rename(tmp_path / "moved")
    until(lambda: shown()["error"] is not None, failure="the failed refresh is not shown")
    assert shown()["phase"] == "open" and "rows" in shown()["error"]
    assert ready()["ready"] and ready()["outdated"] == {"rows": shown()["error"]} and ready()["failed"] == {}
    (tmp_path / "moved").rename(folder)
    until(lambda: shown()["error"] is None, failure="the reason stays")
    assert ready()["outdated"] == {}


def test_declared_views_and_the_features_of_queues_are_in_memory_when_the_server_is_ready(
    pool: Pool, tmp_path: Path, hanging: HangingFolder
) -> None:
    server = start(pool, tmp_path, hanging)
    (dataset,) = json.loads(server.http_get("/api/v1/datasets")[1])["datasets"]
    assert dataset["online"]["views"] == 2
    hanging.hang()
    keys = [{"name": "user_id", "integers": [7]}]
    with Online(server.grpc) as online, ThreadPoolExecutor(1) as executor, flight.connect(server.location) as client:
        try:
            other = executor.submit(online, dataset="users", columns=["other"], keys=keys)
            assert online(dataset="users", columns=["declared"], keys=keys).metadata.found == 1
            model = lambda batch, _about: batch["features"].to_numpy(zero_copy_only=False).astype(np.float64)
            threading.Thread(target=serve, args=(server.location, model), daemon=True).start()
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b'{"infer": {"queue": "ranker"}}'))
            batch = pa.record_batch({"user_id": pa.array([7])})
            writer.begin(batch.schema)
            writer.write_with_metadata(batch, b'{"timeout_seconds": 60}')
            assert reader.read_chunk().data["score"].to_pylist() == [7.0]
            assert not other.done(), "the disk does not hang"
            reader.cancel()
        finally:
            hanging.answer()
        assert other.result(TIMEOUT_S).metadata.found == 1
