"""The cache tiers and the Unix socket do not change the bytes."""

from __future__ import annotations

import re
import resource
import signal
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from client import Client, command, refused
from conftest import GROUP_ROWS
from server import Pool, Server, StartError, until

MIB = 1 << 20
# 186 blocks of five columns, 175 MB as frames; a window of 8 blocks is 8 MB.
REQUEST: dict[str, Any] = {
    "dataset": "small-groups",
    "batch_size": 16_384,
    "seed": 5,
    "shuffle": {"window_rows": 8 * GROUP_ROWS},
}
EPOCHS = 3
BLOCKS = 186
# If no file changes for this time, no write is pending.
SETTLED_S = 2


@pytest.fixture(scope="module")
def undisturbed(flights_client: Client) -> list[str]:
    """The digest of each epoch."""
    return [flights_client.digest(**REQUEST, epoch=epoch) for epoch in range(EPOCHS)]


@pytest.fixture(scope="module")
def decoded_bytes(flights_client: Client) -> int:
    """Memory of all blocks in bytes, as the window of a global shuffle."""
    summary = flights_client.plan(**{**REQUEST, "shuffle": {"global": {}}}).summary
    return int(summary["window_bytes"])


@dataclass
class Tiers:
    """Servers of the small groups, their clients, and the digests that they must deliver."""

    pool: Pool
    connect: Callable[[Server], Client]
    small_groups: Path
    undisturbed: list[str]
    decoded_bytes: int
    # Shared by consecutive servers of one test. Other servers have their own directory.
    cache_dir: Path

    def start(self, **flags: Any) -> Server:
        return self.pool.start({"small-groups": self.small_groups}, **flags)

    def start_with_little_memory(self, **flags: Any) -> Server:
        return self.start(cache_memory=self.decoded_bytes // 8, **flags)


@pytest.fixture
def tiers(
    pool: Pool,
    connect: Callable[[Server], Client],
    small_groups: Path,
    undisturbed: list[str],
    decoded_bytes: int,
    tmp_path: Path,
) -> Tiers:
    return Tiers(pool, connect, small_groups, undisturbed, decoded_bytes, tmp_path / "cache")


def digests(client: Client) -> list[str]:
    return [client.digest(**REQUEST, epoch=epoch) for epoch in range(EPOCHS)]


def counter(server: Server, name: str, **labels: str) -> int:
    """Returns the sum of a counter over all labels that are not given."""
    status, text = server.http_get("/metrics")
    assert status == 200
    total = 0
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(\{{.*\}})? (\d+)", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            total += int(found[2])
    return total


def column_files(server: Server) -> list[Path]:
    return sorted((server.cache_dir / "columns").rglob("*.col"))


def settled_column_files(server: Server, at_least: int = 0) -> list[Path]:
    """Returns the column files after all pending writes: when there are `at_least` files, and none was added or removed for some
    time."""
    until(lambda: len(column_files(server)) >= at_least, failure=lambda: f"{len(column_files(server))} of {at_least} files")
    found, since = column_files(server), time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        time.sleep(0.1)
        before, found = found, column_files(server)
        if found != before or any(server.cache_dir.rglob("*.tmp")):
            since = time.monotonic()
    return found


def troubles(server: Server) -> list[str]:
    return [line for line in server.log().splitlines() if "disk cache I/O error" in line]


# -- the same bytes ----------------------------------------------------------------------------------


def test_half_of_the_columns_on_disk_and_little_memory_change_no_byte(tiers: Tiers) -> None:
    half = tiers.decoded_bytes // 2
    server = tiers.start_with_little_memory(cache_disk=half)
    client = tiers.connect(server)
    assert digests(client) == tiers.undisturbed
    settled_column_files(server)
    assert counter(server, "forebay_cache_resident_bytes", tier="disk") <= half
    assert counter(server, "forebay_cache_capacity_bytes", tier="disk") == half
    before = counter(server, "forebay_decode_columns_total")
    assert client.digest(**REQUEST) == tiers.undisturbed[0]
    columns = 5 * BLOCKS
    decoded = counter(server, "forebay_decode_columns_total") - before
    assert decoded < 0.6 * columns, f"{decoded} of {columns} columns were decoded again"
    assert counter(server, "forebay_cache_hit_bytes_total", tier="disk") > half
    assert not troubles(server)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip_a_byte,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "emptied": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"PAR1" * 5000),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupted_disk_cache_changes_no_byte_before_and_after_a_restart(tiers: Tiers, damage: str) -> None:
    flags: dict[str, Any] = {"cache_disk": 4 * tiers.decoded_bytes, "cache_dir": tiers.cache_dir}

    def spoil(server: Server) -> int:
        files = settled_column_files(server)
        assert len(files) > 100
        for path in files:
            DAMAGES[damage](path)
        return len(files)

    def check_troubles(server: Server, files: int) -> None:
        counted = counter(server, "forebay_cache_errors_total", tier="disk")
        assert counted == 0 if damage == "deleted" else counted >= files
        # Errors of one kind are logged at the first, second, fourth and further powers of two.
        assert len(troubles(server)) <= 10, "\n".join(troubles(server))

    server = tiers.start_with_little_memory(**flags)
    client = tiers.connect(server)
    assert digests(client) == tiers.undisturbed
    files = spoil(server)
    assert digests(client) == tiers.undisturbed
    check_troubles(server, files)
    files = spoil(server)
    assert server.stop() == 0

    server = tiers.start_with_little_memory(**flags)
    assert digests(tiers.connect(server)) == tiers.undisturbed
    check_troubles(server, files)


