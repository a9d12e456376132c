"""The same dataset in an object store: same order, pinned versions, shared state."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Callable, Iterator

import pytest

from client import Client, refused
from digest import digest_of
from hostile import write_good
from s3 import Bucket, make_bucket, s3_server
from server import Pool, Server

FILES = 40
FILE_ROWS = 256 * 1024  # 4 MiB of incompressible numbers
BUCKET_NUMBERS = count()
REQUEST = {"dataset": "parts", "batch_size": 16_384, "seed": 6}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "s3.log") as running:
        yield running


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    return make_bucket(endpoint, f"bucket-{next(BUCKET_NUMBERS)}")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    for number in range(FILES):
        write_good(folder / f"part-{number:02}.parquet", rows=FILE_ROWS, start=number * FILE_ROWS)
    return folder


def test_a_bucket_streams_what_a_folder_streams(
    pool: Pool, connect: Callable[[Server], Client], lineitem: Path, bucket: Bucket
) -> None:
    bucket.upload_folder(lineitem, "tpch/lineitem")
    remote = connect(pool.start({"lineitem": bucket.url("tpch/lineitem")}, env=bucket.environment))
    local = connect(pool.start({"lineitem": lineitem}))
    request = {"dataset": "lineitem", "batch_size": 5000, "seed": 2, "shuffle": {"window_rows": 100_000}}
    expected = local.digest(**request)
    for _ in ("cold", "warm"):
        assert remote.digest(**request) == expected


def test_a_single_object_is_a_dataset(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, bucket: Bucket
) -> None:
    bucket.upload(write_good(tmp_path / "good.parquet", rows=1000), "one/object")
    client = connect(pool.start({"one": bucket.url("one/object")}, env=bucket.environment))
    assert client.table(dataset="one", batch_size=300).num_rows == 1000


@pytest.mark.parametrize("shuffle", [{"none": {}}, {"window_rows": 4 * FILE_ROWS}], ids=["none", "window"])
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_an_object_changed_during_an_epoch_is_a_failed_precondition_that_names_it(
    pool: Pool,
    connect: Callable[[Server], Client],
    tmp_path: Path,
    parts: Path,
    bucket: Bucket,
    change: str,
    shuffle: dict,
) -> None:
    bucket.upload_folder(parts, "parts")
    server = pool.start({"parts": bucket.url("parts")}, env=bucket.environment, cache_memory="24MiB")
    client = connect(server)
    stream = client.batches(**REQUEST, shuffle=shuffle)
    next(stream)
    other = write_good(tmp_path / "other.parquet", rows=FILE_ROWS, start=10**9)
    for number in range(FILES // 2, FILES):
        key = f"parts/part-{number:02}.parquet"
        if change == "replaced":
            bucket.upload(other, key)
        else:
            bucket.delete(key)
    with refused("FAILED_PRECONDITION", "part-"):
        for _ in stream:
            pass
    assert server.is_running()
    if change == "replaced":
        client.refresh("parts")
        assert client.plan(**REQUEST).info.total_records == FILES * FILE_ROWS


def test_two_servers_share_the_snapshots_of_a_growing_bucket(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, bucket: Bucket
) -> None:
    bucket.upload(write_good(tmp_path / "a.parquet", rows=5000), "grown/a.parquet")
    settings = {"env": bucket.environment, "state": bucket.url("state")}
    datasets = {"grown": bucket.url("grown")}
    request = {"dataset": "grown", "batch_size": 999, "seed": 1}
    first = connect(pool.start(datasets, **settings))
    plan = first.plan(**request)
    expected = digest_of(batch.data for batch in first.read(plan.tickets[0]))
    assert bucket.keys("state"), "--state is empty"

    bucket.upload(write_good(tmp_path / "b.parquet", rows=5000, start=5000), "grown/b.parquet")
    second = connect(pool.start(datasets, **settings))
    assert second.plan(**request).info.total_records == 10_000
    assert second.plan(**request).snapshot != plan.snapshot
    assert digest_of(batch.data for batch in second.read(plan.tickets[0])) == expected
    assert second.digest(**request, snapshot=plan.snapshot) == expected
    assert first.digest(**request) == expected


def test_a_missing_bucket_does_not_affect_other_datasets(
    pool: Pool, connect: Callable[[Server], Client], tmp_path: Path, bucket: Bucket
) -> None:
    good = write_good(tmp_path / "good.parquet")
    server = pool.start({"lost": "s3://no-such-bucket/x", "good": good}, env=bucket.environment)
    client = connect(server)
    with refused("NOT_FOUND", "lost", "NoSuchBucket"):
        client.plan(dataset="lost", batch_size=10)
    assert client.table(dataset="good", batch_size=300).num_rows == 2000
