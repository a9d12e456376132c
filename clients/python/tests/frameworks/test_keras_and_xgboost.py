"""Keras and XGBoost: trainings that were killed and resume from their checkpoints, with each row once a pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launching import Launched, check_resumed, killed_before
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
    at = whole[28].partition("rows")[0]
    killed, folder = killed_before(whole[-2], at, lambda path: keras(flights_server, path, backend), tmp_path)
    check_resumed(whole, killed.steps(), keras(flights_server, folder, backend).all_lines(), 0)


def test_each_pass_of_xgboost_has_each_row_once_also_after_it_was_killed(flights_server: Server, tmp_path: Path) -> None:
    killed, folder = killed_before("round 19", "round 7", lambda path: xgboost(flights_server, path), tmp_path)
    resumed = xgboost(flights_server, folder)
    resumed.all_lines()
    passes = [line.strip() for line in [*killed.output, *resumed.output] if line.startswith("pass of")]
    assert len(passes) >= 4 and len(set(passes)) == 1
    assert passes[0].startswith("pass of 3000000 rows ")
    saved, rounds = ([int(line.split()[1]) for line in each.output if line.startswith("round ")] for each in (killed, resumed))
    # The last round that was printed is saved, and the next one may be.
    assert saved[-1] >= 7 and rounds[0] - saved[-1] in (1, 2) and rounds[-1] == 20
