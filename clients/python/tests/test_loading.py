"""The wait for the first window is shown in the bar and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from forebay import loading
from server import until


class Bar:
    """Notes what a bar of tqdm would show."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def set_postfix_str(self, text: str) -> None:
        self.shown.append(text)


def test_the_progress_of_a_window_that_a_loop_waits_for_is_in_the_bar_and_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "POLL_S", 0.001)
    monkeypatch.setattr(loading, "FIRST_LOG_S", 0)
    loads: list[dict[str, Any] | None] = [None, {"blocks": 95, "waits_for_memory": True}, {"blocks": 95, "blocks_done": 40}]
    bar, last = Bar(), loads[-1]
    with caplog.at_level(logging.WARNING, "forebay"):
        with loading.LoadingShown("flights", lambda: loads.pop(0) if loads else last, bar) as shown:
            assert bar.shown == [], "nothing is shown before the loop waits"
            shown.begin()
            until(lambda: "loading the first window: 40 of 95 blocks" in bar.shown)
            shown.end()
            until(lambda: bar.shown[-1] == "")
            shown.begin()
            until(lambda: "loading the next window: 40 of 95 blocks" in bar.shown)
    assert bar.shown[0] == "the first window waits for memory that other streams use" and bar.shown[-1] == ""
    # Later notices about a wait follow after their interval.
    assert [record.getMessage() for record in caplog.records] == [
        "'flights': the first window waits for memory that other streams use",
        "'flights': loading the next window: 40 of 95 blocks",
    ]
