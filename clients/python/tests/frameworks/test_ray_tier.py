"""A tier of servers on a Ray cluster of three nodes: raylets on this machine, each with its own resources."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

import forebay
import forebay.ray
from server import until
from test_docs import DOCS, blocks

NODES = 3
ROWS = 3_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray cluster whose first node has no CPU for servers."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False})
    for _ in range(NODES):
        made.add_node(num_cpus=2, resources={"disk": 1}, object_store_memory=100_000_000)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@contextmanager
def started(folder: Path, flights: Path, servers: int = NODES, **options: Any) -> Iterator[forebay.ray.Tier]:
    given: dict[str, Any] = {
        "state": str(folder / "state"),
        "cache_dir": str(folder),
        "resources": {"disk": 1},
        "insecure": True,
        "cache_memory": "64MiB",
        "cache_disk": "64MiB",
        "drain_delay": "0s",
        **options,
    }
    tier = forebay.ray.Tier(servers, {"flights": str(flights)}, **given)
    try:
        yield tier
    finally:
        tier.close()


def rows(urls: list[str]) -> int:
    """Returns the number of rows of an epoch."""
    client = forebay.connect(*urls, retry_deadline=60)
    epoch = client.train("flights", batch_size=65_536, columns=["delay"], remainder="SHORT", output="numpy")
    return sum(len(batch["delay"]) for batch in epoch)


def pids(tier: forebay.ray.Tier, number: int) -> list[int]:
    """Returns the process ids of an actor and of its server."""
    return ray.get(tier._server(number).pids.remote(), timeout=60)


def is_alive(pid: int) -> bool:
    """True if the process runs. One that ended and is not waited for does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def files_of_members(folder: Path) -> list[list[str]]:
    return [sorted(path.read_text().split()) for path in sorted(folder.glob("forebay-*/members"))]


