"""The files of deploy/ without containers: Prometheus scrapes servers with the shipped configuration, alerts fire, and the services
of the compose file work together."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from client import Client
from hostile import write_good
from ports import free_port
from s3 import make_bucket, s3_server
from server import ROOT, Pool, Server, forebay, replace
from test_auth import start as locked_server

DEPLOY = ROOT / "deploy"
START_TIMEOUT_S = 60
FIRE_TIMEOUT_S = 60
# Values that replace `for` and the windows of `rate` in the rules, so that alerts fire within seconds.
FOR = "1s"
WINDOW = "10s"

QUEUES = """
[online.good]
key = ["id"]

[queues.scores.features]
dataset = "good"
columns = ["value"]
[queues.idle.features]
dataset = "good"
columns = ["value"]
"""


def program(name: str) -> str:
    """Returns the path of a program on PATH or of `make deploy-check`. Skips the test if there is none."""
    fetched = ROOT / "target" / "deploy" / "bin" / name
    found = shutil.which(name) or (str(fetched) if fetched.exists() else None)
    if not found:
        pytest.skip(f"there is no {name}: apt-get install prometheus, or make deploy-check")
    return found


def with_short_times(rules: str) -> str:
    """Returns the rules with a short `for` and short windows."""
    rules = re.sub(r"^(\s+for:) \S+$", rf"\1 {FOR}", rules, flags=re.M)
    return re.sub(r"\[\d+m\]", f"[{WINDOW}]", rules)


@dataclass
class Prometheus:
    """A running Prometheus and requests to its HTTP API."""

    process: subprocess.Popen
    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, str]]:
        """Returns the labels of each current result of an expression."""
        return [each["metric"] for each in self.get("query", query=expression)["result"]]

    def target_is(self, health: str) -> bool:
        return [each["health"] for each in self.get("targets")["activeTargets"]] == [health]

    def firing(self, name: str) -> list[dict[str, str]]:
        """Returns the labels of each firing instance of an alert."""
        alerts = self.get("alerts")["alerts"]
        return [each["labels"] for each in alerts if each["labels"]["alertname"] == name and each["state"] == "firing"]

    def until(self, done: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + FIRE_TIMEOUT_S
        while True:
            # On a busy machine, a request may time out.
            with contextlib.suppress(OSError):
                if found := done():
                    return found
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{what}: {json.dumps(self.get('alerts'))}"
            time.sleep(0.2)

    def until_fires(self, name: str, **labels: str) -> None:
        def fires() -> bool:
            return any(labels.items() <= found.items() for found in self.firing(name))

        self.until(fires, f"{name} does not fire")


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """Starts Prometheus with the configuration and rules of deploy/. Only the address of the server and the times differ."""
    started: list[subprocess.Popen] = []

    def start(server: Server, secrets: dict[str, bytes] | None = None) -> Prometheus:
        """Starts Prometheus for a server. With `secrets`, uncomments the lines of prometheus.yml for TLS and a token."""
        binary, folder = program("prometheus"), tmp_path / "prometheus"
        folder.mkdir()
        settings = (DEPLOY / "prometheus/prometheus.yml").read_text()
        assert "forebay:8816" in settings
        settings = re.sub(r"_interval: \S+", "_interval: 1s", settings.replace("forebay:8816", server.http))
        if secrets:
            settings, found = re.subn(r"^    # (scheme|tls_config|authorization):", r"    \1:", settings, flags=re.M)
            assert found == 3
            for name, content in secrets.items():
                (folder / name).write_bytes(content)
        (folder / "prometheus.yml").write_text(settings)
        (folder / "alerts.yaml").write_text(with_short_times((DEPLOY / "prometheus/alerts.yaml").read_text()))
        address, log = f"127.0.0.1:{free_port()}", folder / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [
                    binary,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        prometheus = Prometheus(process, f"http://{address}", log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not prometheus.is_ready():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        prometheus.until(lambda: prometheus.target_is("up"), "the server is not scraped")
        return prometheus

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def test_prometheus_stores_every_metric_and_an_alert_fires_when_the_server_is_killed(
    pool: Pool, watch: Callable[..., Prometheus], tmp_path: Path
) -> None:
    server = pool.start({"good": write_good(tmp_path / "good.parquet")})
    with Client(server.location) as client:
        client.digest(dataset="good", batch_size=100)
    prometheus = watch(server)
    text = server.http_get("/metrics")[1]
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.M))

    def all_stored() -> bool:
        stored = prometheus.get("label/__name__/values")
        lost = {name for name in families if not any(each.startswith(name) for each in stored)}
        print(f"not stored: {lost}")
        return not lost

    prometheus.until(all_stored, "some metrics are not stored")
    prometheus.until(lambda: not prometheus.firing("ForebayDown"), "ForebayDown fires for a running server")
    # promtool checks the names and the help texts.
    checked = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    server.kill()
    prometheus.until_fires("ForebayDown", instance=server.http, severity="critical")


def test_an_alert_fires_while_a_dataset_cannot_be_opened(
    pool: Pool, watch: Callable[..., Prometheus], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    write_good(data / "a.parquet")
    (data / "b.parquet").write_bytes(b"this is no Parquet")
    config = tmp_path / "forebay.toml"
    config.write_text('[limits]\nmax_open_backoff = "1s"\n')
    server = pool.start({"broken": data, "good": data / "a.parquet"}, config=config)
    prometheus = watch(server)
    prometheus.until_fires("ForebayDatasetUnavailable", dataset="broken")
    assert {each["dataset"] for each in prometheus.firing("ForebayDatasetUnavailable")} == {"broken"}

    write_good(data / "b.parquet", start=2000)
    prometheus.until(lambda: not prometheus.firing("ForebayDatasetUnavailable"), "the alert still fires")


def waiting_requests(server: Server, queue: str) -> float:
    """Returns the number of requests that wait in a queue, from the metrics of the server."""
    found = re.search(rf'^forebay_queue_requests{{queue="{queue}"}} (\S+)$', server.http_get("/metrics")[1], re.M)
    return float(found[1]) if found else 0


def test_an_alert_fires_for_a_queue_with_requests_and_without_workers(
    pool: Pool, watch: Callable[..., Prometheus], tmp_path: Path
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(QUEUES)
    server = pool.start({"good": write_good(tmp_path / "good.parquet")}, config=config)
    prometheus = watch(server)
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"infer": {"queue": "scores"}}).encode())
    # Keeps references to the client and the reader, because a call may be cancelled when its handles are garbage collected.
    with flight.connect(server.location) as client:
        writer, reader = client.do_exchange(descriptor)
        batch = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})
        writer.begin(batch.schema)
        # The request must not expire during the waits below.
        writer.write_with_metadata(batch, json.dumps({"timeout_seconds": 10 * FIRE_TIMEOUT_S}).encode())
        prometheus.until(lambda: waiting_requests(server, "scores") == 1, "the request does not wait")
        prometheus.until_fires("ForebayQueueWithoutWorkers", queue="scores")
        assert {each["queue"] for each in prometheus.firing("ForebayQueueWithoutWorkers")} == {"scores"}
        # Closing the writer instead would wait for the answer to the request.
        reader.cancel()


def test_an_alert_fires_at_the_first_error_of_an_invalid_token_file(
    pool: Pool, watch: Callable[..., Prometheus], tmp_path: Path
) -> None:
    """Uses the settings that prometheus.yml contains for servers with TLS and tokens."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    locked = locked_server(pool, write_good(tmp_path / "good.parquet"), folder)
    prometheus = watch(locked.server, {"ca.pem": locked.authority.cert_pem.bytes(), "token": b"token-of-all"})
    assert not prometheus.firing("ForebayReloadErrors")
    replace(locked.tokens, "no TOML\n")
    prometheus.until_fires("ForebayReloadErrors", instance=locked.server.http)


