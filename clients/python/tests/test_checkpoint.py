"""States that an earlier version of the package saved still load."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

import earlier
import forebay
from forebay.checkpoint import check_dataset, with_current_names, with_names_of
from server import Pool

pa = pytest.importorskip("pyarrow")
import pyarrow.flight as flight  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

pytestmark = pytest.mark.once

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
        ("packs", '"batch_rows": 64', '"batch_rows": 65', "max_pack_rows"),
    ],
)
def test_a_state_with_earlier_names_and_another_value_is_rejected(
    client: forebay.Client, case: str, saved_value: str, other_value: str, field: str
) -> None:
    saved, request = CASES[case]
    assert saved_value in saved
    ds = client.train("main", **request)
    state = {**json.loads(with_ids(saved.replace(saved_value, other_value), ds)), "plan_hash": "0123456789abcdef"}
    with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"saved with {field} "):
        ds.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "only_saved"),
    [
        ("filter", {"filter": "clicks < 3000"}),
        ("group_by", {"group_by": "user"}),
        ("mix", {"mix": {"other": 0.25}}),
        ("max_pack_rows", {"max_pack_rows": 64}),
    ],
)
def test_a_state_does_not_replace_an_argument_that_was_removed(client: forebay.Client, name: str, only_saved: dict[str, Any]) -> None:
    common: dict[str, Any] = {"batch_size": 40, "group_by": "user"} if name == "max_pack_rows" else {"batch_size": 40}
    state = client.train("main", **common, **only_saved).state_dict()
    ds = client.train("main", **common)
    rows = ds.num_rows
    with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"saved with {name} .*, but this training has no {name}; pass the same {name} to train"):
        ds.load_state_dict(state)
    assert (ds.epoch, ds.step, ds.num_rows) == (0, 0, rows), "the training is that of before"


@pytest.mark.parametrize("saved", [False, {"global": {}}, {"window_rows": 1000, "keep_block_order": True}])
def test_a_shuffle_that_is_given_and_differs_from_that_of_the_state_is_an_error(client: forebay.Client, saved: Any) -> None:
    state = client.train("main", batch_size=40, shuffle=saved).state_dict()
    for given in (True, 500):
        ds = client.train("main", batch_size=40, shuffle=given)
        with pytest.raises(forebay.errors.CheckpointMismatchError, match="the state was saved with shuffle .*, but shuffle is"):
            ds.load_state_dict(state)
        assert (ds.epoch, ds.step) == (0, 0)
    # Without the argument, the mode of the state is used.
    ds = client.train("main", batch_size=40)
    ds.load_state_dict(state)
    assert ds.state_dict() == state


def test_the_default_windows_continue_with_the_size_of_the_windows_in_the_state(client: forebay.Client) -> None:
    for saved in (None, True, 1000):
        original = client.train("main", batch_size=40, columns="clicks", shuffle=saved)
        batches = iter(original)
        next(batches)
        state, rest = original.state_dict(), [content(batch) for batch in batches]
        for given in (None, True):
            ds = client.train("main", batch_size=40, columns="clicks", shuffle=given)
            ds.load_state_dict(json.loads(json.dumps(state)))
            assert [content(batch) for batch in ds] == rest


def write_alike(path: Path, value: int) -> None:
    """Writes a file that has the name, size and modification time of others that this writes, with other rows."""
    path.parent.mkdir()
    columns = {"user": np.full(500, value), "clicks": np.full(500, value)}
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="none", write_statistics=False)
    os.utime(path, (1.7e9, 1.7e9))


def test_a_state_of_a_mixture_does_not_load_into_a_mixture_of_other_datasets(pool: Pool, tmp_path: Path) -> None:
    for number, name in enumerate(("main", "first", "second")):
        write_alike(tmp_path / name / "a.parquet", number)
    client = forebay.connect(pool.start({name: tmp_path / name for name in ("main", "first", "second")}).location)

    def training(mix: Any, **options: Any) -> forebay.TrainingDataset[Any]:
        return client.train("main", batch_size=40, mix=mix, **options)

    state = training({"first": 0.25}).state_dict()
    other = training({"second": 0.25})
    assert other.state_dict()["plan_hash"] == state["plan_hash"], "the plans do not show the difference"
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="saved with mix 'first', but mix is 'second'; pass the same mix"):
        other.load_state_dict(state)
    assert other.state_dict()["request"]["mix"][0]["dataset"] == "second" and (other.epoch, other.step) == (0, 0)
    for mix, shown in (({"second": 0.25, "first": 0.25}, "'second', 'first'"), ([{"dataset": "main", "fraction": 0.25}], "'main'")):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"saved with mix 'first', but mix is {shown}"):
            training(mix).load_state_dict(state)
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="saved with mix .*0.25.*, but mix is .*0.5"):
        training({"first": 0.5}).load_state_dict(state)
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="saved with mix .*, but mix is .*user < 9"):
        training({"first": {"fraction": 0.25, "filter": "user < 9"}}).load_state_dict(state)
    both = training({"first": 0.25, "second": 0.25}).state_dict()
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="mix 'first', 'second', but mix is 'second', 'first', in another order; pass") as raised:
        training({"second": 0.25, "first": 0.25}).load_state_dict(both)
    assert "another path" not in str(raised.value)
    for edited in ({"dataset": "first", "fraction": 0.25}, {"snapshot": "x"}, {"dataset": "first", "snapshot": 7}):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match="mix in the request of the state has .*, expected strings as dataset and snap"):
            training({"first": 0.25}).load_state_dict({**state, "request": {**state["request"], "mix": [edited]}})
    training({"first": 0.25}).load_state_dict(state)
    # The state has a remainder that mixtures do not have.
    alone = training(None).state_dict()
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="saved without mix, but this training has mix 'first'; leave it out, or start"):
        training({"first": 0.25}).load_state_dict(alone)


def test_the_datasets_of_a_mixture_may_be_opened_with_other_credentials() -> None:
    def request(credentials: str, *mixed: str) -> dict[str, Any]:
        name = f"-k{credentials * 16}"
        return {"dataset": f"main-1{name}", "mix": [{"dataset": f"{each}{name}", "fraction": 0.25} for each in mixed]}

    now = request("b", "other-2")
    check_dataset(with_names_of({"request": request("a", "other-2")}, now), now)
    for mixed in (["other-3"], ["other-2", "other-3"], []):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match="mix"):
            check_dataset(with_names_of({"request": request("a", *mixed)}, now), now)


def test_a_state_with_other_values_names_them_without_their_hashes(client: forebay.Client) -> None:
    def training(values: dict[str, Any]) -> forebay.TrainingDataset[Any]:
        return client.train("main", batch_size=40, filter="user IN (:ids)", values=values)

    state = training({"ids": range(100)}).state_dict()
    for values, message in (
        ({"ids": range(50)}, r"saved with other values of 'ids' \(100 then, 50 now\); pass the same values to train"),
        ({"ids": range(1, 101)}, "saved with other values of 'ids'; pass the same values to train"),
    ):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=message) as raised:
            training(values).load_state_dict(state)
        assert "sha256" not in str(raised.value)


def test_current_names_are_unchanged() -> None:
    request = with_current_names(json.loads(MIXTURE)["request"])
    assert with_current_names(request) == request
    assert request["mix"][0]["fraction"] == 0.25 and request["shuffle"]["keep_block_order"] is True
    assert [tensor["null_value"] for tensor in request["tensors"]] == [0.0, -1.0]
    assert request["tensors"][1]["max_list_length"] == 3
    packs = with_current_names(json.loads(PACKS)["request"])
    assert packs["max_pack_rows"] == 64 and packs["dedupe"][0]["null_value"] == 0.0


@pytest.fixture(scope="module")
def recorded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The location of a server over the recorded data, whose snapshots are in the recorded manifests only."""
    folder = tmp_path_factory.mktemp("earlier")
    earlier.copy(folder)
    earlier.add_files(folder)
    pool = Pool(folder)
    try:
        yield earlier.start(pool, folder).location
    finally:
        pool.close()


