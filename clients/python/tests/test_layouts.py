"""Groups, de-duplicated tensors, lists and padded batches, as the package returns them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from server import Pool, Server

DEDUPE = {"query": {"key": ["query_id"], "columns": ["q_*"]}}
RANKED: dict[str, Any] = dict(batch_size=50, group_by=["query_id"], seed=3, shuffle={"window_rows": 60_000})
FRAMEWORKS = ["numpy", *(each for each in ("torch", "jax") if importlib.util.find_spec(each))]


@pytest.fixture
def client(rankings_server: Server) -> forebay.Client:
    return forebay.connect(rankings_server.location)


def test_distinct_rows_expand_to_the_same_bytes_as_the_plain_stream(client: forebay.Client) -> None:
    plain = client.train("rankings", columns=["query_id"], tensors={"query": ["q_*"]}, **RANKED)
    ds = client.train("rankings", columns=["query_id"], dedupe=DEDUPE, **RANKED)
    for whole, batch in zip(plain, ds):
        expected = whole["query"].to_numpy()
        rows, index = batch["query"].to_numpy(), batch["query_index"].to_numpy()
        assert (rows.shape, rows.dtype, index.dtype) == ((50, 40), np.float32, np.int32)
        assert expected.shape == (1000, 40)
        for framework in FRAMEWORKS:
            assert np.asarray(batch.expand("query", framework)).tobytes() == expected.tobytes()
        queries = batch["query_id"].to_numpy()
        assert (queries[np.searchsorted(index, range(50))][index] == queries).all()
        # The distinct rows are a view of the received memory, too.
        assert rows.ctypes.data % 64 == 0 and not rows.flags.owndata
    with pytest.raises(ValueError, match="expected numpy, torch or jax"):
        batch.expand("query", "cupy")
    with pytest.raises(KeyError, match="no column 'q'"):
        batch.expand("q")


def test_group_offsets_are_correct_and_a_state_resumes_with_the_next_group(client: forebay.Client) -> None:
    ds = client.train("rankings", columns=["query_id"], **RANKED)
    assert ds.summary["groups"] in (20_000, "20000") and len(ds) == 400
    batches = []
    for batch in ds:
        offsets = batch.group_offsets.to_numpy()
        assert (offsets == np.arange(0, 1001, 20)).all()
        queries = batch["query_id"].to_numpy().reshape(50, 20)
        assert (queries == queries[:, :1]).all()
        batches.append(queries[:, 0].copy())
        if batch.step == 100:
            state = json.loads(json.dumps(ds.state_dict()))
    assert sorted(np.concatenate(batches)) == list(range(20_000))
    again = client.train("rankings", columns=["query_id"], **RANKED)
    again.load_state_dict(state)
    rest = [batch["query_id"].to_numpy()[::20].copy() for batch in again]
    assert np.array_equal(rest, batches[101:])
    other = client.train("rankings", columns=["query_id"], **{**RANKED, "group_by": ["clicked"]})
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="group_by"):
        other.load_state_dict(state)
    # Without group_by there are no offsets.
    assert next(iter(client.train("rankings", columns=["query_id"], batch_size=10))).group_offsets is None


def test_padded_packs_have_one_size_and_a_state_resumes_with_the_next_pack(client: forebay.Client) -> None:
    request: dict[str, Any] = dict(columns=["query_id"], group_by=["query_id"], max_pack_rows=250, remainder="PAD", seed=3)
    ds = client.train("rankings", **request)
    # 400,000 rows in queries of 20 rows: each pack has at least 231 rows.
    assert len(ds) == int(ds.summary["packs"]) == 1732
    batches = []
    for batch in ds:
        ends, valid = batch.group_offsets.to_numpy(), batch["valid"].to_numpy()
        assert valid.shape == (250,) and valid.sum() == ends[-1] and (np.diff(ends) == 20).all()
        batches.append(batch["query_id"].to_numpy()[: ends[-1] : 20].copy())
        if batch.step == 100:
            state = json.loads(json.dumps(ds.state_dict()))
    assert sorted(np.concatenate(batches)) == list(range(20_000))
    again = client.train("rankings", **request)
    again.load_state_dict(state)
    rest = [batch["query_id"].to_numpy()[: batch.group_offsets.to_numpy()[-1] : 20].copy() for batch in again]
    assert all(map(np.array_equal, rest, batches[101:])) and len(rest) == len(batches) - 101
    other = client.train("rankings", **{**request, "max_pack_rows": 251})
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="max_pack_rows"):
        other.load_state_dict(state)
    with pytest.raises(TypeError, match="batch_size"):
        client.train("rankings")


CATEGORIES = {
    "bags": {"columns": ["categories"], "ragged": True},
    "first": {"columns": ["categories"], "max_list_length": 3, "null_value": -1, "dtype": "int32"},
}
SOME = "hash_bucket(query_id, 10) < 7"
# Each with the batch_size for one rank.
VIEWS: dict[str, tuple[int, dict[str, Any]]] = {
    "filtered": (24_000, dict(columns=["query_id", "clicked"], select=["query_id", "clicked + 1 AS clicked"], filter=SOME)),
    "lists": (24_000, dict(tensors=CATEGORIES, columns=["query_id"])),
    "padded": (24_000, dict(tensors=CATEGORIES, filter=SOME, remainder="PAD")),
    "grouped": (1200, dict(columns=["query_id"], dedupe=DEDUPE, group_by=["query_id"], filter=SOME)),
    "packed": (24, dict(columns=["query_id"], dedupe=DEDUPE, group_by=["query_id"], max_pack_rows=1000)),
    "packed-padded": (24, dict(tensors=CATEGORIES, group_by=["query_id"], max_pack_rows=1000, remainder="PAD")),
    "mixture": (24_000, dict(columns=["query_id", "clicked"], mix={"rankings": {"fraction": 0.25, "filter": "query_id < 900"}})),
}


def content(ranks: list[forebay.Batch], names: list[str]) -> str:
    """Returns the digest of the valid rows of a step over all ranks."""
    found = hashlib.sha256()
    for name in names:
        if name in ("valid", "query_index", "bags_lengths"):
            continue
        for batch in ranks:
            real = int(batch["valid"].to_numpy().sum()) if "valid" in names else batch.num_rows
            if name == "bags":
                # Padding rows have no items.
                items, lengths = batch["bags"].to_numpy(), batch["bags_lengths"].to_numpy()
                assert lengths[real:].sum() == 0
                rows = np.split(items, np.cumsum(lengths[: real - 1])) if real else []
                found.update(b"".join(each.tobytes() + b"|" for each in rows))
            else:
                values = batch.expand("query", "numpy") if name == "query" else batch[name].to_numpy()
                found.update(np.ascontiguousarray(values[:real]).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("view", VIEWS)
def test_a_state_resumes_on_any_number_of_ranks_for_every_view(client: forebay.Client, view: str) -> None:
    size, wanted = VIEWS[view]
    request = {"remainder": "DROP" if "mix" in wanted else "SHORT", "seed": 3, "shuffle": {"window_rows": 60_000}, **wanted}

    def ranks(world_size: int) -> list[forebay.TrainingDataset]:
        per_rank = {**request, "batch_size": size // world_size, "world_size": world_size}
        return [client.train("rankings", rank=rank, **per_rank) for rank in range(world_size)]

    (alone,) = ranks(1)
    names = list(alone.columns)
    expected = [content([batch], names) for batch in alone]
    assert len(set(expected)) == len(expected) == len(alone) > 8
    four = ranks(4)
    loops = [iter(ds) for ds in four]
    found = [content([next(loop) for loop in loops], names) for _ in range(5)]
    assert found == expected[:5]
    states = [json.loads(json.dumps(ds.state_dict())) for ds in four]
    assert all(state == states[0] for state in states)
    for world_size in (1, 2, 3):
        others = ranks(world_size)
        for ds in others:
            ds.load_state_dict(states[0])
        rest = [content(list(step), names) for step in zip(*others, strict=True)]
        assert found + rest == expected, f"{world_size} ranks"


def test_ragged_and_padded_lists_agree_with_the_plain_column(client: forebay.Client) -> None:
    tensors = {
        "bags": {"columns": ["categories"], "ragged": True},
        "first": {"columns": ["categories"], "max_list_length": 3, "null_value": -1, "dtype": "int32"},
    }
    ds = client.train("rankings", columns=["categories"], tensors=tensors, batch_size=500)
    batch = next(iter(ds))
    items, offsets = (part.to_numpy() for part in batch["categories"].ragged())
    bags, lengths = batch["bags"].to_numpy(), batch["bags_lengths"].to_numpy()
    assert np.array_equal(bags, items) and np.array_equal(lengths, np.diff(offsets))
    first, mask = batch["first"].to_numpy(), batch["first_mask"].to_numpy()
    assert (first.shape, first.dtype, mask.dtype) == ((500, 3), np.int32, np.uint8)
    for row in range(500):
        present = items[offsets[row] : offsets[row + 1]][:3]
        assert first[row].tolist() == [*present, *[-1] * (3 - len(present))]
        assert mask[row].sum() == len(present)


def test_padded_batches_all_have_one_shape(client: forebay.Client) -> None:
    tensors = {"x": {"columns": ["i_*"]}}
    ds = client.train("rankings", tensors=tensors, batch_size=3000, remainder="PAD")
    real = 0
    for batch in ds:
        x, valid = batch["x"].to_numpy(), batch["valid"].to_numpy()
        assert x.shape == (3000, 20) and len(batch) == 3000
        assert not x[valid == 0].any()
        real += int(valid.sum())
    assert (real, int(valid.sum())) == (400_000, 1000)


def test_a_mixture_resumes_from_its_state_on_the_snapshots_of_that_state(
    pool: Pool, rankings: Path, tmp_path: Path
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(pa.table({"query_id": pa.array(range(-3000, 0), pa.int64())}), other / "a.parquet")
    server = pool.start({"rankings": rankings, "other": other})
    client = forebay.connect(server.location)

    def dataset() -> forebay.TrainingDataset:
        return client.train("rankings", columns=["query_id"], batch_size=1000, mix={"other": 0.1}, seed=5)

    ds, batches, positions = dataset(), [], []
    for batch in ds:
        batches.append(batch["query_id"].to_numpy().copy())
        positions += batch.mixed_positions
        if batch.step == 50:
            state = json.loads(json.dumps(ds.state_dict()))
    assert len(batches) == 400_000 // 900
    assert positions == list(range(0, 100 * len(batches), 100))
    assert all((batch < 0).sum() == 100 for batch in batches)
    # A later file is not part of the resumed mixture.
    pq.write_table(pa.table({"query_id": pa.array(range(-9000, -3000), pa.int64())}), other / "b.parquet")
    client.refresh("other")
    again = dataset()
    again.load_state_dict(state)
    assert np.array_equal([batch["query_id"].to_numpy().copy() for batch in again], batches[51:])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nulls_become_nan_or_infinity_also_after_a_resume_and_in_lookups(pool: Pool, tmp_path: Path, value: float) -> None:
    numbers = [None if number % 3 == 0 else float(number) for number in range(90)]
    pq.write_table(pa.table({"id": range(90), "number": numbers}), tmp_path / "numbers.parquet")
    server = pool.start({"numbers": tmp_path / "numbers.parquet"}, online="numbers=id")
    tensors = {"x": {"columns": ["number"], "dtype": "float32", "null_value": value}}
    expected = np.array([value if number is None else number for number in numbers], np.float32)
    client = forebay.connect(server.location)

    def train() -> forebay.TrainingDataset:
        return client.train("numbers", batch_size=10, tensors=tensors, shuffle={"none": {}})

    ds, found = train(), []
    for batch in ds:
        found.append(batch["x"].to_numpy())
        if batch.step == 3:
            break
    again = train()
    again.load_state_dict(json.loads(json.dumps(ds.state_dict())))
    found += [batch["x"].to_numpy() for batch in pickle.loads(pickle.dumps(again))]
    assert np.concatenate(found).reshape(-1).tobytes() == expected.tobytes()
    rows = client.lookup("numbers", {"id": list(range(90))}, tensors=tensors)
    assert rows["x"].to_numpy().reshape(-1).tobytes() == expected.tobytes()
