"""A trace collector: OTLP over gRPC, with the official stubs."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class Span:
    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    # Pairs of trace and span.
    links: list[tuple[str, str]]
    failed: bool
    resource: dict[str, Any]


def plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.lock = threading.Lock()

    def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802
        with self.lock:
            for resource in request.resource_spans:
                about = plain(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [self.span(span, about) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    @staticmethod
    def span(span: Any, resource: dict[str, Any]) -> Span:
        return Span(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            plain(span.attributes),
            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            span.status.code == 2,
            resource,
        )

    def of(self, name: str, trace: str | None = None) -> list[Span]:
        with self.lock:
            return [span for span in self.spans if span.name == name and trace in (None, span.trace)]

    def children(self, parent: Span) -> list[Span]:
        with self.lock:
            return [span for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]

    def wait(self, found: Callable[[], Any], seconds: float = 60) -> Any:
        """Waits until `found` returns a true value and returns it."""
        deadline = time.monotonic() + seconds
        while not (it := found()):
            assert time.monotonic() < deadline, sorted({span.name for span in self.spans})
            time.sleep(0.02)
        return it


@contextlib.contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """Starts a collector. Yields the collector and its endpoint."""
    server = grpc.server(ThreadPoolExecutor(4))
    collector = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None).wait()
