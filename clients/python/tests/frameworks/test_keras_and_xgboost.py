"""Keras and XGBoost: trainings that were killed and resume from their checkpoints, with each row once a pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launching import Launched, check_resumed
from server import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def keras(server: Server, folder: Path, backend: str) -> Launched:
    arguments = ["--url", server.location, "--folder", str(folder)]
    return Launched([sys.executable, str(EXAMPLES / "train_keras.py"), *arguments], KERAS_BACKEND=backend)


def xgboost(server: Server, folder: Path) -> Launched:
    return Launched([sys.executable, str(EXAMPLES / "train_xgboost.py"), "--url", server.location, "--folder", str(folder)])


@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_a_killed_training_of_keras_resumes_from_its_checkpoint_within_an_epoch(
    flights_server: Server, tmp_path: Path, backend: str
) -> None:
    whole = keras(flights_server, tmp_path / "a", backend).all_lines()
    assert len(whole) == 50
    first = keras(flights_server, tmp_path / "b", backend).lines_until(whole[28].partition("rows")[0])
    check_resumed(whole, first, keras(flights_server, tmp_path / "b", backend).all_lines(), 0)


def test_each_pass_of_xgboost_has_each_row_once_also_after_it_was_killed(flights_server: Server, tmp_path: Path) -> None:
    killed = xgboost(flights_server, tmp_path)
    killed.lines_until("round 7")
    resumed = xgboost(flights_server, tmp_path)
    resumed.all_lines()
    passes = [line.strip() for line in [*killed.output, *resumed.output] if line.startswith("pass of")]
    assert len(passes) >= 4 and len(set(passes)) == 1
    assert passes[0].startswith("pass of 3000000 rows ")
    rounds = [line.strip() for line in resumed.output if line.startswith("round ")]
    # The last round that was printed is saved, and the next one may be.
    assert rounds[0] in ("round 8", "round 9") and rounds[-1] == "round 20"
