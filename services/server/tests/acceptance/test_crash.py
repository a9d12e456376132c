"""The server is killed, and the trainer resumes at its own step count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from client import FAILURES, Client, Plan, status_of
from conftest import GROUP_ROWS
from digest import digest_of
from server import Pool

EPOCHS = 6
REQUEST = {
    "dataset": "small-groups",
    "batch_size": 8192,
    "seed": 3,
    "shuffle": {"window_rows": 8 * GROUP_ROWS},
}

LATE = {"filter": "delay > 10"}
DISTINCT = {"dedupe": [{"key": ["distance"], "tensor": "far", "columns": ["distance"]}]}
TENSOR = {"tensors": [{"name": "x", "columns": ["delay"]}]}
VIEWS = {
    "rows": {},
    "groups": {**LATE, **DISTINCT, **TENSOR, "columns": ["delay"], "group_by": ["distance"], "batch_size": 2000},
    "packs": {**TENSOR, "columns": ["delay"], "group_by": ["distance"], "max_pack_rows": 500, "batch_size": 10},
    "padded": {**LATE, **TENSOR, "remainder": "PAD", "batch_size": 5000},
    "mixture": {"mix": [{"dataset": "flights", "fraction": 0.25, **LATE}]},
}


@pytest.mark.parametrize(("view", "kills"), [("rows", 20), ("groups", 5), ("packs", 5), ("padded", 5), ("mixture", 5)])
def test_a_server_killed_at_random_points_does_not_change_the_sequence(
    pool: Pool, small_groups: Path, flights: Path, tmp_path: Path, flights_client: Client, view: str, kills: int
) -> None:
    request = {**REQUEST, **VIEWS[view]}
    datasets = {"small-groups": small_groups, "flights": flights}
    plan = flights_client.plan(**request)
    expected = [digest_of([batch.data]) for batch in flights_client.batches(**request, epochs=EPOCHS)]
    assert len(expected) == EPOCHS * plan.steps

    received: list[str] = []
    chance = random.Random(20)
    for _ in range(kills):
        server = pool.start(datasets, cache_dir=tmp_path / "cache")
        with Client(server.location) as client:
            kill_after = len(received) + chance.randrange(1, 60)
            try:
                for batch in client.batches(**resume(request, plan, len(received))):
                    received.append(digest_of([batch.data]))
                    if len(received) == kill_after:
                        server.kill()  # batches in flight still arrive and count
            except FAILURES as error:
                assert status_of(error) in {"UNAVAILABLE", "INTERNAL", "CANCELLED"}, error
            else:
                raise AssertionError(f"a killed server ended its stream with OK after {len(received)} batches")

    server = pool.start(datasets, cache_dir=tmp_path / "cache")
    with Client(server.location) as client:
        received += [digest_of([batch.data]) for batch in client.batches(**resume(request, plan, len(received)))]
    assert received == expected


def resume(request: dict, plan: Plan, done: int) -> dict:
    """Returns the request that resumes after `done` steps with the snapshot of `plan`."""
    epoch, step = divmod(done, plan.steps)
    return {**request, "snapshot": plan.snapshot, "epoch": epoch, "epochs": EPOCHS - epoch, "start_step": step}
