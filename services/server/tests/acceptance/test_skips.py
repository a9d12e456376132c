"""The plugin of .ci/skips.py: with FOREBAY_STRICT_SKIPS=1, only reviewed reasons skip a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import skips

SUITE = """
import pytest

def test_passes(): pass
def test_of_a_gpu(): pytest.skip("no CUDA device on this machine")
@pytest.mark.xfail(strict=True)
def test_expected_to_fail(): assert False
"""
UNLISTED = {
    "in a test": "def test_of_data(): pytest.skip('flights is unavailable: npm failed')",
    "in a fixture": "@pytest.fixture\ndef data(): pytest.skip('flights is unavailable')\ndef test_of_data(data): pass",
    "by a mark": "@pytest.mark.skipif(True, reason='flights is unavailable')\ndef test_of_data(): pass",
    "of a module": "pytest.importorskip('no_such_module', reason='flights is unavailable')",
    "with a listed reason inside": "def test_of_data(): pytest.skip('flights is unavailable, no CUDA device on this machine')",
}


def run(folder: Path, text: str, strict: str) -> subprocess.CompletedProcess:
    """Runs pytest with the plugin on a file of tests."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_suite.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(skips.__file__).parent), skips.STRICT: strict}
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "-p", "skips", "--continue-on-collection-errors"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("way", UNLISTED)
def test_a_skip_for_an_unlisted_reason_fails_and_is_named_if_skips_are_strict(tmp_path: Path, way: str) -> None:
    text = SUITE + UNLISTED[way]
    done = run(tmp_path, text, strict="1")
    assert done.returncode != 0
    assert re.search(r"test_suite.py(::test_of_data)? was skipped at .*: flights is unavailable", done.stdout), done.stdout
    lenient = run(tmp_path, text, strict="")
    # pytest exits with 5 if its only module is skipped.
    assert lenient.returncode in (0, 5), lenient.stdout


def test_a_skip_for_a_listed_reason_and_an_expected_failure_pass(tmp_path: Path) -> None:
    done = run(tmp_path, SUITE, strict="1")
    assert done.returncode == 0 and "1 passed, 1 skipped, 1 xfailed" in done.stdout, done.stdout


def test_every_listed_reason_has_an_explanation() -> None:
    assert skips.allowed_reasons(skips.ALLOWED.read_text())
    with pytest.raises(pytest.UsageError, match="no explanation"):
        skips.allowed_reasons("no CUDA device on this machine\n")
