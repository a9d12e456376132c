"""deploy/slurm/forebay.sbatch runs servers and a program in one job. FOREBAY_SLURM=1 adds the tests with the daemons of Slurm."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterator

import pytest

import slurm
from ports import free_port
from server import ROOT, binary, until
from slurm import NODES, Daemons, StandIns

SCRIPT = ROOT / "deploy" / "slurm" / "forebay.sbatch"
ROWS = 3_000_000
TASK_FILE = "task-{}.json"

# Runs in the job: reads an epoch from each server and writes what it saw. With "kill", it kills the first server before.
PROGRAM = """
import json, os, pathlib, signal, sys, time, urllib.request
import pyarrow.flight as flight

def servers():
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environ = dict(each.split("=", 1) for each in (entry / "environ").read_text().split("\\0") if "=" in each)
            if (entry / "comm").read_text().strip() == os.path.basename(os.environ["FOREBAY_BIN"])[:15]:
                found[environ["FOREBAY_ADVERTISE"]] = (int(entry.name), environ["FOREBAY_MEMBERS"])
        except (OSError, KeyError):
            pass
    return {name: found[name] for name in found if name in os.environ["FOREBAY_URLS"]}

def rows(url):
    train = {"dataset": "flights", "columns": ["delay"], "batch_size": 65536, "remainder": "SHORT"}
    deadline = time.monotonic() + 60
    while True:
        try:
            client = flight.connect(url)
            info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"train": train}).encode()))
            return client.do_get(info.endpoints[0].ticket).read_all().num_rows
        except flight.FlightUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

urls = os.environ["FOREBAY_URLS"].split()
before = servers()
if "kill" in sys.argv:
    os.kill(before[urls[0].removeprefix("grpc://")][0], signal.SIGKILL)
seen = {"urls": urls, "rows": [rows(url) for url in urls], "before": before, "after": servers()}
path = pathlib.Path(sys.argv[1], "task-%s.json" % os.environ["SLURM_PROCID"])
path.write_text(json.dumps(seen))
sys.exit(int(os.environ.get("PROGRAM_STATUS", "0")))
"""


@pytest.fixture(params=["stand-ins", "daemons"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StandIns | Daemons]:
    if request.param == "daemons" and os.environ.get("FOREBAY_SLURM") != "1":
        pytest.skip("FOREBAY_SLURM is not set")
    if request.param == "daemons":
        assert slurm.is_installed(), "slurmctld, slurmd and sbatch are not on the PATH: apt-get install slurm-wlm"
    (tmp_path / "slurm").mkdir()
    made = (Daemons if request.param == "daemons" else StandIns)(tmp_path / "slurm")
    yield made
    made.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def env(flights: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "FOREBAY_BIN": str(binary()),
        "FOREBAY_DATASET": f"flights={flights}",
        "FOREBAY_STATE": str(tmp_path / "state"),
        "FOREBAY_CACHE": str(tmp_path / "cache"),
        "FOREBAY_CACHE_DISK": "64MiB",
        "FOREBAY_CACHE_MEMORY": "64MiB",
        "FOREBAY_PORT": str(free_port()),
        "FOREBAY_LISTEN": "name",
        "FOREBAY_DRAIN_DELAY": "0s",
    }


def seen(folder: Path, tasks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / TASK_FILE.format(number)).read_text()) for number in range(tasks)]


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "components, tasks",
    [([NODES[:2], NODES[2:]], 1), ([NODES], len(NODES)), ([NODES[:1]], 1)],
    ids=["apart", "together", "one node"],
)
def test_a_job_has_its_servers_until_the_program_ends(
    cluster: StandIns | Daemons, program: Path, env: dict[str, str], tmp_path: Path, components: list[tuple[str, ...]], tasks: int
) -> None:
    job = cluster.batch(components, SCRIPT, sys.executable, str(program), str(tmp_path), env={**env, "PROGRAM_STATUS": "3"})
    assert job.wait(150) == 3, job.output()
    addresses = [f"{node}:{env['FOREBAY_PORT']}" for node in components[0]]
    for task in seen(tmp_path, tasks):
        assert task["urls"] == [f"grpc://{address}" for address in addresses]
        assert task["rows"] == [ROWS] * len(addresses)
        # Each server has its own name, and the names of all.
        assert sorted(task["before"]) == addresses
        assert {members for _, members in task["before"].values()} == {",".join(addresses)}
        for pid, _ in task["before"].values():
            assert not is_alive(pid), "a server has outlived the job"


@pytest.mark.timeout(180)
def test_a_killed_server_is_started_again(
    cluster: StandIns | Daemons, program: Path, env: dict[str, str], tmp_path: Path
) -> None:
    nodes = [NODES[:2], NODES[2:]]
    job = cluster.batch(nodes, SCRIPT, sys.executable, str(program), str(tmp_path), "kill", env=env)
    assert job.wait(150) == 0, job.output()
    (task,) = seen(tmp_path, 1)
    first, second = (f"{node}:{env['FOREBAY_PORT']}" for node in NODES[:2])
    assert task["rows"] == [ROWS] * 2
    assert task["after"][first][0] != task["before"][first][0]
    assert task["after"][second][0] == task["before"][second][0]
    assert f"forebay on {NODES[0]} ended with status 137 and is started again" in job.output()
    assert not is_alive(task["after"][first][0])


@pytest.mark.timeout(120)
def test_servers_that_do_not_start_fail_the_job(
    cluster: StandIns | Daemons, program: Path, env: dict[str, str], tmp_path: Path
) -> None:
    wrong = {**env, "FOREBAY_CACHE_MEMORY": "1"}
    job = cluster.batch([NODES[:1], NODES[2:]], SCRIPT, sys.executable, str(program), str(tmp_path), env=wrong)
    assert job.wait(100) == 1, job.output()
    assert "cache_memory is 1" in job.output() and "the servers ended" in job.output()
    assert not (tmp_path / TASK_FILE.format(0)).exists()


@pytest.mark.parametrize(
    "changes, arguments, message",
    [
        ({}, [], "expected the program"),
        ({"FOREBAY_DATASET": ""}, ["true"], "neither FOREBAY_CONFIG nor FOREBAY_DATASET"),
        ({"FOREBAY_STATE": ""}, ["true"], "FOREBAY_STATE is not set"),
    ],
)
def test_a_job_that_lacks_something_ends_with_its_name(
    env: dict[str, str], tmp_path: Path, changes: dict[str, str], arguments: list[str], message: str
) -> None:
    stand_ins = StandIns(tmp_path)
    job = stand_ins.batch([NODES[:2]], SCRIPT, *arguments, env={**env, **changes})
    assert job.wait(30) == 2
    assert message in job.output()
    until(lambda: not list(tmp_path.glob("step-*")), 1)
