"""`forebay.open` in the workers of a DataLoader."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not in this environment; the other one has it")

from test_open import Host, host  # noqa: E402, F401


def test_a_server_killed_in_mid_epoch_costs_the_workers_of_a_loader_only_time(host: Host, flights: Path) -> None:  # noqa: F811
    program = """
import torch

ds = forebay.open(sys.argv[1], prefetch_batches=2)
tensors = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}

def loader(workers):
    training = ds.train(batch_size=50_000, tensors=tensors, seed=3, output="torch")
    return torch.utils.data.DataLoader(training, batch_size=None, num_workers=workers)

expected, found, pids = [digest([batch]) for batch in loader(0)], [], [server_pid()]
for step, batch in enumerate(loader(2)):
    found.append(digest([batch]))
    if step in (10, 30):
        kill_server()
        pids.append(server_pid())
assert found == expected and len(found) == 60 and len(set(pids)) == 3
print("same digest")
"""
    assert host.run(program, flights) == "same digest"
