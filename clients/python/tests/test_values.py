"""A filter refers to sets of values, which are sent once."""

from __future__ import annotations

import json
import pickle
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay.errors import CheckpointMismatchError, RequestError
from functions import sum_of_ids
from server import Pool, forebay as command

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS, GROUP = 300_000, 10_000


def write(path: Path) -> pa.Table:
    """Writes 30 row groups, sorted by `id`, with a string, a decimal and nulls in `maybe`."""
    ids = np.arange(ROWS, dtype=np.int64) * 2
    columns = {
        "id": ids,
        "name": [f"n{number % 1000}" for number in range(ROWS)],
        "price": pa.array([Decimal(number % 5000) / 100 for number in range(ROWS)], pa.decimal128(12, 2)),
        "maybe": pa.array([None if number % 10 == 0 else number for number in range(ROWS)], pa.int32()),
    }
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=GROUP)
    return table


def kept(client: forebay.Client, **request: Any) -> list[int]:
    ds = client.train("d", batch_size=50_000, columns=["id"], shuffle=False, remainder="SHORT", **request)
    return [number for batch in ds for number in batch["id"].to_numpy().tolist()]


@pytest.mark.once
def test_a_filter_with_100_000_values_has_the_rows_of_a_join(pool: Pool, tmp_path: Path) -> None:
    table = write(tmp_path / "d.parquet")
    client = forebay.connect(pool.start({"d": tmp_path / "d.parquet"}).location)
    ids, names, prices, maybe = (table[name].to_pylist() for name in ("id", "name", "price", "maybe"))

    def expected(column: list[Any], values: Any) -> list[int]:
        members = set(values)
        return [number for number, value in zip(ids, column) if value is not None and value in members]

    keys = np.random.default_rng(7).choice(ROWS * 4, 100_000, replace=False)
    assert kept(client, filter="id IN (:ids)", values={"ids": keys}) == expected(ids, keys.tolist())
    for form in (keys.tolist(), set(keys.tolist()), pa.array(keys), keys.astype(np.uint64)):
        assert len(kept(client, filter="id IN (:ids)", values={"ids": form})) == len(expected(ids, keys.tolist()))
    texts = [f"n{number}" for number in range(500, 101_000)]
    assert kept(client, filter="name IN (:names)", values={"names": texts}) == expected(names, texts)
    decimals = [Decimal(number) / 1000 for number in range(100_000)]
    assert kept(client, filter="price IN (:p)", values={"p": decimals}) == expected(prices, decimals)
    beyond = [-1, 2**31, 2**63, 2**64 + 1, 1, 2, 10]
    assert kept(client, filter="maybe IN (:m)", values={"m": beyond}) == expected(maybe, beyond)
    rest = kept(client, filter="maybe NOT IN (:m)", values={"m": beyond})
    assert rest == [number for number, value in zip(ids, maybe) if value is not None and value not in beyond]
    assert kept(client, filter="id IN (:none)", values={"none": []}) == []


@pytest.mark.once
def test_a_mix_has_the_rows_of_the_values_of_each_of_its_datasets(pool: Pool, tmp_path: Path) -> None:
    write(tmp_path / "d.parquet")
    pq.write_table(pa.table({"id": np.arange(1, 2 * ROWS, 2)}), tmp_path / "o.parquet")
    client = forebay.connect(pool.start({"d": tmp_path / "d.parquet", "o": tmp_path / "o.parquet"}).location)
    own, odd = range(0, 2 * ROWS, 10), range(1, 2 * ROWS, 6)
    request = dict(
        batch_size=1000,
        columns=["id"],
        filter="id IN (:own)",
        mix={"o": {"fraction": 0.25, "filter": "id IN (:odd)"}},
        values={"own": list(own), "odd": np.array(odd)},
        seed=3,
    )
    ds = client.train("d", **request)
    batches = [batch["id"].to_numpy().tolist() for batch in ds]
    first, found = batches[0], [number for batch in batches for number in batch]
    assert sorted(number for number in found if number % 2 == 0) == list(own)
    mixed = [number for number in found if number % 2 == 1]
    assert set(mixed) <= set(odd) and abs(len(mixed) / len(found) - 0.25) < 0.01
    assert sum(number % 2 for number in first) == 250
    # A copy in another process has the values, too.
    again = pickle.loads(pickle.dumps(client.train("d", **request)))
    assert next(iter(again))["id"].to_numpy().tolist() == first


