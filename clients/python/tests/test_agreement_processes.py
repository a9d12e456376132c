"""Datasets that one process has for itself alone do not disturb the agreement of all processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")

PROCESS = """
import datetime, sys
import torch.distributed as dist
import forebay

location, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
# Processes that wait for different agreements fail after this time.
dist.init_process_group("gloo", f"file://{store}", datetime.timedelta(seconds=60), rank=rank, world_size=2)
client = forebay.connect(location)


def train(**options):
    return client.train("flights", batch_size=1000, columns=["delay"], **options)


def alone():
    # Rank 0 evaluates between the steps of all, as loops often do.
    if rank == 0:
        options = {"rank": 0, "world_size": 1, "filter": "distance > 4900"}
        for ds in (train(**options), client.eval("flights", batch_size=1000, columns=["delay"], **options)):
            assert sum(len(batch) for batch in ds) > 0


if rank == 0:
    unused = train(seed=5)
alone()
first, second = train(seed=1), train(seed=2)
print(next(iter(first)).position)
alone()
print(next(iter(second)).position)
alone()
# A second agreement on the same dataset.
first.load_state_dict(first.state_dict())
print(next(iter(first)).position)
if rank == 0:
    train(seed=6)
print(next(iter(train(seed=3))).position, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_processes_agree_although_one_has_datasets_of_its_own(flights_server: Any, tmp_path: Path) -> None:
    commands = [
        [sys.executable, "-c", PROCESS, flights_server.location, str(tmp_path / "store"), str(rank)] for rank in (0, 1)
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for command in commands]
    outputs = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    # The second batch of the first dataset is behind the first one of both ranks.
    assert [output.split() for output, _ in outputs] == [["0", "0", "2000", "0"], ["1000", "1000", "3000", "1000"]]
