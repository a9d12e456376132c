"""A file system that hangs takes only its own share of the threads, whatever the number of datasets on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

from s3 import make_bucket, s3_server
from server import Server, until
from test_hangs import FILE_ROWS, FILES, NO_DEADLINE, Hangs, datasets, hangs, library  # noqa: F401

DATASETS = 10
STREAMS_PER_DATASET = 2
# Calls to one file system, and before it had a limit the number of all blocking threads.
THREADS = 64
SECOND = Path("/dev/shm")
# Each stream needs all blocks of its dataset at once.
WHOLE = {"batch_size": 8192, "shuffle": {"window_rows": FILES * FILE_ROWS}}


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than `tmp_path`."""
    if not os.access(SECOND, os.W_OK) or SECOND.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip(f"there is no second file system at {SECOND}")
    with tempfile.TemporaryDirectory(dir=SECOND) as folder:
        yield Path(folder)


def io_threads(server: Server) -> int:
    names = []
    for path in Path(f"/proc/{server.pid}/task").glob("*/comm"):
        # A thread may have ended since it was found.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append(path.read_text().strip())
    return names.count("forebay-io")


def test_ten_datasets_whose_file_system_hangs_stop_neither_another_file_system_nor_a_store_that_is_addressed_by_name(
    hangs: Hangs, second: Path, tmp_path: Path
) -> None:
    hung = {f"hung-{number}": second / str(number) for number in range(DATASETS)}
    for folder in hung.values():
        shutil.copytree(hangs.datasets["mine"], folder)
    hanging = hangs.folder(second)
    with s3_server(tmp_path / "s3.log") as endpoint:
        bucket = make_bucket(endpoint, "hangs")
        bucket.upload_folder(hangs.datasets["others"], "others")
        hangs.datasets = {"local": hangs.datasets["others"], "stored": bucket.url("others"), **hung}
        # Without connections that are kept, each request looks up the name.
        env = {
            **bucket.environment,
            "AWS_ENDPOINT": endpoint.replace("127.0.0.1", "localhost"),
            "AWS_POOL_MAX_IDLE_PER_HOST": "0",
        }
        settings = f"{NO_DEADLINE}[loader]\ndecode_bytes = 268435456\n"
        server = hangs.start(settings, env=env, cache_memory="256MiB", cache_disk=0)
        hanging.hang()
        streams = [(name, seed) for name in hung for seed in range(STREAMS_PER_DATASET)]
        whole = lambda name, seed: hangs.digest(name, **{**WHOLE, "seed": seed})
        waiting = [hangs.begin(whole, name, seed) for name, seed in streams]
        until(lambda: io_threads(server) >= THREADS, failure="the reads do not hang")

        found = {name: hangs.in_time(whole, name, 0) for name in ("local", "stored")}
        hangs.check_probes()
        assert not any(stream.done() for stream in waiting), "the file system does not hang"

        hanging.answer()
        for stream in waiting:
            hangs.result(stream)
        assert found == {name: hangs.in_time(whole, name, 0) for name in found}
