"""Calls of a client belong to the trace that the client or its environment names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import RequestError
from server import Pool, Server

pytestmark = pytest.mark.once

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def test_calls_belong_to_the_trace_of_the_client_or_its_environment(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "grows"
    folder.mkdir()

    def grow(name: str) -> None:
        pq.write_table(pa.table({"x": np.arange(10)}), folder / f"{name}.parquet")

    grow("start")
    # No collector is necessary, because log lines contain the trace, too.
    server = pool.start({"grows": folder}, traces_endpoint="http://127.0.0.1:9")
    monkeypatch.delenv("TRACEPARENT", raising=False)
    expected = []
    for name, given, environment in [("none", None, None), ("given", PARENT, None), ("none", None, "00-é\n"), ("inherited", None, PARENT)]:
        if environment:
            monkeypatch.setenv("TRACEPARENT", environment)
        grow(f"{name}-{len(expected)}")
        forebay.connect(server.location, traceparent=given).refresh("grows")
        expected.append(PARENT in (given, environment))
    lines = [line for line in server.log().splitlines() if "took a snapshot" in line][1:]
    assert [TRACE in line for line in lines] == expected


def test_an_invalid_traceparent_is_rejected(flights_server: Server) -> None:
    with pytest.raises(RequestError, match="traceparent"):
        forebay.connect(flights_server.location, traceparent="00-\n").refresh("flights")
