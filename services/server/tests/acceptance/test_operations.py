"""Operation of a server: readiness, metrics, drain, one server per cache, and the other commands."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client import FAILURES, Client, status_of
from conftest import GROUP_ROWS
from hostile import write_good
from server import Pool, Server, StartError, forebay, until

STREAM: dict[str, Any] = {"dataset": "small-groups", "batch_size": 16_384, "shuffle": {"window_rows": 8 * GROUP_ROWS}}


def test_livez_and_readyz_answer(flights_server: Server) -> None:
    assert flights_server.http_get("/livez")[0] == 200
    assert flights_server.http_get("/readyz")[0] == 200


def test_metrics_are_prometheus_text_with_the_forebay_prefix(flights_server: Server, flights_client: Client) -> None:
    flights_client.digest(**STREAM, steps=3)
    status, text = flights_server.http_get("/metrics")
    assert status == 200
    names = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert len(names) > 3
    assert all(name.startswith(("forebay_", "process_")) for name in names), names
    typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert "summary" not in typed.values()
    assert all(name.endswith("_total") for name, kind in typed.items() if kind == "counter")
    for line in text.splitlines():
        assert line.startswith("#") or not line or re.fullmatch(r"[a-z_0-9]+(\{.*\})? [-+0-9.eEInfNa]+", line), line


def test_the_dashboard_and_its_files_are_served(flights_server: Server) -> None:
    status, text = flights_server.http_get("/")
    assert status == 200
    assert "<title>Forebay</title>" in text
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', text):
        assert flights_server.http_get(path)[0] == 200, path


def test_sigterm_without_a_stream_stops_before_the_grace_period_despite_idle_connections(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    server = pool.start({"small-groups": small_groups}, grace_period="1h")
    idle = connect(server)
    assert idle.plan(**STREAM).steps > 0
    finished = connect(server)
    finished.digest(**STREAM, steps=2)
    kept_alive = http.client.HTTPConnection(server.http)
    kept_alive.request("GET", "/livez")
    assert kept_alive.getresponse().read() is not None
    assert server.stop() == 0


def test_sigterm_lets_a_running_stream_finish_or_fails_it_as_unavailable(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    server = pool.start({"small-groups": small_groups}, grace_period="20s")
    client = connect(server)
    steps = client.plan(**STREAM).steps
    stream = client.batches(**STREAM)
    received = sum(1 for _ in islice(stream, 5))
    server.terminate()
    try:
        received += sum(1 for _ in stream)
    except FAILURES as error:
        assert status_of(error) == "UNAVAILABLE", error
    else:
        assert received == steps, "a stream ended early with OK"
    assert server.wait(25) == 0


def test_sigterm_ends_a_stream_that_outlasts_the_grace_period_as_unavailable(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    def outcome() -> tuple[str, str]:
        server = pool.start({"small-groups": small_groups}, grace_period="8s")
        stream = connect(server).batches(**STREAM, epochs=1_000_000)
        next(stream)
        outcomes: list[tuple[str, str]] = []

        def read_on() -> None:
            try:
                for _ in stream:
                    pass
                outcomes.append(("OK", ""))
            except FAILURES as error:
                outcomes.append((status_of(error), str(error)))

        reader = threading.Thread(target=read_on, daemon=True)
        reader.start()
        server.terminate()
        until(lambda: server.http_get("/readyz")[0] == 503, failure="the server is ready after the signal")
        # Without the signal, the stream would run for hours.
        assert server.wait(25) == 0
        reader.join(60)
        return outcomes[0]

    # On a busy machine, the client may not receive the message before the server closes the connection, half a second after sending it.
    for _ in range(3):
        status, message = outcome()
        assert status == "UNAVAILABLE", message
        if "continue with the next step" in message:
            break
    assert "continue with the next step" in message


def test_sigterm_is_not_delayed_by_a_consumer_that_stopped_reading(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    server = pool.start({"small-groups": small_groups}, grace_period="2s")
    stream = connect(server).batches(**STREAM, epochs=1000)
    next(stream)
    # `stop` fails after `EXIT_TIMEOUT_S`. The server would close a connection that accepts nothing only later.
    assert server.stop() == 0
    with pytest.raises(FAILURES):
        for _ in stream:
            pass


def test_sigint_stops_the_server_like_sigterm(pool: Pool, small_groups: Path) -> None:
    server = pool.start({"small-groups": small_groups})
    server.process.send_signal(signal.SIGINT)
    assert server.wait(25) == 0


def test_a_second_server_on_the_same_cache_fails_with_the_path(
    pool: Pool, connect: Callable[[Server], Client], small_groups: Path
) -> None:
    first = pool.start({"small-groups": small_groups})
    with pytest.raises(StartError) as refusal:
        pool.start({"small-groups": small_groups}, cache_dir=first.cache_dir)
    assert refusal.value.exit_status not in (None, 0)
    assert str(first.cache_dir) in refusal.value.log
    assert sum(1 for _ in connect(first).batches(**STREAM, steps=3)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "no-url"], ["no-url"]),
        (["--dataset", "bad name=/tmp"], ["bad name"]),
        (["--cache-memory", "many", "--dataset", "a=/tmp"], ["many"]),
        (["--cpu-threads", "0", "--dataset", "a=/tmp"], ["threads"]),
        (["--cpu-scheduling", "late", "--dataset", "a=/tmp"], ["late", "normal", "idle"]),
        (["--no-such-flag"], ["--no-such-flag"]),
    ],
    ids=["dataset without URL", "dataset name", "size", "threads", "scheduling", "unknown flag"],
)
def test_invalid_settings_fail_the_start_with_the_reason(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    done = forebay(
        "serve", "--cache-dir", tmp_path / "c", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments, timeout=60
    )
    assert done.returncode not in (0, 101, -6), done.stderr
    for word in words:
        assert word in done.stderr
    assert "panicked" not in done.stderr


def test_inspect_prints_files_blocks_rows_and_schema(small_groups: Path) -> None:
    done = forebay("inspect", small_groups)
    assert done.returncode == 0, done.stderr
    digits = done.stdout.replace(",", "").replace("_", "")
    blocks = sum(pq.ParquetFile(path).num_row_groups for path in small_groups.iterdir())
    assert re.search(r"\b3000000\b", digits)
    assert re.search(rf"\b{blocks}\b", digits)
    for name in ("date", "delay", "distance", "origin", "destination"):
        assert name in done.stdout
    assert '"train"' in done.stdout and '"dataset"' in done.stdout


def test_inspect_prints_partitions_and_a_request_that_a_server_accepts(small_groups: Path, flights_client: Client) -> None:
    done = forebay("inspect", small_groups, "--partitions", "2", "--world-size", "2")
    assert done.returncode == 0, done.stderr
    request = json.loads(done.stdout.partition("a request")[2])["train"]
    assert (request["world_size"], request["shuffle"]["partitions"]) == (2, 2)
    plan = flights_client.plan(**{**request, "dataset": "small-groups"})
    summary = plan.summary
    assert (int(summary["partitions"]), int(summary["window_rows"])) == (2, request["shuffle"]["window_rows"])
    words = " ".join(done.stdout.split())
    assert f"an epoch {plan.steps} steps of 4096 rows for each of 2 ranks" in words
    blocks = f"partitions 2, each with windows of its own; a batch of a rank mixes rows of {summary['rank_blocks']:.1f} blocks on average"
    assert blocks in words
    assert "a rank reads the same blocks in every epoch" in words
    one = forebay("inspect", small_groups, "--world-size", "2").stdout
    assert "partitions" not in one


def test_inspect_of_a_missing_path_fails_with_the_path(tmp_path: Path) -> None:
    done = forebay("inspect", tmp_path / "nowhere")
    assert done.returncode not in (0, 101)
    assert "nowhere" in done.stderr


def demo(path: Path, tmp_path: Path) -> subprocess.CompletedProcess:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}
    return forebay("demo", path, env=home, timeout=120)


def test_two_runs_of_the_demo_print_the_same_digest(tmp_path: Path) -> None:
    path = write_good(tmp_path / "small.parquet", rows=60_000, row_group_size=5000)
    digests = []
    for _ in range(2):
        done = demo(path, tmp_path)
        assert done.returncode == 0, done.stderr
        digests.append(re.findall(r"digest\W+(?:\w+\W+)*?([0-9a-f]{16,})", done.stdout, re.IGNORECASE))
    assert digests[0], f"no digest in:\n{done.stdout}"
    assert digests[0] == digests[1]


def test_the_digest_of_the_demo_equals_that_of_a_stock_client(pool: Pool, tmp_path: Path) -> None:
    path = write_good(tmp_path / "small.parquet", rows=60_000, row_group_size=5000)
    done = demo(path, tmp_path)
    cold, warm = re.search(r"^digest +([0-9a-f]{16}) +([0-9a-f]{16})$", done.stdout, re.MULTILINE).groups()
    kinds = pq.read_schema(path)
    numeric = [f.name for f in kinds if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    tensors = [
        {"name": name, "columns": columns, "dtype": "float32", "null_value": 0}
        for name, columns in (("x", numeric[:-1]), ("y", numeric[-1:]))
    ]
    with Client(pool.start({"small": path}).location) as client:
        request = {"dataset": "small", "batch_size": 16_384, "tensors": tensors}
        assert client.digest(**request) == cold
        assert client.digest(**request, epoch=1) == warm
