"""Groups, de-duplicated tensors, lists and padded batches, received by a stock Arrow Flight client."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import Client, refused
from server import Pool, Server

QUERIES = 4000
IN_ORDER = {"shuffle": {"none": {}}}
DEDUPE = [{"key": ["query"], "tensor": "q", "columns": ["q_*"]}]


def ranked(seed: int) -> pa.Table:
    """Returns rows of queries with 1 to 30 items each. Some queries are null."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    queries = [None if rng.random() < 0.02 else query for query in range(QUERIES) for _ in range(rng.randint(1, 30))]
    of_query = numbers.random((QUERIES + 1, 5), dtype=np.float32)
    known = np.array([QUERIES if query is None else query for query in queries])
    lists = [None if rng.random() < 0.1 else [rng.randrange(100) for _ in range(rng.randrange(7))] for _ in queries]
    return pa.table(
        {
            "row": pa.array(range(len(queries)), pa.int64()),
            "query": pa.array(queries, pa.int64()),
            **{f"q_{column}": of_query[known, column] for column in range(5)},
            "a": pa.array(lists, pa.list_(pa.int32())),
            "b": pa.array(lists[::-1], pa.large_list(pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return ranked(1)


@pytest.fixture(scope="module")
def server(module_pool: Pool, rows: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("ranked")
    cuts = [0, 9_001, 9_003, 30_000, rows.num_rows]
    for number, (start, end) in enumerate(zip(cuts, cuts[1:])):
        pq.write_table(rows.slice(start, end - start), folder / f"part-{number}.parquet", row_group_size=4_000)
    return module_pool.start({"ranked": folder})


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.location) as connected:
        yield connected


def runs(keys: list) -> list[list[int]]:
    """Returns the row numbers of each run of equal keys."""
    starts = [row for row in range(len(keys)) if row == 0 or keys[row] != keys[row - 1]] + [len(keys)]
    return [list(range(start, end)) for start, end in zip(starts, starts[1:])]


def test_each_group_is_delivered_whole_and_once_per_epoch_also_across_files(client: Client, rows: pa.Table) -> None:
    expected = runs(rows["query"].to_pylist())
    plan = client.plan(dataset="ranked", columns=["row"], group_by=["query"], batch_size=64, shuffle={"window_rows": 20_000})
    assert int(plan.summary["groups"]) == len(expected)
    assert (int(plan.summary["rows"]), plan.steps) == (rows.num_rows, -(-len(expected) // 64))
    assert plan.info.total_records == -1
    seen = []
    for batch in client.read(plan.tickets[0]):
        numbers, offsets = batch.data["row"].to_pylist(), batch.meta.group_offsets
        assert len(offsets) == 65 or batch.meta.step == plan.steps - 1
        seen += [numbers[start:end] for start, end in zip(offsets, offsets[1:])]
        assert offsets[-1] == len(numbers) == batch.meta.rows
    assert sorted(seen) == expected
    assert seen != expected


def test_packs_hold_whole_groups_up_to_max_pack_rows_and_every_epoch_has_as_many(client: Client, rows: pa.Table) -> None:
    expected = runs(rows["query"].to_pylist())
    longest = max(map(len, expected))
    request: dict[str, Any] = dict(dataset="ranked", columns=["row"], group_by=["query"], shuffle={"window_rows": 20_000})
    for max_pack_rows, batch_size, world_size in [(3 * longest, 1, 1), (1000, 1, 1), (1000, 2, 2)]:
        packed = {**request, "max_pack_rows": max_pack_rows, "batch_size": batch_size, "world_size": world_size, "epochs": 2}
        plan = client.plan(**packed, remainder="SHORT")
        packs = -(-rows.num_rows // (max_pack_rows - longest + 1))
        assert (int(plan.summary["packs"]), int(plan.summary["groups"])) == (packs, len(expected))
        assert (plan.steps, plan.info.total_records) == (-(-packs // (batch_size * world_size)), -1)
        seen: list[list[list[int]]] = [[], []]
        for ticket in plan.tickets:
            batches = list(client.read(ticket))
            assert len(batches) == 2 * plan.steps
            for batch in batches:
                numbers, offsets = batch.data["row"].to_pylist(), batch.meta.group_offsets
                assert offsets[-1] == len(numbers) <= max_pack_rows * batch_size
                assert len(numbers) > 0 or batch.meta.step == plan.steps - 1
                seen[batch.meta.epoch] += [numbers[start:end] for start, end in zip(offsets, offsets[1:])]
        assert sorted(seen[0]) == sorted(seen[1]) == expected
        assert seen[0] != seen[1]


def test_padded_packs_have_one_size_and_two_ranks_receive_the_rows_of_four(client: Client, rows: pa.Table) -> None:
    request: dict[str, Any] = dict(dataset="ranked", columns=["row"], group_by=["query"], max_pack_rows=128, remainder="PAD")
    held = []
    for batch_size, world_size in [(1, 4), (2, 2)]:
        plan = client.plan(**request, batch_size=batch_size, world_size=world_size)
        assert plan.info.total_records == plan.steps * 4 * 128
        steps: list[list[int]] = [[] for _ in range(plan.steps)]
        for ticket in plan.tickets:
            for batch in client.read(ticket):
                real = batch.meta.rows
                assert batch.data.num_rows == batch_size * 128
                assert batch.data["valid"].to_pylist() == [1] * real + [0] * (batch_size * 128 - real)
                assert batch.meta.group_offsets[-1] == real
                steps[batch.meta.step] += batch.data["row"].to_pylist()[:real]
        held.append((plan.summary["plan_hash"], steps))
    assert held[0] == held[1]
    assert sorted(sum(held[0][1], [])) == list(range(rows.num_rows))


def test_a_filter_is_applied_before_rows_are_grouped(client: Client, rows: pa.Table) -> None:
    queries = rows["query"].to_pylist()
    kept = [row for row in range(rows.num_rows) if row % 5 != 0 and queries[row] is not None and queries[row] % 3 != 1]
    expected = [[kept[row] for row in run] for run in runs([queries[row] for row in kept])]
    request: dict[str, Any] = dict(dataset="ranked", columns=["row"], group_by=["query"], batch_size=100)
    request["filter"] = "row % 5 <> 0 AND query % 3 <> 1"
    for shuffle, ordered in [({"none": {}}, True), ({"window_rows": 10_000}, False)]:
        found = []
        for batch in client.batches(**request, shuffle=shuffle):
            offsets = batch.meta.group_offsets
            found += [batch.data["row"].to_pylist()[start:end] for start, end in zip(offsets, offsets[1:])]
        assert (found if ordered else sorted(found)) == expected


@pytest.mark.parametrize("grouped", [False, True])
def test_expanding_distinct_rows_gives_the_plain_stream_byte_for_byte(client: Client, rows: pa.Table, grouped: bool) -> None:
    order: dict[str, Any] = dict(dataset="ranked", batch_size=100 if grouped else 1500, shuffle={"window_rows": 15_000})
    if grouped:
        order["group_by"] = ["query"]
    plain = client.batches(columns=["row"], tensors=[{"name": "q", "columns": ["q_*"]}], **order)
    saved = 0
    for whole, batch in zip(plain, client.batches(columns=["row"], dedupe=DEDUPE, **order), strict=True):
        assert batch.data["row"] == whole.data["row"]
        distinct, index = batch.data["q"].values, batch.data["q_index"]
        assert batch.data.schema.field("q").metadata == {b"forebay.layout": b"distinct"}
        assert distinct.take(index).values.buffers()[1] is not None
        assert distinct.take(index).equals(whole.data["q"])
        # Distinct rows are numbered by first occurrence, and each query occurs once.
        queries = rows["query"].take(batch.data["row"]).to_pylist()
        first = list(dict.fromkeys(queries))
        assert len(distinct) == len(first)
        assert index.to_pylist() == [first.index(query) for query in queries]
        saved += len(queries) - len(distinct)
    assert saved > (0.8 if grouped else 0.05) * rows.num_rows


def test_rows_with_one_key_and_different_values_are_not_merged(pool: Pool, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 1, 1, 2], "x": [1.0, 1.0, 2.0, 1.0], "y": [None, 7, 7, 7]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with Client(pool.start({"rows": tmp_path / "rows.parquet"}).location) as client:
        dedupe = [{"key": ["k"], "tensor": "t", "columns": ["x"]}, {"key": ["k"], "tensor": "u", "columns": ["y"], "null_value": -1}]
        (batch,) = (each.data for each in client.batches(dataset="rows", batch_size=9, dedupe=dedupe, **IN_ORDER))
    assert batch["t_index"].to_pylist() == [0, 0, 1, 2]
    assert batch["t"].values.to_pylist() == [[1.0], [2.0], [1.0]]
    assert (batch["u_index"].to_pylist(), batch["u"].values.to_pylist()) == ([0, 1, 1, 2], [[-1], [7], [7]])
    # The list of a row holds the distinct row that occurs there first.
    assert batch["t"].to_pylist() == [[[1.0]], [], [[2.0]], [[1.0]]]


def test_ragged_tensors_hold_all_items_column_by_column_and_their_lengths(client: Client, rows: pa.Table) -> None:
    tensors = [{"name": "ab", "columns": ["a", "b"], "dtype": "int64", "ragged": True}]
    request: dict[str, Any] = dict(dataset="ranked", columns=["row"], tensors=tensors, batch_size=700)
    for batch in client.batches(**request):
        taken = rows.take(batch.data["row"])
        expected = [[each or [] for each in taken[column].to_pylist()] for column in "ab"]
        items, lengths = batch.data["ab"].values, batch.data["ab_lengths"].values
        assert items.to_pylist() == [item for column in expected for each in column for item in each]
        assert lengths.to_pylist() == [len(each) for column in expected for each in column]
        assert (items.type, lengths.type) == (pa.int64(), pa.int32())
        batch.data.validate(full=True)


def test_lists_longer_than_max_list_length_are_truncated_and_others_padded(client: Client, rows: pa.Table) -> None:
    tensors = [{"name": "ab", "columns": ["a", "b"], "dtype": "float32", "max_list_length": 4, "null_value": -1}]
    for batch in client.batches(dataset="ranked", columns=["row"], tensors=tensors, batch_size=700):
        taken = rows.take(batch.data["row"])
        lists = [taken[column].to_pylist() for column in "ab"]
        values, mask = (batch.data[name].values.to_numpy().reshape(-1, 2, 4) for name in ("ab", "ab_mask"))
        for column, each in enumerate(lists):
            cut = [(items or [])[:4] for items in each]
            assert values[:, column].tolist() == [items + [-1] * (4 - len(items)) for items in cut]
            assert mask[:, column].tolist() == [[1] * len(items) + [0] * (4 - len(items)) for items in cut]


def test_padded_batches_have_one_size_and_mark_the_real_rows(client: Client, rows: pa.Table) -> None:
    request: dict[str, Any] = dict(dataset="ranked", columns=["row", "query"], batch_size=500, world_size=3, remainder="PAD")
    plan = client.plan(**request)
    steps = -(-rows.num_rows // 1500)
    assert (plan.steps, plan.info.total_records) == (steps, steps * 1500)
    real = []
    for batches in client.global_batches(**request):
        for batch in batches:
            valid = batch.data["valid"].to_pylist()
            assert valid == [1] * batch.meta.rows + [0] * (500 - batch.meta.rows)
            assert batch.data["row"][batch.meta.rows :].to_pylist() == [0] * (500 - batch.meta.rows)
            real += batch.data["row"].to_pylist()[: batch.meta.rows]
    short = client.global_batches(**{**request, "remainder": "SHORT"})
    assert real == [row for batches in short for batch in batches for row in batch.data["row"].to_pylist()]
    assert sorted(real) == list(range(rows.num_rows))


def test_a_group_above_max_batch_bytes_is_rejected_before_it_is_sent(pool: Pool, tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([None] * 60_000 + [1] * 10, pa.int32()), "x": np.zeros(60_010)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=20_000)
    config = tmp_path / "forebay.toml"
    config.write_text("[loader]\nmax_batch_bytes = 400000\n")
    server = pool.start({"rows": tmp_path / "rows.parquet"}, config=config)
    request: dict[str, Any] = dict(dataset="rows", columns=["x"], group_by=["k"], batch_size=1)
    with Client(server.location) as client:
        with refused("RESOURCE_EXHAUSTED", "the longest group, of 60000 rows", "480000 bytes", "400000"):
            client.plan(**request)
        with refused("RESOURCE_EXHAUSTED", "a batch of", "400000"):
            client.plan(**{**request, "select": ["x", "hash_bucket(x, 2) AS k2"], "group_by": ["k2"], "batch_size": 2})
        (only,) = client.batches(**request, filter="k IS NOT NULL")
        assert only.meta.group_offsets == [0, 10]


def test_a_filter_without_matches_gives_no_group_and_no_step(client: Client) -> None:
    request: dict[str, Any] = dict(dataset="ranked", group_by=["query"], batch_size=10, filter="row < 0")
    plan = client.plan(**request)
    assert (plan.steps, int(plan.summary["groups"])) == (0, 0)
    assert list(client.batches(**request)) == []
    assert client.plan(**request, max_pack_rows=100).steps == 0
    assert list(client.batches(**request, max_pack_rows=100)) == []


def test_incompatible_fields_are_rejected_by_name(client: Client) -> None:
    lists: dict[str, Any] = {"name": "t", "columns": ["a"]}
    for request, words in [
        (dict(group_by=["qury"]), ("group_by", "qury", "query")),
        (dict(group_by=["a"]), ("group_by", "'a'", "cannot be a key")),
        (dict(group_by=["query", "query"]), ("group_by", "twice")),
        (dict(select=["query AS k"], columns=["k"], group_by=["query", "k"]), ("group_by", "'k'", "twice")),
        (dict(group_by=["query"] * 65), ("group_by", "65", "1 to 64")),
        (dict(dedupe=[{**DEDUPE[0], "key": ["query", "query"]}]), ("dedupe.q.key", "twice")),
        (dict(select=["row AS valid"], remainder="PAD"), ("remainder", "'valid'", "another field")),
        (dict(group_by=["query"], remainder="PAD"), ("remainder", "PAD", "max_pack_rows")),
        (dict(group_by=["query"], dedupe=DEDUPE, max_pack_rows=200, remainder="PAD"), ("remainder", "PAD")),
        (dict(max_pack_rows=200), ("max_pack_rows", "group_by")),
        (dict(group_by=["query"], max_pack_rows=89), ("max_pack_rows", "is 89", "longest group has 30 rows", "at least 90")),
        (dict(group_by=["query"], max_pack_rows=1 << 20), ("max_pack_rows", "1048576", "1 to 104857")),
        (dict(dedupe=DEDUPE, remainder="PAD"), ("remainder", "PAD")),
        (dict(dedupe=[{**DEDUPE[0], "key": []}]), ("dedupe.q.key",)),
        (dict(dedupe=[{**DEDUPE[0], "columns": ["z*"]}]), ("dedupe.q", "begins with 'z'")),
        (dict(dedupe=[{**DEDUPE[0], "tensor": ""}]), ("dedupe", "no name")),
        (dict(dedupe=DEDUPE, columns=["query"], tensors=[{"name": "q_index", "columns": ["q_0"]}]), ("q_index",)),
        (dict(tensors=[lists]), ("tensors.t", "max_list_length", "ragged")),
        (dict(tensors=[{**lists, "max_list_length": 0}]), ("tensors.t.max_list_length",)),
        (dict(tensors=[{**lists, "max_list_length": 3, "ragged": True}]), ("tensors.t", "ragged")),
        (dict(tensors=[{**lists, "columns": ["row"], "ragged": True}]), ("tensors.t", "'row'", "expected lists")),
        (dict(tensors=[{**lists, "columns": ["a"], "dtype": "int4", "ragged": True}]), ("tensors.t.dtype", "int4")),
    ]:
        with refused("INVALID_ARGUMENT", *words):
            client.plan(dataset="ranked", batch_size=10, **request)


def test_truncated_list_items_need_not_fit_the_dtype(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"l": [[1, 2, 300], [4, 5, None], None, [6]]}), tmp_path / "rows.parquet")
    with Client(pool.start({"rows": tmp_path / "rows.parquet"}).location) as client:
        tensor = {"name": "t", "columns": ["l"], "dtype": "uint8", "max_list_length": 2}
        (batch,) = client.batches(dataset="rows", batch_size=4, tensors=[tensor], **IN_ORDER)
        assert batch.data["t"].to_pylist() == [[1, 2], [4, 5], [0, 0], [6, 0]]
        assert batch.data["t_mask"].to_pylist() == [[1, 1], [1, 1], [0, 0], [1, 0]]
        with refused("INVALID_ARGUMENT", "'l'", "300"):
            list(client.batches(dataset="rows", batch_size=4, tensors=[{**tensor, "max_list_length": 3, "null_value": 0}]))


def test_an_error_names_the_file_of_the_second_part_of_a_group(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    pq.write_table(pa.table({"k": [1, 2, 2], "x": [1, 2, 3]}), folder / "a.parquet")
    pq.write_table(pa.table({"k": [2, 3], "x": [1000, 4]}), folder / "b.parquet")
    with Client(pool.start({"rows": folder}).location) as client:
        tensor = {"name": "t", "columns": ["x"], "dtype": "int8"}
        with refused("INVALID_ARGUMENT", "'x'", "b.parquet", "1000"):
            list(client.batches(dataset="rows", batch_size=1, group_by=["k"], tensors=[tensor], **IN_ORDER))


def test_a_null_item_without_null_value_is_an_error_that_names_the_column(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"l": [[1, None], [2]]}), tmp_path / "rows.parquet")
    with Client(pool.start({"rows": tmp_path / "rows.parquet"}).location) as client:
        for how in ({"ragged": True}, {"max_list_length": 2}):
            tensor = {"name": "t", "columns": ["l"], **how}
            with refused("INVALID_ARGUMENT", "'l'", "null_value"):
                list(client.batches(dataset="rows", batch_size=2, tensors=[tensor]))
            (batch,) = client.batches(dataset="rows", batch_size=2, tensors=[{**tensor, "null_value": 9}], **IN_ORDER)
            assert batch.data["t"].flatten().to_pylist() == ([1, 9, 2] if "ragged" in how else [1, 9, 2, 9])


def test_a_mixture_takes_its_fractions_from_several_datasets(pool: Pool, tmp_path: Path) -> None:
    own, other = (pa.table({"id": pa.array(range(start, start + rows), pa.int64())}) for start, rows in [(0, 9000), (10**6, 1001)])
    pq.write_table(own, tmp_path / "own.parquet", row_group_size=500)
    # In this file, the column is preceded by another one.
    more = other.append_column("more", pa.array(range(1001)))
    pq.write_table(more.select(["more", "id"]), tmp_path / "other.parquet", row_group_size=100)
    server = pool.start({"own": tmp_path / "own.parquet", "other": tmp_path / "other.parquet"})
    request: dict[str, Any] = dict(dataset="own", columns=["id"], batch_size=100, world_size=2, epochs=2)
    request["mix"] = [{"dataset": "other", "fraction": 0.2}]
    with Client(server.location) as client:
        plan = client.plan(**request)
        assert (plan.steps, int(plan.summary["mixed_rows"]), plan.info.total_records) == (56, 20, 2 * 56 * 200)
        steps = [[batch.data["id"].to_pylist() for batch in batches] for batches in client.global_batches(**request)]
        (alone,) = [[batch.data["id"].to_pylist() for batch in client.batches(**{**request, "world_size": 1, "batch_size": 200})]]
        for words, changed in [
            (("othr", "'other'"), {"dataset": "othr", "fraction": 0.2}),
            (("mix", "name"), {"fraction": 0.2}),
            (("mix.other.fraction", "0.001"), {"dataset": "other", "fraction": 0.001}),
            (("mix.other: filter", "'idd'", "'id'"), {"dataset": "other", "fraction": 0.2, "filter": "idd > 0"}),
        ]:
            with refused(("INVALID_ARGUMENT", "NOT_FOUND"), *words):
                client.plan(**{**request, "mix": [changed]})
        tensor = [{"name": "t", "columns": ["*"]}]
        with refused("INVALID_ARGUMENT", "mix.other: columns", "int64", "both have"):
            client.plan(**{**request, "columns": [], "tensors": tensor})
        with refused("INVALID_ARGUMENT", "mix: this action takes a job with one dataset"):
            client.action("warm", {"train": request})
        with refused("INVALID_ARGUMENT", "mix.other", "more", "both have"):
            client.plan(**{**request, "columns": []})
    assert [step[0] + step[1] for step in steps] == alone
    assert all(sum(row >= 10**6 for row in batch) == 20 for step in steps for batch in step)
    flat = [row for step in alone for row in step]
    ours, theirs = ([row for row in flat if (row >= 10**6) == mixed] for mixed in (False, True))
    assert len(set(ours[: 56 * 160])) == 56 * 160
    assert sorted(theirs[:1001]) == other["id"].to_pylist() == sorted(theirs[1001:2002])