def current_arguments(recorded: dict[str, Any]) -> dict[str, Any]:
    """Returns the recorded arguments of `train` with their current names."""
    by_name = {name: recorded[name] for name in ("tensors", "mix") if name in recorded}
    current = with_current_names({**recorded, **{name: list(values.values()) for name, values in by_name.items()}})
    return {**current, **{name: dict(zip(values, current[name])) for name, values in by_name.items()}}


def recorded_batches(location: str, name: str) -> list[Any]:
    """Returns the batches of rank 0 in its first epoch, read with the recorded tickets and compared with the recorded hashes."""
    recorded = earlier.REQUESTS[name]
    lanes = recorded["training"].get("lanes", 1)
    read = []
    with flight.connect(location) as connected:
        for stream in recorded["streams"][:lanes]:
            chunks = list(connected.do_get(flight.Ticket(stream["json"].encode())))
            hashes = [str(json.loads(chunk.app_metadata.to_pybytes())["content_hash"]) for chunk in chunks]
            assert hashes == stream["hashes"]
            read.append([chunk.data for chunk in chunks])
    # A rank reads its lanes in turns.
    return [read[step % lanes][step // lanes] for step in range(int(recorded["summary"]["steps"]))]


@pytest.mark.parametrize("name", earlier.EXPRESSIONS)
def test_a_state_of_an_earlier_package_with_expressions_is_rejected_by_name(recorded_server: str, name: str) -> None:
    recorded = earlier.REQUESTS[name]
    client = forebay.connect(recorded_server, report=False)
    ds = client.train("events", rank=0, **current_arguments(recorded["training"]))
    with pytest.raises(forebay.errors.RequestError, match="version 3 of the semantics.*This server has version 4") as rejected:
        ds.load_state_dict(recorded["state"])
    assert earlier.EXPRESSIONS[name] in str(rejected.value)
    ds.close()


@pytest.mark.parametrize("name", earlier.WITHOUT_EXPRESSIONS)
def test_a_state_of_an_earlier_package_resumes_with_the_recorded_batches(recorded_server: str, name: str) -> None:
    recorded = earlier.REQUESTS[name]
    client = forebay.connect(recorded_server, report=False)
    ds = client.train("events", rank=0, output="arrow", **current_arguments(recorded["training"]))
    # The data has changed since: without the state, the dataset has another snapshot.
    assert ds.summary["snapshot"] != recorded["state"]["snapshot"]
    ds.load_state_dict(recorded["state"])
    resumed = [batch.to_pydict() for batch in ds]
    ds.close()
    expected = recorded_batches(recorded_server, name)[recorded["state"]["step"] :]
    assert resumed == [batch.to_pydict() for batch in expected] and len(expected) > 1


def test_a_state_whose_snapshot_is_gone_is_rejected_with_the_current_snapshot(pool: Pool, tmp_path: Path) -> None:
    earlier.copy(tmp_path)
    earlier.add_files(tmp_path)
    shutil.rmtree(tmp_path / "cache" / "state" / "snapshots")
    client = forebay.connect(earlier.start(pool, tmp_path).location, report=False)
    recorded = earlier.REQUESTS["default"]
    ds = client.train("events", rank=0, **current_arguments(recorded["training"]))
    current = ds.summary["snapshot"]
    missing = f"has no snapshot {recorded['state']['snapshot']}; the current snapshot is {current}; .* with the same `state=`, which hosts can share"
    with pytest.raises(forebay.errors.SnapshotUnavailableError, match=missing):
        ds.load_state_dict(recorded["state"])


def test_a_training_whose_files_have_changed_is_not_told_to_take_a_new_snapshot_only(client: forebay.Client, tmp_path: Path) -> None:
    ds = client.train("main", batch_size=40)
    ds.load_state_dict(ds.state_dict())
    pq.write_table(pa.table({"user": range(7)}), tmp_path / "main.parquet")
    with pytest.raises(forebay.errors.SnapshotUnavailableError, match="restore the files with their sizes and modification times, or start the training"):
        next(iter(ds))


def test_each_error_for_changed_files_says_how_to_continue_once(client: forebay.Client, tmp_path: Path) -> None:
    ds = client.train("main", batch_size=40)
    assert len(ds) > 0
    pq.write_table(pa.table({"user": range(7)}), tmp_path / "main.parquet")
    for use in (lambda: next(iter(ds)), lambda: len(client.train("main", batch_size=40, filter="user > 1"))):
        with pytest.raises(forebay.errors.SnapshotUnavailableError, match="`refresh` takes a new .*; a training does not continue") as raised:
            use()
        assert str(raised.value).count("a training does not continue") == str(raised.value).count("`refresh`") == 1
