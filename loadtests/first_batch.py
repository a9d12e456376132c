#!/usr/bin/env python3
"""Measures the time from `forebay.open` to the first batch, for many files on disk and in a store that is far away.

    loadtests/first_batch.py --files 1000 --delay 20

Runs in an environment with the package and pyarrow. Requires s3s-fs on the PATH, an S3 server, behind a proxy that delays each
direction by half of the delay. Each measurement starts a new Python process and a new server with an empty cache. The time begins
before `import forebay` and ends when the batch is there; the server's start is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1000
BUCKET = "data"
KEY = "forebay-load"
PROGRAM = """
import sys, time
started = time.monotonic()
import forebay
batch = next(iter(forebay.open(sys.argv[1]).train(batch_size=1024, tensors={"x": ["a", "b"]})))
assert len(batch) == 1024
print(time.monotonic() - started)
"""


def write(folder: Path, files: int) -> None:
    """Writes Parquet files of 1,000 rows each."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for number in range(files):
        columns = {name: random.standard_normal(ROWS, dtype=np.float32) for name in ("a", "b", "c", "d")}
        pq.write_table(pa.table(columns), folder / f"{number:05}.parquet")


class Proxy:
    """A TCP proxy on a thread of its own. Bytes leave it some time after they have arrived, in both directions."""

    def __init__(self, port: int, delay: float) -> None:
        self._target, self._delay = port, delay
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._copy(reader, to_writer), self._copy(to_reader, writer), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def send() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        sending = asyncio.ensure_future(send())
        try:
            while data := await reader.read(1 << 16):
                await queue.put((self._loop.time() + self._delay, data))
        finally:
            await queue.put((self._loop.time() + self._delay, b""))
            await sending


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def store(root: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the S3 server of a folder of buckets. Returns its process and port."""
    port = free_port()
    command = ["s3s-fs", "--host", "127.0.0.1", "--port", str(port), "--access-key", KEY, "--secret-key", KEY, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        time.sleep(0.05)
    raise SystemExit(f"s3s-fs ended with status {process.returncode}")


def measure(url: str, environment: dict[str, str]) -> float:
    """Returns the time to the first batch in seconds, with folders of its own for the server."""
    # The path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    try:
        folders = {"XDG_RUNTIME_DIR": str(folder), "FOREBAY_CACHE_DIR": str(folder / "cache"), "FOREBAY_EXIT_WHEN_IDLE": "1s"}
        variables = {**os.environ, **environment, **folders}
        done = subprocess.run([sys.executable, "-c", PROGRAM, url], env=variables, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        # The server ends a second after its last user.
        while (folder / "forebay" / "grpc.sock").exists():
            time.sleep(0.05)
        return float(done.stdout)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000, help="number of files (default: 1000)")
    parser.add_argument("--delay", type=float, default=20, help="round-trip time to the store in ms (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each place (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # In the root of the bucket, because s3s-fs answers a HEAD request for a folder with status 500.
        write(Path(folder, BUCKET), options.files)
        process, port = store(Path(folder))
        try:
            proxy = Proxy(port, options.delay / 2e3)
            remote = {
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": KEY,
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
                "AWS_ALLOW_HTTP": "true",
            }
            places = {
                "on disk": (str(Path(folder, BUCKET)), {}),
                f"in a store {options.delay:g} ms away": (f"s3://{BUCKET}", remote),
            }
            for name, place in places.items():
                seconds = [measure(*place) for _ in range(options.rounds)]
                listed = ", ".join(f"{each:.2f}" for each in seconds)
                print(f"{options.files} files {name}: median {statistics.median(seconds):.2f} s ({listed})", flush=True)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
