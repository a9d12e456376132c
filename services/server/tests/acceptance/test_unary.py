"""Lookups over DoGet and the unary method return the rows of an exchange, byte for byte."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

import client as stock
import online
from client import Client, command
from online import Online, stubs
from server import ROOT, Pool, Server, until
from test_lookups import FEATURES, USERS, Lookup, blocks, users
from test_types import ROWS, TYPES, array_of


def get(client: Client, **lookup: Any) -> tuple[pa.RecordBatch, dict]:
    """Returns the single batch of a DoGet and its metadata."""
    reader = client.flight.do_get(flight.Ticket(json.dumps({"lookup": lookup}).encode()))
    chunk = reader.read_chunk()
    with pytest.raises(StopIteration):
        reader.read_chunk()
    return chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def key_columns(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns keys in the form of a request."""
    kinds = {int: "integers", str: "strings"}
    return [{"name": name, kinds[type(values[0])]: list(values)} for name, values in keys.items()]


def with_keys(wanted: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return wanted | {"keys": key_columns(keys)}


def bytes_of(batch: pa.RecordBatch) -> bytes:
    return batch.schema.serialize().to_pybytes() + batch.serialize().to_pybytes()


def dtype_of(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "uint8"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()).name
    names = {"large_string": "string", "large_binary": "binary"}
    return names.get(str(kind), str(kind))


def items_of(array: pa.Array) -> bytes:
    """Returns the bytes of an array of a fixed-width type."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return bytes(int(value or 0) for value in array.to_pylist())
    assert array.offset == 0
    return array.buffers()[1].to_pybytes()[: len(array) * kind.bit_width // 8] if len(array) else b""


def assert_packed(packed: Any, array: pa.Array, name: str) -> None:
    """Asserts that a packed column has the type, validity and bytes of an Arrow array."""
    kind, rows = array.type, len(array)
    assert packed.name == name
    assert packed.valid == (bytes(array.is_valid().to_numpy(zero_copy_only=False)) if array.null_count else b"")
    if pa.types.is_null(kind):
        assert (packed.dtype, list(packed.shape), packed.data, len(packed.values)) == ("null", [rows], b"", 0)
    elif dtype_of(kind) in ("string", "binary"):
        plain = [value.encode() if isinstance(value, str) else value or b"" for value in array.to_pylist()]
        plain = [value or b"" for value in plain]
        assert (packed.dtype, list(packed.shape), list(packed.values), packed.data) == (dtype_of(kind), [rows], plain, b"")
    elif pa.types.is_fixed_size_list(kind):
        assert (packed.dtype, list(packed.shape)) == (dtype_of(kind.value_type), [rows, kind.list_size])
        assert packed.data == items_of(array.values) and not packed.values
    else:
        assert (packed.dtype, list(packed.shape)) == (dtype_of(kind), [rows])
        assert packed.data == items_of(array) and not packed.values


def assert_same(server: Server, wanted: dict[str, Any], keys: dict[str, Any]) -> pa.RecordBatch:
    """Asserts that all three methods return the same rows and metadata."""
    with Client(server.location) as client, Online(server.grpc) as unary:
        exchanged, about = Lookup(client, **wanted)(**keys)
        got, about_got = get(client, **with_keys(wanted, keys))
        answer = unary(**with_keys(wanted, keys))
    assert bytes_of(got) == bytes_of(exchanged)
    assert [column.name for column in answer.columns] == exchanged.schema.names
    for packed, array, name in zip(answer.columns, exchanged.columns, exchanged.schema.names):
        assert_packed(packed, array, name)
    for metadata, joins in [
        (about_got, about_got.get("joins", [])),
        ({"snapshot": answer.metadata.snapshot, "found": answer.metadata.found}, list(answer.metadata.joins)),
    ]:
        assert metadata["snapshot"] == about["snapshot"]
        assert int(metadata.get("found", 0)) == int(about.get("found", 0))
        assert len(joins) == len(about.get("joins", []))
    return exchanged


def test_every_method_returns_the_same_rows_with_nulls_for_missing_keys(users: Server) -> None:
    wanted = {"dataset": "users", "columns": ["user_id", "name"], "tensors": [FEATURES]}
    rng = np.random.default_rng(2)
    for count in (1, 3, 500, 5000, 65_536):
        asked = rng.integers(-100, USERS + 100, count).tolist()
        rows = assert_same(users, wanted, {"user_id": asked})
        assert rows["found"].to_pylist() == [0 <= id < USERS for id in asked]


def test_every_method_returns_the_same_rows_for_every_type(pool: Pool, tmp_path: Path) -> None:
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
    nested = {"list", "large_list", "list-string", "struct", "map", "nested"}
    plain = [name for name in rows if name not in nested]
    keys = {"key": [f"k{row}" for row in np.random.default_rng(3).integers(0, ROWS + 20, 700)]}
    found = assert_same(server, {"dataset": "rows", "columns": plain}, keys)
    assert found.num_columns == len(plain) + 1 > 35
    assert_same(server, {"dataset": "rows", "select": ["key", "upper(key) AS shouted"]}, keys)
    with Client(server.location) as client, Online(server.grpc) as unary:
        for name in nested & rows.keys():
            wanted = {"dataset": "rows", "columns": ["key", name]}
            exchanged, _ = Lookup(client, **wanted)(**keys)
            assert bytes_of(get(client, **with_keys(wanted, keys))[0]) == bytes_of(exchanged)
            with online.refused("INVALID_ARGUMENT", f"'{name}'", "DoGet", "DoExchange"):
                unary(**with_keys(wanted, keys))


def test_one_lookup_joins_several_datasets(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user_id": range(100), "u": np.arange(100.0)}), tmp_path / "users.parquet")
    items = {"item_id": [f"item {row}" for row in range(50)], "i": pa.array(range(50), pa.int16())}
    pq.write_table(pa.table(items), tmp_path / "items.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text('[online.users]\nkey = ["user_id"]\n[online.items]\nkey = ["item_id"]\n')
    datasets = {name: tmp_path / f"{name}.parquet" for name in ("users", "items")}
    server = pool.start(datasets, config=config)
    wanted = {
        "dataset": "users",
        "columns": ["u"],
        "joins": [{"dataset": "items", "columns": ["i"], "key": ["shown"]}],
    }
    keys = {"user_id": [1, 2, 3, 1000], "shown": ["item 7", "no item", "item 9", "item 7"]}
    rows = assert_same(server, wanted, keys)
    assert rows.to_pydict() == {
        "u": [1, 2, 3, None],
        "found": [1, 1, 1, 0],
        "i": [7, None, 9, 7],
        "items_found": [1, 0, 1, 1],
    }


def test_a_protobuf_ticket_is_answered_in_protobuf_and_an_unknown_field_is_rejected(users: Server) -> None:
    lookup = online.message(dataset="users", columns=["name"], keys=key_columns({"user_id": [7, -1]}))
    ticket = stubs()["command"].Command(lookup=lookup).SerializeToString()
    with Client(users.location) as client:
        chunk = client.flight.do_get(flight.Ticket(ticket)).read_chunk()
    about = stubs()["metadata"].LookupMetadata.FromString(chunk.app_metadata.to_pybytes())
    assert (chunk.data["name"].to_pylist(), about.found) == (["user 7", None], 1)
    with Online(users.grpc) as unary:
        raw = unary.channel.unary_unary("/forebay.v1.Online/Lookup")
        assert b"user 7" in raw(lookup.SerializeToString())
        with online.refused("INVALID_ARGUMENT", "unknown field 99 in Lookup"):
            raw(lookup.SerializeToString() + b"\x98\x06\x01")
        for nonsense in (b"\xff" * 30, b"\x0a\x7f", lookup.SerializeToString()[:-1]):
            with online.refused("INVALID_ARGUMENT", "not a Lookup"):
                raw(nonsense)


KEYS = [{"name": "user_id", "integers": [1]}]
REFUSED: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "no keys": ({"dataset": "users"}, "INVALID_ARGUMENT", ["keys", "are missing"]),
    "a column without keys": ({"dataset": "users", "keys": [{"name": "user_id"}]}, "INVALID_ARGUMENT", ["'user_id' has none"]),
    "two kinds in one column": (
        {"dataset": "users", "keys": [{"name": "user_id", "integers": [1], "strings": ["1"]}]},
        "INVALID_ARGUMENT",
        ["'user_id'", "both integers and strings"],
    ),
    "columns of different length": (
        {"dataset": "users", "keys": [*KEYS, {"name": "b", "integers": [1, 2]}]},
        "INVALID_ARGUMENT",
        ["'user_id' has 1", "others have 2"],
    ),
    "a column twice": ({"dataset": "users", "keys": KEYS * 2}, "INVALID_ARGUMENT", ["'user_id' is given twice"]),
    "too many keys": (
        {"dataset": "users", "keys": [{"name": "user_id", "integers": list(range(70_000))}]},
        "INVALID_ARGUMENT",
        ["70000", "65536"],
    ),
    "too many bytes": (
        {"dataset": "users", "keys": [{"name": "user_id", "strings": ["x" * 200] * 6000}]},
        "RESOURCE_EXHAUSTED",
        [],
    ),
    "another column": (
        {"dataset": "users", "keys": [{"name": "id", "integers": [1]}]},
        "INVALID_ARGUMENT",
        ["no column 'user_id'", "id"],
    ),
    "keys of another kind": (
        {"dataset": "users", "keys": [{"name": "user_id", "strings": ["1"]}]},
        "INVALID_ARGUMENT",
        ["user_id", "Utf8", "Int64"],
    ),
    "an unknown column": (
        {"dataset": "users", "columns": ["nmae"], "keys": KEYS},
        "INVALID_ARGUMENT",
        ["columns", "'nmae'", "'name'"],
    ),
    "an unknown dataset": (
        {"dataset": "user", "keys": KEYS},
        "NOT_FOUND",
        ["no dataset 'user'", "did you mean 'users'"],
    ),
    "an age below zero": ({"dataset": "users", "max_age_seconds": -1, "keys": KEYS}, "INVALID_ARGUMENT", ["max_age_seconds", "-1"]),
    "too old": ({"dataset": "users", "max_age_seconds": 1e-6, "keys": KEYS}, "FAILED_PRECONDITION", ["last verified to be current"]),
    "keys in a join": (
        {"dataset": "users", "keys": KEYS, "joins": [{"dataset": "users", "keys": KEYS}]},
        "INVALID_ARGUMENT",
        ["keys", "not in `joins`"],
    ),
}


def test_an_invalid_lookup_is_rejected_by_name(users: Server) -> None:
    with Client(users.location) as client, Online(users.grpc) as unary:
        for wanted, status, words in REFUSED.values():
            with online.refused(status, *words):
                unary(**wanted)
            with stock.refused(status, *words):
                get(client, **wanted)
        with stock.refused("INVALID_ARGUMENT", "keys", "DoExchange sends them as batches"):
            Lookup(client, dataset="users", keys=KEYS)(user_id=[1])
        with stock.refused("INVALID_ARGUMENT", "DoGet if the request holds their keys"):
            ticket = json.dumps({"lookup": {"dataset": "users", "keys": KEYS}}).encode()
            client.flight.get_flight_info(flight.FlightDescriptor.for_command(ticket))
        assert unary(dataset="users", columns=["name"], keys=KEYS, max_age_seconds=3600).columns[0].values == [b"user 1"]


def test_keys_in_the_features_of_a_queue_are_rejected(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text(
        '[online.rows]\nkey = ["id"]\n[queues.q.features]\ndataset = "rows"\nkeys = [{ name = "id", integers = [1] }]\n'
    )
    with pytest.raises(Exception, match="features: has `keys`"):
        pool.start({"rows": tmp_path / "rows.parquet"}, config=config)


def test_a_draining_server_rejects_lookups_as_unavailable(users: Server) -> None:
    with Client(users.location) as client, Online(users.grpc) as unary:
        assert unary(dataset="users", columns=["name"], keys=KEYS).metadata.found == 1
        # An unread stream keeps the server from stopping.
        stream = client.flight.do_get(flight.Ticket(command(dataset="users", batch_size=4096, epochs=10_000)))
        stream.read_chunk()
        users.terminate()

        def rejects_lookups() -> bool:
            try:
                unary(dataset="users", columns=["name"], keys=KEYS)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                return True
            return False

        until(rejects_lookups)
        assert users.is_running() and "draining" in users.log()
        stream.cancel()


def test_reflection_lists_the_service(users: Server) -> None:
    with Online(users.grpc) as unary:
        reflect = unary.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        # ServerReflectionRequest{list_services: "*"}, then {file_containing_symbol: ...}.
        symbol = b"forebay.v1.Online"
        services, file = reflect(iter([b"\x3a\x01*", b"\x22" + bytes([len(symbol)]) + symbol]))
    assert b"forebay.v1.Online" in services
    assert b"forebay/v1/online.proto" in file and b"PackedColumn" in file


def test_lookups_are_counted_by_method(users: Server) -> None:
    with Online(users.grpc) as unary:
        unary(dataset="users", columns=["name"], keys=KEYS)
    pattern = r'forebay_grpc_calls_total\{[^}]*method="Lookup"[^}]*\} 1'
    # A call is counted after its answer was sent.
    until(lambda: re.search(pattern, users.http_get("/metrics")[1]) is not None, failure="the call was not counted")


def test_the_example_of_the_docs_runs_as_written(users: Server, tmp_path: Path) -> None:
    (generate,) = (line for block in blocks("sh") for line in block.splitlines() if "grpc_tools.protoc" in line)
    generate = generate.replace("python ", f"{sys.executable} ", 1).replace("--python_out=.", f"--python_out={tmp_path}")
    generate = generate.replace("--grpc_python_out=.", f"--grpc_python_out={tmp_path}")
    subprocess.run(generate, shell=True, check=True, cwd=ROOT)
    (example,) = (block for block in blocks("python") if "OnlineStub" in block)
    example = example.replace("127.0.0.1:8815", users.grpc)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[b'user 7', b'user 42', b'user 7'] (3, 39) [1 1 1] "), done.stdout
