"""Fixtures: the real data, the servers that serve them, and server logs for failed tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import server
from client import Client
from digest import row_hashes
from server import Pool, Server

sys.path.insert(0, str(server.ROOT / ".ci"))
pytest_plugins = ["skips"]

DATA = server.ROOT / "target" / "acceptance" / "data"
GROUP_ROWS = 16_384


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for each in server.RUNNING:
            report.sections.append((f"log of server {each.pid} at {each.grpc or 'no port'}", each.log_tail()))


def prepared(name: str) -> Path:
    """Returns a path below the prepared data. If the data is unavailable, the test is skipped with the reason."""
    path, note = DATA / name, DATA / f"{name}.missing"
    if note.exists():
        pytest.skip(note.read_text().strip())
    if not path.exists():
        pytest.fail(f"{path} does not exist: run prepare.py first")
    return path


@pytest.fixture(scope="session")
def flights() -> Path:
    """3,000,000 flights in time order, 11 row groups, no nulls."""
    return prepared("flights-3m.parquet")


@pytest.fixture(scope="session")
def lineitem() -> Path:
    """600,572 rows in four files of several row groups."""
    return prepared("lineitem")


@pytest.fixture(scope="session")
def flights_table(flights: Path) -> pa.Table:
    return pq.read_table(flights)


@pytest.fixture(scope="session")
def flights_rows(flights_table: pa.Table) -> np.ndarray:
    """The rows of the flights as sorted hashes."""
    return np.sort(row_hashes(flights_table))


@pytest.fixture(scope="session")
def small_groups(flights_table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same flights in six files with row groups of 16,384 rows: 186 blocks, which allow small windows."""
    folder = tmp_path_factory.mktemp("small-groups")
    rows_per_file = -(-flights_table.num_rows // 6)
    for number in range(6):
        part = flights_table.slice(number * rows_per_file, rows_per_file)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=GROUP_ROWS)
    return folder


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """The servers of one test."""
    made = Pool(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def module_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The servers that the tests of one file share."""
    made = Pool(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def flights_server(flights: Path, small_groups: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the flights with default settings."""
    made = Pool(tmp_path_factory.mktemp("flights-server"))
    yield made.start({"flights": flights, "small-groups": small_groups})
    made.close()


@pytest.fixture(scope="session")
def flights_client(flights_server: Server) -> Iterator[Client]:
    with Client(flights_server.location) as client:
        yield client


@pytest.fixture
def connect() -> Iterator[Callable[[Server], Client]]:
    """Opens connections that are closed after the test."""
    opened: list[Client] = []

    def open_client(to: Server) -> Client:
        opened.append(Client(to.location))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()