def test_an_unwritable_disk_changes_no_byte_and_is_logged_once(tiers: Tiers) -> None:
    def no_large_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    server = tiers.start_with_little_memory(cache_disk=4 * tiers.decoded_bytes, preexec=no_large_files)
    assert digests(tiers.connect(server)) == tiers.undisturbed
    assert counter(server, "forebay_cache_errors_total", tier="disk", kind="write") >= 1
    assert counter(server, "forebay_cache_insert_rejections_total", tier="disk", reason="failing") >= 1
    assert column_files(server) == [] and not list(server.cache_dir.rglob("*.tmp"))
    kinds = [re.search(r"kind=\W*(\w+)", line) for line in troubles(server)]
    assert kinds and len(kinds) <= 4, "\n".join(troubles(server))


def test_a_server_killed_during_cache_writes_serves_the_same_bytes_after_a_restart(tiers: Tiers) -> None:
    flags: dict[str, Any] = {"cache_disk": tiers.decoded_bytes, "cache_dir": tiers.cache_dir}
    for batches in (2, 15, 40, 90):
        server = tiers.start_with_little_memory(**flags)
        for _ in islice(tiers.connect(server).batches(**REQUEST), batches):
            pass
        server.kill()
    server = tiers.start_with_little_memory(**flags)
    assert column_files(server), "the written files still exist"
    assert not list((tiers.cache_dir / "columns").rglob("*.tmp"))
    assert digests(tiers.connect(server)) == tiers.undisturbed
    assert counter(server, "forebay_cache_hits_total", tier="disk") > 0


