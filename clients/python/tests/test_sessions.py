"""The sessions of the server, which the dashboard shows: one per training, with a verdict."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import forebay

pytestmark = pytest.mark.once


def sessions(server: Any, job_name: str) -> list[dict[str, Any]]:
    """Returns the running sessions of a job."""
    status, body = server.http_get("/api/v1/sessions")
    assert status == 200, body
    return [session for session in json.loads(body)["sessions"] if session["job_name"] == job_name]


def test_a_training_of_several_short_epochs_is_one_session_with_a_verdict(flights_server: Any) -> None:
    client = forebay.connect(flights_server.location)
    ds = client.train("flights", batch_size=30_000, columns=["delay"], job_name="epochs")
    ids, judged, asked_at = set(), set(), 0.0
    deadline = time.monotonic() + 120
    # An epoch of 100 steps takes more than a second, and both windows of a verdict together 20 s.
    for batch in ds.epochs(1000):
        time.sleep(0.012)
        if time.monotonic() - asked_at < 0.25:
            continue
        asked_at = time.monotonic()
        (session,) = sessions(flights_server, "epochs")
        ids.add(session["id"])
        if session["verdict"]["bottleneck"] not in ("idle", "unknown"):
            judged.add(batch.epoch)
        if len(judged) == 2:
            break
        assert asked_at < deadline, session
    ds.close()
    assert len(ids) == 1, ids
    # There is a verdict on both sides of a border of epochs.
    assert len(judged) == 2 and min(judged) > 0


def test_each_loop_over_a_dataset_is_a_session_of_its_own(flights_server: Any) -> None:
    # A small prefetch, so that the session does not end before its batches are received.
    client = forebay.connect(flights_server.location, prefetch_batches=1)
    ds = client.train("flights", batch_size=300_000, columns=["delay"], job_name="loops")
    ids = []
    for _ in range(2):
        for batch in ds:
            if batch.step == 0:
                ids += [session["id"] for session in sessions(flights_server, "loops")]
    assert len(set(ids)) == 2, ids
