"""Permissions beyond the datasets of a token: every method of every service, single actions, and requests of the Open Inference
Protocol."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow.flight as flight
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client import command, refused
from online import stubs
from server import Server, until
from test_auth import FLIGHT, Locked, locked  # noqa: F401 (fixture)
from test_queue_access import TOKENS, guarded, write_tokens  # noqa: F401 (fixture)
from test_queues import serve

ALLOWED, DENIED, HIDDEN, UNKNOWN = "OK", "PERMISSION_DENIED", "NOT_FOUND", "UNAUTHENTICATED"

SERVICES = {
    "arrow.flight.protocol.FlightService": FLIGHT,
    "forebay.v1.Online": [method.name for method in stubs()["online"].DESCRIPTOR.services_by_name["Online"].methods],
    "inference.GRPCInferenceService": [
        method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    ],
    "unknown.Service": ["Method"],
}
METHODS = [f"/{service}/{method}" for service, methods in SERVICES.items() for method in methods]


def test_every_method_of_every_service_requires_a_token(locked: Locked) -> None:  # noqa: F811
    roots = grpc.ssl_channel_credentials(locked.authority.cert_pem.bytes())
    found: dict[str, set[str]] = {}
    with grpc.secure_channel(locked.server.grpc, roots) as channel:
        for method in METHODS:
            call = channel.stream_stream(method)
            for token in (None, "unknown", "old"):
                metadata = [("authorization", f"Bearer token-of-{token}")] if token else []
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(iter([b""]), metadata=metadata, timeout=60))
                found.setdefault(method, set()).add(caught.value.code().name)
    assert found == {method: {UNKNOWN} for method in METHODS}


def test_a_token_with_a_list_of_actions_may_call_no_other(guarded: tuple[Server, Path]) -> None:  # noqa: F811
    server, tokens = guarded
    write_tokens(tokens, {**TOKENS, "reporter": {"datasets": ["*"], "actions": ["report"]}})
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer reporter")])
    with flight.connect(server.location) as client:

        def is_known() -> bool:
            with contextlib.suppress(flight.FlightUnauthenticatedError):
                return bool(list(client.list_actions(options)))
            return False

        until(is_known)
        report = flight.Action("report", b'{"dataset": "users", "trainer": 1}')
        assert list(client.do_action(report, options)) == []
        others = {action.type for action in client.list_actions(options)} - {"report"}
        assert {"refresh", "warm", "pin-lookups", "hello"} <= others
        for name in others:
            with refused(DENIED, f"may not call action '{name}'", "`actions`"):
                list(client.do_action(flight.Action(name, b'{"dataset": "users"}'), options))
        # The list is about actions only.
        client.do_get(flight.Ticket(command(dataset="users", batch_size=10, steps=1)), options).read_all()


def infer_request(timeout_us: int) -> Any:
    request = service_pb2.ModelInferRequest(model_name="ranker")
    request.inputs.add(name="user_id", datatype="INT64", shape=[1]).contents.int64_contents.append(7)
    request.parameters["timeout"].int64_param = timeout_us
    return request


# The status for each token: reader, stranger, worker, blind-worker, other-worker, unknown, none. A queue is hidden from tokens that may
# not read its features. A permitted request is not answered, because no worker is connected.
INFERENCE = {
    "ModelInfer": (infer_request(2_000_000), "UNAVAILABLE"),
    "ModelReady": (service_pb2.ModelReadyRequest(name="ranker"), ALLOWED),
    "ModelMetadata": (service_pb2.ModelMetadataRequest(name="ranker"), ALLOWED),
}


def bearer(token: str | None) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")] if token else []


@pytest.mark.parametrize("method", INFERENCE)
def test_a_queue_is_hidden_as_a_model_from_tokens_that_may_not_read_its_features(
    guarded: tuple[Server, Path], method: str  # noqa: F811
) -> None:
    server, _ = guarded
    request, allowed = INFERENCE[method]
    found: dict[str | None, str] = {}
    with grpc.insecure_channel(server.grpc) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        for token in [*TOKENS, "unknown", None]:
            try:
                call(request, metadata=bearer(token), timeout=60)
                found[token] = ALLOWED
            except grpc.RpcError as error:
                found[token] = error.code().name
    assert tuple(found.values()) == (allowed, HIDDEN, allowed, HIDDEN, allowed, UNKNOWN, UNKNOWN), found


def test_a_request_of_the_open_inference_protocol_is_not_answered_after_its_token_was_revoked(
    guarded: tuple[Server, Path],  # noqa: F811
) -> None:
    server, tokens = guarded
    queued = lambda: json.loads(server.http_get("/api/v1/queues/ranker", authorization="Bearer worker")[1])["load"]["queued_requests"]
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        waiting = stub.ModelInfer.future(infer_request(60_000_000), metadata=bearer("reader"), timeout=60)
        until(lambda: queued() == 1)
        write_tokens(tokens, {name: rights for name, rights in TOKENS.items() if name != "reader"})

        def is_revoked() -> bool:
            try:
                stub.ModelReady(service_pb2.ModelReadyRequest(name="ranker"), metadata=bearer("reader"), timeout=60)
            except grpc.RpcError as error:
                return error.code() == grpc.StatusCode.UNAUTHENTICATED
            return False

        until(is_revoked)
        assert not waiting.done()
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer worker")])
        model = lambda batch, _about: np.zeros(len(batch))
        threading.Thread(target=serve, args=(server.location, model, 1, options), daemon=True).start()
        assert waiting.exception(60).code().name == UNKNOWN
