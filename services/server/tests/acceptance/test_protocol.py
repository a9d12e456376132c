"""The protocol for stock Flight clients: descriptors, endpoints, tickets, metadata, actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client, command, refused
from digest import digest_of
from hostile import table, write_good
from server import Pool, Server

REQUEST: dict[str, Any] = {"dataset": "flights", "columns": ["date", "delay"], "batch_size": 50_000, "seed": 3}


def names_in(descriptor: flight.FlightDescriptor) -> str:
    path = b"/".join(descriptor.path or [])
    return (path + (descriptor.command or b"")).decode()


# -- GetFlightInfo, GetSchema, ListFlights -----------------------------------------------------------


def test_schema_is_the_same_in_info_in_get_schema_and_in_the_stream(flights_client: Client) -> None:
    request = {**REQUEST, "columns": ["origin", "delay"]}
    schema = flights_client.plan(**request).info.schema
    assert schema.names == ["origin", "delay"]
    assert flights_client.schema(**request).equals(schema)
    reader = flights_client.flight.do_get(flight.Ticket(command(**request)))
    assert reader.schema.equals(schema)
    assert reader.read_all().schema.equals(schema)


def test_all_columns_come_in_file_order_when_none_is_named(flights_client: Client, flights_table: pa.Table) -> None:
    request = {"dataset": "flights", "batch_size": 1000}
    assert flights_client.schema(**request).names == flights_table.column_names


def test_endpoints_are_rank_major_and_each_ticket_is_complete(flights_client: Client) -> None:
    plan = flights_client.plan(**REQUEST, world_size=3, lanes=2)
    assert len(plan.tickets) == 6
    for number, ticket in enumerate(plan.tickets):
        first = next(flights_client.read(ticket))
        assert (first.meta.rank, first.meta.step) == (number // 2, number % 2)


@pytest.mark.parametrize("chosen", [{"rank": 1}, {"lane": 1}, {"rank": 2, "lane": 0}], ids=str)
def test_rank_and_lane_choose_endpoints(flights_client: Client, chosen: dict[str, int]) -> None:
    plan = flights_client.plan(**REQUEST, world_size=3, lanes=2, **chosen)
    seen = [
        (batch.meta.rank, batch.meta.step % 2) for batch in (next(flights_client.read(each)) for each in plan.tickets)
    ]
    expected = [
        (rank, lane)
        for rank in range(3)
        for lane in range(2)
        if chosen.get("rank", rank) == rank and chosen.get("lane", lane) == lane
    ]
    assert seen == expected


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"world_size": 3},
        {"world_size": 3, "remainder": "SHORT"},
        {"world_size": 7, "lanes": 3, "remainder": "SHORT"},
        {"world_size": 7, "rank": 6, "remainder": "SHORT"},
        {"lanes": 2, "lane": 1},
        {"start_step": 17},
        {"start_step": 17, "steps": 5},
        {"epochs": 3, "start_step": 59},
        {"epochs": 3, "steps": 61, "world_size": 2},
    ],
    ids=str,
)
def test_total_records_is_what_the_endpoints_deliver(flights_client: Client, more: dict[str, Any]) -> None:
    request = {**REQUEST, "columns": ["delay"], "batch_size": 49_999}
    plan = flights_client.plan(**request, **more)
    delivered = sum(batch.data.num_rows for ticket in plan.tickets for batch in flights_client.read(ticket))
    assert plan.info.total_records == delivered


def test_the_plan_summary_holds_the_resolved_request(flights_client: Client) -> None:
    summary = flights_client.plan(**REQUEST, world_size=2).summary
    assert int(summary["rows"]) == 3_000_000
    assert int(summary["steps"]) == 30
    assert int(summary["batch_size"]) == 50_000
    assert int(summary["world_size"]) == 2
    assert int(summary["plan_version"]) == 1
    assert int(summary["window_rows"]) == 1_048_576
    assert int(summary["blocks_per_window"]) == 4
    assert summary["remainder"] == "DROP"
    assert summary["snapshot"]
    assert len(summary["plan_hash"]) == 16


def test_the_plan_hash_identifies_the_order(flights_client: Client) -> None:
    def plan_hash(**changes: Any) -> str:
        return flights_client.plan(**{**REQUEST, "remainder": "SHORT", **changes}).summary["plan_hash"]

    one = plan_hash()
    same = [
        plan_hash(batch_size=25_000, world_size=2),
        plan_hash(columns=["origin"]),
        plan_hash(lanes=3),
        plan_hash(job_name="x"),
    ]
    other = [
        plan_hash(seed=4),
        plan_hash(batch_size=25_000),
        plan_hash(remainder="DROP"),
        plan_hash(shuffle={"global": {}}),
        plan_hash(shuffle={"none": {}}),
        plan_hash(shuffle={"window_rows": 300_000}),
        plan_hash(shuffle={"window_rows": 300_000, "keep_block_order": True}),
        plan_hash(dataset="small-groups"),
    ]
    assert set(same) == {one}
    assert len({one, *other}) == 1 + len(other)


def test_list_flights_lists_every_dataset(flights_client: Client, flights_table: pa.Table) -> None:
    infos = {names_in(info.descriptor): info for info in flights_client.flight.list_flights()}
    assert len(infos) == 2
    for name in ("flights", "small-groups"):
        (info,) = [info for text, info in infos.items() if name in text]
        assert info.schema.names == flights_table.column_names
        assert info.total_records == 3_000_000


def test_more_than_4096_endpoints_require_a_rank(flights_client: Client) -> None:
    request = {**REQUEST, "batch_size": 8}
    assert len(flights_client.plan(**request, world_size=64, lanes=64).tickets) == 4096
    with refused({"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, "rank", "4096"):
        flights_client.plan(**request, world_size=4097)
    plan = flights_client.plan(**request, world_size=4097, rank=4096)
    assert next(flights_client.read(plan.tickets[0])).meta.position == 4096 * 8


# -- DoGet ---------------------------------------------------------------------------------------------


def test_a_json_command_is_a_ticket_and_needs_rank_and_lane_only_if_there_are_several(
    flights_client: Client,
) -> None:
    by_info = next(flights_client.read(flights_client.plan(**REQUEST).tickets[0]))
    by_command = next(flights_client.batches(**REQUEST))
    assert by_command == by_info
    with refused("INVALID_ARGUMENT", "rank"):
        next(flights_client.batches(**REQUEST, world_size=2))
    with refused("INVALID_ARGUMENT", "lane"):
        next(flights_client.batches(**REQUEST, lanes=2))
    assert next(flights_client.batches(**REQUEST, world_size=2, rank=1, lanes=2, lane=1)).meta.step == 1


def test_64_bit_integers_are_numbers_or_strings(flights_client: Client) -> None:
    request = {**REQUEST, "columns": ["date", "delay"], "steps": 1}
    largest = 2**64 - 1
    as_number = flights_client.digest(**{**request, "seed": largest})
    as_string = flights_client.digest(**{**request, "seed": str(largest), "batch_size": "50000"})
    other = flights_client.digest(**{**request, "seed": largest - 1})
    assert as_number == as_string != other


def test_metadata_numbers_every_batch(flights_client: Client) -> None:
    batches = list(flights_client.batches(**REQUEST, epoch=4))
    assert [batch.meta.step for batch in batches] == list(range(60))
    assert [batch.meta.position for batch in batches] == [50_000 * step for step in range(60)]
    assert {batch.meta.epoch for batch in batches} == {4}
    assert {batch.meta.rows for batch in batches} == {50_000}


def test_the_content_hash_depends_only_on_the_ticket_and_can_be_disabled(flights_client: Client) -> None:
    hashes = [batch.meta.content_hash for batch in flights_client.batches(**REQUEST)]
    assert len(set(hashes)) == len(hashes) and 0 not in hashes
    assert [batch.meta.content_hash for batch in flights_client.batches(**REQUEST, content_hash=True)] == hashes
    without = list(flights_client.batches(**REQUEST, content_hash=False))
    assert {batch.meta.content_hash for batch in without} == {0}
    assert digest_of(batch.data for batch in without) == flights_client.digest(**REQUEST)


def test_a_rank_without_a_row_of_the_last_step_receives_an_empty_batch(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    client = connect(pool.start({"ten": write_good(tmp_path / "ten.parquet", rows=10)}))
    request = {"dataset": "ten", "batch_size": 1, "world_size": 8, "remainder": "SHORT"}
    first, last = client.global_batches(**request)
    assert [batch.data.num_rows for batch in first] == [1] * 8
    assert [batch.data.num_rows for batch in last] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [batch.meta.rows for batch in last] == [batch.data.num_rows for batch in last]


def test_a_protobuf_command_gets_protobuf_metadata_and_the_same_rows(flights_client: Client) -> None:
    dataset = b"flights"
    # Command{train: 1}, Train{dataset: 1, batch_size: 5, seed: 6}
    train = b"\x0a" + bytes([len(dataset)]) + dataset + b"\x28\xd0\x86\x03" + b"\x30\x03"
    cmd = b"\x0a" + bytes([len(train)]) + train
    info = flights_client.flight.get_flight_info(flight.FlightDescriptor.for_command(cmd))
    assert not info.app_metadata.startswith(b"{")
    reader = flights_client.flight.do_get(info.endpoints[0].ticket)
    first = reader.read_chunk()
    reader.cancel()
    with pytest.raises(ValueError):
        json.loads(first.app_metadata.to_pybytes())
    request = {**REQUEST, "columns": [], "steps": 1}
    assert digest_of([first.data]) == flights_client.digest(**request)


def test_job_name_and_label_column_do_not_change_the_batches(flights_client: Client) -> None:
    assert flights_client.digest(**REQUEST, job_name="ctr-v3", label_column="delay") == flights_client.digest(**REQUEST)


# -- actions -------------------------------------------------------------------------------------------


@pytest.fixture
def growing(pool: Pool, connect: Callable[[Server], Client], tmp_path: Path) -> Iterator[tuple[Client, Path]]:
    """A dataset of one file, and its folder, to which tests add files."""
    folder = tmp_path / "growing"
    write_good(folder / "a.parquet", rows=5000)
    yield connect(pool.start({"growing": folder})), folder


def test_list_actions_describes_every_action(flights_client: Client) -> None:
    actions = {action.type: action.description for action in flights_client.flight.list_actions()}
    assert {"refresh", "warm"} <= set(actions)
    assert all(actions.values())


def test_refresh_finds_new_files_and_old_tickets_keep_theirs(growing: tuple[Client, Path]) -> None:
    client, folder = growing
    request = {"dataset": "growing", "batch_size": 999, "seed": 1}
    before = client.plan(**request)
    expected = [batch.data for batch in client.read(before.tickets[0])]

    write_good(folder / "sub" / "b.parquet", rows=3000, start=5000)
    assert client.plan(**request).snapshot == before.snapshot  # not before a refresh
    result = client.refresh("growing")
    after = client.plan(**request)
    assert result["snapshot"] == after.snapshot != before.snapshot
    assert (result["changed"], int(result["rows"]), int(result["files"])) == (True, 8000, 2)
    assert (before.info.total_records, after.info.total_records) == (5000, 8000)
    assert digest_of(batch.data for batch in client.read(before.tickets[0])) == digest_of(expected)
    assert digest_of(client.rows(**request, snapshot=before.snapshot)) == digest_of(expected)

    again = client.refresh("growing")
    assert (again["changed"], again["snapshot"]) == (False, after.snapshot)


def test_refresh_of_an_unknown_dataset_suggests_a_similar_name(growing: tuple[Client, Path]) -> None:
    client, _ = growing
    with refused("NOT_FOUND", "growin", "growing"):
        client.refresh("growin")


def test_warm_loads_the_view_and_reports_progress(growing: tuple[Client, Path]) -> None:
    client, _ = growing
    train = {"dataset": "growing", "batch_size": 100}
    progress = client.action("warm", {"train": train})
    assert int(progress[-1]["blocks_done"]) == int(progress[-1]["blocks"]) > 0
    assert digest_of(client.rows(**train, shuffle={"none": {}})) == digest_of(table(5000).to_batches())


def test_an_unknown_action_is_rejected_with_a_similar_name(growing: tuple[Client, Path]) -> None:
    client, _ = growing
    with refused({"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"}, "refesh", "refresh"):
        client.action("refesh", {})


# -- datasets ------------------------------------------------------------------------------------------


def test_partition_folders_become_columns(pool: Pool, connect: Callable[[Server], Client], tmp_path: Path) -> None:
    folder = tmp_path / "partitioned"
    for year in (2001, 2002):
        for city in ("S%C3%A3o Paulo", "__HIVE_DEFAULT_PARTITION__"):
            write_good(folder / f"year={year}" / f"city={city}" / "part.parquet", rows=10, start=year)
    got = connect(pool.start({"partitioned": folder})).table(dataset="partitioned", batch_size=7, shuffle={"none": {}})
    assert got.num_rows == 40
    assert got.schema.field("year").type == pa.int64()
    assert got.schema.field("city").type == pa.string()
    by_path = [(year, city) for year in (2001, 2002) for city in ("São Paulo", None) for _ in range(10)]
    # Bytewise order of the paths: "S" comes before "_".
    assert list(zip(got.column("year").to_pylist(), got.column("city").to_pylist())) == by_path


def test_files_may_differ_in_column_order_and_nullability(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.float64(), nullable=False)])
    pq.write_table(table(10).cast(strict), folder / "a.parquet")
    pq.write_table(table(10, start=10).select(["value", "id"]), folder / "b.parquet")
    got = connect(pool.start({"mixed": folder})).table(dataset="mixed", batch_size=7, shuffle={"none": {}})
    assert got.column("id").to_pylist() == list(range(20))
    assert got.schema.field("id").nullable


def test_a_file_is_a_dataset_whatever_its_extension(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    path = write_good(tmp_path / "good.parquet", rows=10).rename(tmp_path / "data.bin")
    client = connect(pool.start({"file": path, "url": path.as_uri()}))
    for name in ("file", "url"):
        assert client.table(dataset=name, batch_size=3).num_rows == 10
