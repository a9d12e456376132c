"""A pytest plugin: with FOREBAY_STRICT_SKIPS=1, a test that is skipped for a reason outside of skips.txt fails.

Both Python suites load it. Without the variable, a run passes although its test data could not be downloaded and most
tests were skipped.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ALLOWED = Path(__file__).with_name("skips.txt")
STRICT = "FOREBAY_STRICT_SKIPS"


def allowed_reasons(text: str) -> list[re.Pattern[str]]:
    """Parses the list: one regular expression per line, then " # " and why the skip is allowed."""
    patterns = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        pattern, _, why = line.partition(" # ")
        if not why.strip():
            raise pytest.UsageError(f"{ALLOWED}: no explanation in the line {line!r}")
        patterns.append(re.compile(pattern.strip()))
    return patterns


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(STRICT) == "1":
        config.pluginmanager.register(StrictSkips(allowed_reasons(ALLOWED.read_text())))


class StrictSkips:
    """Turns the reports of skips for other reasons into failures."""

    def __init__(self, allowed: list[re.Pattern[str]]) -> None:
        self.allowed = allowed

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self):
        self._check((yield).get_result())

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_make_collect_report(self):
        self._check((yield).get_result())

    def _check(self, report: Any) -> None:
        # A test that fails as expected (xfail) is reported as skipped, too.
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        path, line, message = report.longrepr
        reason = message.removeprefix("Skipped: ")
        if any(pattern.fullmatch(reason) for pattern in self.allowed):
            return
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped at {path}:{line}: {reason}\n{STRICT}=1 and {ALLOWED} does not allow this."
