"""A minimal trainer over stock `pyarrow.flight`: sends JSON commands and reads batches with metadata."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any, Iterable, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from digest import digest_of

# Name of each gRPC status in pyarrow's messages. For some statuses, pyarrow keeps nothing but this name.
STATUS_WORDS = {
    "cancelled call": "CANCELLED",
    "invalid argument": "INVALID_ARGUMENT",
    "timeout": "DEADLINE_EXCEEDED",
    "not found": "NOT_FOUND",
    "already exists": "ALREADY_EXISTS",
    "unauthorized": "PERMISSION_DENIED",
    "resource exhausted": "RESOURCE_EXHAUSTED",
    "precondition failed": "FAILED_PRECONDITION",
    "aborted": "ABORTED",
    "out-of-range": "OUT_OF_RANGE",
    "unimplemented": "UNIMPLEMENTED",
    "internal": "INTERNAL",
    "unavailable": "UNAVAILABLE",
    "data loss": "DATA_LOSS",
    "unauthenticated": "UNAUTHENTICATED",
}
STATUS_PATTERN = re.compile(rf"(?:Flight|gRPC)(?: returned)? ({'|'.join(STATUS_WORDS)})")

# Exceptions of pyarrow for failed calls: Flight errors, Arrow errors, and OSError for some statuses.
FAILURES = (pa.ArrowException, flight.FlightError, OSError)


def status_of(error: BaseException) -> str:
    found = STATUS_PATTERN.search(str(error))
    return STATUS_WORDS[found.group(1)] if found else "UNKNOWN"


@contextlib.contextmanager
def refused(status: str | Iterable[str], *words: str) -> Iterator[pytest.ExceptionInfo]:
    """Expects a failed call with one of the statuses and a message that contains every word."""
    statuses = {status} if isinstance(status, str) else set(status)
    with pytest.raises(FAILURES) as caught:
        yield caught
    text = str(caught.value)
    assert status_of(caught.value) in statuses, text
    for word in words:
        assert word.lower() in text.lower(), f"{word!r} is not in the message: {text}"


def command(**train: Any) -> bytes:
    return json.dumps({"train": train}).encode()


@dataclass(frozen=True)
class Meta:
    """The message BatchMetadata."""

    epoch: int
    step: int
    rank: int
    rows: int
    position: int
    content_hash: int
    group_offsets: list[int]
    mixed_positions: list[int]

    @classmethod
    def parse(cls, buffer: pa.Buffer) -> Meta:
        fields = json.loads(buffer.to_pybytes())
        lists = {name: fields.pop(name, []) for name in ("group_offsets", "mixed_positions")}
        numbers = {name: int(fields.pop(name, 0)) for name in ("epoch", "step", "rank", "rows", "position", "content_hash")}
        return cls(**numbers, **lists, **fields)


@dataclass(frozen=True)
class Batch:
    data: pa.RecordBatch
    meta: Meta


@dataclass(frozen=True)
class Plan:
    """The answer to GetFlightInfo."""

    info: flight.FlightInfo
    world_size: int
    lanes: int

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.info.app_metadata)

    @property
    def snapshot(self) -> str:
        return self.summary["snapshot"]

    @property
    def steps(self) -> int:
        return int(self.summary["steps"])

    @property
    def tickets(self) -> list[flight.Ticket]:
        return [endpoint.ticket for endpoint in self.info.endpoints]


class Client:
    """One connection. Requests are the keyword arguments of `train`."""

    def __init__(self, location: str) -> None:
        self.flight = flight.connect(location)

    def close(self) -> None:
        self.flight.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, **train: Any) -> Plan:
        descriptor = flight.FlightDescriptor.for_command(command(**train))
        info = self.flight.get_flight_info(descriptor)
        return Plan(info, int(train.get("world_size", 1)), int(train.get("lanes", 1)))

    def read(self, ticket: flight.Ticket | bytes) -> Iterator[Batch]:
        """Yields the batches of one endpoint. Closing the iterator cancels the call."""
        if isinstance(ticket, bytes):
            ticket = flight.Ticket(ticket)
        reader = self.flight.do_get(ticket)
        finished = False
        try:
            for chunk in reader:
                yield Batch(chunk.data, Meta.parse(chunk.app_metadata))
            finished = True
        finally:
            if not finished:
                reader.cancel()

    def schema(self, **train: Any) -> pa.Schema:
        descriptor = flight.FlightDescriptor.for_command(command(**train))
        return self.flight.get_schema(descriptor).schema

    def batches(self, **train: Any) -> Iterator[Batch]:
        """Yields the batches of one rank and lane, requested with a JSON ticket."""
        return self.read(command(**train))

    def global_batches(self, **train: Any) -> Iterator[list[Batch]]:
        """Merges all ranks and lanes. Yields one list per step, with one batch per rank."""
        plan = self.plan(**train)
        lanes = plan.lanes
        endpoints = [self.read(ticket) for ticket in plan.tickets]
        assert len(endpoints) == plan.world_size * lanes
        ended = object()
        number = 0
        while True:
            step = [next(endpoints[rank * lanes + number % lanes], ended) for rank in range(plan.world_size)]
            if ended in step:
                break
            yield step
            number += 1
        assert all(batch is ended for batch in step), "some ranks take more steps than others"
        assert all(next(endpoint, ended) is ended for endpoint in endpoints), "a lane continues after the end"

    def rows(self, **train: Any) -> Iterator[pa.RecordBatch]:
        """Yields the record batches in the order of the global batches."""
        for step in self.global_batches(**train):
            for batch in step:
                yield batch.data

    def table(self, **train: Any) -> pa.Table:
        return pa.Table.from_batches(self.rows(**train), self.schema(**train))

    def digest(self, **train: Any) -> str:
        """Returns the digest of the concatenated global batches."""
        return digest_of(self.rows(**train))

    def step_digests(self, **train: Any) -> list[str]:
        """Returns one digest per global batch."""
        return [digest_of(batch.data for batch in step) for step in self.global_batches(**train)]

    def action(self, kind: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        results = self.flight.do_action(flight.Action(kind, json.dumps(body).encode()))
        return [json.loads(result.body.to_pybytes()) for result in results]

    def refresh(self, dataset: str) -> dict[str, Any]:
        return self.action("refresh", {"dataset": dataset})[-1]
