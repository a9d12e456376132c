"""Several servers that know each other, and the ranks of a job that read from them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow
import pyarrow.flight
import pyarrow.ipc

import forebay
from ports import free_port
from server import Pool, Server, replace, until


WORLD = 8
PARTITIONS = 8
BLOCKS, BLOCK_ROWS = 64, 4096
ROWS = BLOCKS * BLOCK_ROWS
# The number of random histories of each kind. `make nightly` runs 20.
SEEDS = int(os.environ.get("FOREBAY_TIER_SEEDS", "3"))
# The time during which a list of members changes every second. `make nightly` uses 60.
FLAPPING_S = int(os.environ.get("FOREBAY_TIER_FLAPPING", "6"))
JOB: dict[str, Any] = {
    "dataset": "events",
    "batch_size": 256,
    "seed": 5,
    "shuffle": {"partitions": PARTITIONS},
    "tensors": {"x": {"columns": ["a", "b"], "dtype": "float32"}},
    "remainder": "SHORT",
}
FAST = {"replan_interval": 1}
# Few batches are on their way, so that streams last as long as their ranks read them.
UNBUFFERED = {**FAST, "prefetch_batches": 1, "stream_window_bytes": 1 << 16, "connection_window_bytes": 1 << 20}

# The settings of servers that keep all decoded columns on disk.
KEEP_ALL = '[loader]\ndisk_writes = "always"\n'
# Time that a thread waits for what another one does.
TIMEOUT_S = 120

# The servers share one machine, whose load says nothing about any of them.
MEMBERSHIP = """
[membership]
poll_interval = "50ms"
hello_interval = "100ms"
max_hello_backoff = "200ms"
overflow_demand = 1000
"""


@dataclass
class Tier:
    """Servers with the same datasets, state and file of members, each at a fixed port."""

    pool: Pool
    folder: Path
    datasets: Mapping[str, Path]
    flags: dict[str, Any] = field(default_factory=dict)
    # TOML before that of the members, and more settings of the members.
    settings: str = ""
    membership: str = ""
    # Flags of the server with this index.
    own_flags: Callable[[int], Mapping[str, Any]] = lambda index: {}
    # Default: one in `folder`.
    state: Path | None = None
    ports: list[int] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.config.write_text(self.settings + MEMBERSHIP + self.membership)
        self.write([])

    @property
    def config(self) -> Path:
        return self.folder / "forebay.toml"

    @property
    def members(self) -> Path:
        return self.folder / "members"

    @property
    def urls(self) -> list[str]:
        return [f"grpc://{name}" for name in self.names]

    @property
    def names(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def write(self, names: list[str]) -> None:
        replace(self.members, "".join(f"{name}\n" for name in names))

    def grow(self, count: int = 1) -> Tier:
        """Starts `count` more servers and waits until all servers know each other."""
        first = len(self.ports)
        self.ports += [free_port() for _ in range(count)]
        self.write(self.names)
        self.servers += [self.start(index) for index in range(first, len(self.ports))]
        self.meet()
        return self

    def start(self, index: int) -> Server:
        name = self.names[index]
        return self.pool.start(
            self.datasets,
            grpc=name,
            cache_dir=self.folder / f"cache-{self.ports[index]}",
            state=self.state or self.folder / "state",
            members=f"file:{self.members}",
            advertise=name,
            config=self.config,
            **{**self.flags, **self.own_flags(index)},
        )

    def restart(self, *indices: int) -> None:
        for index in indices:
            self.servers[index] = self.start(index)
        self.meet()

    def meet(self, names: list[str] | None = None) -> None:
        """Waits until every running server knows exactly the servers `names`. Default: all of this tier."""
        expected = set(names or self.names)
        for server in self.servers:
            if server.is_running():
                until(lambda: known(server) == expected, 60, lambda: str(view(server)))

    def counters(self, name: str) -> list[float]:
        """Value of a metric of each server, summed over its labels."""
        return [counter(server, name) for server in self.servers]


def counter(server: Server, name: str) -> float:
    status, text = server.http_get("/metrics")
    assert status == 200, "the server has no metrics"
    lines = text.splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if line.startswith((name + " ", name + "{"))]
    return sum(float(value) for _, value in samples)


def view(server: Server) -> dict[str, Any]:
    return json.loads(server.http_get("/api/v1/members")[1])


def known(server: Server) -> set[str]:
    """Names of the members that are ready, as `server` sees them."""
    return {member["name"] for member in view(server)["members"] if member["state"] == "ready"}


def first_locations(url: str, job: Mapping[str, Any]) -> list[str]:
    """Name of the first server of each of `WORLD` ranks, in the plan of a job."""
    train = {"dataset": job["dataset"], "batch_size": job["batch_size"], "world_size": WORLD, "shuffle": job["shuffle"]}
    with pyarrow.flight.connect(url) as client:
        command = pyarrow.flight.FlightDescriptor.for_command(json.dumps({"train": train}))
        endpoints = client.get_flight_info(command).endpoints
    return [endpoint.locations[0].uri.decode().partition("://")[2] for endpoint in endpoints]


def content(batch: Any) -> str:
    """Digest of everything that a batch contains."""
    table = batch.to_arrow()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def read_ranks(
    urls: list[str] | Callable[[int], list[str]],
    world_size: int,
    *,
    ranks: Iterable[int] | None = None,
    each: Callable[[Any], Any] = content,
    concurrently: Callable[[], None] | None = None,
    at: Callable[[int, Any], None] = lambda rank, batch: None,
    connect: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
    **train: Any,
) -> list[list[Any]]:
    """Reads a dataset with `ranks` at once, each with its own client. Default: all. Returns `each` of every batch, by rank and step.

    `at` is called with the rank and each batch in the thread of the rank. `urls` and `connect` may be functions of the rank."""
    found: list[list[Any]] = [[] for _ in range(world_size)]
    failures: list[BaseException] = []

    def read(rank: int) -> None:
        try:
            options = connect(rank) if callable(connect) else connect or {}
            client = forebay.connect(*(urls(rank) if callable(urls) else urls), **options)
            loop = client.train(**train, rank=rank, world_size=world_size)
            # Each iteration is one epoch.
            for batch in itertools.chain.from_iterable(loop for _ in range(train.get("epochs", 1))):
                found[rank].append(each(batch))
                at(rank, batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(rank,), daemon=True) for rank in (range(world_size) if ranks is None else ranks)]
    for thread in threads:
        thread.start()
    if concurrently is not None:
        concurrently()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


def read(tier: Tier, **options: Any) -> list[str]:
    """Reads two epochs of JOB with all ranks. Returns the digests of the global batches."""
    options = {"epochs": 2, "connect": FAST, **options}
    return global_batches(read_ranks(tier.urls, WORLD, each=tensor_bytes, **JOB, **options))


def tensor_bytes(batch: Any) -> bytes:
    return np.ascontiguousarray(batch.to_numpy()["x"]).tobytes()


def global_batches(by_rank: list[list[bytes]]) -> list[str]:
    """Digest of each global batch: the rows of all ranks of a step, in the order of the ranks."""
    return [hashlib.sha256(b"".join(parts)).hexdigest() for parts in zip(*by_rank, strict=True)]


class Proxy:
    """A TCP proxy that can stop to forward, as a network does that drops all packets, or be limited."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.name = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.target: str | None = None
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.flows.set()
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def flow_of(self, near: socket.socket) -> threading.Event:
        """Returns the event that is set while the bytes of this connection are forwarded."""
        return self.flows

    def _forward(self, near: socket.socket) -> None:
        flow = self.flow_of(near)
        flow.wait()
        try:
            assert self.target is not None
            host, _, port = self.target.rpartition(":")
            far = socket.create_connection((host, int(port)))
        except (OSError, AssertionError):
            near.close()
            return
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink, flow), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flow: threading.Event) -> None:
        try:
            while data := source.recv(1 << 16):
                flow.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def start_behind(
    proxies: Sequence[Proxy], pool: Pool, datasets: Mapping[str, Path], folder: Path, settings: str = MEMBERSHIP
) -> list[Server]:
    """Starts a server behind each proxy, whose name it has, and waits until all servers know each other."""
    members, config = folder / "members", folder / "forebay.toml"
    members.write_text("\n".join(proxy.name for proxy in proxies))
    config.write_text(settings)
    servers = []
    for proxy in proxies:
        place = {"members": f"file:{members}", "advertise": proxy.name, "config": config, "state": folder / "state"}
        # A server becomes ready when it reaches itself at its name.
        server = pool.start(datasets, becomes_ready=False, **place)
        proxy.target = server.grpc
        until(lambda: server.http_get("/readyz")[0] == 200, 60, server.log_tail)
        servers.append(server)
    names = {proxy.name for proxy in proxies}
    for server in servers:
        until(lambda: known(server) == names, 60, lambda: str(view(server)))
    return servers
