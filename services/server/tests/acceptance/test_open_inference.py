"""The Open Inference Protocol over a queue, with a stock client of Triton, and with messages of the standard."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from server import ROOT, Pool, Server, forebay, until
from test_callers import unsent
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
    metadata = client.get_server_metadata()
    assert (metadata.name, f"forebay {metadata.version}") == ("forebay", forebay("--version").stdout.split(" (")[0].strip())
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
    "unknown version": ({"version": "2"}, "NOT_FOUND", "queue 'ranker' has no version '2'; queues have no versions"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_bad_request_gets_the_error_of_the_protocol(
    server: Server, client: triton.InferenceServerClient, case: str
) -> None:
    changes, code, words = REJECTED[case]
    outputs = [triton.InferRequestedOutput(name) for name in changes.get("outputs", [])] or None
    with worker(server), pytest.raises(InferenceServerException) as raised:
        model, version = changes.get("model", "ranker"), changes.get("version", "")
        client.infer(model, inputs(**changes.get("inputs", KEYS)), model_version=version, outputs=outputs)
    assert raised.value.status() == f"StatusCode.{code}"
    assert words in raised.value.message()


# The methods that ask for a model, and the error for each name and version other than "ranker" and "".
ASKING: dict[str, Callable[[triton.InferenceServerClient, str, str], Any]] = {
    "ModelReady": lambda client, name, version: client.is_model_ready(name, version),
    "ModelMetadata": lambda client, name, version: client.get_model_metadata(name, version),
}
UNKNOWN = {("rankr", ""): "no queue 'rankr'", ("ranker", "1"): "queue 'ranker' has no version '1'", ("", ""): "no queue ''"}


@pytest.mark.parametrize("method", ASKING)
def test_an_unknown_model_or_version_is_not_found(client: triton.InferenceServerClient, method: str) -> None:
    for (name, version), words in UNKNOWN.items():
        with pytest.raises(InferenceServerException) as raised:
            ASKING[method](client, name, version)
        assert raised.value.status() == "StatusCode.NOT_FOUND"
        assert words in raised.value.message()


def test_a_server_that_is_about_to_stop_is_live_and_not_ready(start: Callable[..., Server]) -> None:  # noqa: F811
    server = start(drain_delay="600s")
    with triton.InferenceServerClient(server.grpc) as client, worker(server):
        assert client.is_server_ready() and client.is_model_ready("ranker")
        server.terminate()
        until(lambda: not client.is_server_ready())
        assert client.is_server_live() and not client.is_model_ready("ranker")


def typed(columns: dict[str, tuple[str, str, list]]) -> Any:
    """Returns a request with the columns (datatype, field of the contents, values)."""
    request = service_pb2.ModelInferRequest(model_name="ranker")
    for name, (datatype, field, values) in columns.items():
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        getattr(tensor.contents, field).extend(values)
    return request


def infer(server: Server, request: Any) -> Any:
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(server.grpc) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)


# The field of the contents for the values of each datatype of a key.
FIELDS = {
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)},
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)},
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
}


def test_each_datatype_has_its_field_of_typed_contents(server: Server) -> None:
    grpc = pytest.importorskip("grpc")
    others = set(FIELDS.values())
    with worker(server):
        for datatype, field in FIELDS.items():
            keys = {name: (datatype, field, [7, 42]) for name in KEYS}
            answer = infer(server, typed(keys))
            assert list(answer.outputs[0].contents.fp64_contents) == expected([7, 42], [7, 42]), datatype
            # Values in the field of another datatype are missing.
            for other in others - {field}:
                with pytest.raises(grpc.RpcError) as caught:
                    infer(server, typed({**keys, "item_id": (datatype, other, [7, 42])}))
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, (datatype, other)
                assert "'item_id': has 0 values, expected 2" in caught.value.details(), (datatype, other)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["score", "label", "score"], "outputs: 'score' is named twice, expected each output once"),
        (["score"] * 1025, "outputs: names 1025 outputs, expected at most 1024"),
        (["score"] * 115_000, "of memory"),
    ],
    ids=["twice", "many", "large"],
)
def test_outputs_that_are_named_repeatedly_are_rejected_before_the_request_is_queued(
    server: Server, names: list[str], words: str
) -> None:
    grpc = pytest.importorskip("grpc")
    request = typed({name: ("INT64", "int64_contents", [7]) for name in KEYS})
    for name in names:
        request.outputs.add(name=name)
    # Without a worker, a queued request would fail after half of its time.
    with pytest.raises(grpc.RpcError) as caught:
        infer(server, request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and words in caught.value.details()
    assert status(server)["outcomes"]["admitted"] == 0


def test_the_id_and_the_names_of_outputs_of_a_waiting_request_are_charged(server: Server) -> None:
    request = typed({name: ("INT64", "int64_contents", [7]) for name in KEYS})
    request.id = "x" * 500_000
    request.outputs.add(name="score")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(infer, server, request)
        until(lambda: 500_000 < unsent(server) < 600_000)
        with worker(server):
            answer = waiting.result()
    assert answer.id == request.id and list(answer.outputs[0].contents.fp64_contents) == expected([7], [7])
    until(lambda: unsent(server) == 0)


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_raw_contents_than_of_inputs_is_rejected(server: Server, count: int) -> None:
    grpc = pytest.importorskip("grpc")
    request = service_pb2.ModelInferRequest(model_name="ranker")
    for name in KEYS:
        request.inputs.add(name=name, datatype="INT64", shape=[1])
    request.raw_input_contents.extend([bytes(8)] * count)
    with worker(server), pytest.raises(grpc.RpcError) as caught:
        infer(server, request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"raw_input_contents: has {count} entries, expected 2" in caught.value.details()


def test_a_request_without_a_worker_ends_after_half_of_its_timeout(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer("ranker", inputs(**KEYS), timeout=2_000_000)
    assert raised.value.status() == "StatusCode.UNAVAILABLE"
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
        answer = infer(server, typed({"name": ("BYTES", "bytes_contents", [b"user 3", b"user 9", b"unknown"])}))
        assert list(answer.outputs[0].contents.fp64_contents) == [30_003.0, 90_009.0, 0.0]


def test_the_example_of_the_docs_runs_as_written(server: Server) -> None:
    page = (ROOT / "docs" / "how-to" / "batch-queues.md").read_text()
    (block,) = (block for block in re.findall(r"^```py\n(.*?)^```", page, re.M | re.S) if "tritonclient" in block)
    names: dict[str, Any] = {}
    with worker(server):
        exec(block.replace("127.0.0.1:8815", server.grpc), names)  # noqa: S102
    assert names["scores"].tolist() == expected([7] * 3, [1, 2, 3])
