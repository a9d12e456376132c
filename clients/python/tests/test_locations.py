"""Loops read from the servers that their plans name, and options of locations are checked when a client is created."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import forebay
from api import get
from digests import digest
from forebay import errors
from ports import free_port
from server import Pool, Server, until

pytestmark = pytest.mark.once

SERVERS = 3
TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


def cluster(pool: Pool, flights: Path, folder: Path) -> list[Server]:
    """Starts servers that know each other."""
    names = [f"127.0.0.1:{port}" for port in (free_port() for _ in range(SERVERS))]
    settings = folder / "forebay.toml"
    settings.write_text('[membership]\npoll_interval = "50ms"\nhello_interval = "100ms"\n')
    options: dict[str, Any] = {"members": ",".join(names), "state": folder / "state", "config": settings}
    servers = [pool.start({"flights": flights}, grpc=name, advertise=name, **options) for name in names]

    def ready(server: Server) -> int:
        return sum(member["state"] == "ready" for member in get(server, "/api/v1/members")["members"])

    until(lambda: all(ready(server) == SERVERS for server in servers))
    return servers


def placed(server: Server) -> float:
    """Returns the number of streams that a server served as one of their locations."""
    lines = server.http_get("/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("forebay_streams_placed_total{"))


def dataset(client: forebay.Client) -> forebay.TrainingDataset:
    return client.train("flights", batch_size=50_000, tensors=TENSOR, seed=3, epochs=2)


def test_a_loop_reads_from_the_server_that_the_plan_names_and_from_another_one_when_that_is_killed(
    pool: Pool, flights: Path, tmp_path: Path
) -> None:
    servers = cluster(pool, flights, tmp_path)
    expected = [digest(dataset(forebay.connect(servers[0].location)))]
    serving = [server for server in servers if placed(server) > 0]
    assert len(serving) == 1, "all loops over one dataset share one server"
    # Whichever server is asked for the plan.
    for server in servers[1:]:
        expected.append(digest(dataset(forebay.connect(server.location, zone="a", replan_interval=1))))
    assert [server for server in servers if placed(server) > 0] == serving
    seed = next(server for server in servers if server is not serving[0])
    found, ds = [], dataset(forebay.connect(seed.location, prefetch_batches=2))
    for batch in ds:
        found.append(batch)
        if batch.step == 10:
            serving[0].kill()
    expected.append(digest(found))
    assert len(set(expected)) == 1
    assert ds.stats()["retries"] >= 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trusted_hosts", ["a:1"]),
        ("trusted_hosts", ["grpc://a"]),
        ("trusted_hosts", "a.example.com"),
        ("zone", "not a zone"),
        ("replan_interval", 0),
    ],
)
def test_a_malformed_option_is_named(option: str, value: Any) -> None:
    with pytest.raises(errors.RequestError, match=option):
        forebay.connect("grpc://127.0.0.1:1", **{option: value})


def test_the_options_are_kept_by_pickled_clients() -> None:
    options = {"trusted_hosts": ("*.example.com", "10.0.0.1"), "zone": "a", "replan_interval": 10}
    client = pickle.loads(pickle.dumps(forebay.connect("grpc://127.0.0.1:1", keepalive_interval=5, **options)))
    kept = client._cluster.options
    assert kept["trusted_hosts"] == ["*.example.com", "10.0.0.1"] and kept["zone"] == "a"
    assert kept["keepalive_interval"] == 5
