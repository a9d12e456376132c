"""A client of `forebay.v1.Online` over stock gRPC, with stubs generated from the proto files of this repository."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from typing import Any, Iterator

import grpc
import pytest
from grpc_tools import protoc

from server import ROOT


@functools.lru_cache(maxsize=None)
def stubs() -> dict[str, Any]:
    """Returns the generated modules by name: command, metadata, online, online_grpc."""
    files = sorted(str(path) for path in (ROOT / "proto" / "forebay" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--proto_path={ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
        assert protoc.main(["protoc", *options, *files]) == 0
        sys.path.insert(0, folder)
        from forebay.v1 import command_pb2, metadata_pb2, online_pb2, online_pb2_grpc

        sys.path.remove(folder)
    return {"command": command_pb2, "metadata": metadata_pb2, "online": online_pb2, "online_grpc": online_pb2_grpc}


def message(**lookup: Any) -> Any:
    """Returns a Lookup with the same fields as in JSON."""
    return stubs()["command"].Lookup(**lookup)


class Online:
    """One connection. Requests are the keyword arguments of `lookup`."""

    def __init__(self, address: str, roots: bytes | None = None) -> None:
        options = [("grpc.max_receive_message_length", -1)]
        self.channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), options)
            if roots
            else grpc.insecure_channel(address, options)
        )
        self.stub = stubs()["online_grpc"].OnlineStub(self.channel)

    def __enter__(self) -> Online:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def __call__(self, token: str | None = None, **lookup: Any) -> Any:
        headers = [("authorization", f"Bearer {token}")] if token else []
        return self.stub.Lookup(message(**lookup), metadata=headers, timeout=60)


@contextlib.contextmanager
def refused(status: str, *words: str) -> Iterator[None]:
    """Expects a failed call with this status and a message that contains every word."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    text = caught.value.details()
    assert caught.value.code().name == status, text
    for word in words:
        assert word.lower() in text.lower(), f"{word!r} is not in the message: {text}"
