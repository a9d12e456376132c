"""No input from the network or a file causes a panic, a hang or unbounded memory; every error names its cause."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

import hostile
from client import FAILURES, Client, command, refused, status_of
from conftest import GROUP_ROWS
from digest import digest_of
from server import Pool, Server

INVALID = "INVALID_ARGUMENT"
MEMORY_BOUND = 1 << 30
# Statuses of a dataset that cannot be opened. The status depends on the cause.
CANNOT_OPEN = (
    "DATA_LOSS",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "RESOURCE_EXHAUSTED",
)


@dataclass(frozen=True)
class BadDataset:
    make: Callable[[Path], object]
    words: tuple[str, ...]
    statuses: Iterable[str] = CANNOT_OPEN


UNOPENABLE: dict[str, BadDataset] = {
    "missing": BadDataset(lambda path: None, ("missing",)),
    "no-files": BadDataset(hostile.no_files, ("no-files", "parquet")),
    "truncated": BadDataset(hostile.among_good(hostile.truncated), ("bad.parquet",), ("DATA_LOSS",)),
    "empty": BadDataset(hostile.among_good(hostile.empty), ("bad.parquet",), ("DATA_LOSS",)),
    "not-parquet": BadDataset(hostile.among_good(hostile.text), ("bad.parquet",), ("DATA_LOSS",)),
    "encrypted": BadDataset(hostile.among_good(hostile.encrypted), ("bad.parquet", "encrypt")),
    "long-footer": BadDataset(
        hostile.among_good(hostile.footer_length_past_the_file), ("bad.parquet",), ("DATA_LOSS",)
    ),
    "garbage-footer": BadDataset(hostile.among_good(hostile.garbage_footer), ("bad.parquet",), ("DATA_LOSS",)),
    "row-groups": BadDataset(hostile.among_good(hostile.two_billion_row_groups), ("bad.parquet",), ("DATA_LOSS",)),
    "schema-elements": BadDataset(
        hostile.among_good(hostile.two_billion_schema_elements), ("bad.parquet",), ("DATA_LOSS",)
    ),
    "long-name": BadDataset(hostile.among_good(hostile.long_name_in_footer), ("bad.parquet",), ("DATA_LOSS",)),
    "deep-schema": BadDataset(hostile.among_good(hostile.deep_schema), ("bad.parquet",)),
    "delta": BadDataset(hostile.delta_table, ("delta",), ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED")),
    "iceberg": BadDataset(
        hostile.iceberg_table, ("iceberg",), ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED")
    ),
    "other-type": BadDataset(hostile.other_type, ("bad.parquet", "value")),
    "other-names": BadDataset(hostile.other_names, ("bad.parquet", "val")),
    "partition-clash": BadDataset(hostile.partition_clash, ("bad.parquet", "value")),
}

# The footers are intact. The damage is detected when a page is read.
UNREADABLE: dict[str, BadDataset] = {
    "corrupt-page": BadDataset(
        hostile.among_good(lambda path: damaged(path, hostile.overwrite_pages)),
        ("bad.parquet", "row group 1"),
        ("DATA_LOSS",),
    ),
    "corrupt-header": BadDataset(
        hostile.among_good(lambda path: damaged(path, hostile.overwrite_page_header)),
        ("bad.parquet", "row group 1"),
        ("DATA_LOSS",),
    ),
    "no-pages": BadDataset(hostile.among_good(hostile.without_data), ("bad.parquet",), ("DATA_LOSS",)),
    "huge-page": BadDataset(
        hostile.inflate_page_header, ("huge-page", "row group 0"), ("DATA_LOSS", "RESOURCE_EXHAUSTED")
    ),
    "decode-bomb": BadDataset(
        hostile.repeat_one_value, ("decode-bomb",), ("RESOURCE_EXHAUSTED", "DATA_LOSS", "INVALID_ARGUMENT")
    ),
    "encrypted-columns": BadDataset(hostile.encrypted_columns, ("encrypt",)),
}


def damaged(path: Path, damage: Callable[[Path, int], None]) -> None:
    """Writes three row groups of 20,000 rows, the second one damaged."""
    hostile.write_good(path, rows=60_000, start=hostile.GOOD_ROWS, row_group_size=20_000)
    damage(path, 1)


@pytest.fixture(scope="module")
def server(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of two good datasets and all bad ones."""
    folder = tmp_path_factory.mktemp("bad-input")
    datasets: dict[str, Path] = {"flights": folder / "flights.parquet", "good": folder / "good"}
    with_delay = hostile.table(50_000).rename_columns(["distance", "delay"])
    pq.write_table(with_delay, datasets["flights"])
    hostile.write_good(datasets["good"] / "a.parquet")
    for name, bad in {**UNOPENABLE, **UNREADABLE}.items():
        bad.make(folder / name)
        datasets[name] = folder / name
    return module_pool.start(datasets, cache_memory="256MiB")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.location) as opened:
        yield opened


