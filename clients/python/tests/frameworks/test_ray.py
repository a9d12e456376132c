"""Ray: trainings that resume from Ray Train's checkpoint, and the datasource of Ray Data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import pytest
import ray

import forebay
import forebay.ray
from launching import Launched, check_resumed
from server import Server, until
from test_docs import DOCS, run_in_order

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class RayTrain:
    """A training whose first worker writes the lines of its steps into a file."""

    def __init__(self, workers: int, server: Server, folder: Path) -> None:
        self.log, self.before = folder / "rows.log", 0
        self.before = len(self.lines())
        arguments = ["--url", server.location, "--workers", str(workers), "--folder", str(folder)]
        # The controller polls the workers for their reports.
        variables = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"}
        self.launched = Launched([sys.executable, str(EXAMPLES / "train_ray.py"), *arguments], **variables)

    def lines(self) -> list[str]:
        """Returns the complete lines of this training."""
        text = self.log.read_text() if self.log.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()[self.before :]


def test_a_killed_training_of_ray_train_resumes_from_its_checkpoint_with_another_number_of_workers(
    flights_server: Server, tmp_path: Path
) -> None:
    uninterrupted = RayTrain(2, flights_server, tmp_path / "a")
    uninterrupted.launched.all_lines()
    whole = uninterrupted.lines()
    assert len(whole) == 50

    killed = RayTrain(4, flights_server, tmp_path / "b")
    until(lambda: len(killed.lines()) > 28 or not killed.launched.is_running(), 250)
    killed.launched.kill()
    first = killed.lines()
    resuming = RayTrain(2, flights_server, tmp_path / "b")
    resuming.launched.all_lines()
    # A worker continues after its report, while the controller records the checkpoint.
    check_resumed(whole, first, resuming.lines(), 4)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init(num_cpus=4, object_store_memory=200_000_000, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("tasks", [1, 3, 1000])
def test_the_datasource_has_each_row_once(local_ray: None, client: forebay.Client, flights: Path, tasks: int) -> None:
    import pyarrow.parquet as pq

    names = ["date", "delay", "distance", "origin", "destination"]
    source = forebay.ray.Source(client, "flights", columns=names)
    read = ray.data.read_datasource(source, override_num_blocks=tasks)
    rows = read.to_pandas().sort_values(names, ignore_index=True)
    expected = pq.read_table(flights, columns=names).to_pandas().sort_values(names, ignore_index=True)
    assert len(rows) == len(expected) == 3_000_000
    for name in names:
        assert (rows[name] == expected[name]).all(), name


def test_the_datasource_selects_rows_and_columns(local_ray: None, client: forebay.Client) -> None:
    source = forebay.ray.Source(client, "flights", columns=["delay"], filter="delay > 300", batch_size=1000)
    rows = ray.data.read_datasource(source).to_pandas()
    assert (list(rows), len(rows), rows["delay"].min()) == (["delay"], 2151, 301)


def test_the_block_on_ray_data_runs_as_written(
    local_ray: None, flights_server: Server, capsys: pytest.CaptureFixture
) -> None:
    run_in_order(DOCS / "how-to" / "frameworks.md", flights_server.location, {"forebay": forebay, "ray": ray})
    late = forebay.connect(flights_server.location).train("flights", batch_size=1, columns=["delay"], filter="delay > 15")
    assert f"{late.summary['rows']} late flights" in capsys.readouterr().out


def test_the_datasource_refuses_what_would_change_the_rows(client: forebay.Client) -> None:
    with pytest.raises(TypeError, match="does not take remainder, world_size"):
        forebay.ray.Source(client, "flights", columns=["delay"], world_size=2, remainder="DROP")
