"""The tutorial is a transcript: its commands print what it says, on a host on which no server runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import server
from test_open import Host, host  # noqa: F401

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests find the server with SO_PEERCRED")

PAGE = server.ROOT / "docs" / "tutorial" / "first-training.md"
TIMEOUT_S = 240


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, flights: Path) -> Path:
    """A folder with `my-data` and `train.py`."""
    (tmp_path / "my-data").mkdir()
    (tmp_path / "my-data" / "flights.parquet").symlink_to(flights)
    (program,) = blocks("python")
    (tmp_path / "train.py").write_text(program)
    return tmp_path


def run(host: Host, folder: Path, *command: str) -> str:  # noqa: F811
    environment = {**host.environment, "FOREBAY_EXIT_WHEN_IDLE": "10s"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([\d.]+)", text)]


def test_the_session_prints_what_the_tutorial_says(host: Host, folder: Path) -> None:  # noqa: F811
    sessions = blocks("pycon")
    assert len(sessions) == 2
    (folder / "session.txt").write_text("\n".join(sessions))
    assert run(host, folder, "-m", "doctest", "session.txt") == ""


def test_the_block_of_the_readme_for_a_user_of_python_runs_as_written(host: Host, folder: Path) -> None:  # noqa: F811
    text = (server.ROOT / "README.md").read_text()
    (block,) = (each for each in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "forebay.open" in each)
    (folder / "program.py").write_text(block)
    lines = run(host, folder, "program.py").splitlines()
    assert len(lines) == 733 and lines[0].startswith("0 ") and "delay" in lines[0]


def test_the_training_resumes_as_the_tutorial_says(host: Host, folder: Path) -> None:  # noqa: F811
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not in this environment; the other one has it")
    transcripts = [re.fullmatch(r"\$ python (train.py \d+)\n(.*)", block, re.DOTALL) for block in blocks("console")]
    found = [(match[1], match[2]) for match in transcripts if match]
    assert len(found) == 2
    for command, expected in found:
        printed = run(host, folder, *command.split())
        # The last digits depend on the processor.
        assert re.sub(r"loss [\d.]+", "", printed) == re.sub(r"loss [\d.]+", "", expected)
        assert losses(printed) == pytest.approx(losses(expected), abs=0.02)
    (folder / "checkpoint.pt").unlink()
    assert run(host, folder, *found[-1][0].split()) == printed.split("\n", 1)[1], "resuming changes nothing"