def test_a_restarted_server_uses_the_columns_of_its_predecessor(tiers: Tiers, tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    flags: dict[str, Any] = {"cache_disk": 2 * tiers.decoded_bytes, "cache_dir": tiers.cache_dir, "config": config}
    server = tiers.start(**flags)
    assert tiers.connect(server).digest(**REQUEST) == tiers.undisturbed[0]
    settled_column_files(server, BLOCKS)
    server.stop()
    server = tiers.start(**flags)
    assert digests(tiers.connect(server)) == tiers.undisturbed
    assert counter(server, "forebay_decode_columns_total") == 0


def test_a_server_without_a_disk_cache_creates_no_folder(tiers: Tiers) -> None:
    server = tiers.start(cache_disk=0, cache_memory="16MiB")
    client = tiers.connect(server)
    assert digests(client) == tiers.undisturbed
    assert not (server.cache_dir / "columns").exists()
    with refused("INVALID_ARGUMENT", "--cache-disk"):
        client.action("pin", {"train": REQUEST})
    assert int(client.action("drop-cache", {})[-1].get("disk_bytes", 0)) == 0


def test_a_second_server_on_the_same_cache_directory_fails(tiers: Tiers) -> None:
    first = tiers.start(cache_disk="64MiB")
    with pytest.raises(StartError) as refusal:
        tiers.start(cache_dir=first.cache_dir, cache_disk="64MiB")
    assert str(first.cache_dir) in refusal.value.log
    assert sum(1 for _ in tiers.connect(first).batches(**REQUEST, steps=3)) == 3


def test_a_folder_that_is_not_a_cache_is_named_and_not_changed(tiers: Tiers) -> None:
    mine = tiers.cache_dir / "columns" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    with pytest.raises(StartError) as refusal:
        tiers.start(cache_dir=tiers.cache_dir, cache_disk="64MiB")
    assert str(mine.parent) in refusal.value.log
    assert mine.read_text() == "precious"


# -- decoded once ------------------------------------------------------------------------------------


def test_ten_concurrent_views_decode_each_column_once(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    blocks, shared, own = 12, 37, 3
    names = [f"c{number:02}" for number in range(shared + 10 * own)]
    folder = tmp_path / "wide"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for block in range(blocks):
        columns = {name: rng.integers(0, 1 << 40, 5000) for name in names}
        pq.write_table(pa.table(columns), folder / f"part-{block:02}.parquet")
    config = tmp_path / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    server = pool.start({"wide": folder}, config=config, cache_disk="256MiB", cache_memory="64MiB")

    def request(view: int) -> dict[str, Any]:
        of_view = names[:shared] + names[shared + view * own : shared + (view + 1) * own]
        return {"dataset": "wide", "columns": of_view, "batch_size": 500, "shuffle": {"window_rows": 15_000}}

    streams = [connect(server).batches(**request(view)) for view in range(10)]
    received: list[list[pa.RecordBatch]] = [[] for _ in streams]
    for step in zip(*streams):
        for batches, batch in zip(received, step):
            batches.append(batch.data)
    assert [sum(batch.num_rows for batch in batches) for batches in received] == [blocks * 5000] * 10
    for batches in received[1:]:
        for one, other in zip(received[0], batches):
            assert one.select(names[:shared]) == other.select(names[:shared])
    assert counter(server, "forebay_decode_columns_total") == blocks * len(names)


# -- actions -----------------------------------------------------------------------------------------


def test_pin_unpin_and_drop_cache_are_documented_actions(flights_client: Client) -> None:
    described = {action.type: action.description for action in flights_client.flight.list_actions()}
    for name in ("refresh", "warm", "pin", "unpin", "drop-cache"):
        assert "Body:" in described[name] and "{" in described[name], described[name]


def test_pinned_columns_stay_on_disk_until_unpin_or_drop_cache(tiers: Tiers, lineitem: Path) -> None:
    datasets = {"small-groups": tiers.small_groups, "lineitem": lineitem}
    server = tiers.pool.start(datasets, cache_memory="48MiB", cache_disk=2 * tiers.decoded_bytes)
    client = tiers.connect(server)
    progress = client.action("pin", {"train": REQUEST})
    blocks = int(progress[-1]["blocks"])
    assert int(progress[-1]["blocks_done"]) == blocks == BLOCKS
    assert len(progress) >= blocks
    assert len(column_files(server)) == BLOCKS, "the files exist when the action ends"

    other = {"dataset": "lineitem", "batch_size": 8192, "epochs": 2, "shuffle": {"window_rows": 30_000}}
    assert sum(batch.meta.rows for batch in client.batches(**other)) == 2 * 600_572
    before = counter(server, "forebay_decode_columns_total")
    assert digests(client) == tiers.undisturbed
    assert counter(server, "forebay_decode_columns_total") == before

    assert client.action("unpin", {"train": REQUEST}) == []
    stream = client.batches(**REQUEST)
    next(stream)
    freed = client.action("drop-cache", {"dataset": "small-groups"})[-1]
    assert int(freed["disk_bytes"]) > tiers.decoded_bytes // 2
    assert sum(1 for _ in stream) == client.plan(**REQUEST).steps - 1, "a running stream continues"

    def is_empty() -> bool:
        client.action("drop-cache", {})
        return column_files(server) == []

    # A pending write adds its file after the action.
    until(is_empty)
    assert digests(client) == tiers.undisturbed


def test_a_pin_above_the_capacity_is_rejected_with_the_required_size(tiers: Tiers) -> None:
    server = tiers.start(cache_disk="32MiB")
    client = tiers.connect(server)
    with refused("RESOURCE_EXHAUSTED", str(tiers.decoded_bytes), str(32 * MIB), "--cache-disk"):
        client.action("pin", {"train": REQUEST})
    assert client.action("pin", {"train": {**REQUEST, "columns": ["delay"]}})


@pytest.mark.parametrize("action", ["pin", "unpin"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{}", "INVALID_ARGUMENT", ["train"]),
        (b"{", "INVALID_ARGUMENT", []),
        (command(dataset="nowhere", batch_size=1), "NOT_FOUND", ["nowhere"]),
        (command(dataset="small-groups", batch_size=0), "INVALID_ARGUMENT", ["batch_size"]),
        (command(dataset="small-groups", batch_size=1, columns=["delya"]), "INVALID_ARGUMENT", ["delya", "delay"]),
    ],
    ids=["no command", "no JSON", "unknown dataset", "batch size", "unknown column"],
)
def test_invalid_bodies_of_pin_and_unpin_are_rejected_with_the_reason(
    flights_client: Client, action: str, body: bytes, status: str, words: list[str]
) -> None:
    with refused(status, *words):
        list(flights_client.flight.do_action(flight.Action(action, body)))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", "INVALID_ARGUMENT", []),
        (b'{"dataset": 7}', "INVALID_ARGUMENT", ["integer `7`", "string"]),
        (b'{"datasett": "small-groups"}', "INVALID_ARGUMENT", ["datasett"]),
        (b'{"dataset": "nowhere"}', "NOT_FOUND", ["nowhere"]),
    ],
    ids=["no JSON", "number", "unknown field", "unknown dataset"],
)
def test_invalid_bodies_of_drop_cache_are_rejected_with_the_reason(
    flights_client: Client, body: bytes, status: str, words: list[str]
) -> None:
    with refused(status, *words):
        list(flights_client.flight.do_action(flight.Action("drop-cache", body)))


