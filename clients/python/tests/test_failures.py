"""What goes wrong on the way costs a training loop nothing but time, or is an exception of its own type."""

from __future__ import annotations

import hashlib
import socket
import time
from pathlib import Path

import pytest

import forebay
from digests import digest
from forebay import errors
from server import Pool

TENSOR = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}


def training(client: forebay.Client, **options) -> forebay.Training:
    return client.train("flights", **{"batch_size": 50_000, "tensors": TENSOR, "seed": 3, **options})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


def test_a_server_that_is_killed_and_restarted_costs_nothing_but_time(
    pool: Pool, flights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": flights}, **place)
    client = forebay.connect(server.location, prefetch_batches=2)
    expected = [digest([batch]) for batch in training(client)]
    assert not caplog.messages
    found, ds = [], training(client)
    for batch in ds:
        found.append(digest([batch]))
        if batch.step in (10, 30):
            server.kill()
            server = pool.start({"flights": flights}, **place)
    assert found == expected
    # But it is said, and counted.
    assert ds.stats()["retries"] >= 2
    assert [message for message in caplog.messages if "attempts to get the next batch failed; the last: " in message]


def test_a_loop_that_failed_goes_on_where_it_failed(pool: Pool, flights: Path, tmp_path: Path) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": flights}, **place)
    ds = training(forebay.connect(server.location, prefetch_batches=2, deadline=3))
    expected, found = [digest([batch]) for batch in training(forebay.connect(server.location))], []
    with pytest.raises(errors.DeadlineError):
        for batch in ds:
            found.append(digest([batch]))
            if batch.step == 10:
                server.kill()
    with pytest.raises(errors.DeadlineError):
        next(iter(ds))
    pool.start({"flights": flights}, **place)
    assert found + [digest([batch]) for batch in ds] == expected


def test_two_servers_one_drained_then_killed_no_error_reaches_the_loop(pool: Pool, flights: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first, second = (pool.start({"flights": flights}, state=state, grace_period="100ms") for _ in range(2))
    client = forebay.connect(first.location, second.location, prefetch_batches=2)
    expected = [digest([batch]) for batch in training(client)]
    found = []
    for batch in training(client):
        found.append(digest([batch]))
        if batch.step == 10:
            first.terminate()
        if batch.step == 40:
            first.kill()
    assert found == expected
    assert [digest([batch]) for batch in training(client)] == expected, "with the first one gone"


def test_what_is_wrong_is_an_exception_of_its_own_with_the_servers_words(pool: Pool, flights: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    digest_of = hashlib.sha256(b"secret").hexdigest()
    tokens.write_text(f'[a]\nsha256 = "{digest_of}"\ndatasets = ["flights", "broken", "flihgts"]\n')
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no Parquet PAR1")
    url = pool.start({"flights": flights, "broken": broken}, tokens=tokens).location
    client = forebay.connect(url, token="secret")
    begun = time.monotonic()
    for kind, words, ask in [
        (errors.NotFoundError, "did you mean 'flights'", lambda: client.train("flihgts", batch_size=1)),
        (errors.RequestError, "delay", lambda: client.train("flights", batch_size=1, columns=["delai"])),
        (errors.RequestError, "batch_size", lambda: client.train("flights", batch_size=0)),
        (errors.RequestError, "shufle", lambda: client.train("flights", batch_size=1, shuffle={"shufle": 1})),
        (errors.ChangedError, "snapshot", lambda: client.train("flights", batch_size=1, snapshot="0" * 32)),
        (errors.DataLossError, "broken.parquet", lambda: client.train("broken", batch_size=1)),
        (errors.PermissionDeniedError, "'payments'", lambda: client.train("payments", batch_size=1)),
        (
            errors.UnauthenticatedError,
            "not known",
            lambda: forebay.connect(url, token="wrong").train("flights", batch_size=1),
        ),
        (errors.UnauthenticatedError, "no token", lambda: forebay.connect(url).train("flights", batch_size=1)),
    ]:
        with pytest.raises(kind, match=words):
            next(iter(ask()))
    assert time.monotonic() - begun < 10, "what is refused is refused at once"
    assert issubclass(errors.NotFoundError, (errors.Error, LookupError))
    assert next(iter(client.train("flights", batch_size=7))).num_rows == 7
    with pytest.raises(ValueError, match="no option 'tokn'"):
        forebay.Client([url], {"tokn": "x"})


def test_a_wrong_server_is_a_deadline_error_within_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in (f"grpc://127.0.0.1:{free_port()}", f"grpc://127.0.0.1:{silent.getsockname()[1]}"):
            begun = time.monotonic()
            with pytest.raises(errors.DeadlineError, match="attempt"):
                next(iter(forebay.connect(url, deadline=1).train("flights", batch_size=1)))
            assert time.monotonic() - begun < 5
    with pytest.raises(errors.RequestError, match="absent.pem"):
        next(iter(forebay.connect("grpc+tls://127.0.0.1:1", ca=tmp_path / "absent.pem").train("x", batch_size=1)))


def test_a_file_that_changes_under_a_loop_ends_it_with_its_name(pool: Pool, flights: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy.parquet"
    shutil.copy(flights, copy)
    # There is room for one window of three: what comes after it is read once the loop has let go of it.
    server = pool.start({"flights": copy}, cache_memory="16MiB", cache_disk="0B")
    client = forebay.connect(server.location, prefetch_batches=1)
    with pytest.raises(errors.ChangedError, match="copy.parquet"):
        for batch in training(client):
            if batch.step == 3:
                copy.write_bytes(copy.read_bytes() + b"x")
