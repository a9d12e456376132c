"""Failures of servers only delay a training loop, or raise an exception of a specific type."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path

import pytest

import forebay
from digests import digest
from forebay import errors
from ports import free_port
from server import Pool, until

pytestmark = pytest.mark.once

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


def dataset(client: forebay.Client, **options) -> forebay.TrainingDataset:
    return client.train("flights", **{"batch_size": 50_000, "tensors": TENSOR, "seed": 3, **options})


def test_a_killed_and_restarted_server_only_delays_the_loop(
    pool: Pool, flights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": flights}, **place)
    client = forebay.connect(server.location, prefetch_batches=2)
    expected = [digest([batch]) for batch in dataset(client)]
    assert not caplog.messages
    found, ds = [], dataset(client)
    for batch in ds:
        found.append(digest([batch]))
        if batch.step in (10, 30):
            server.kill()
            server = pool.start({"flights": flights}, **place)
    assert found == expected
    # The failures are logged and counted.
    assert ds.stats()["retries"] >= 2
    logged = "attempts to receive the next batch failed, the last one with: "
    assert any(logged in message for message in caplog.messages)


def test_a_failed_iteration_resumes_where_it_failed(pool: Pool, flights: Path, tmp_path: Path) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": flights}, **place)
    ds = dataset(forebay.connect(server.location, prefetch_batches=2, retry_deadline=15))
    expected, found = [digest([batch]) for batch in dataset(forebay.connect(server.location))], []
    with pytest.raises(errors.DeadlineError):
        for batch in ds:
            found.append(digest([batch]))
            if batch.step == 10:
                server.kill()
    with pytest.raises(errors.DeadlineError):
        next(iter(ds))
    pool.start({"flights": flights}, **place)
    assert found + [digest([batch]) for batch in ds] == expected


def test_no_error_reaches_the_loop_when_one_of_two_servers_is_drained_and_killed(pool: Pool, flights: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first, second = (pool.start({"flights": flights}, state=state, grace_period="100ms") for _ in range(2))
    client = forebay.connect(first.location, second.location, prefetch_batches=2)
    expected = [digest([batch]) for batch in dataset(client)]
    found = []
    for batch in dataset(client):
        found.append(digest([batch]))
        if batch.step == 10:
            first.terminate()
        if batch.step == 40:
            first.kill()
    assert found == expected
    assert [digest([batch]) for batch in dataset(client)] == expected, "with only the second server"


def test_errors_are_specific_exceptions_with_the_message_of_the_server(pool: Pool, flights: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    digest_of = hashlib.sha256(b"secret").hexdigest()
    tokens.write_text(f'[a]\nsha256 = "{digest_of}"\ndatasets = ["flights", "broken", "flihgts"]\n')
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no Parquet PAR1")
    url = pool.start({"flights": flights, "broken": broken}, tokens=tokens).location
    client = forebay.connect(url, token="secret")
    begun = time.monotonic()
    for kind, message, ask in [
        (errors.NotFoundError, "did you mean 'flights'", lambda: client.train("flihgts", batch_size=1)),
        (errors.RequestError, "delay", lambda: client.train("flights", batch_size=1, columns=["delai"])),
        (errors.RequestError, "batch_size", lambda: client.train("flights", batch_size=0)),
        (errors.RequestError, "shufle", lambda: client.train("flights", batch_size=1, shuffle={"shufle": 1})),
        (errors.SnapshotUnavailableError, "snapshot", lambda: client.train("flights", batch_size=1, snapshot="0" * 32)),
        (errors.UnsupportedError, "does not serve lookups", lambda: client.lookup("flights", {"delay": [1]})),
        (errors.DataLossError, "broken.parquet", lambda: client.train("broken", batch_size=1)),
        (errors.PermissionDeniedError, "'payments'", lambda: client.train("payments", batch_size=1)),
        (
            errors.UnauthenticatedError,
            "the token is unknown",
            lambda: forebay.connect(url, token="wrong").train("flights", batch_size=1),
        ),
        (errors.UnauthenticatedError, "the token is missing", lambda: forebay.connect(url).train("flights", batch_size=1)),
    ]:
        with pytest.raises(kind, match=message):
            next(iter(ask()))
    assert time.monotonic() - begun < 60, "errors of the request are not retried"
    assert issubclass(errors.NotFoundError, (errors.Error, LookupError))
    assert next(iter(client.train("flights", batch_size=7))).num_rows == 7
    with pytest.raises(ValueError, match="unknown option 'tokn'"):
        forebay.Client([url], {"tokn": "x"})


def test_a_server_that_is_waited_for_is_a_deadline_error_within_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        # A connection that is refused is retried as long as the client waits for the server, which ends with the deadline at the latest.
        refused = {"retry_deadline": 1, "wait_for_server": 60}
        for options in ({"urls": url, "retry_deadline": 1}, {"urls": f"grpc://127.0.0.1:{free_port()}", **refused}):
            begun = time.monotonic()
            with pytest.raises(errors.DeadlineError, match="attempt"):
                next(iter(forebay.connect(options.pop("urls"), **options).train("flights", batch_size=1)))
            # Without the deadline, a single attempt could take 10 s to connect.
            assert time.monotonic() - begun < 9
    with pytest.raises(errors.RequestError, match="absent.pem"):
        next(iter(forebay.connect("grpc+tls://127.0.0.1:1", ca=tmp_path / "absent.pem").train("x", batch_size=1)))


def test_a_dataset_is_observed_and_closed_while_another_thread_waits_for_a_batch(pool: Pool, flights: Path) -> None:
    server = pool.start({"flights": flights})
    ds = dataset(forebay.connect(server.location, prefetch_batches=1), epochs=1000)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                for _ in ds:
                    pass
        except BaseException as error:
            raised.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: ds.stats().get("batches", 0) > 5)
    server.kill()
    until(lambda: ds.stats().get("retries", 0) > 0)
    ds.close()
    reader.join(60)
    assert [str(error) for error in raised] == ["the dataset was closed or reloaded during the iteration"]


def test_a_file_that_changes_during_an_iteration_ends_it_with_its_name(pool: Pool, flights: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy.parquet"
    shutil.copy(flights, copy)
    # The cache has room for one window of three, so later windows are read during the iteration.
    server = pool.start({"flights": copy}, cache_memory="16MiB", cache_disk="0B")
    client = forebay.connect(server.location, prefetch_batches=1)
    with pytest.raises(errors.SnapshotUnavailableError, match="copy.parquet"):
        for batch in dataset(client):
            if batch.step == 3:
                copy.write_bytes(copy.read_bytes() + b"x")
