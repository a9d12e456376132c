"""Columns that callers of a queue send with their keys, and that the worker receives after the features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from server import Pool, Server, StartError, until
from test_open_inference import inputs
from test_queues import QUEUES, features, status, worker  # noqa: F401 (fixture)

COLUMNS = """
[[queues.ranker.request_columns]]
name = "query"
dtype = "float32"
length = 4
[[queues.ranker.request_columns]]
name = "locale"
dtype = "string"
"""


@pytest.fixture
def server(pool: Pool, features: dict[str, Path], tmp_path: Path) -> Server:  # noqa: F811
    (tmp_path / "forebay.toml").write_text(QUEUES + "pad_to = [8, 64]\nmax_batch_delay = '50ms'\neager_dispatch = false\n" + COLUMNS)
    return pool.start(features, config=tmp_path / "forebay.toml")


def model(batch: pa.RecordBatch, about: dict) -> np.ndarray:
    """Returns the sum of the query, the length of the locale and the first feature of the user."""
    assert batch.schema.names == ["u", "found", "i", "items_found", "query", "locale"], batch.schema.names
    assert batch["query"].null_count == batch["locale"].null_count == 0
    valid = int(about["valid_rows"])
    query = np.asarray(batch["query"].flatten()).reshape(len(batch), 4)
    lengths = np.array([len(text) for text in batch["locale"].to_pylist()])
    assert not query[valid:].any() and not lengths[valid:].any(), "padding is zero"
    users = np.asarray(batch["u"].flatten()).reshape(len(batch), -1)[:, 0]
    return query.sum(axis=1) * 1e6 + lengths * 1e5 + users


def request(users: list[int], query: Any = None, locale: Any = None) -> pa.RecordBatch:
    rows = len(users)
    vectors = pa.array(np.arange(rows * 4, dtype=np.float64)) if query is None else pa.array(query, pa.float64())
    return pa.record_batch(
        {
            "locale": pa.array(locale or ["de"] * rows, pa.large_string()),
            "query": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "item_id": pa.array([0] * rows, pa.int64()),
            "user_id": pa.array(users, pa.int64()),
        }
    )


class Asking:
    """An exchange that sends requests with the columns of `request`."""

    def __init__(self, server: Server) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "ranker"}}).encode())
        self.writer, self.reader = flight.connect(server.location).do_exchange(descriptor)
        self.began = False

    def send(self, batch: pa.RecordBatch, **about: Any) -> None:
        if not self.began:
            self.writer.begin(batch.schema)
            self.began = True
        self.writer.write_with_metadata(batch, json.dumps(about).encode())

    def receive(self) -> tuple[pa.RecordBatch | None, dict]:
        chunk = self.reader.read_chunk()
        return chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def test_columns_of_requests_reach_the_worker_in_the_same_batch_as_their_features(server: Server) -> None:
    batches: list[int] = []

    def counted(batch: pa.RecordBatch, about: dict) -> np.ndarray:
        batches.append(int(about["valid_rows"]))
        return model(batch, about)

    asking = Asking(server)
    for number in range(3):
        asking.send(request([number, 40 + number], [number] * 8, ["a" * number, "bc"]), id=number)
    until(lambda: status(server)["load"]["queued_requests"] == 3)
    with worker(server, counted):
        for _ in range(3):
            scores, about = asking.receive()
            number = int(about.get("id", 0))
            expected = [4e6 * number + 1e5 * number + number, 4e6 * number + 2e5 + 40 + number]
            assert scores is not None and scores["score"].to_pylist() == expected, about
        assert len(batches) < 3, "requests share a batch"


def test_columns_count_towards_the_bytes_of_a_batch_and_of_the_queue(server: Server) -> None:
    asking = Asking(server)
    asking.send(request([1], locale=["x" * (9 << 20)]))
    _, about = asking.receive()
    assert "max_batch_bytes" in about["error"]["message"], about
    admitted = status(server)["outcomes"]["admitted_bytes"]
    asking.send(request([1], locale=["x" * (1 << 20)]), timeout_seconds=0.05)
    asking.receive()
    assert status(server)["outcomes"]["admitted_bytes"] - admitted > 1 << 20


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (request([1]).drop_columns(["query"]), "there is no column 'query' among"),
        (request([1], query=[1, 2, None, 4]), "request column 'query': value 2 of row 0 is null, expected no nulls"),
        (request([1]).set_column(0, "locale", pa.array([5])), "column 'locale': is of type Int64, expected string"),
        (request([1]).set_column(1, "query", pa.array([[1.0] * 3])), "row 0 has 3 values, expected 4"),
    ],
)
def test_a_bad_column_fails_its_own_request_with_the_reason(server: Server, batch: pa.RecordBatch, words: str) -> None:
    with worker(server, model):
        asking = Asking(server)
        asking.send(batch)
        scores, about = asking.receive()
        assert scores is None and about["error"]["code"] == "INVALID_ARGUMENT" and words in about["error"]["message"], about


def test_a_triton_client_sends_the_columns_as_inputs(server: Server) -> None:
    columns: dict[str, np.ndarray] = {
        "user_id": np.array([7, 42], np.int64),
        "item_id": np.array([0, 0], np.int64),
        "query": np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32),
        "locale": np.array(["de", "fr-CH"], dtype=object),
    }
    with worker(server, model), triton.InferenceServerClient(server.grpc) as client:
        assert client.infer("ranker", inputs(**columns)).as_numpy("score").tolist() == [10_200_007.0, 1_500_042.0]
        metadata = client.get_model_metadata("ranker").inputs
        described = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata]
        assert described[2:] == [("query", "FP32", [-1, 4]), ("locale", "BYTES", [-1])]
        columns["query"] = columns["query"].reshape(4, 2)
        with pytest.raises(InferenceServerException, match=r"'query': has the shape \[4, 2\], expected \[ROWS, 4\]"):
            client.infer("ranker", inputs(**columns))


def test_a_worker_is_refused_if_a_request_column_has_the_name_of_a_feature(
    pool: Pool, features: dict[str, Path], tmp_path: Path  # noqa: F811
) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES + COLUMNS.replace('"query"', '"u"'))
    server = pool.start(features, config=tmp_path / "forebay.toml")
    command = json.dumps({"worker": {"queue": "ranker"}}).encode()
    _, reader = flight.connect(server.location).do_exchange(flight.FlightDescriptor.for_command(command))
    with pytest.raises(pa.ArrowInvalid, match="'u' is also the name of a feature"):
        reader.read_chunk()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"query"', '"user_id"'), "request_columns[0].name: 'user_id' is also the name of a key column"),
        (('"float32"', '"floaty"'), "unknown variant `floaty`"),
        (("length = 4", "length = 0"), "request_columns[0].length: is 0, expected 1 to 1048576"),
    ],
)
def test_bad_request_columns_are_rejected_at_start(
    pool: Pool, features: dict[str, Path], tmp_path: Path, change: tuple[str, str], words: str  # noqa: F811
) -> None:
    (tmp_path / "forebay.toml").write_text(QUEUES + COLUMNS.replace(*change))
    with pytest.raises(StartError) as failed:
        pool.start(features, config=tmp_path / "forebay.toml")
    assert words in failed.value.log, failed.value.log
