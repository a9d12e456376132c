"""An S3 server for the tests: moto in its own process."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import boto3
from botocore.config import Config

from ports import free_port

START_TIMEOUT_S = 60
REGION = "us-east-1"
KEY = SECRET = "test"


@dataclass(frozen=True)
class Bucket:
    """A bucket and its endpoint."""

    endpoint: str
    name: str

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables for the server under test."""
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}),
        )

    def url(self, prefix: str) -> str:
        return f"s3://{self.name}/{prefix}"

    def upload(self, path: Path, key: str) -> None:
        self.client().put_object(Bucket=self.name, Key=key, Body=path.read_bytes())

    def upload_folder(self, folder: Path, prefix: str) -> None:
        for path in sorted(folder.rglob("*.parquet")):
            self.upload(path, f"{prefix}/{path.relative_to(folder).as_posix()}")

    def delete(self, key: str) -> None:
        self.client().delete_object(Bucket=self.name, Key=key)

    def keys(self, prefix: str) -> list[str]:
        listing = self.client().list_objects_v2(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for entry in listing.get("Contents", [])]


@contextlib.contextmanager
def s3_server(log_path: Path) -> Iterator[str]:
    """Runs the server on a free port and yields its endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not start:\n{log_path.read_text()}")
            time.sleep(0.05)
        yield endpoint
    finally:
        process.kill()
        process.wait()


def make_bucket(endpoint: str, name: str) -> Bucket:
    bucket = Bucket(endpoint, name)
    bucket.client().create_bucket(Bucket=name)
    return bucket
