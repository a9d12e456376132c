"""`forebay.profile` separates wait time from compute time, for any loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

import forebay
from server import Server

pytestmark = pytest.mark.once


class Clock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Slow:
    """A loader of ten batches of 100 rows, each after a delay."""

    name = "slow"

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock = seconds, clock

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for _ in range(10):
            self.clock.sleep(self.seconds)
            yield {"x": np.zeros((100, 2))}


@pytest.mark.parametrize(
    ("wait", "compute", "verdict"),
    [
        (0.02, 0.002, "the loader is the bottleneck"),
        (0.0, 0.02, "the trainer is the bottleneck"),
        (0.002, 0.015, "of its time"),
    ],
)
def test_the_verdict_names_the_bottleneck(
    wait: float, compute: float, verdict: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("forebay.profiling.time", clock)
    profiled = forebay.profile(Slow(wait, clock))
    for batch in profiled:
        clock.sleep(compute)
    report = profiled.report
    assert (report.steps, report.rows, len(profiled), profiled.name) == (10, 1000, 10, "slow")
    # The wait for the first batch includes one-time costs and is counted separately.
    assert report.wait == pytest.approx(9 * wait)
    assert report.compute == pytest.approx(10 * compute)
    assert verdict in report.verdict and verdict in capsys.readouterr().err


def test_an_iteration_that_is_left_or_fails_is_reported(capsys: pytest.CaptureFixture) -> None:
    for batch in forebay.profile(Slow(0, Clock())):
        break
    assert "1 steps" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        for batch in forebay.profile(Slow(0, Clock())):
            1 // 0
    assert "1 steps" in capsys.readouterr().err


def test_a_profiled_dataset_keeps_its_attributes(client: forebay.Client) -> None:
    ds = forebay.profile(client.train("flights", batch_size=100_000, columns=["delay"]), print_report=False)
    for batch in ds:
        pass
    assert (ds.report.steps, ds.report.rows, ds.state_dict()["step"]) == (30, 3_000_000, 30)


@pytest.mark.parametrize("own", [True, False])
def test_profile_on_the_command_line_measures_both(flights: Path, flights_server: Server, own: bool) -> None:
    pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "forebay", "profile", str(flights), "--steps", "50"]
    if not own:
        command += ["--try", flights_server.location, "--dataset", "flights"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    for line in ("Forebay, cold", "Forebay, warm", "pyarrow in this process", "50 steps", "times as long"):
        assert line in done.stdout


def test_the_package_includes_the_server(tmp_path: Path) -> None:
    version = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"forebay {forebay.__version__}\n"
