"""A server of an earlier version, which knows neither members nor partitions, and a current one with the same state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from forebay import errors
from ports import free_port
from server import Pool, Server, until
from tier import FAST, JOB, MEMBERSHIP, UNBUFFERED, WORLD, global_batches, read_ranks, tensor_bytes, view

# Path of the binary of a version without members and partitions, from .ci/old-server. An empty one counts as none.
OLD = os.environ.get("FOREBAY_OLD_BIN") or None

pytestmark = [pytest.mark.once, pytest.mark.skipif(OLD is None, reason="FOREBAY_OLD_BIN is not set")]


@pytest.fixture
def servers(pool: Pool, events: Path, tmp_path: Path) -> dict[str, Server]:
    """A server of each version with one state. The current one has both as members."""
    assert OLD is not None
    state, config, name = tmp_path / "state", tmp_path / "forebay.toml", f"127.0.0.1:{free_port()}"
    config.write_text(MEMBERSHIP)
    old = pool.start({"events": events}, program=Path(OLD), state=state)
    members = f"{old.grpc},{name}"
    return {"old": old, "new": pool.start({"events": events}, grpc=name, advertise=name, members=members, state=state, config=config)}


@pytest.mark.parametrize("first", ["old", "new"])
def test_without_partitions_either_server_delivers_the_same_batches(
    servers: dict[str, Server], pool: Pool, events: Path, first: str
) -> None:
    job = {**JOB, "shuffle": {}}
    order = [servers[first], *(server for name, server in servers.items() if name != first)]
    urls = [server.location for server in order]
    expected = read_ranks([pool.start({"events": events}).location], WORLD, **job)
    for url in urls:
        assert read_ranks([url], WORLD, **job) == expected

    def kill(rank: int, batch: Any) -> None:
        if rank == 0 and batch.step == 20:
            order[0].kill()

    assert read_ranks(urls, WORLD, connect=UNBUFFERED, at=kill, **job) == expected
    assert not order[0].is_running()


def test_partitions_are_served_by_the_current_server_and_refused_by_the_old_one(
    servers: dict[str, Server], expected: list[str]
) -> None:
    urls = [servers["old"].location, servers["new"].location]
    for order in (urls, urls[::-1]):
        found = read_ranks(order, WORLD, each=tensor_bytes, connect=FAST, epochs=2, **JOB)
        assert global_batches(found) == expected
    # The message is that of the old server.
    with pytest.raises(errors.RequestError, match="unknown field .* in Shuffle"):
        read_ranks(urls[:1], WORLD, connect=FAST, **JOB)


def test_the_old_server_is_no_member_of_the_current_one(servers: dict[str, Server]) -> None:
    def others() -> list[dict[str, Any]]:
        return view(servers["new"])["others"]

    until(lambda: [each["address"] for each in others() if each["reason"]] == [servers["old"].grpc], 60, lambda: str(others()))
    assert [member["name"] for member in view(servers["new"])["members"]] == [servers["new"].grpc]
