"""While a disk hangs, requests that need it fail at their deadline. Streams of other datasets continue, also with memory for
only a few blocks or windows. A cache disk that hangs fails no stream.

hang.c simulates a hanging disk: every call on a file in one folder waits, and returns no error, until the test lets it
continue. Tests with `NO_DEADLINE` set a deadline of one hour. A request that is answered within `PATIENCE_S` has therefore not
waited for a deadline.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from client import FAILURES, Client, refused
from hanging import HangingFolder
from hostile import GOOD_ROWS, write_good
from preload import compiled
from server import Pool, Server, until
from test_tiers import counter, settled_column_files

FILES, FILE_ROWS, GROUP_ROWS = 4, 60_000, 10_000
# Much longer than a request without a hang.
PATIENCE_S = 60
STREAMS = 12
MAX_READS = 2
REQUEST: dict[str, Any] = {"batch_size": 8192, "shuffle": {"window_rows": 3 * GROUP_ROWS}}
NO_DEADLINE = '[storage]\nrequest_timeout = "1h"\n'
PROBES = ("/livez", "/readyz", "/metrics", "/api/v1/datasets", "/api/v1/sessions")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("hang", tmp_path_factory.mktemp("hang"), "-ldl")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two datasets, each with 24 blocks of 160 kB decoded, each in its own folder."""
    folder = tmp_path_factory.mktemp("datasets")
    for number, name in enumerate(["mine", "others"]):
        for part in range(FILES):
            start = (number * FILES + part) * FILE_ROWS
            write_good(folder / name / f"part-{part}.parquet", rows=FILE_ROWS, start=start, row_group_size=GROUP_ROWS)
    return {name: folder / name for name in ("mine", "others")}


class StillWaits(Exception):
    """A call has not returned in time."""