def compose() -> dict[str, Any]:
    """Returns the services of the compose file, as docker compose reads it."""
    command = [program("docker-compose"), "--file", str(DEPLOY / "compose/compose.yaml"), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_the_services_of_the_compose_file_work_together(
    pool: Pool, watch: Callable[..., Prometheus], tmp_path: Path
) -> None:
    """Starts the services by hand: the demo data, a store (moto instead of Versity), the server and Prometheus."""
    services = compose()
    made = forebay(*services["demo-data"]["command"], env={"FOREBAY_CACHE_DIR": str(tmp_path / "demo")})
    assert made.returncode == 0, made.stderr
    upload = services["demo-upload"]["command"][0]
    source, target = re.search(r"sync \S+ /demo/(\S+) (s3://\S+)", upload).groups()
    bucket, prefix = target.removeprefix("s3://").split("/")
    environment = services["forebay"]["environment"]
    assert environment["FOREBAY_DATASET"] == f"lineitem={target}"
    with s3_server(tmp_path / "s3.log") as endpoint:
        store = make_bucket(endpoint, bucket)
        store.upload_folder(tmp_path / "demo" / source, prefix)
        # moto accepts any credentials, so those of the compose file work.
        server = pool.start({}, env={**environment, "AWS_ENDPOINT": endpoint})
        with Client(server.location) as client:
            assert client.digest(dataset="lineitem", batch_size=4096, columns=["l_orderkey"])
        prometheus = watch(server)
        prometheus.until(lambda: prometheus.query('forebay_build_info{job="forebay"}'), "no metric of the server is stored")