@pytest.mark.once
def test_only_row_groups_with_one_of_the_values_are_read(pool: Pool, tmp_path: Path) -> None:
    write(tmp_path / "d.parquet")
    client = forebay.connect(pool.start({"d": tmp_path / "d.parquet"}).location)
    # Keys of three row groups, and many between and beyond the others.
    keys = [7 * 2 * GROUP + 4, 12 * 2 * GROUP, 29 * 2 * GROUP + 2, *range(2 * ROWS, 2 * ROWS + 100_000)]
    ds = client.train("d", batch_size=10, columns=["id"], filter="id IN (:ids)", values={"ids": keys})
    assert sorted(number for batch in ds for number in batch["id"].to_numpy().tolist()) == sorted(keys[:3])
    train = {"dataset": "d", "batch_size": 10, "columns": ["name"], "filter": "id + 0 IN (:ids)", "values": ds.state_dict()["request"]["values"]}
    read = [client.action("count-rows", train={**train, "filter": filter})[-1] for filter in ("id IN (:ids) AND true", train["filter"])]
    assert [int(count["blocks_read"]) for count in read] == [3, 30]
    assert [int(count["rows_kept"]) for count in read] == [3, 3]


@pytest.mark.once
def test_values_are_refused_that_are_equal_to_none(client: forebay.Client) -> None:
    for values, reason in [
        ({"ids": [1, None]}, "values 'ids': the values have nulls"),
        ({"ids": [1.5, float("nan")]}, "values 'ids': the values have a NaN"),
        ({"ids": [True]}, "are of type Boolean"),
        ({"ids": 7}, "is a single value"),
        ([1, 2], "values has type list, expected a dict"),
        ({"ids": pa.table({"a": [1], "b": [2]})}, r"values 'ids' has 2 columns \('a', 'b'\), expected one"),
        ({"ids": pa.record_batch({"a": [1], "b": [2]})}, r"values 'ids' has 2 columns \('a', 'b'\), expected one"),
        ({"ids": pa.table({})}, r"values 'ids' has 0 columns \(none\), expected one"),
    ]:
        with pytest.raises(RequestError, match=reason):
            client.train("flights", batch_size=10, filter="delay IN (:ids)", values=values)  # type: ignore[arg-type]
    for request, reason in [
        ({"filter": "delay > 0"}, "'ids' is not used"),
        ({"filter": "delay IN (:other)"}, "'ids' is not used"),
        ({"filter": "delay IN (:ids)", "select": ["delay IN (:ids) AS known"]}, "select.*there are no values ':ids' here"),
    ]:
        with pytest.raises(RequestError, match=reason):
            len(client.train("flights", batch_size=10, values={"ids": [1]}, **request))


@pytest.mark.once
def test_a_training_with_values_resumes_at_another_server_and_sends_them_to_an_emptied_state(pool: Pool, tmp_path: Path) -> None:
    write(tmp_path / "d.parquet")
    state = tmp_path / "state"
    data = {"d": tmp_path / "d.parquet"}
    keys = np.arange(0, 2 * ROWS, 6)
    request: dict[str, Any] = dict(batch_size=1000, columns=["id"], filter="id IN (:ids)", job_name="chosen")
    first = pool.start(data, state=state)
    ds = forebay.connect(first.location).train("d", values={"ids": keys}, **request)
    iterator = iter(ds)
    for _ in range(3):
        next(iterator)
    saved = json.loads(json.dumps(ds.state_dict()))
    rest = [batch["id"].to_numpy().tolist() for batch in iterator]
    first.stop()

    def resumed(server: Any, **more: Any) -> list[Any]:
        again = forebay.connect(server.location).train("d", **{**request, **more})
        again.load_state_dict(saved)
        return [batch["id"].to_numpy().tolist() for batch in again]

    second = pool.start(data, state=state)
    assert resumed(second, values={"ids": keys}) == rest
    with pytest.raises(CheckpointMismatchError, match="values"):
        resumed(second, values={"ids": keys[:-1]})
    for missing, more in (("filter", {"filter": None}), ("values", {})):
        with pytest.raises(CheckpointMismatchError, match=f"saved with {missing} .*ids.* has no {missing}; pass the same {missing} to train"):
            resumed(second, **more)
    explained = command("explain", "--job-name", "chosen", "--state", state, "--dataset", f"d={data['d']}", "--step", "0")
    assert "filter    id IN (:ids: 100000 values)" in explained.stdout, explained.stdout
    records = "".join(record.read_text() for record in (state / "jobs").iterdir())
    assert '"count":100000' in records and len(records) < 5000
    second.stop()
    shutil.rmtree(state / "values")
    third = pool.start(data, state=state)
    assert resumed(third, values={"ids": keys}) == rest


def test_values_reach_the_workers_of_map(pool: Pool, tmp_path: Path) -> None:
    write(tmp_path / "d.parquet")
    client = forebay.connect(pool.start({"d": tmp_path / "d.parquet"}).location)
    ds = client.train("d", batch_size=1000, columns=["id"], filter="id IN (:ids)", values={"ids": np.arange(0, 9000, 3)}, epochs=1)
    plain = [batch["id"].to_numpy().sum() for batch in ds]
    ds = client.train("d", batch_size=1000, columns=["id"], filter="id IN (:ids)", values={"ids": np.arange(0, 9000, 3)}, epochs=1)
    assert list(ds.map(sum_of_ids, workers=2)) == plain
