"""Trainings with the libraries that train with PyTorch: killed, and resumed from the checkpoints of these libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

import forebay
from launching import Launched, check_resumed, killed_before
from server import Server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = sys.executable
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone"]

Launch = Callable[[int, Server, Path], Launched]


def lightning(processes: int, server: Server, folder: Path) -> Launched:
    arguments = ["--url", server.location, "--devices", str(processes), "--folder", str(folder)]
    return Launched([PYTHON, str(EXAMPLES / "train_lightning.py"), *arguments])


def lightning_torchrun(processes: int, server: Server, folder: Path) -> Launched:
    arguments = ["--url", server.location, "--devices", str(processes), "--folder", str(folder)]
    return Launched([*TORCHRUN, f"--nproc-per-node={processes}", str(EXAMPLES / "train_lightning.py"), *arguments])


def accelerate(processes: int, server: Server, folder: Path) -> Launched:
    # With `--cpu`, the launcher starts a single process unless there is an MPI. Port 0 selects a free one.
    command = [PYTHON, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    arguments = ["--url", server.location, "--folder", str(folder)]
    return Launched([*command, str(EXAMPLES / "train_accelerate.py"), *arguments])


def transformers(processes: int, server: Server, folder: Path) -> Launched:
    arguments = ["--url", server.location, "--folder", str(folder)]
    return Launched([*TORCHRUN, f"--nproc-per-node={processes}", str(EXAMPLES / "train_transformers.py"), *arguments])


@pytest.fixture(scope="module")
def whole(flights_server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of the steps of an uninterrupted training. They are the same for all libraries and numbers of processes."""
    lines = lightning(2, flights_server, tmp_path_factory.mktemp("whole")).all_lines()
    assert len(lines) == 50
    return lines


@pytest.mark.parametrize(
    ("launch", "before", "after", "at"),
    [
        (lightning, 3, 2, 28),
        (lightning, 2, 4, 24),
        (lightning_torchrun, 2, 4, 11),
        (accelerate, 4, 2, 28),
        (transformers, 4, 2, 28),
        (transformers, 2, 3, 24),
    ],
    ids=[
        "lightning-within-an-epoch",
        "lightning-at-the-end-of-an-epoch",
        "lightning-torchrun",
        "accelerate",
        "transformers-within-an-epoch",
        "transformers-at-the-end-of-an-epoch",
    ],
)
def test_a_killed_training_resumes_from_the_checkpoint_of_its_library_with_another_number_of_processes(
    flights_server: Server, tmp_path: Path, whole: list[str], launch: Launch, before: int, after: int, at: int
) -> None:
    line = whole[at].partition("rows")[0]
    killed, folder = killed_before(whole[-2], line, lambda path: launch(before, flights_server, path), tmp_path)
    killed.check_ranks(before)
    resuming = launch(after, flights_server, folder)
    resumed = resuming.all_lines()
    resuming.check_ranks(after)
    check_resumed(whole, killed.steps(), resumed, 2)


def test_lightning_validates_each_row_of_the_other_airports_once_with_any_number_of_processes(
    client: forebay.Client, flights_server: Server
) -> None:
    _, valid = forebay.split(0.9, by="origin")
    expected = sum(batch.num_rows for batch in client.train("flights", batch_size=65_536, columns=["delay"], filter=valid, remainder="SHORT"))
    assert 0 < expected < 3_000_000
    for processes in (1, 2, 3):
        command = [PYTHON, str(EXAMPLES / "train_lightning_validated.py"), "--url", flights_server.location, "--devices", str(processes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        validated = re.findall(r"^validated (\d+) rows, loss (\d+)$", done.stdout, re.MULTILINE)
        assert [int(rows) for rows, _ in validated] == [expected] * 2, done.stdout


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("dispatch_batches", [None, True])
def test_a_loader_that_accelerate_has_prepared_is_refused(
    client: forebay.Client, batch_size: int | None, dispatch_batches: bool | None
) -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch_batches))
    ds = client.train("flights", batch_size=4096, tensors={"x": ["delay"]}, output="torch")
    loader = accelerator.prepare(DataLoader(ds, batch_size=batch_size))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Accelerate has prepared the DataLoader"):
            next(iter(loader))
    # The dataset itself and a loader of it are usable, also if they are passed to `prepare`.
    assert len(next(iter(accelerator.prepare(ds)))["x"]) == 4096
    assert len(next(iter(DataLoader(ds, batch_size=None)))["x"]) == 4096


def test_a_prepared_loader_of_results_or_with_workers_is_refused(client: forebay.Client) -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    ds = client.train("flights", batch_size=4096, tensors={"x": ["delay"]}, output="torch")
    for loader in (DataLoader(ds.map(lambda batch: batch), batch_size=None), DataLoader(ds, batch_size=None, num_workers=1)):
        with pytest.raises(RuntimeError, match="Accelerate has prepared the DataLoader"):
            next(iter(Accelerator(cpu=True).prepare(loader)))


def test_the_default_loader_of_the_trainer_is_refused(client: forebay.Client, tmp_path: Path) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    ds = client.train("flights", batch_size=4096, tensors={"x": ["delay"]}, output="torch")
    arguments = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none")
    with pytest.raises(RuntimeError, match="Accelerate has prepared the DataLoader"):
        Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=ds).train()
