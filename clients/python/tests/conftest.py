"""Fixtures: real data, real servers, and the installed package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

# By default, PyTorch's OpenMP threads wait for each other in a busy loop, which takes CPU time from other test processes. With PASSIVE,
# they sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ACCEPTANCE = Path(__file__).resolve().parents[3] / "services" / "server" / "tests" / "acceptance"
sys.path.insert(0, str(ACCEPTANCE))

import server as servers  # noqa: E402

import forebay  # noqa: E402

sys.path.insert(0, str(servers.ROOT / ".ci"))
pytest_plugins = ["skips"]

DATA = servers.ROOT / "target" / "acceptance" / "data"

# `Client.train` returns a different class if PyTorch was imported before. PyTorch is imported here, so that the class does not depend on
# the order of the tests.
if importlib.util.find_spec("torch") is not None:
    import torch  # noqa: F401


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for each in servers.RUNNING:
            report.sections.append((f"log of server {each.pid} at {each.grpc or 'no port'}", each.log_tail()))


# Set in the process of a test marked `alone`.
ALONE = "FOREBAY_TEST_IS_ALONE"
ALONE_TIMEOUT_S = 250


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test marked `alone` in a new process, because it counts the resources of its process."""
    if pyfuncitem.get_closest_marker("alone") is None or ALONE in os.environ:
        return None
    test = f"{pyfuncitem.path}::{pyfuncitem.name}"
    # If it hangs, its own timeout prints its stacks first.
    options = ["-q", "-p", "no:cacheprovider", "-o", f"timeout={ALONE_TIMEOUT_S}"]
    command = [sys.executable, "-m", "pytest", *options, test]
    environment = {**os.environ, ALONE: "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ALONE_TIMEOUT_S + 20)
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return True


@pytest.fixture(scope="session")
def flights() -> Path:
    """3,000,000 flights in time order, 11 row groups, no nulls."""
    path, note = DATA / "flights-3m.parquet", DATA / "flights-3m.parquet.missing"
    if note.exists():
        pytest.skip(note.read_text().strip())
    return path


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[servers.Pool]:
    """Servers that are stopped at the end of the test."""
    made = servers.Pool(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def flights_server(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    made = servers.Pool(tmp_path_factory.mktemp("flights-server"))
    yield made.start({"flights": flights})
    made.close()


@pytest.fixture(scope="session")
def rankings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 queries of 20 items each, in two files, written by `forebay demo --ranking`."""
    folder = tmp_path_factory.mktemp("demo")
    command = [servers.binary(), "demo", "--ranking", "--cache-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "demo" / "ranking-20000"


@pytest.fixture(scope="session")
def rankings_server(rankings: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    made = servers.Pool(tmp_path_factory.mktemp("rankings-server"))
    yield made.start({"rankings": rankings})
    made.close()


@pytest.fixture
def client(flights_server: servers.Server) -> forebay.Client:
    return forebay.connect(flights_server.location)
