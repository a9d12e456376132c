"""Two cache tiers: the same bytes whatever the cache holds, and what an operator can do with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Callable

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

from client import Client, refused
from server import Pool, Server

REQUEST = {"dataset": "lineitem", "batch_size": 5000, "seed": 2, "shuffle": {"window_rows": 60_000}}
# A window of all columns and little more, so that columns are written to disk.
MEMORY = "48MiB"


def metric(server: Server, name: str) -> float:
    """The sum over all labels."""
    _, text = server.http_get("/metrics")
    values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for value in values)


def column_files(server: Server) -> list[Path]:
    files = (server.cache_dir / "columns").rglob("*")
    return [path for path in files if path.is_file() and path.name != "CACHEDIR.TAG"]


def digests(client: Client, epochs: range = range(3)) -> list:
    return [client.digest(**REQUEST, epoch=epoch) for epoch in epochs]


def test_batches_are_the_same_whatever_the_disk_holds(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path
) -> None:
    expected = digests(connect(pool.start({"lineitem": lineitem}, cache_disk="0B")))
    for disk in ("1GiB", "50MiB", "1MiB"):
        server = pool.start({"lineitem": lineitem}, cache_memory=MEMORY, cache_disk=disk)
        client = connect(server)
        assert digests(client) == expected
        files = column_files(server)
        # No block fits a disk of 1 MiB.
        assert bool(files) == (disk != "1MiB")
        for number, path in enumerate(files):
            content = bytearray(path.read_bytes())
            if number % 4 == 0:
                content[len(content) // 2] ^= 0x40
            elif number % 4 == 1:
                del content[len(content) // 3 :]
            elif number % 4 == 2:
                content[:] = b"not a column"
            path.write_bytes(content)
        assert digests(client) == expected
        if disk == "1GiB":
            assert metric(server, "forebay_cache_errors_total") > 0
            # Said, and not once a file.
            assert 1 <= server.log().count("WARN") < len(files) / 4
        server.kill()
        again = pool.start({"lineitem": lineitem}, cache_dir=server.cache_dir, cache_memory=MEMORY, cache_disk=disk)
        assert digests(connect(again)) == expected


def test_a_disk_that_is_full_lets_everything_through(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path, tmp_path: Path
) -> None:
    expected = digests(connect(pool.start({"lineitem": lineitem}, cache_disk="0B")))
    server = pool.start(
        {"lineitem": lineitem}, wrapper=FULL_DISK, cache_memory=MEMORY, cache_disk="1GiB"
    )
    assert digests(connect(server)) == expected
    assert metric(server, "forebay_cache_errors_total") > 0
    assert all(path.stat().st_size <= FILE_LIMIT_BYTES for path in column_files(server))


# No file can grow beyond this, as on a disk that is full; footers and manifests fit.
FILE_LIMIT_BYTES = 64 * 1024
FULL_DISK = (
    "import os, resource, signal, sys\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_LIMIT_BYTES}, {FILE_LIMIT_BYTES}))\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


def test_a_server_killed_while_it_writes_begins_again_with_the_same_bytes(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path
) -> None:
    expected = digests(connect(pool.start({"lineitem": lineitem}, cache_disk="0B")))
    cache_dir = None
    for batches in (1, 5, 20):
        server = pool.start({"lineitem": lineitem}, cache_dir=cache_dir, cache_memory=MEMORY, cache_disk="1GiB")
        stream = connect(server).batches(**REQUEST)
        for _ in range(batches):
            next(stream)
        server.kill()
        cache_dir = server.cache_dir
    server = pool.start({"lineitem": lineitem}, cache_dir=cache_dir, cache_memory=MEMORY, cache_disk="1GiB")
    assert digests(connect(server)) == expected


def test_pin_unpin_and_drop_cache(pool: Pool, connect: Callable[[Server], Client], lineitem: Path) -> None:
    server = pool.start({"lineitem": lineitem}, cache_disk="1GiB")
    client = flight.connect(server.location)

    def act(name: str, body: dict) -> list[dict]:
        results = client.do_action(flight.Action(name, json.dumps(body).encode()))
        return [json.loads(result.body.to_pybytes()) for result in results]

    assert {"pin", "unpin", "drop-cache"} <= {action.type for action in client.list_actions()}
    progress = act("pin", {"train": REQUEST})
    assert progress[-1]["blocks_done"] == progress[-1]["blocks"]
    decoded = metric(server, "forebay_decode_columns_total")
    assert decoded > 0
    connect(server).digest(**REQUEST)
    assert metric(server, "forebay_decode_columns_total") == decoded, "all columns came from disk"
    assert act("unpin", {"train": REQUEST}) == []
    dropped = act("drop-cache", {"dataset": "lineitem"})
    assert int(dropped[0]["memory_bytes"]) > 0 and int(dropped[0]["disk_bytes"]) > 0
    assert column_files(server) == []
    assert act("drop-cache", {})[0] == {} or int(act("drop-cache", {})[0].get("disk_bytes", 0)) == 0
    with refused("NOT_FOUND", "lineitem"):
        act("drop-cache", {"dataset": "lineitm"})
    with refused("INVALID_ARGUMENT", "datset"):
        act("drop-cache", {"datset": "lineitem"})
    small = pool.start({"lineitem": lineitem}, cache_disk="1MiB")
    client = flight.connect(small.location)
    with refused("RESOURCE_EXHAUSTED", "--cache-disk", "1048576"):
        act("pin", {"train": REQUEST})


def test_ten_views_decode_each_column_once(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    columns, blocks = 40, 12
    folder = tmp_path / "wide"
    folder.mkdir()
    for block in range(blocks):
        table = pa.table({f"c{column:02}": range(block, block + 2000) for column in range(columns)})
        pq.write_table(table, folder / f"{block:02}.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    server = pool.start({"wide": folder}, config=config, cache_disk="1GiB")
    streams = []
    for view in range(10):
        names = [f"c{column:02}" for column in range(columns) if column not in (view, view + 10, view + 20)]
        streams.append(connect(server).batches(dataset="wide", columns=names, batch_size=500, seed=view))
    rows = [0] * len(streams)
    for index, stream in enumerate(streams):
        rows[index] = sum(batch.meta.rows for batch in stream)
    assert rows == [blocks * 2000] * 10
    assert metric(server, "forebay_decode_columns_total") == columns * blocks


def test_a_unix_socket_serves_what_tcp_serves(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path, tmp_path: Path
) -> None:
    expected = connect(pool.start({"lineitem": lineitem})).digest(**REQUEST)
    socket = tmp_path / "forebay.sock"
    for _ in range(2):
        # The second one finds the socket of a dead server.
        server = pool.start({"lineitem": lineitem}, grpc=f"unix:{socket}")
        assert server.grpc == f"unix:{socket}"
        options = [("grpc.default_authority", "localhost")]
        client = flight.FlightClient(f"grpc+unix://{socket}", generic_options=options)
        ticket = flight.Ticket(json.dumps({"train": REQUEST}).encode())
        rows = sum(chunk.data.num_rows for chunk in client.do_get(ticket))
        assert rows == 600_572
        with Client(f"grpc+unix://{socket}", generic_options=options) as trainer:
            assert trainer.digest(**REQUEST) == expected
        server.kill()
        assert socket.exists()
