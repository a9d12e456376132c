"""A file that has changed since the snapshot: the error names the dataset of the file, also if a request reads several datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import api
from client import Client, refused
from server import Pool, Server
from test_lookups import Lookup
from test_unary import get

ROWS = 1000
MIX = {"dataset": "one", "batch_size": 100, "columns": ["x"], "mix": [{"dataset": "two", "fraction": 0.5}]}
JOIN = {"dataset": "one", "columns": ["x"], "joins": [{"dataset": "two", "columns": ["y"]}]}
KEYS = [{"name": "id", "integers": [3]}]


@pytest.fixture
def server(pool: Pool, tmp_path: Path) -> Server:
    """A server whose second dataset has changed since the snapshot. The URL of the first one is the beginning of its URL."""
    folders = {"one": tmp_path / "data", "two": tmp_path / "data-2"}
    for folder in folders.values():
        folder.mkdir()
        write(folder, 0)
    server = pool.start(folders, online="one=id", config=settings(tmp_path), cache_disk=0)
    write(folders["two"], 1)
    return server


def settings(folder: Path) -> Path:
    path = folder / "forebay.toml"
    path.write_text('[online.two]\nkey = ["id"]\n')
    return path


def write(folder: Path, offset: int) -> None:
    ids = range(offset, ROWS + 2 * offset)
    pq.write_table(pa.table({"id": ids, "x": ids, "y": ids}), folder / "0.parquet")


def stream(client: Client) -> None:
    list(client.batches(**MIX))


def look_up(client: Client) -> None:
    Lookup(client, **JOIN)(id=[3])


def look_up_by_ticket(client: Client) -> None:
    get(client, **JOIN, keys=KEYS)


CALLS: dict[str, Callable[[Client], None]] = {
    "DoGet of a mixture": stream,
    "DoExchange of a join": look_up,
    "DoGet of a join": look_up_by_ticket,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_changed_file_of_the_second_dataset_is_reported_for_this_dataset(server: Server, call: str) -> None:
    second = dataset(server, "two")
    with Client(server.location) as client, refused("FAILED_PRECONDITION", *words(second)):
        CALLS[call](client)


def test_an_explained_batch_names_the_dataset_of_the_changed_file(server: Server) -> None:
    first, second = dataset(server, "one"), dataset(server, "two")
    (mixed,) = MIX["mix"]
    pinned = {**MIX, "snapshot": first["snapshot"], "mix": [{**mixed, "snapshot": second["snapshot"]}]}
    answer = api.ask(server, "POST", "/api/v1/explain?step=0", json.dumps({"train": pinned}).encode())
    assert answer.status == 409, answer.body
    for word in words(second):
        assert word in answer.error


def dataset(server: Server, name: str) -> dict[str, Any]:
    (found,) = (each for each in api.get(server, "/api/v1/datasets")["datasets"] if each["name"] == name)
    return found


def words(changed: dict[str, Any]) -> list[str]:
    """Returns the text that an error about the changed dataset contains."""
    return ["dataset 'two': ", "has changed since the snapshot", f"the current snapshot is {changed['snapshot']}"]
