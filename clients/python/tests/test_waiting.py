"""Clients report why they wait: what cannot succeed is an error at once, and what may succeed is reported while it fails."""

from __future__ import annotations

import http.server
import logging
import os
import math
import pickle
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import forebay
from forebay import errors
from ports import free_port
from server import Pool, until


def dead_socket(folder: Path) -> str:
    path = folder / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return f"unix:{path}"


@pytest.mark.parametrize("kind", ["refused", "no scheme", "dead socket", "no socket", "unknown host"])
def test_a_server_that_does_not_exist_is_an_error_at_once(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    urls = {
        "refused": f"grpc://127.0.0.1:{port}", "no scheme": f"127.0.0.1:{port}", "dead socket": dead_socket(tmp_path),
        "no socket": f"unix:{tmp_path}/none.sock", "unknown host": "grpc://forebay.invalid:8815",
    }  # fmt: skip
    client = forebay.connect(urls[kind])
    # A resolver without a network cannot say that a name does not exist.
    temporary = kind == "unknown host" and not is_known_to_be_unknown("forebay.invalid")
    if temporary:
        pytest.skip("this machine has no resolver that answers")
    for call in (lambda: len(client.train("x", batch_size=1)), lambda: client.lookup("x", {"id": [1]}), lambda: client.action("refresh", dataset="x")):
        with pytest.raises(errors.UnavailableError, match=r"can't connect to .*pass wait_for_server=True to connect"):
            call()
    assert not caplog.records


def is_known_to_be_unknown(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 1)
    except socket.gaierror as error:
        return error.errno != socket.EAI_AGAIN
    return False


def test_a_port_of_another_protocol_is_an_error_at_once_that_says_what_to_use(pool: Pool, flights: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = pool.start({"flights": flights})
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        for url in (
            f"grpc://{server.http}",
            f"grpc://127.0.0.1:{web.server_port}",
            f"grpc+tls://{server.grpc}",
            f"grpc+tls://{server.http}",
        ):
            client = forebay.connect(url)
            for call in (
                lambda: len(client.train("flights", batch_size=1)),
                lambda: client.lookup("flights", {"id": [1]}),
                lambda: client.infer("queue", {"id": [1]}),
                lambda: next(client.worker("queue")),
                client.datasets,
                lambda: client.refresh("flights"),
            ):
                with pytest.raises(errors.ProtocolError, match=r"answers .*expected .*use (the address of|grpc://)"):
                    call()
    finally:
        web.shutdown()
        web.server_close()
    assert not caplog.records


@pytest.mark.parametrize("name", ["retry_deadline", "wait_for_server", "keepalive_interval", "attempt_timeout", "idle_timeout"])
def test_an_infinite_time_is_a_long_one(pool: Pool, flights: Path, name: str) -> None:
    client = forebay.connect(pool.start({"flights": flights}).location, **{name: math.inf})
    assert len(client.train("flights", batch_size=1_000_000)) == 3
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match=f"{name} is .*, expected a number of seconds, at least 0"):
            forebay.connect("grpc://a:1", **{name: wrong})


@pytest.mark.parametrize("url", ["", "forebay", "/run/forebay.sock", "s3://bucket/flights", "grpc://a:99999"])
def test_a_url_that_is_none_of_a_server_is_rejected_when_it_is_given(url: str) -> None:
    with pytest.raises(errors.RequestError, match="is invalid, expected"):
        forebay.connect(url)


def test_a_client_waits_for_a_server_on_request(pool: Pool, flights: Path) -> None:
    port = free_port()
    starting = threading.Timer(0.5, lambda: pool.start({"flights": flights}, grpc=f"127.0.0.1:{port}"))
    starting.start()
    try:
        client = forebay.connect(f"127.0.0.1:{port}", wait_for_server=100)
        assert len(client.train("flights", batch_size=100_000)) == 30
    finally:
        starting.join()
    # Another process gets a copy of a client that knows its server, and waits for it.
    assert pickle.loads(pickle.dumps(client))._cluster.options["wait_for_server"] == 300


def test_a_call_that_waits_says_for_what_and_why_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    client = forebay.connect(url, wait_for_server=True, retry_deadline=4)
    with caplog.at_level(logging.WARNING, "forebay"), pytest.raises((errors.UnavailableError, errors.DeadlineError)):
        len(client.train("flights", batch_size=1))
    (record,) = caplog.records
    assert record.name == "forebay" and record.levelno == logging.WARNING
    message = record.getMessage()
    assert message.startswith(f"waiting for the plan of 'flights' from {url} for 3 s: ") and "Connection refused" in message


def test_a_server_that_does_not_answer_is_reported_too(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = forebay.connect(f"127.0.0.1:{silent.getsockname()[1]}", retry_deadline=4)
        began = time.monotonic()
        with caplog.at_level(logging.WARNING, "forebay"), pytest.raises(errors.DeadlineError):
            client.lookup("users", {"id": [1]})
    assert time.monotonic() - began >= 4
    assert any("waiting for rows of 'users'" in record.getMessage() and "no answer yet" in record.getMessage() for record in caplog.records)


def test_a_loop_whose_server_stops_answering_says_so(pool: Pool, flights: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = pool.start({"flights": flights})
    # Few batches are ahead of the loop when the server stops.
    client = forebay.connect(server.location, prefetch_batches=1, prefetch_bytes=1, stream_window_bytes=1 << 16)
    noticed = threading.Event()

    def resume() -> None:
        until(lambda: any("waiting for batches of 'flights'" in record.getMessage() for record in caplog.records))
        noticed.set()
        os.kill(server.pid, signal.SIGCONT)

    resuming = threading.Thread(target=resume)
    rows = 0
    with caplog.at_level(logging.WARNING, "forebay"):
        for batch in client.train("flights", batch_size=1000, shuffle=False):
            rows += batch.num_rows
            if batch.step == 0:
                os.kill(server.pid, signal.SIGSTOP)
                resuming.start()
    resuming.join()
    assert noticed.is_set() and rows == 3_000_000
    (first, *_) = [record.getMessage() for record in caplog.records]
    assert "no answer yet" in first and server.location in first