@pytest.mark.timeout(400)
def test_the_servers_of_a_tier_know_each_other_and_serve_the_same_rows(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    with started(tmp_path, flights) as tier:
        assert len(set(tier.urls)) == NODES
        assert [rows([url]) for url in tier.urls] == [ROWS] * NODES
        addresses = sorted(url.removeprefix("grpc://") for url in tier.urls)
        assert files_of_members(tmp_path) == [addresses] * NODES
        # Each server has a node of its own.
        assert ray.available_resources().get("disk", 0) == 0
        with pytest.raises(ValueError, match="a tier named 'forebay' exists"):
            forebay.ray.Tier(1, {"flights": str(flights)}, insecure=True)
        processes = [pids(tier, number) for number in range(NODES)]
    assert not any(is_alive(server) for _, server in processes)
    until(lambda: not any(is_alive(actor) for actor, _ in processes))
    with pytest.raises(LookupError, match="is closed"):
        tier.urls
    # Nothing of the tier remains, so that the next one has its resources.
    until(lambda: ray.available_resources().get("disk", 0) == NODES, 30)


@pytest.mark.timeout(400)
def test_a_killed_server_or_actor_is_started_again_under_its_name(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    with started(tmp_path, flights, servers=2) as tier:
        before = tier.urls
        for killed in (1, 0):
            actor_and_server = pids(tier, 0)
            os.kill(actor_and_server[killed], signal.SIGKILL)
            # The other process ends, too, so that the folder is free for the next server.
            until(lambda: not any(map(is_alive, actor_and_server)))
            until(lambda: pids_or_none(tier, 0) not in (None, actor_and_server), 120)
            assert rows([before[0]]) == ROWS
        assert tier.urls == before


def pids_or_none(tier: forebay.ray.Tier, number: int) -> list[int] | None:
    try:
        return pids(tier, number)
    except ray.exceptions.RayError:
        return None


@pytest.mark.timeout(400)
def test_a_server_of_a_lost_node_starts_on_another_one(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    with started(tmp_path, flights, servers=2) as tier:
        lost = node_of(tier, 0)
        actor_and_server = pids(tier, 0)
        cluster.remove_node(next(node for node in cluster.worker_nodes if node.node_id == lost), allow_graceful=False)
        try:
            until(lambda: not any(map(is_alive, actor_and_server)))
            # The other server continues, and Ray starts the lost one on the node that had none.
            until(lambda: pids_or_none(tier, 0) not in (None, actor_and_server), 240)
            assert node_of(tier, 0) not in (lost, node_of(tier, 1))
            assert [rows([url]) for url in tier.urls] == [ROWS] * 2
        finally:
            cluster.add_node(num_cpus=2, resources={"disk": 1}, object_store_memory=100_000_000)


def node_of(tier: forebay.ray.Tier, number: int) -> str:
    """Returns the id of the node on which a server runs."""
    return ray._private.state.actors(tier._server(number)._actor_id.hex())["Address"]["NodeID"]


@pytest.mark.timeout(400)
def test_the_coordinator_learns_the_addresses_again(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    with started(tmp_path, flights, servers=2) as tier:
        before = tier.urls
        ray.kill(forebay.ray.tier._find(tier.name, "members"), no_restart=False)

        def has_all() -> bool:
            try:
                return tier.urls == before
            except ray.exceptions.RayError:
                return False

        until(has_all, 120)


DRIVER = """
import sys, ray, forebay.ray
ray.init(address=sys.argv[1], log_to_driver=False)
forebay.ray.Tier(1, {"flights": sys.argv[2]}, name="kept", cache_dir=sys.argv[3], insecure=True, cache_memory="64MiB")
"""


@pytest.mark.timeout(400)
def test_a_tier_outlives_its_driver(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    arguments = [cluster.address, str(flights), str(tmp_path)]
    subprocess.run([sys.executable, "-c", DRIVER, *arguments], check=True, timeout=300)
    tier = forebay.ray.Tier.existing("kept")
    try:
        assert rows(tier.urls) == ROWS
    finally:
        tier.close()
    with pytest.raises(LookupError, match="no tier named 'kept'"):
        forebay.ray.Tier.existing("kept")


@pytest.mark.timeout(400)
def test_a_tier_that_cannot_start_says_why_and_leaves_nothing(cluster: Cluster, flights: Path, tmp_path: Path) -> None:
    with pytest.raises(forebay.errors.ServerStartError, match="did not have 4 bundles"):
        with started(tmp_path, flights, servers=NODES + 1, start_timeout=5):
            pass
    with pytest.raises(forebay.errors.ServerStartError, match="cache_memory is 1"):
        with started(tmp_path, flights, servers=1, cache_memory="1"):
            pass
    until(lambda: ray.available_resources().get("disk", 0) == NODES, 30)
    with pytest.raises(LookupError):
        forebay.ray.Tier.existing()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"servers": 0}, "servers is 0"),
        ({"datasets": {}}, "datasets is empty"),
        ({"servers": 2}, "state is None"),
        ({"strategy": "PACK"}, "STRICT_SPREAD, SPREAD"),
        ({"grpc": "0.0.0.0:1"}, r"Tier\(\) sets grpc itself"),
        ({"state": "s3://KEY:SECRET@bucket/state"}, r"state is 's3://\(not shown\)@bucket/state': a user or password"),
        ({"state": "forebay-state"}, "state is 'forebay-state', expected an absolute path or a URL"),
        ({"datasets": {"a": "data/a.parquet"}}, r"datasets\['a'\] is 'data/a.parquet', expected an absolute path or a URL"),
        ({"cache_dir": "~/cache"}, "cache_dir is '~/cache', expected an absolute path: the servers run in other folders"),
        ({"datasets": {"a": "https://host/a.parquet?sig=SECRET"}}, r"datasets\['a'\] is 'https://host/a.parquet\?\(not shown\)': a query"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forebay.ray.Tier(**{"servers": 1, "datasets": {"a": "/a"}, **arguments})


@pytest.mark.timeout(400)
def test_the_block_of_the_page_runs_as_written(
    cluster: Cluster, flights: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (block,) = blocks(DOCS / "how-to" / "ray.md")
    block = block.replace("/shared/flights", str(flights)).replace("/shared", str(tmp_path)).replace("/local", str(tmp_path))
    exec(compile(block, "ray.md", "exec"), {})
    assert "733 steps per epoch" in capsys.readouterr().out