# -- Unix socket -------------------------------------------------------------------------------------


def connect_unix(server: Server) -> Client:
    client = Client.__new__(Client)
    path = server.grpc.removeprefix("unix:")
    client.flight = flight.FlightClient(
        f"grpc+unix://{path}", generic_options=[("grpc.default_authority", "localhost")]
    )
    return client


def test_a_unix_socket_serves_the_same_bytes_and_a_stale_one_is_replaced(tiers: Tiers, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    server = tiers.start(grpc=f"unix:{path}")
    assert server.grpc == f"unix:{path}", "the ready line contains the path"
    with connect_unix(server) as client:
        assert client.digest(**REQUEST) == tiers.undisturbed[0]
    server.kill()
    assert path.is_socket(), "a killed server leaves its socket"

    server = tiers.start(grpc=f"unix:{path}")
    with connect_unix(server) as client:
        assert client.digest(**REQUEST) == tiers.undisturbed[0]
    with pytest.raises(StartError) as refusal:
        tiers.start(grpc=f"unix:{path}")
    assert str(path) in refusal.value.log and "another server" in refusal.value.log
    assert path.is_socket()
    assert server.stop() == 0
    assert not path.exists(), "a stopping server removes its socket"


def test_a_file_that_is_not_a_socket_is_not_changed(tiers: Tiers, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(StartError) as refusal:
        tiers.start(grpc=f"unix:{path}")
    assert str(path) in refusal.value.log
    assert path.read_text() == "precious"
