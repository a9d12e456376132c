"""A network between two halves of a cluster and of a job that drops everything changes no batch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Iterable, Iterator

import pytest

from server import Pool, until
from tier import (
    JOB,
    MEMBERSHIP,
    ROWS,
    TIMEOUT_S,
    UNBUFFERED,
    WORLD,
    Proxy,
    counter,
    first_locations,
    global_batches,
    known,
    read_ranks,
    start_behind,
    tensor_bytes,
    view,
)

pytestmark = pytest.mark.once

# Epoch and step at which the network drops everything, and at which it forwards again.
CUT, HEALED = (0, 20), (1, 20)
# A client leaves a server that does not answer for 6 s. A shorter time could pass without a cut, because the processes of this test
# can be slow.
QUICK = {**UNBUFFERED, "attempt_timeout": 6, "keepalive_interval": 3, "keepalive_timeout": 3}


class Border(Proxy):
    """A proxy in front of a server. While `flows` is not set, it forwards nothing from and to processes of the other half."""

    def __init__(self) -> None:
        # Ids of the processes of the server's half.
        self.half: set[int] = set()
        self.within = threading.Event()
        self.within.set()
        super().__init__()

    def flow_of(self, near: socket.socket) -> threading.Event:
        return self.within if is_of(near, self.half) else self.flows


def is_of(near: socket.socket, processes: Iterable[int]) -> bool:
    """True if one of the processes has the other end of a connection on this machine."""
    own, other = (f"0100007F:{end[1]:04X}" for end in (near.getsockname(), near.getpeername()))
    connections = Path("/proc/net/tcp").read_text()
    place = connections.find(f" {other} {own} ")
    if place < 0:
        return False
    inode = connections[place:].split(None, 9)[8]
    return any(target == f"socket:[{inode}]" for process in processes for target in open_files(process))


def open_files(process: int) -> Iterator[str]:
    """Targets of the files that a process has open. A file that it closes in the meantime may be missing."""
    folder = Path(f"/proc/{process}/fd")
    for name in os.listdir(folder) if folder.exists() else []:
        try:
            yield os.readlink(folder / name)
        except FileNotFoundError:
            continue


@pytest.fixture
def borders() -> Iterator[list[Border]]:
    made = [Border() for _ in range(4)]
    yield made
    for border in made:
        border.close()


def read_half(barrier: Any, urls: list[str], ranks: Iterable[int]) -> list[list[bytes]]:
    """Reads two epochs with the ranks of a half. At two batches, each rank waits twice: for all others, and for the network."""

    def meet(rank: int, batch: Any) -> None:
        if (batch.epoch, batch.step) in (CUT, HEALED):
            barrier.wait(TIMEOUT_S)
            barrier.wait(TIMEOUT_S)

    return read_ranks(urls, WORLD, ranks=ranks, each=tensor_bytes, at=meet, connect=QUICK, epochs=2, **JOB)


def test_halves_between_which_the_network_drops_everything_deliver_the_same_batches(
    pool: Pool, events: Path, tmp_path: Path, borders: list[Border], expected: list[str]
) -> None:
    # The processes of each connection are looked up, which takes long.
    servers = start_behind(borders, pool, {"events": events}, tmp_path, MEMBERSHIP.replace("100ms", "500ms"))
    names = [border.name for border in borders]
    halves, urls = [names[:2], names[2:]], [f"grpc://{name}" for name in names]
    firsts = first_locations(urls[0], JOB)
    # Each half has the ranks whose first servers are in the other half, so that all streams must move.
    ranks = [[rank for rank in range(WORLD) if firsts[rank] in other] for other in reversed(halves)]
    assert [len(of_half) for of_half in ranks] == [WORLD // 2] * 2

    # The ranks of a half are a process, because the network tells the halves apart by their processes.
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(1, context) as left, ProcessPoolExecutor(1, context) as right:
        readers = [left, right]
        for number, border in enumerate(borders):
            half = number // 2
            border.half = {servers[2 * half].pid, servers[2 * half + 1].pid, readers[half].submit(os.getpid).result()}
        barrier = manager.Barrier(WORLD + 1)
        reading = [
            reader.submit(read_half, barrier, urls[2 * half : 2 * half + 2], ranks[half]) for half, reader in enumerate(readers)
        ]
        try:
            barrier.wait(TIMEOUT_S)
            for border in borders:
                border.flows.clear()
            barrier.wait(TIMEOUT_S)
            for number, server in enumerate(servers):
                until(lambda: known(server) == set(halves[number // 2]), 60, lambda: str(view(server)))

            barrier.wait(TIMEOUT_S)
            for border in borders:
                border.flows.set()
            for server in servers:
                until(lambda: known(server) == set(names), 60, lambda: str(view(server)))
            barrier.wait(TIMEOUT_S)
        except BaseException:
            # Ends the waits of the ranks. After a success, it would break the last wait of ranks that have not woken up yet.
            barrier.abort()
            raise
        finally:
            for border in borders:
                border.flows.set()
        parts = [each.result() for each in reading]

    # The readers have ended.
    for border in borders:
        border.half.clear()
    assert global_batches([parts[rank in ranks[1]][rank] for rank in range(WORLD)]) == expected
    decoded = [counter(server, "forebay_decode_rows_total") for server in servers]
    # A stream that finds its server only at the second attempt causes some blocks to be decoded at two servers of a half.
    halves_decoded = [sum(decoded[:2]), sum(decoded[2:])]
    assert all(ROWS <= rows <= 5 / 4 * ROWS for rows in halves_decoded), halves_decoded
    # Each stream of the next job starts at its first server again, which has decoded the stream's part. If a stream moved for a
    # reason other than the cut, some blocks are still to be decoded. Therefore only one of three jobs has to decode nothing.
    for _ in range(3):
        before = [counter(server, "forebay_decode_rows_total") for server in servers]
        again = read_ranks(urls, WORLD, each=tensor_bytes, connect=UNBUFFERED, epochs=2, **JOB)
        assert global_batches(again) == expected
        decoded = [counter(server, "forebay_decode_rows_total") for server in servers]
        if decoded == before:
            break
    assert decoded == before
