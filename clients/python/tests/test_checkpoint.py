"""States that an earlier version of the package saved still load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay.checkpoint import with_current_names
from server import Pool

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

# Saved before the request fields were renamed, byte for byte except for ids, which depend on the files.
MIXTURE = """{"version": 1, "snapshot": "SNAPSHOT", "plan_version": 1, "plan_hash": "PLAN", "global_batch": 40,
"request": {"dataset": "main", "snapshot": "SNAPSHOT", "tensors": [{"name": "x", "columns": ["clicks"], "dtype": "float32",
"fill": 0.0}, {"name": "l", "columns": ["items"], "dtype": "", "fill": -1.0, "max_len": 3}], "batch_size": 40, "seed": 3,
"shuffle": {"window_rows": 1000, "in_order": true}, "world_size": 1, "lanes": 1, "remainder": "DROP", "job": "nightly",
"label": "clicks", "hash": true, "plan_version": 1, "filter": "", "mix": [{"dataset": "other", "snapshot": "OTHER",
"share": 0.25, "filter": ""}]}, "epoch": 0, "step": 5}"""
PACKS = """{"version": 1, "snapshot": "SNAPSHOT", "plan_version": 1, "plan_hash": "PLAN", "global_batch": 2,
"request": {"dataset": "main", "snapshot": "SNAPSHOT", "columns": ["user"], "batch_size": 2, "seed": 0,
"shuffle": {"window_rows": 1048576, "in_order": false}, "world_size": 1, "lanes": 1, "remainder": "SHORT", "job": "nightly",
"label": "", "hash": true, "plan_version": 1, "filter": "", "group_by": ["user"], "dedupe": [{"key": ["user"],
"tensor": "q", "columns": ["clicks"], "dtype": "", "fill": 0.0}], "batch_rows": 64}, "epoch": 0, "step": 5}"""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": (
        MIXTURE,
        dict(
            batch_size=40,
            tensors={
                "x": {"columns": ["clicks"], "dtype": "float32", "null_value": 0},
                "l": {"columns": ["items"], "max_list_length": 3, "null_value": -1},
            },
            mix={"other": {"fraction": 0.25}},
            shuffle={"window_rows": 1000, "keep_block_order": True},
            seed=3,
        ),
    ),
    "packs": (
        PACKS,
        dict(
            columns=["user"],
            dedupe={"q": {"key": ["user"], "columns": ["clicks"], "null_value": 0}},
            group_by=["user"],
            max_pack_rows=64,
            batch_size=2,
        ),
    ),
}


@pytest.fixture
def client(pool: Pool, tmp_path: Path) -> forebay.Client:
    ids = np.arange(4000)
    main = {"user": ids // 10, "clicks": ids, "items": [[number, number + 1] for number in range(4000)]}
    pq.write_table(pa.table(main), tmp_path / "main.parquet")
    other = {"user": [-1] * 500, "clicks": np.arange(500), "items": [[1]] * 500}
    pq.write_table(pa.table(other), tmp_path / "other.parquet")
    server = pool.start({name: tmp_path / f"{name}.parquet" for name in ("main", "other")})
    return forebay.connect(server.location)


def content(batch: forebay.Batch) -> list[bytes]:
    return [batch[name].to_numpy().tobytes() for name in batch.keys() if name not in ("q", "q_index")]


def with_ids(saved: str, ds: forebay.TrainingDataset) -> str:
    """Returns a saved state with the ids of the files that the dataset reads."""
    current = ds.state_dict()
    ids = {"SNAPSHOT": current["snapshot"], "PLAN": current["plan_hash"]}
    ids |= {"OTHER": mixed["snapshot"] for mixed in current["request"].get("mix", ())}
    for placeholder, value in ids.items():
        saved = saved.replace(placeholder, value)
    return saved


@pytest.mark.parametrize("case", CASES)
def test_a_state_with_the_earlier_field_names_resumes_the_same_batches(client: forebay.Client, case: str) -> None:
    saved, request = CASES[case]
    original, resumed = client.train("main", **request), client.train("main", **request)
    expected = [content(batch) for batch in original]
    resumed.load_state_dict(json.loads(with_ids(saved, original)))
    assert [content(batch) for batch in resumed] == expected[5:]
    # The next state has the current names only.
    names = set(resumed.state_dict()["request"])
    assert not names & {"batch_rows", "hash", "job", "label"} and {"content_hash", "job_name", "label_column"} <= names


@pytest.mark.parametrize(
    ("case", "saved_value", "other_value", "field"),
    [
        ("mixture", '"share": 0.25', '"share": 0.5', "mix"),
        ("mixture", '"in_order": true', '"in_order": false', "shuffle"),
        ("mixture", '"fill": 0.0', '"fill": 1.0', "tensors"),
        ("mixture", '"max_len": 3', '"max_len": 4', "tensors"),
        ("packs", '"batch_rows": 64', '"batch_rows": 65', "max_pack_rows"),
    ],
)
def test_a_state_with_earlier_names_and_another_value_is_rejected(
    client: forebay.Client, case: str, saved_value: str, other_value: str, field: str
) -> None:
    saved, request = CASES[case]
    assert saved_value in saved
    ds = client.train("main", **request)
    state = json.loads(with_ids(saved.replace(saved_value, other_value), ds))
    with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"saved with {field} "):
        ds.load_state_dict(state)


def test_current_names_are_unchanged() -> None:
    request = with_current_names(json.loads(MIXTURE)["request"])
    assert with_current_names(request) == request
    assert request["mix"][0]["fraction"] == 0.25 and request["shuffle"]["keep_block_order"] is True
    assert [tensor["null_value"] for tensor in request["tensors"]] == [0.0, -1.0]
    assert request["tensors"][1]["max_list_length"] == 3
    packs = with_current_names(json.loads(PACKS)["request"])
    assert packs["max_pack_rows"] == 64 and packs["dedupe"][0]["null_value"] == 0.0
