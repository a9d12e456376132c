"""Progress, sizes and reasons for an empty training, which a trainer learns before its first batch."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
from api import get
from client import Client
from server import Pool

BLOCKS, BLOCK_ROWS = 12, 1000
TRAINER = 0x1234_5678_9ABC_DEF0


def write(folder: Path) -> Path:
    folder.mkdir()
    for block in range(BLOCKS):
        ids = range(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{block:02}.parquet")
    return folder


def test_a_trainer_and_the_http_api_learn_how_much_of_the_first_window_is_loaded(pool: Pool, tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    # Each block takes half a second, one after the other.
    settings = tmp_path / "forebay.toml"
    settings.write_text('cpu_threads = 1\n[loader.fault_injection]\ndecode = "500ms"\n')
    server = pool.start({"numbers": data}, config=settings)
    client = flight.connect(server.location)
    train = {"dataset": "numbers", "batch_size": 100, "shuffle": {"global": {}}}
    options = flight.FlightCallOptions(headers=[(b"forebay-trainer", f"{TRAINER:016x}".encode())])
    reader = client.do_get(flight.Ticket(json.dumps({"train": train}).encode()), options)
    arrived = threading.Event()
    first = threading.Thread(target=lambda: (reader.read_chunk(), arrived.set()), daemon=True)
    first.start()
    report = {"dataset": "numbers", "trainer": str(TRAINER), "seconds": 0.1, "wait_seconds": 0.1}

    def loading() -> list[dict[str, Any]]:
        results = client.do_action(flight.Action("report", json.dumps(report).encode()))
        return [json.loads(result.body.to_pybytes())["loading"] for result in results]

    answers, sessions = [], []
    while not arrived.is_set():
        answers += loading()
        (session,) = get(server, "/api/v1/sessions")["sessions"]
        sessions.append((session["batches"], session["loading"]))
        time.sleep(0.05)
    first.join()
    done = [answer["blocks_done"] for answer in answers]
    assert {answer["blocks"] for answer in answers} == {BLOCKS}
    # How many of the blocks are seen depends on the time that an answer takes.
    assert done == sorted(done) and len(set(done)) > 2, done
    assert answers[-1]["bytes_done"] > 0 and not any(answer["waits_for_memory"] for answer in answers)
    shown = [window["blocks_done"] for batches, window in sessions if batches == 0 and window]
    assert shown == sorted(shown) and len(set(shown)) > 2, sessions
    # All rows are in the window, so that nothing is loaded any more.
    assert loading() == []
    reader.cancel()


def test_a_plan_of_a_training_without_batches_says_why(pool: Pool, tmp_path: Path) -> None:
    server = pool.start({"numbers": write(tmp_path / "data")})
    client, rows = Client(server.location), BLOCKS * BLOCK_ROWS

    def summary(**request: Any) -> dict[str, Any]:
        command = json.dumps({"train": {"dataset": "numbers", "batch_size": 100, **request}}).encode()
        info = client.flight.get_flight_info(flight.FlightDescriptor.for_command(command))
        return {**json.loads(info.app_metadata), "total_records": info.total_records}

    none = summary(filter="id < 0")
    assert (none["rows"], none["steps"], none["total_records"], none["unfiltered_rows"]) == (0, 0, 0, rows)
    assert none["empty_reason"] == f"the filter keeps none of {rows} rows"
    large = summary(batch_size=rows + 1, remainder="DROP")
    assert large["steps"] == 0
    assert large["empty_reason"] == f"{rows} rows are fewer than the {rows + 1} of one step, and remainder is DROP"
    assert "empty_reason" not in summary(filter="id < 100")


def test_a_listed_dataset_has_its_rows_and_sizes(pool: Pool, tmp_path: Path) -> None:
    data = write(tmp_path / "data")
    server = pool.start({"numbers": data})
    (info,) = Client(server.location).flight.list_flights()
    about, rows = json.loads(info.app_metadata), BLOCKS * BLOCK_ROWS
    stored = sum(file.stat().st_size for file in data.iterdir())
    assert (about["rows"], about["files"], about["stored_bytes"]) == (rows, BLOCKS, stored)
    # An int64 has eight bytes, however it is encoded in the file.
    assert about["decoded_bytes"] == info.total_bytes >= 8 * rows
    (dataset,) = get(server, "/api/v1/datasets")["datasets"]
    assert (dataset["stored_bytes"], dataset["decoded_bytes"]) == (stored, about["decoded_bytes"])