class Hangs:
    """A server of the datasets, one folder that hangs, and calls to the server in background threads."""

    def __init__(self, pool: Pool, library: Path, datasets: dict[str, Path]) -> None:
        self.pool, self.library, self.datasets = pool, library, datasets
        self.executor = ThreadPoolExecutor(2 * STREAMS)

    def folder(self, path: Path) -> HangingFolder:
        self.hanging = HangingFolder(path, self.library, self.pool.folder / "hangs")
        return self.hanging

    def start(self, settings: str, env: dict[str, str] | None = None, **flags: Any) -> Server:
        config = self.pool.folder / "forebay.toml"
        config.write_text(settings)
        env = {**self.hanging.environment, **(env or {})}
        self.server = self.pool.start(self.datasets, config=config, env=env, **flags)
        return self.server

    def digest(self, dataset: str, **more: Any) -> str:
        with Client(self.server.location) as client:
            return client.digest(**{**REQUEST, **more}, dataset=dataset)

    def begin(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> Future:
        return self.executor.submit(call, *arguments, **more)

    def in_time(self, call: Callable[..., Any], *arguments: Any, patience_s: float = PATIENCE_S, **more: Any) -> Any:
        """Returns the result of a call, or raises `StillWaits`."""
        return self.result(self.begin(call, *arguments, **more), patience_s)

    def result(self, begun: Future, patience_s: float = PATIENCE_S) -> Any:
        try:
            return begun.result(patience_s)
        except TimeoutError:
            if begun.done():
                raise
            raise StillWaits(f"no result after {patience_s} s") from None

    def again(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Like `in_time`, but repeats a call that fails. On a busy machine, a read may miss a deadline of 1 s
        although the disk does not hang. Reads that hung end a moment after `answer` is called."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.in_time(call, *arguments)
            except FAILURES:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def check_probes(self) -> None:
        for path in PROBES:
            assert self.server.http_get(path, timeout=PATIENCE_S)[0] == 200, path

    def close(self) -> None:
        self.hanging.answer()
        self.pool.close()
        self.executor.shutdown()


@pytest.fixture
def hangs(tmp_path: Path, library: Path, datasets: dict[str, Path]) -> Iterator[Hangs]:
    # The fixture `pool` is not used: it would stop the servers only after `close`, whose `executor.shutdown` waits
    # for calls to them.
    made = Hangs(Pool(tmp_path), library, datasets)
    yield made
    made.close()


# -- the disk of the cache ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["columns", "everything"])
def test_streams_continue_while_the_disk_of_the_cache_hangs(hangs: Hangs, tmp_path: Path, what: str) -> None:
    cache = tmp_path / "cache"
    hanging = hangs.folder(cache / "columns" if what == "columns" else cache)
    settings = '[loader]\ndisk_writes = "always"\ndisk_read_timeout = "3s"\n'
    # A dataset does not fit in memory, so each epoch reads the disk.
    server = hangs.start(settings, cache_dir=cache, cache_memory="3MiB", cache_disk="1GiB", state=tmp_path / "state")
    expected = {name: hangs.in_time(hangs.digest, name) for name in hangs.datasets}
    files = 2 * FILES * FILE_ROWS // GROUP_ROWS
    assert len(settled_column_files(server, files)) == files

    def reads_the_disk() -> bool:
        before = counter(server, "forebay_cache_hits_total", tier="disk")
        assert hangs.in_time(hangs.digest, "mine") == expected["mine"]
        return counter(server, "forebay_cache_hits_total", tier="disk") > before

    # Repeated, because a read that is late on a busy machine counts as a miss.
    until(reads_the_disk, failure="the second epoch does not read the disk")
    late = counter(server, "forebay_cache_errors_total", tier="disk", kind="read")

    hanging.hang()
    for name in hangs.datasets:
        assert hangs.in_time(hangs.digest, name) == expected[name]
    # A stream of another view also continues, although its columns are not on the hanging disk and cannot be written to it.
    rows = lambda: sum(batch.meta.rows for batch in Client(server.location).batches(**REQUEST, dataset="mine", select=["id + 1 AS n"]))
    assert hangs.in_time(rows) == FILES * FILE_ROWS
    assert counter(server, "forebay_cache_errors_total", tier="disk", kind="read") > late, "no read of the disk was late"
    hangs.check_probes()

    hanging.answer()
    # After a late read of the cache disk, the server does not read the disk for up to a minute.
    until(reads_the_disk, seconds=100, failure="the disk is never read again")


def test_a_cache_disk_that_hangs_at_the_start_delays_readiness_but_neither_the_ports_nor_streams(
    hangs: Hangs, tmp_path: Path
) -> None:
    cache, settings = tmp_path / "cache", '[loader]\ndisk_writes = "always"\n'
    flags = {"cache_dir": cache, "cache_memory": "3MiB", "state": tmp_path / "state"}
    hangs.folder(cache / "columns")
    first = hangs.start(settings, **flags)
    expected = hangs.in_time(hangs.digest, "mine")
    files = settled_column_files(first, FILES * FILE_ROWS // GROUP_ROWS)
    assert len(files) == FILES * FILE_ROWS // GROUP_ROWS
    first.stop()

    hangs.folder(files[0].parent).hang()
    begun = hangs.begin(hangs.start, settings, **flags)
    until(lambda: len(hangs.pool.servers) == 2 and hangs.pool.servers[1].grpc, failure="the ports are not bound")
    server = hangs.server = hangs.pool.servers[1]
    assert server.http_get("/livez")[0] == 200
    readiness = lambda: (lambda status, body: (status, json.loads(body)))(*server.http_get("/readyz"))
    until(lambda: readiness()[1]["opening"] == [], failure="the datasets are not opened")
    status, body = readiness()
    assert (status, body["ready"], body["recovering_cache"]) == (503, False, True)
    assert hangs.in_time(hangs.digest, "mine") == expected
    assert counter(server, "forebay_cache_hits_total", tier="disk") == 0
    assert counter(server, "forebay_cache_insert_rejections_total", tier="disk", reason="recovering") > 0
    assert not begun.done() and settled_column_files(server) == files, "files are written or deleted"

    hangs.hanging.answer()
    assert hangs.result(begun) is server
    assert readiness()[1]["recovering_cache"] is False
    assert hangs.in_time(hangs.digest, "mine") == expected
    assert counter(server, "forebay_cache_hits_total", tier="disk") > 0
    assert settled_column_files(server) == files


def test_a_dataset_is_refreshed_while_the_disk_of_the_footer_cache_hangs(hangs: Hangs, tmp_path: Path) -> None:
    hanging = hangs.folder(tmp_path / "cache" / "footers")
    grown = tmp_path / "grown"
    write_good(grown / "a.parquet")
    hangs.datasets = {"grown": grown}
    server = hangs.start('[storage]\nrequest_timeout = "5s"\n', cache_dir=tmp_path / "cache")
    hanging.hang()
    write_good(grown / "b.parquet", start=GOOD_ROWS)
    answer = hangs.in_time(Client(server.location).refresh, "grown")
    assert int(answer["rows"]) == 2 * GOOD_ROWS


# -- the disk of a dataset ---------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        pytest.param("", {"cache_memory": "256MiB", "cache_disk": 0}, id="ample memory"),
        pytest.param("", {"cache_memory": "256MiB", "cache_disk": "256MiB"}, id="disk cache"),
        pytest.param(
            "[loader]\ndecode_bytes = 1048576\n",
            {"cache_memory": "256MiB", "cache_disk": 0},
            id="few blocks at a time",
        ),
        pytest.param(
            "[loader]\ndecode_bytes = 268435456\n",
            {"cache_memory": "4MiB", "cache_disk": 0},
            id="few windows at a time",
        ),
    ],
)
def test_other_datasets_are_streamed_while_one_hangs_which_continues_when_its_disk_does(
    hangs: Hangs, settings: str, flags: dict
) -> None:
    hanging = hangs.folder(hangs.datasets["mine"])
    server = hangs.start(NO_DEADLINE + settings, **flags)
    hanging.hang()
    waiting = [hangs.begin(hangs.digest, "mine", seed=seed) for seed in range(STREAMS)]
    until(lambda: counter(server, "forebay_streams") == STREAMS, failure="the streams do not start")

    others = [hangs.in_time(hangs.digest, "others", epoch=epoch) for epoch in range(3)]
    assert len(set(others)) == 3
    hangs.check_probes()
    assert not any(stream.done() for stream in waiting), "the disk does not hang"

    hanging.answer()
    found = [hangs.result(stream) for stream in waiting]
    assert found == [hangs.in_time(hangs.digest, "mine", seed=seed) for seed in range(STREAMS)]


def test_a_stream_of_a_dataset_that_hangs_fails_at_the_deadline_with_the_file_and_the_setting(hangs: Hangs) -> None:
    hanging = hangs.folder(hangs.datasets["mine"])
    hangs.start('[storage]\nrequest_timeout = "5s"\n', cache_memory="256MiB", cache_disk=0)
    hanging.hang()
    with refused("UNAVAILABLE", "mine/part-", "did not answer within 5s", "storage.request_timeout"):
        hangs.in_time(hangs.digest, "mine")
    hangs.in_time(hangs.digest, "others")
    hanging.answer()
    hangs.again(hangs.digest, "mine")


def test_a_dataset_that_hangs_at_the_start_does_not_keep_the_server_from_being_ready(hangs: Hangs) -> None:
    hangs.folder(hangs.datasets["mine"]).hang()
    begun = hangs.begin(hangs.start, '[storage]\nrequest_timeout = "1s"\n[limits]\nopen_timeout = "1s"\n')
    hangs.result(begun)
    hangs.again(hangs.digest, "others")


def test_a_refresh_of_a_dataset_that_hangs_fails_at_the_deadline(hangs: Hangs) -> None:
    hanging = hangs.folder(hangs.datasets["mine"])
    server = hangs.start('[storage]\nrequest_timeout = "1s"\n[limits]\nopen_timeout = "1s"\n')
    hanging.hang()
    with refused({"UNAVAILABLE", "DEADLINE_EXCEEDED"}, "mine"):
        hangs.in_time(Client(server.location).refresh, "mine")


def test_refreshes_of_a_folder_that_cannot_be_listed_do_not_block_streams(hangs: Hangs, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    write_good(mine / "a.parquet")
    write_good(mine / "below" / "b.parquet")
    hangs.datasets = {"mine": mine}
    hanging = hangs.folder(mine / "below")
    hangs.start(f'[storage]\nrequest_timeout = "1s"\nconcurrent_local_reads = {MAX_READS}\n', cache_memory="64MiB")
    expected = hangs.again(hangs.digest, "mine")
    hanging.hang()
    for _ in range(MAX_READS + 1):
        with refused({"UNAVAILABLE", "DEADLINE_EXCEEDED"}, "mine"):
            hangs.in_time(Client(hangs.server.location).refresh, "mine")
    # Reads columns that are not in memory, from the file that does not hang.
    first = lambda: next(iter(Client(hangs.server.location).batches(batch_size=100, dataset="mine", select=["value"], shuffle={"none": {}})))
    assert hangs.again(first).meta.rows == 100
    hanging.answer()
    hangs.again(Client(hangs.server.location).refresh, "mine")
    assert hangs.again(hangs.digest, "mine") == expected


def test_refreshes_that_wait_for_each_other_list_the_dataset_once(hangs: Hangs) -> None:
    hanging = hangs.folder(hangs.datasets["mine"])
    server = hangs.start("", cache_memory="64MiB")
    pattern = r'forebay_storage_requests_total\{operation="list",outcome="ok"\} (\d+)'
    listed = lambda: int(re.search(pattern, server.http_get("/metrics")[1])[1])
    before = listed()
    hanging.hang()
    calls = [hangs.begin(Client(server.location).refresh, "mine") for _ in range(2 * STREAMS)]
    # All but one wait for the first.
    used = lambda: json.loads(server.http_get("/api/v1/callers")[1])["resources"][3]["used"]
    until(lambda: used() == len(calls))
    hanging.answer()
    for call in calls:
        hangs.result(call)
    # The first call lists once, and one listing serves all calls that began to wait after that. On a busy machine, some may begin to
    # wait even later.
    assert listed() - before <= 4


def test_refreshes_below_a_folder_that_cannot_be_listed_succeed_and_leave_at_most_one_thread(hangs: Hangs, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "data"
    write_good(mine / "0.parquet")
    # A folder above the dataset that may hold the log of a table.
    log = mine.parent / "_delta_log"
    log.mkdir()
    hangs.datasets = {"mine": mine}
    hanging = hangs.folder(log)
    server = hangs.start('[storage]\nrequest_timeout = "1s"\n', cache_memory="64MiB")
    rounds = 8
    hanging.hang()
    threads = lambda: len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
    for number in range(1, rounds + 1):
        write_good(mine / f"{number}.parquet")
        hangs.again(Client(server.location).refresh, "mine")
        if number == 3:
            before = threads()
    assert threads() < before + rounds // 2
    hanging.answer()


def test_a_server_whose_dataset_hangs_stops(hangs: Hangs) -> None:
    hanging = hangs.folder(hangs.datasets["mine"])
    server = hangs.start('[storage]\nrequest_timeout = "1s"\n', cache_memory="256MiB", cache_disk=0, grace_period="1s")
    hanging.hang()
    with refused("UNAVAILABLE", "did not answer"):
        hangs.in_time(hangs.digest, "mine")
    server.terminate()
    assert server.wait(25) == 0