@pytest.fixture(autouse=True)
def the_good_dataset_stays_available(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks after every test that the shared server runs, within its memory, and serves the good dataset."""
    if "client" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("server")
    server.forget_peak_memory()
    yield
    assert server.is_running(), server.log_tail()
    with Client(server.location) as fresh:
        got = fresh.digest(dataset="good", batch_size=300, shuffle={"none": {}})
    assert got == digest_of(hostile.table().to_batches())
    assert "panicked" not in server.log(), server.log_tail()
    assert server.memory_bytes("VmHWM") < MEMORY_BOUND, f"{server.memory_bytes('VmHWM'):,} bytes at its peak"


# -- requests ----------------------------------------------------------------------------------------

GOOD_REQUEST: dict[str, Any] = {"dataset": "flights", "batch_size": 1000}
BAD_REQUESTS: dict[str, tuple[dict[str, Any], str | tuple[str, ...], tuple[str, ...]]] = {
    "unknown dataset": ({"dataset": "flihgts"}, "NOT_FOUND", ("flihgts", "flights")),
    "no dataset": ({"dataset": ""}, INVALID, ("dataset",)),
    "unknown column": ({"columns": ["distance", "dealy"]}, INVALID, ("dealy", "delay")),
    "unknown label_column": ({"label_column": "dealy"}, INVALID, ("dealy", "delay")),
    "unknown field": ({"batchsize": 4096}, INVALID, ("batchsize", "batch_size")),
    "unknown shuffle field": ({"shuffle": {"windowrows": 9}}, INVALID, ("windowrows", "window_rows")),
    "unknown remainder": ({"remainder": "Short"}, INVALID, ("remainder", "Short", "SHORT")),
    "unknown snapshot": ({"snapshot": "0123456789abcdef"}, "FAILED_PRECONDITION", ("0123456789abcdef",)),
    "two shuffles": ({"shuffle": {"global": {}, "none": {}}}, INVALID, ("shuffle",)),
    "keep_block_order without a window": ({"shuffle": {"global": {}, "keep_block_order": True}}, INVALID, ("keep_block_order",)),
    "shuffle of the wrong type": ({"shuffle": "global"}, INVALID, ()),
    "batch_size 0": ({"batch_size": 0}, INVALID, ("batch_size", "0")),
    "batch_size past the limit": (
        {"batch_size": 1_048_577},
        (INVALID, "RESOURCE_EXHAUSTED"),
        ("batch_size", "1048577", "1048576"),
    ),
    "batch_size huge": ({"batch_size": 2**64 - 1}, (INVALID, "RESOURCE_EXHAUSTED"), ("batch_size",)),
    "batch_size past 64 bits": ({"batch_size": 2**64}, INVALID, ()),
    "batch_size negative": ({"batch_size": -1}, INVALID, ()),
    "batch_size fractional": ({"batch_size": 1.5}, INVALID, ()),
    "batch_size in words": ({"batch_size": "many"}, INVALID, ("many",)),
    "world_size 0": ({"world_size": 0}, INVALID, ("world_size",)),
    "world_size huge": ({"world_size": 2**63, "rank": 0}, (INVALID, "RESOURCE_EXHAUSTED"), ("world_size",)),
    "rank out of range": ({"world_size": 4, "rank": 4}, INVALID, ("rank", "4")),
    "rank of one": ({"rank": 1}, INVALID, ("rank",)),
    "lanes 0": ({"lanes": 0}, INVALID, ("lanes",)),
    "lane out of range": ({"lanes": 2, "lane": 2}, INVALID, ("lane",)),
    "lanes huge": ({"lanes": 2**63, "rank": 0}, (INVALID, "RESOURCE_EXHAUSTED"), ("lane",)),
    "epochs 0": ({"epochs": 0}, INVALID, ("epochs",)),
    "epochs past the last epoch": ({"epoch": 2**64 - 1, "epochs": 2}, INVALID, ("epoch",)),
    "start_step past the end": ({"start_step": 51}, (INVALID, "OUT_OF_RANGE"), ("start_step", "51", "50")),
    "start_step huge": ({"start_step": 2**64 - 1}, (INVALID, "OUT_OF_RANGE"), ("start_step",)),
    "window_rows 0": ({"shuffle": {"window_rows": 0}}, INVALID, ("window_rows",)),
    "seed negative": ({"seed": -1}, INVALID, ()),
    "seed past 64 bits": ({"seed": str(2**64)}, INVALID, (str(2**64),)),
    "plan_version of the future": ({"plan_version": 99}, (INVALID, "FAILED_PRECONDITION"), ("plan_version", "99")),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_an_invalid_request_is_rejected_with_the_field_and_value(client: Client, name: str) -> None:
    changes, status, words = BAD_REQUESTS[name]
    with refused(status, *words):
        client.plan(**{**GOOD_REQUEST, **changes})
    with refused(status, *words):  # the same command as a ticket
        for _ in client.batches(**{**GOOD_REQUEST, **changes}):
            pass


def test_the_error_for_an_unknown_snapshot_names_the_current_one(client: Client) -> None:
    current = client.plan(**GOOD_REQUEST).snapshot
    with refused("FAILED_PRECONDITION", current):
        client.plan(**GOOD_REQUEST, snapshot="0123456789abcdef")


def test_sizes_at_their_limits_are_accepted(client: Client) -> None:
    (only,) = client.batches(**{**GOOD_REQUEST, "batch_size": 1_048_576})
    assert only.data.num_rows == 50_000
    assert client.plan(**GOOD_REQUEST, shuffle={"window_rows": 2**64 - 1}).info.total_records == 50_000
    assert client.plan(**GOOD_REQUEST, epoch=2**64 - 1).info.total_records == 50_000


def test_a_batch_above_max_batch_bytes_is_rejected_with_the_limit(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    width, rows = 4096, 70_000  # 273 MiB in memory, almost nothing on disk
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(bytes(width * rows))])
    pq.write_table(pa.table({"row": column}), tmp_path / "wide.parquet", row_group_size=5000)
    client = connect(pool.start({"wide": tmp_path / "wide.parquet"}))
    with refused("RESOURCE_EXHAUSTED", "batch", "268435456"):
        next(client.read(client.plan(dataset="wide", batch_size=rows).tickets[0]))
    assert client.plan(dataset="wide", batch_size=1000).steps == 70


# -- tickets and messages ------------------------------------------------------------------------------


def garbage() -> dict[str, bytes]:
    chance = random.Random(5)
    whole = command(**GOOD_REQUEST)
    return {
        "empty": b"",
        "zero": b"\0",
        "text": b"flights",
        "brace": b"{",
        "half of a command": whole[: len(whole) // 2],
        "command and more": whole + b"x",
        "empty object": b"{}",
        "no object": b'{"train": 1}',
        "unknown command": b'{"trian": {}}',
        "deep": b'{"train":' + b"[" * 100_000,
        "not utf-8": b'{"train": {"dataset": "\xff\xfe"}}',
        "endless varint": b"\x0a" + b"\xff" * 20,
        "length past the end": b"\x0a\xff\xff\xff\xff\x07ab",
        "unknown protobuf field": b"\x0a\x02\xf8\x7f\x01"[:5],
        "long name": command(dataset="x" * 1_000_000, batch_size=1),
        "past the limit of a message": command(dataset="x" * 5_000_000, batch_size=1),
        "many columns": command(dataset="flights", batch_size=1, columns=["delay"] * 100_000 + ["dealy"]),
        **{
            f"random {number}": bytes(chance.randrange(256) for _ in range(chance.randrange(1, 200)))
            for number in range(40)
        },
    }


@pytest.mark.parametrize("name", garbage())
def test_garbage_is_rejected_as_ticket_descriptor_and_action(client: Client, name: str) -> None:
    content = garbage()[name]
    refusals = {INVALID, "NOT_FOUND", "RESOURCE_EXHAUSTED"}
    with refused(refusals):
        client.flight.do_get(flight.Ticket(content)).read_all()
    with refused(refusals):
        client.flight.get_flight_info(flight.FlightDescriptor.for_command(content))
    with refused(refusals):
        client.flight.get_schema(flight.FlightDescriptor.for_command(content))
    with refused(refusals):
        list(client.flight.do_action(flight.Action("warm", content)))
    with refused(refusals):
        list(client.flight.do_action(flight.Action("refresh", content)))


def test_a_ticket_with_a_changed_byte_is_rejected_or_served(client: Client) -> None:
    chance = random.Random(6)
    ticket = client.plan(**GOOD_REQUEST, steps=2).tickets[0].ticket
    for _ in range(150):
        changed = bytearray(ticket)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            stream = client.read(flight.Ticket(bytes(changed)))
            next(stream, None)
            stream.close()
        except FAILURES as error:
            assert status_of(error) in {
                INVALID,
                "NOT_FOUND",
                "FAILED_PRECONDITION",
                "OUT_OF_RANGE",
                "RESOURCE_EXHAUSTED",
            }, error


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, bytes(range(256)) * 64], ids=["http", "zeros", "bytes"]
)
@pytest.mark.parametrize("port", ["grpc", "http"])
def test_another_protocol_on_a_port_does_not_affect_the_server(
    client: Client, server: Server, port: str, content: bytes
) -> None:
    host, number = getattr(server, port).rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((host, int(number)), timeout=5) as connection:
        connection.sendall(content)
        connection.recv(4096)
    assert server.http_get("/livez")[0] == 200


def test_unsupported_methods_are_unimplemented(client: Client) -> None:
    schema = pa.schema([("x", pa.int64())])
    with refused({"UNIMPLEMENTED"}):
        writer, _ = client.flight.do_put(flight.FlightDescriptor.for_path("x"), schema)
        writer.close()


# -- datasets that can't be opened or read -------------------------------------------------------------


@pytest.mark.parametrize("name", UNOPENABLE)
def test_the_error_of_an_unopenable_dataset_names_file_and_cause(client: Client, name: str) -> None:
    bad = UNOPENABLE[name]
    with refused(bad.statuses, *bad.words):
        client.plan(dataset=name, batch_size=10)
    with refused(bad.statuses, *bad.words):
        next(client.batches(dataset=name, batch_size=10))


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_error_of_an_unreadable_dataset_names_file_and_cause(client: Client, name: str) -> None:
    bad = UNREADABLE[name]
    with refused(bad.statuses, *bad.words):
        for _ in client.batches(dataset=name, batch_size=1000, shuffle={"none": {}}):
            pass
    with refused(bad.statuses, *bad.words):
        for _ in client.batches(dataset=name, batch_size=1000, seed=1):
            pass


def test_rows_before_a_corrupt_row_group_and_other_columns_stay_readable(client: Client) -> None:
    request = {"dataset": "corrupt-page", "batch_size": 1000, "shuffle": {"none": {}}}
    before = list(client.batches(**request, steps=10))
    assert [row for batch in before for row in batch.data.column("id").to_pylist()] == list(range(10_000))
    ids = client.table(**request, columns=["id"]).column("id").to_numpy()
    assert np.array_equal(ids[: hostile.GOOD_ROWS + 60_000], np.arange(hostile.GOOD_ROWS + 60_000))


def test_unopenable_datasets_are_listed_with_their_error(client: Client, server: Server) -> None:
    listed = {
        about["dataset"]: about for about in (json.loads(info.app_metadata) for info in client.flight.list_flights())
    }
    status, readiness = server.http_get("/readyz")
    assert status == 200
    for name, bad in UNOPENABLE.items():
        for word in bad.words:
            assert word.lower() in listed[name]["error"].lower()
        assert name in readiness
    assert "bad.parquet" in readiness
    assert not listed["good"].get("error")


def test_a_repaired_dataset_is_served_after_a_refresh(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    hostile.among_good(hostile.truncated)(tmp_path / "mended")
    client = connect(pool.start({"mended": tmp_path / "mended"}))
    with refused("DATA_LOSS", "bad.parquet"):
        client.plan(dataset="mended", batch_size=10)
    with refused("DATA_LOSS", "bad.parquet"):
        client.refresh("mended")
    (tmp_path / "mended" / "bad.parquet").unlink()
    client.refresh("mended")
    assert client.plan(dataset="mended", batch_size=10).info.total_records == 2 * hostile.GOOD_ROWS


@pytest.mark.parametrize("world_size", [1, 3])
def test_zero_rows_are_an_empty_epoch(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, world_size: int
) -> None:
    hostile.write_good(tmp_path / "none" / "a.parquet", rows=0)
    hostile.write_good(tmp_path / "some" / "a.parquet", rows=0)
    hostile.write_good(tmp_path / "some" / "b.parquet", rows=7)
    client = connect(pool.start({"none": tmp_path / "none", "some": tmp_path / "some"}))
    for shuffle in ({}, {"shuffle": {"global": {}}}, {"shuffle": {"none": {}}}, {"shuffle": {"window_rows": 1}}):
        request = {"batch_size": 4, "world_size": world_size, "remainder": "SHORT", "epochs": 3, **shuffle}
        plan = client.plan(dataset="none", **request)
        assert (plan.info.total_records, plan.steps) == (0, 0)
        assert plan.info.schema.names == ["id", "value"]
        assert list(client.global_batches(dataset="none", **request)) == []
        assert client.table(dataset="some", **request).num_rows == 3 * 7


# -- files that change, snapshots, windows -------------------------------------------------------------

CHANGING_FILES = 40
CHANGING_ROWS = 256 * 1024  # 4 MiB decoded


@pytest.mark.parametrize("shuffle", [{"none": {}}, {"window_rows": 4 * CHANGING_ROWS}], ids=["none", "window"])
@pytest.mark.parametrize("change", ["replaced", "deleted", "cut"])
def test_a_file_changed_during_an_epoch_is_a_failed_precondition_that_names_it(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, change: str, shuffle: dict
) -> None:
    folder = tmp_path / "changing"
    for number in range(CHANGING_FILES):
        hostile.write_good(folder / f"part-{number:02}.parquet", rows=CHANGING_ROWS, start=number * CHANGING_ROWS)
    good = hostile.write_good(tmp_path / "good.parquet")
    server = pool.start({"changing": folder, "good": good}, cache_memory="24MiB")
    client = connect(server)
    request = {"dataset": "changing", "batch_size": 16_384, "seed": 1}
    stream = client.batches(**request, shuffle=shuffle)
    next(stream)

    for path in sorted(folder.iterdir())[CHANGING_FILES // 2 :]:
        if change == "deleted":
            path.unlink()
        elif change == "cut":
            path.write_bytes(path.read_bytes()[:-1000])
        else:
            hostile.write_good(tmp_path / "new.parquet", rows=CHANGING_ROWS, start=10**9).replace(path)

    with refused("FAILED_PRECONDITION", "part-"):
        for _ in stream:
            pass
    assert client.table(dataset="good", batch_size=300).num_rows == hostile.GOOD_ROWS
    if change != "cut":
        client.refresh("changing")
        kept = np.arange(CHANGING_FILES // 2 * CHANGING_ROWS)
        # Every replaced file has the same new rows.
        new = np.arange(10**9, 10**9 + CHANGING_ROWS if change == "replaced" else 10**9)
        found = np.sort(client.table(**request, columns=["id"], shuffle={"none": {}}).column("id").to_numpy())
        assert np.array_equal(found, np.concatenate([kept, np.repeat(new, CHANGING_FILES // 2)]))


def test_a_ticket_of_an_older_snapshot_works_on_another_server_with_an_empty_disk(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    folder, state = tmp_path / "grown", tmp_path / "state"
    hostile.write_good(folder / "b.parquet", rows=5000)
    request = {"dataset": "grown", "batch_size": 999, "seed": 1}
    first = pool.start({"grown": folder}, state=state)
    plan = connect(first).plan(**request)
    expected = connect(first).digest(**request)
    first.kill()

    hostile.write_good(folder / "a.parquet", rows=3000, start=5000)
    second = connect(pool.start({"grown": folder}, state=state))
    assert second.plan(**request).info.total_records == 8000
    assert digest_of(batch.data for batch in second.read(plan.tickets[0])) == expected

    without_state = connect(pool.start({"grown": folder}))
    with refused("FAILED_PRECONDITION", plan.snapshot, without_state.plan(**request).snapshot):
        next(without_state.read(plan.tickets[0]))


def test_a_window_above_the_cache_memory_is_rejected_with_the_size_that_fits(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path, flights_client: Client
) -> None:
    client = connect(pool.start({"small-groups": small_groups}, cache_memory="24MiB"))
    request = {"dataset": "small-groups", "batch_size": 8192, "seed": 1}
    with refused("RESOURCE_EXHAUSTED", "window_rows", "bytes") as refusal:
        client.plan(**request, shuffle={"global": {}})
    offered = re.search(r"window_rows\D{0,60}?([\d,_]+)", str(refusal.value))
    assert offered, refusal.value
    window_rows = int(re.sub(r"\D", "", offered.group(1)))
    assert GROUP_ROWS <= window_rows < 3_000_000

    fitting = {**request, "shuffle": {"window_rows": window_rows}}
    assert client.digest(**fitting) == flights_client.digest(**fitting)
    with refused("RESOURCE_EXHAUSTED", "window_rows"):
        client.plan(**request, shuffle={"window_rows": 4 * window_rows})
