"""Tokens share the workers of a queue by their weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from pathlib import Path
from typing import Any, Callable, Iterator

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server import Pool, Server, until
from test_queues import serve

WEIGHTS = {"heavy": 3, "light": 1}
QUEUE = """
[online.users]
key = ["user_id"]
[queues.ranker.features]
dataset = "users"
columns = ["user_id"]
[queues.ranker.batching]
max_batch_rows = 4
default_timeout = "600s"
"""


@pytest.fixture
def server(pool: Pool, tmp_path: Path) -> Server:
    pq.write_table(pa.table({"user_id": np.arange(1000)}), tmp_path / "users.parquet")
    entry = '[{0}]\nsha256 = "{1}"\ndatasets = ["*"]\nserves = ["*"]\nweight = {2}\n'
    tokens = {**WEIGHTS, "operator": 1}
    digest = lambda name: hashlib.sha256(name.encode()).hexdigest()
    (tmp_path / "tokens.toml").write_text("".join(entry.format(name, digest(name), weight) for name, weight in tokens.items()))
    (tmp_path / "forebay.toml").write_text(QUEUE)
    return pool.start({"users": tmp_path / "users.parquet"}, config=tmp_path / "forebay.toml", tokens=tmp_path / "tokens.toml")


def options(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@contextlib.contextmanager
def exchange(server: Server, token: str) -> Iterator[Callable[[list[int]], Any]]:
    """Sends requests over DoExchange."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}))
    with flight.connect(server.location) as client:
        writer, reader = client.do_exchange(descriptor, options(token))
        writer.begin(pa.schema([("user_id", pa.int64())]))

        def send(keys: list[int]) -> None:
            writer.write_with_metadata(pa.record_batch({"user_id": pa.array(keys, pa.int64())}), b"{}")

        yield send
        reader.cancel()


@contextlib.contextmanager
def infer(server: Server, token: str) -> Iterator[Callable[[list[int]], Any]]:
    """Sends requests of the Open Inference Protocol."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = []

        def send(keys: list[int]) -> None:
            request = service_pb2.ModelInferRequest(model_name="ranker")
            request.inputs.add(name="user_id", datatype="INT64", shape=[len(keys)]).contents.int64_contents.extend(keys)
            sent.append(stub.ModelInfer.future(request, metadata=[("authorization", f"Bearer {token}")]))

        yield send
        [call.cancel() for call in sent]


@pytest.mark.parametrize("callers", [exchange, infer])
def test_requests_of_tokens_of_weights_3_and_1_are_sent_to_workers_3_to_1(
    server: Server, callers: Callable[..., Any]
) -> None:
    rows, count = 4, 40
    queued = lambda: json.loads(server.http_get("/api/v1/queues/ranker", authorization="Bearer operator")[1])["load"]["queued_requests"]
    with callers(server, "light") as light, callers(server, "heavy") as heavy:
        # All requests of the light token arrive before those of the heavy one. Each fills a batch.
        for number in range(count):
            light([number] * rows)
        until(lambda: queued() == count)
        for number in range(count):
            heavy([500 + number] * rows)
        until(lambda: queued() == 2 * count)
        order: list[str] = []

        def model(batch: pa.RecordBatch, _about: dict[str, Any]) -> np.ndarray:
            order.append("heavy" if batch["user_id"][0].as_py() >= 500 else "light")
            return np.zeros(len(batch))

        threading.Thread(target=serve, args=(server.location, model, 1, options("operator")), daemon=True).start()
        until(lambda: len(order) == 2 * count, seconds=60)
    # The first one may be any of them.
    assert 23 <= order[:32].count("heavy") <= 25, order
