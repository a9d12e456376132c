"""The Open Inference Protocol over a queue, with a stock client of Triton, and with messages of the standard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from server import ROOT, Pool, Server
from test_queues import expected, features, start, status, worker  # noqa: F401 (fixtures)


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:  # noqa: F811
    return start()


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc) as client:
        yield client


def inputs(**columns: np.ndarray) -> list[triton.InferInput]:
    made = []
    for name, values in columns.items():
        tensor = triton.InferInput(name, list(values.shape), np_to_triton_dtype(values.dtype))
        tensor.set_data_from_numpy(values)
        made.append(tensor)
    return made


KEYS = {"user_id": np.array([7, 42, -1], np.int64), "item_id": np.array([1, 2, 3], np.int64)}


def test_a_triton_client_infers_through_a_queue(server: Server, client: triton.InferenceServerClient) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.get_server_metadata().name == "forebay"
    assert not client.is_model_ready("ranker"), "it has no worker"
    with worker(server):
        assert client.is_model_ready("ranker")
        result = client.infer("ranker", inputs(**KEYS), request_id="abc")
        assert result.as_numpy("score").tolist() == expected(KEYS["user_id"], KEYS["item_id"])
        answer = result.get_response()
        assert (answer.id, answer.model_name) == ("abc", "ranker")
        assert answer.parameters["snapshot"].string_param
        # Narrower keys, in a column, and only a named output.
        columns = {name: values.astype(np.int32).reshape(-1, 1) for name, values in KEYS.items()}
        result = client.infer("ranker", inputs(**columns), outputs=[triton.InferRequestedOutput("score")])
        assert result.as_numpy("score").tolist() == expected(KEYS["user_id"], KEYS["item_id"])
        metadata = client.get_model_metadata("ranker")
        assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs] == [
            ("user_id", "INT64", [-1]),
            ("item_id", "INT64", [-1]),
        ]
        assert [(tensor.name, tensor.datatype) for tensor in metadata.outputs] == [("score", "FP64")]


def test_typed_contents_are_answered_in_typed_contents(server: Server) -> None:
    grpc = pytest.importorskip("grpc")
    request = service_pb2.ModelInferRequest(model_name="ranker")
    for name, values in KEYS.items():
        tensor = request.inputs.add(name=name, datatype="INT64", shape=[len(values)])
        tensor.contents.int64_contents.extend(values.tolist())
    with worker(server), grpc.insecure_channel(server.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    (score,) = answer.outputs
    assert (score.name, score.datatype, list(score.shape)) == ("score", "FP64", [3])
    assert list(score.contents.fp64_contents) == expected(KEYS["user_id"], KEYS["item_id"])
    assert not answer.raw_output_contents


INT32 = np.array([1], np.int32)
REJECTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown model": ({"model": "rankr"}, "NOT_FOUND", "no queue 'rankr'"),
    "unknown input": ({"inputs": {**KEYS, "age": INT32}}, "INVALID_ARGUMENT", "no input 'age', expected 'user_id', 'item_id'"),
    "missing input": ({"inputs": {"user_id": INT32}}, "INVALID_ARGUMENT", "each of 'user_id', 'item_id' once"),
    "shape": ({"inputs": {"user_id": np.ones((1, 2), np.int64), "item_id": INT32}}, "INVALID_ARGUMENT", "'user_id': has the shape [1, 2]"),
    "type": ({"inputs": {"user_id": np.ones(1, np.float32), "item_id": INT32}}, "INVALID_ARGUMENT", "column 'user_id' is of type Float32, expected Int64"),
    "other lengths": ({"inputs": {"user_id": np.ones(2, np.int64), "item_id": INT32}}, "INVALID_ARGUMENT", "as many rows"),
    "no rows": ({"inputs": {"user_id": INT32[:0], "item_id": INT32[:0]}}, "INVALID_ARGUMENT", "no rows"),
    "unknown output": ({"outputs": ["scores"]}, "INVALID_ARGUMENT", "no output 'scores'"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_bad_request_gets_the_error_of_the_protocol(
    server: Server, client: triton.InferenceServerClient, case: str
) -> None:
    changes, code, words = REJECTED[case]
    outputs = [triton.InferRequestedOutput(name) for name in changes.get("outputs", [])] or None
    with worker(server), pytest.raises(InferenceServerException) as raised:
        client.infer(changes.get("model", "ranker"), inputs(**changes.get("inputs", KEYS)), outputs=outputs)
    assert raised.value.status() == f"StatusCode.{code}"
    assert words in raised.value.message()


def test_a_request_without_a_worker_ends_at_its_timeout(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer("ranker", inputs(**KEYS), timeout=200_000)
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert "no worker serves the queue" in raised.value.message()


def test_the_priority_of_a_request_is_that_of_triton(
    server: Server, client: triton.InferenceServerClient
) -> None:
    with worker(server):
        for priority in (0, 1, 2):
            result = client.infer("ranker", inputs(**KEYS), priority=priority)
            assert result.as_numpy("score").tolist() == expected(KEYS["user_id"], KEYS["item_id"])
        with pytest.raises(InferenceServerException, match="parameters.priority: expected 0 or 1"):
            client.infer("ranker", inputs(**KEYS), priority=3)


def test_keys_may_be_strings(pool: Pool, tmp_path: Path) -> None:
    names = [f"user {number}" for number in range(100)]
    pq.write_table(pa.table({"name": names, "f0": np.arange(100, dtype=np.float32)}), tmp_path / "users.parquet")
    (tmp_path / "forebay.toml").write_text(
        '[online.users]\nkey = ["name"]\n[queues.ranker.features]\ndataset = "users"\n'
        'tensors = [{ name = "u", columns = ["f0"] }, { name = "i", columns = ["f0"] }]\n'
    )
    server = pool.start({"users": tmp_path / "users.parquet"}, config=tmp_path / "forebay.toml")
    with worker(server), triton.InferenceServerClient(server.grpc) as client:
        keys = np.array(["user 3", "user 9", "unknown"], dtype=object)
        assert client.infer("ranker", inputs(name=keys)).as_numpy("score").tolist() == [30_003.0, 90_009.0, 0.0]
        assert client.get_model_metadata("ranker").inputs[0].datatype == "BYTES"
        assert status(server)["outcomes"]["answered"] == 1


def test_the_example_of_the_docs_runs_as_written(server: Server) -> None:
    page = (ROOT / "docs" / "how-to" / "batch-queues.md").read_text()
    (block,) = (block for block in re.findall(r"^```py\n(.*?)^```", page, re.M | re.S) if "tritonclient" in block)
    names: dict[str, Any] = {}
    with worker(server):
        exec(block.replace("127.0.0.1:8815", server.grpc), names)  # noqa: S102
    assert names["scores"].tolist() == expected([7] * 3, [1, 2, 3])
