"""An object store that is overloaded for a while delays streams and changes no byte.

The store answers 503 SlowDown for FOREBAY_OVERLOAD_SECONDS, 12 by default; `make nightly` sets five minutes.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import pytest

from client import Client
from digest import digest_of
from hostile import write_good
from overload import overloadable
from s3 import make_bucket, s3_server
from server import Pool, Server, until

OVERLOAD_S = float(os.environ.get("FOREBAY_OVERLOAD_SECONDS", 12))
# The longest pause between retries is 15 s.
AFTERWARDS_S = 100
FILES, FILE_ROWS = 30, 100_000
REQUEST: dict[str, Any] = {"dataset": "parts", "batch_size": 16_384}
ORDERS: dict[str, dict[str, Any]] = {
    "window": {"shuffle": {"window_rows": 2 * FILE_ROWS}, "seed": 1},
    "none": {"shuffle": {"none": {}}},
    "filter": {"filter": "value > 0", "shuffle": {"window_rows": 2 * FILE_ROWS}, "seed": 2},
}

pytestmark = pytest.mark.timeout(OVERLOAD_S + 180)


def test_streams_wait_while_the_store_is_overloaded_and_deliver_the_same_bytes(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    for number in range(FILES):
        write_good(folder / f"part-{number:02}.parquet", rows=FILE_ROWS, start=number * FILE_ROWS)
    local = connect(pool.start({"parts": folder}))
    expected = {name: local.digest(**REQUEST, **order) for name, order in ORDERS.items()}

    with s3_server(tmp_path / "s3.log") as endpoint, overloadable(endpoint) as overload:
        bucket = make_bucket(endpoint, "overloaded")
        bucket.upload_folder(folder, "parts")
        env = {**bucket.environment, "AWS_ENDPOINT": overload.endpoint}
        # Memory for a few windows: most of each stream is read from the store after its first batches.
        server = pool.start({"parts": bucket.url("parts")}, env=env, cache_memory="24MiB", cache_disk=0)
        streams = {name: connect(server).batches(**REQUEST, **order) for name, order in ORDERS.items()}
        received = {name: [batch.data for batch in islice(stream, 3)] for name, stream in streams.items()}

        def read(name: str) -> str:
            received[name] += [batch.data for batch in streams[name]]
            return digest_of(received[name])

        with ThreadPoolExecutor(len(streams)) as executor:
            overload.is_on.set()
            began = time.monotonic()
            digests = {name: executor.submit(read, name) for name in streams}
            try:
                until(lambda: time.monotonic() > began + OVERLOAD_S, seconds=2 * OVERLOAD_S)
                assert overload.refused >= len(streams), "no stream reads the store"
                ended = {name: digest.exception() for name, digest in digests.items() if digest.done()}
                assert not ended, "streams ended instead of waiting"
                assert server.http_get("/readyz")[0] == 200
            finally:
                overload.is_on.clear()
            found = {name: digest.result(AFTERWARDS_S) for name, digest in digests.items()}
    assert found == expected
