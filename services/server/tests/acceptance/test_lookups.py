"""Lookups through a stock client return the rows of training, byte for byte, of one snapshot at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

import hostile
from client import Client, refused
from digest import digest_of
from server import ROOT, Pool, Server, until
from test_types import ROWS, TYPES, array_of

USERS = 50_000


class Lookup:
    """A DoExchange stream that sends batches of keys and receives batches of rows with metadata."""

    def __init__(self, client: Client, **wanted: Any) -> None:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": wanted}).encode())
        self.writer, self.reader = client.flight.do_exchange(descriptor)
        self.began = False

    def send(self, **keys: Iterable) -> None:
        batch = pa.record_batch({name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in keys.items()})
        if not self.began:
            self.writer.begin(batch.schema)
            self.began = True
        self.writer.write_batch(batch)

    def receive(self) -> tuple[pa.RecordBatch, dict]:
        chunk = self.reader.read_chunk()
        return chunk.data, json.loads(chunk.app_metadata.to_pybytes())

    def __call__(self, **keys: Iterable) -> tuple[pa.RecordBatch, dict]:
        self.send(**keys)
        return self.receive()

    def end(self) -> None:
        self.writer.done_writing()
        with pytest.raises(StopIteration):
            self.reader.read_chunk()
        self.writer.close()


@pytest.fixture
def users(pool: Pool, tmp_path: Path) -> Server:
    (tmp_path / "users").mkdir()
    rng = np.random.default_rng(1)
    for part in range(3):
        ids = np.arange(part, USERS, 3)
        rows = {"user_id": ids, "name": [f"user {id}" for id in ids]}
        rows |= {f"f{column}": rng.random(len(ids), dtype=np.float32) for column in range(39)}
        pq.write_table(pa.table(rows), tmp_path / "users" / f"{part}.parquet", row_group_size=5000)
    return pool.start({"users": tmp_path / "users"}, online="users=user_id")


FEATURES = {"name": "x", "columns": ["f*"], "dtype": "float32"}


def test_rows_have_the_order_of_their_keys_and_are_null_where_a_key_is_missing(users: Server) -> None:
    with Client(users.location) as client:
        stored = client.table(dataset="users", batch_size=4096, tensors=[FEATURES], columns=["user_id", "name"])
        row_of = {id: row for row, id in enumerate(stored["user_id"].to_pylist())}
        look_up = Lookup(client, dataset="users", columns=["user_id", "name"], tensors=[FEATURES])
        rng = np.random.default_rng(2)
        for count in (1, 3, 500, 5000, 0):
            asked = rng.integers(-100, USERS + 100, count)
            rows, metadata = look_up(user_id=asked)
            there = [0 <= id < USERS for id in asked]
            assert rows["found"].to_pylist() == there
            assert int(metadata.get("found", 0)) == sum(there) and metadata["snapshot"] == client.plan(dataset="users", batch_size=1).snapshot
            assert rows["user_id"].to_pylist() == [int(id) if ok else None for id, ok in zip(asked, there)]
            assert rows["name"].to_pylist() == [f"user {id}" if ok else None for id, ok in zip(asked, there)]
            x = np.asarray(rows["x"].flatten()).reshape(count, 39)
            assert not x[[not ok for ok in there]].any()
            expected = stored.take(pa.array([row_of[id] for id, ok in zip(asked, there) if ok], pa.int64()))
            expected = expected["x"].combine_chunks().flatten().to_numpy().reshape(sum(there), 39)
            assert (x[there] == expected).all()
        look_up.end()


def test_a_key_whose_row_does_not_match_the_filter_is_missing(users: Server) -> None:
    with Client(users.location) as client:
        wanted = {"dataset": "users", "columns": ["user_id"], "filter": "user_id % 2 = 0"}
        rows, metadata = Lookup(client, **wanted)(user_id=[1, 2, 3, 4, -2])
        assert rows["user_id"].to_pylist() == [None, 2, None, 4, None] and int(metadata["found"]) == 2
        with refused("INVALID_ARGUMENT", "filter", "'user_id'"):
            Lookup(client, dataset="users", filter="user > 1")(user_id=[1])


def test_pipelined_lookups_are_answered_in_order(users: Server) -> None:
    with Client(users.location) as client:
        look_up = Lookup(client, dataset="users", columns=["user_id"])
        for start in range(0, 2000, 10):
            look_up.send(user_id=range(start, start + 10))
        for start in range(0, 2000, 10):
            assert look_up.receive()[0]["user_id"].to_pylist() == list(range(start, start + 10))
        look_up.end()


def test_looked_up_rows_equal_the_rows_of_training_byte_for_byte_for_every_type(pool: Pool, tmp_path: Path) -> None:
    rows = {"key": pa.array([f"k{row}" for row in range(ROWS)])}
    for name in TYPES:
        with contextlib.suppress(pa.ArrowNotImplementedError):
            column = pa.table({name: array_of(name, nulls=True)})
            pq.write_table(column, tmp_path / "one.parquet")
            rows[name] = column[name]
    assert len(rows) > 40
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table(rows), tmp_path / "rows" / "all.parquet", row_group_size=300)
    server = pool.start({"rows": tmp_path / "rows"}, online="rows=key")
    select = ["key", "upper(key) AS shouted"]
    for wanted in ({}, {"select": select}, {"columns": [*list(TYPES)[:3], "key"]}):
        with Client(server.location) as client:
            trained = client.table(dataset="rows", batch_size=100, seed=5, **wanted)
            look_up = Lookup(client, dataset="rows", **wanted)
            found = []
            for start in range(0, ROWS, 250):
                batch, _ = look_up(key=trained["key"].combine_chunks()[start : start + 250])
                assert batch["found"].to_pylist() == [1] * batch.num_rows
                found.append(batch.drop_columns(["found"]))
        assert digest_of(found) == digest_of(trained.to_batches())
        for name in trained.schema.names:
            assert pa.chunked_array([batch[name] for batch in found]).equals(trained[name]) or "float" in name


def test_a_new_snapshot_replaces_the_old_one_and_survives_a_kill(pool: Pool, tmp_path: Path) -> None:
    def write(version: int) -> None:
        pq.write_table(pa.table({"id": range(3000), "v": [version] * 3000, "w": [version] * 3000}), tmp_path / "new.parquet")
        (tmp_path / "new.parquet").rename(tmp_path / "rows.parquet")

    write(0)
    flags = {"cache_dir": tmp_path / "cache", "online": "rows=id"}
    server = pool.start({"rows": tmp_path / "rows.parquet"}, **flags)
    stop = threading.Event()
    seen: list[list[int]] = [[], []]
    failed: list[BaseException] = []

    def call(versions: list[int]) -> None:
        try:
            with Client(server.location) as client:
                look_up = Lookup(client, dataset="rows")
                while not stop.is_set():
                    rows, _ = look_up(id=range(0, 3000, 7))
                    (version,) = set(rows["v"].to_pylist()) | set(rows["w"].to_pylist())
                    versions.append(version)
        except BaseException as error:
            failed.append(error)

    callers = [threading.Thread(target=call, args=(versions,)) for versions in seen]
    for caller in callers:
        caller.start()
    with Client(server.location) as client:
        for version in range(1, 11):
            write(version)
            snapshot = client.refresh("rows")["snapshot"]
            look_up = Lookup(client, dataset="rows")
            while look_up(id=[1])[1]["snapshot"] != snapshot:
                pass
    until(lambda: bool(failed) or all(len(versions) > 10 for versions in seen))
    stop.set()
    for caller in callers:
        caller.join()
    assert not failed
    for versions in seen:
        assert versions == sorted(versions) and len(versions) > 10
    server.kill()
    server = pool.start({"rows": tmp_path / "rows.parquet"}, **flags)
    with Client(server.location) as client:
        assert Lookup(client, dataset="rows")(id=[5])[0]["v"].to_pylist() == [10]


def test_an_invalid_lookup_is_rejected_by_name(users: Server, pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "plain.parquet")
    plain = pool.start({"plain": tmp_path / "plain.parquet"})
    for server, wanted, keys, status, words in [
        (users, {"dataset": "user"}, {"user_id": [1]}, "NOT_FOUND", ["no dataset 'user'", "did you mean 'users'"]),
        (plain, {"dataset": "plain"}, {"x": [1]}, "FAILED_PRECONDITION", ["'plain'", "--online plain=COLUMN"]),
        (users, {"dataset": "users", "columns": ["nmae"]}, {"user_id": [1]}, "INVALID_ARGUMENT", ["columns", "'nmae'", "'name'"]),
        (users, {"dataset": "users", "filter": "f0 >"}, {"user_id": [1]}, "INVALID_ARGUMENT", ["filter"]),
        (users, {"dataset": "users", "group_by": ["name"]}, {"user_id": [1]}, "INVALID_ARGUMENT", ["group_by"]),
        (users, {"dataset": "users"}, {"id": [1]}, "INVALID_ARGUMENT", ["keys", "no column 'user_id'"]),
        (users, {"dataset": "users"}, {"user_id": ["1"]}, "INVALID_ARGUMENT", ["user_id", "Utf8", "Int64"]),
        (users, {"dataset": "users", "max_age_seconds": -1}, {"user_id": [1]}, "INVALID_ARGUMENT", ["max_age_seconds", "-1"]),
        (users, {"dataset": "users"}, {"user_id": range(70_000)}, "INVALID_ARGUMENT", ["70000", "65536"]),
    ]:
        with Client(server.location) as client, refused(status, *words):
            Lookup(client, **wanted)(**keys)
    with Client(users.location) as client:
        # The snapshot is older than 1 µs, because the server became ready after it.
        with refused("FAILED_PRECONDITION", "last verified to be current", "max_age_seconds", "1\u00b5s"):
            Lookup(client, dataset="users", max_age_seconds=0.000001)(user_id=[1])
        assert Lookup(client, dataset="users", max_age_seconds=3600)(user_id=[1])[0].num_rows == 1


def test_an_invalid_batch_of_keys_is_rejected_without_affecting_other_lookups(users: Server) -> None:
    with Client(users.location) as client:
        steady = Lookup(client, dataset="users", columns=["user_id"])
        for options, keys, words in [
            (pa.ipc.IpcWriteOptions(compression="zstd"), pa.array(range(1000)), ["compressed"]),
            (None, pa.array(["a", "b"]).dictionary_encode(), ["dictionary-encoded"]),
            (None, pa.nulls(3), ["user_id", "Null"]),
            (None, pa.array([[1]]), ["user_id", "List"]),
        ]:
            with refused("INVALID_ARGUMENT", *words):
                broken = Lookup(client, dataset="users")
                batch = pa.record_batch({"user_id": keys})
                broken.writer.begin(batch.schema, options=options)
                broken.writer.write_batch(batch)
                broken.receive()
            assert steady(user_id=[3])[0]["user_id"].to_pylist() == [3]


def test_a_rejected_batch_of_keys_does_not_end_an_exchange_that_asks_for_its_error(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user_id": range(100)}), tmp_path / "users.parquet")
    (tmp_path / "forebay.toml").write_text("[lookups]\nmax_keys = 3\n")
    config = tmp_path / "forebay.toml"
    server = pool.start({"users": tmp_path / "users.parquet"}, online="users=user_id", config=config)
    with Client(server.location) as client:
        look_up = Lookup(client, dataset="users", columns=["user_id"])
        batches = [[1], [1, 2, 3, 4], [2], [5, 6, 7, 8], [3, 4]]
        schema = pa.schema({"user_id": pa.int64()})
        look_up.writer.begin(schema)
        for keys in batches:
            look_up.writer.write_with_metadata(pa.record_batch([pa.array(keys)], schema), b'{"continue_on_error": true}')
        for keys in batches:
            chunk = look_up.reader.read_chunk()
            metadata = json.loads(chunk.app_metadata.to_pybytes())
            if len(keys) <= 3:
                assert chunk.data["user_id"].to_pylist() == keys and "error" not in metadata
                continue
            assert chunk.data is None
            assert metadata["error"]["code"] == "INVALID_ARGUMENT"
            assert "4 at once, expected at most 3" in metadata["error"]["message"]
            assert "retry_after_seconds" not in metadata["error"]
        # A message of metadata alone is answered, too.
        look_up.writer.write_metadata(b'{"continue_on_error": true}')
        error = json.loads(look_up.reader.read_chunk().app_metadata.to_pybytes())["error"]
        assert (error["code"], error["message"]) == ("INVALID_ARGUMENT", "the message has metadata, but no batch of keys")
        # A batch without the option, as of an earlier client, ends the exchange with its status.
        look_up.writer.write_batch(pa.record_batch([pa.array([1, 2, 3, 4])], schema))
        with refused("INVALID_ARGUMENT", "4 at once, expected at most 3"):
            look_up.receive()
        # So do metadata that are none.
        look_up = Lookup(client, dataset="users", columns=["user_id"])
        look_up.writer.begin(schema)
        look_up.writer.write_with_metadata(pa.record_batch([pa.array([1])], schema), b'{"continue": true}')
        with refused("INVALID_ARGUMENT", "KeysMetadata", "continue"):
            look_up.receive()


def test_a_draining_server_ends_exchanges_as_unavailable(users: Server) -> None:
    with Client(users.location) as client:
        look_up = Lookup(client, dataset="users", columns=["user_id"])
        assert look_up(user_id=[3])[0].num_rows == 1
        users.terminate()
        with refused("UNAVAILABLE", "the server is stopping"):
            look_up.receive()
    assert users.wait() == 0


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "how-to" / "lookups.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_example_of_the_docs_runs_as_written(users: Server, capsys: pytest.CaptureFixture) -> None:
    example = blocks("python")[0]
    exec(example.replace("grpc://127.0.0.1:8815", users.location), {})
    assert capsys.readouterr().out.startswith("['user 7', 'user 42', 'user 7'] [1, 1, 1] ")


def test_order_by_selects_the_row_of_a_duplicate_key(pool: Pool, tmp_path: Path) -> None:
    rows = {"user_id": [1, 2, 1, 2, 1], "updated_at": [5, 9, 7, 3, None], "v": [0, 1, 2, 3, 4]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    config = tmp_path / "forebay.toml"
    settings = blocks("toml")[0]
    config.write_text(settings)
    for flags, expected in [({"config": config}, [2, 1, None]), ({"online": "users=user_id"}, [4, 3, None])]:
        server = pool.start({"users": tmp_path / "rows.parquet"}, **flags)
        with Client(server.location) as client:
            rows, _ = Lookup(client, dataset="users", columns=["v"])(user_id=[1, 2, 3])
            assert rows["v"].to_pylist() == expected
        (dataset,) = json.loads(server.http_get("/api/v1/datasets")[1])["datasets"]
        online = dataset["online"]
        assert online["keys"] == 2 and online["snapshot"] == dataset["snapshot"] and online["index_bytes"] > 0
        assert online["rows_indexed"] is None and online["error"] is None


def test_an_invalid_key_column_fails_lookups_of_its_dataset_with_the_reason_and_not_the_server(
    pool: Pool, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": [1.5], "id": [1]}), tmp_path / "rows.parquet")
    server = pool.start({"rows": tmp_path / "rows.parquet"}, online="rows=x")
    assert "column 'x' is of type Float64, expected integers, decimals" in server.log()
    status, body = server.http_get("/readyz")
    assert status == 200 and "column 'x' is of type Float64" in json.loads(body)["failed"]["rows"]
    (dataset,) = json.loads(server.http_get("/api/v1/datasets")[1])["datasets"]
    assert dataset["phase"] == "open" and dataset["online"]["snapshot"] is None
    assert "column 'x' is of type Float64" in dataset["online"]["error"]
    with Client(server.location) as client, refused("INVALID_ARGUMENT", "cannot be loaded", "column 'x' is of type Float64"):
        Lookup(client, dataset="rows")(x=[1])


def test_lookups_of_a_dataset_that_cannot_be_opened_say_why(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "good.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 is no Parquet file PAR1")
    server = pool.start({"good": tmp_path / "good.parquet", "bad": tmp_path / "bad.parquet"}, online="bad=id")
    until(lambda: "bad" in json.loads(server.http_get("/readyz")[1])["failed"])
    with Client(server.location) as client, refused("DATA_LOSS", "bad.parquet", "corrupt") as refusal:
        Lookup(client, dataset="bad")(id=[1])
    assert not any(words in str(refusal.value) for words in ("still being loaded", "try again"))


def test_lookups_of_files_that_cannot_be_read_name_the_file_and_the_column_and_advise_no_retry(
    pool: Pool, tmp_path: Path
) -> None:
    page, value = tmp_path / "page.parquet", tmp_path / "value.parquet"
    for path, column in ((page, "id"), (value, "value")):
        hostile.write_good(path)
        position = pq.read_metadata(path).schema.names.index(column)
        start = pq.read_metadata(path).row_group(0).column(position).dictionary_page_offset or 4
        content = bytearray(path.read_bytes())
        content[start : start + 24] = b"\xff" * 24
        path.write_bytes(bytes(content))
    hostile.encrypted(tmp_path / "secret.parquet")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("page", "value", "secret")}
    config = tmp_path / "forebay.toml"
    config.write_text("".join(f'[online.{name}]\nkey = ["id"]\n' for name in paths))
    server = pool.start(paths, config=config)
    expected = {
        "page": ("DATA_LOSS", "page.parquet", "corrupt", "column id"),
        "value": ("DATA_LOSS", "value.parquet", "corrupt", "column value"),
        "secret": ("FAILED_PRECONDITION", "secret.parquet", "not supported"),
    }
    online = lambda: [info["online"] for info in json.loads(server.http_get("/api/v1/datasets")[1])["datasets"]]
    # The index of `value` has no corrupt column. The view of its lookups has one.
    until(lambda: all(state["error"] or state["snapshot"] for state in online()))
    with Client(server.location) as client:
        for name, (status, *words) in expected.items():
            with refused(status, *words) as refusal:
                Lookup(client, dataset=name)(id=[1])
            assert "try again" not in str(refusal.value)


def test_get_schema_of_a_lookup_has_the_types_of_the_key_columns_under_the_names_of_the_caller(users: Server) -> None:
    with Client(users.location) as client:

        def schema(**wanted: Any) -> pa.Schema:
            descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": wanted}).encode())
            return client.flight.get_schema(descriptor).schema

        assert schema(dataset="users") == pa.schema({"user_id": pa.int64()})
        assert schema(dataset="users", key=["shown"]) == pa.schema({"shown": pa.int64()})
        joined = schema(dataset="users", joins=[{"dataset": "users", "key": ["friend"]}])
        assert joined == pa.schema({"user_id": pa.int64(), "friend": pa.int64()})
        with refused("INVALID_ARGUMENT", "names 2 columns, expected 1"):
            schema(dataset="users", key=["a", "b"])


def test_lookups_follow_a_file_that_was_replaced_by_one_of_equal_size_and_time(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    path = tmp_path / "items" / "a.parquet"

    def write(ids: list[int], factor: int) -> None:
        values = {"id": ids, "value": [factor * id for id in ids]}
        pq.write_table(pa.table(values), tmp_path / "new", compression="none", use_dictionary=False)
        os.utime(tmp_path / "new", ns=(1_700_000_000_000_000_000,) * 2)
        os.replace(tmp_path / "new", path)

    def found(client: Client, select: str) -> list[int] | None:
        with contextlib.suppress(pa.ArrowException, flight.FlightError):
            return Lookup(client, dataset="items", select=[f"{select} AS found_value"])(id=[1, 2, 3])[0]["found_value"].to_pylist()
        return None

    write([1, 2, 3], 10)
    server = pool.start({"items": tmp_path / "items"}, online="items=id")
    with Client(server.location) as client:
        until(lambda: found(client, "value") == [10, 20, 30])
        write([3, 1, 2], 20)
        client.refresh("items")
        # The rows of the keys in the new file, also of a view that was not loaded before.
        until(lambda: found(client, "value") == [20, 40, 60])
        assert found(client, "value + id") == [21, 42, 63]
        os.chmod(path, 0o600)
        client.refresh("items")
        until(lambda: found(client, "value - id") == [19, 38, 57])
