"""Stall accounting: the server charges a delay that is injected into a stage to this stage, and names it as the bottleneck."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator

import pyarrow.parquet as pq
import pytest

from s3 import Bucket, s3_server
from server import Pool, Server
from slow import slow_way
from trainer import Trainer

BATCH = 4096
COMPUTE_S = 0.002
VERDICT_WITHIN_S = 30
# Number of times that a scenario is measured, until the server and the trainer agree. On a busy machine, a process may pause, which
# delays other stages.
MEASUREMENTS = 3
# Windows of one block, so that the trainer waits for each block, and a cache that is too small to keep blocks.
ONE_BLOCK = {"shuffle": {"window_rows": 16_384}}
COLD = 'cache_memory = "4 MiB"\ncache_disk = 0\n'

# The first test waits for the runs of all scenarios, which take about a minute and a half.
pytestmark = pytest.mark.timeout(600)


@dataclass
class Seen:
    """Measurements of one run."""

    waited: float = 0.0
    computed: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0
    # Seconds until each bottleneck was named for the first time.
    named_after: dict[str, float] = field(default_factory=dict)
    # The last verdict that named a bottleneck.
    verdict: dict[str, Any] = field(default_factory=dict)


def get(server: Server, path: str) -> Any:
    status, body = server.http_get(path)
    assert status == 200, body
    return json.loads(body)


def watch(server: Server, trainer: Trainer, steps: int | None) -> Seen:
    """Runs a trainer to its end and polls the bottleneck."""
    seen, done = Seen(), threading.Event()
    began = time.monotonic()

    def ask() -> None:
        while not done.wait(0.5):
            running = get(server, "/api/v1/sessions")["sessions"]
            verdict = next((each["verdict"] for each in running if each["dataset"] == "flights"), {"bottleneck": "idle"})
            seen.named_after.setdefault(verdict["bottleneck"], time.monotonic() - began)
            if verdict["bottleneck"] not in ("unknown", "idle"):
                seen.verdict = verdict

    asker = threading.Thread(target=ask)
    asker.start()
    trainer.run(steps)
    done.set()
    asker.join()
    # The server keeps an ended session for a minute. Wait until the session includes its last report, that is, until its times are
    # the same three times in succession.
    session, unchanged = None, 0
    while unchanged < 2:
        time.sleep(1.5)
        events = get(server, "/api/v1/events")["events"]
        ids = [event["session"] for event in events if event["session"] and event["dataset"] == "flights"]
        session, before = get(server, f"/api/v1/sessions/{ids[-1]}"), session
        unchanged = unchanged + 1 if before is not None and session["seconds"] == before["seconds"] else 0
    seen.waited, seen.computed = trainer.waited, trainer.computed
    seen.seconds, seen.wall = session["seconds"], session["wall_seconds"]
    return seen


def config(folder: Path, text: str) -> Path:
    path = folder / "forebay.toml"
    path.write_text(text)
    return path


@dataclass
class Place:
    """Data that the scenarios share, locally and in a bucket, and a folder for their files."""

    folder: Path
    data: Path
    bucket: Bucket

    def server(self, pool: Pool, settings: str, url: str | Path | None = None, **env: str) -> Server:
        return pool.start({"flights": url or self.data}, config=config(pool.folder, settings), env=env)

    def train(self, **more: Any) -> dict[str, Any]:
        return {"dataset": "flights", "columns": ["delay", "distance"], "batch_size": BATCH, "epochs": 10, **more}


# Each scenario runs a trainer for some steps on a server of its own pool, with the delay if `slow` is true.


def storage(place: Place, pool: Pool, slow: bool) -> Seen:
    with ExitStack() as stack:
        bucket, delay = place.bucket, 0.25 if slow else 0.0
        way = stack.enter_context(slow_way(bucket.endpoint.removeprefix("http://"), delay))
        env = {**bucket.environment, "AWS_ENDPOINT": f"http://{way}"}
        server = place.server(pool, COLD + "[storage]\nconcurrent_requests = 1\n", bucket.url("flights"), **env)
        return watch(server, Trainer(server.location, place.train(**ONE_BLOCK), COMPUTE_S), 400)


def decode(place: Place, pool: Pool, slow: bool) -> Seen:
    delays = '[loader.fault_injection]\ndecode = "250ms"\n' if slow else ""
    server = place.server(pool, COLD + "cpu_threads = 4\n[loader]\nwindow_prefetch_bytes = 0\n" + delays)
    return watch(server, Trainer(server.location, place.train(**ONE_BLOCK), COMPUTE_S), 400)


def gather(place: Place, pool: Pool, slow: bool) -> Seen:
    delays = '[loader.fault_injection]\ngather = "60ms"\n' if slow else ""
    server = place.server(pool, "cpu_threads = 1\n" + delays)
    return watch(server, Trainer(server.location, place.train(), COMPUTE_S), 420)


def network(place: Place, pool: Pool, slow: bool) -> Seen:
    server = place.server(pool, "")
    with slow_way(server.grpc, bytes_per_second=1_000_000 if slow else None) as way:
        return watch(server, Trainer(f"grpc://{way}", place.train(), COMPUTE_S), 400)


def compute(place: Place, pool: Pool, slow: bool) -> Seen:
    server = place.server(pool, "")
    return watch(server, Trainer(server.location, place.train(), 0.06 if slow else COMPUTE_S), 420)


def queued(place: Place, pool: Pool, slow: bool) -> Seen:
    # The blocks stay in memory and one batch is prefetched at a time. The only CPU thread decodes blocks of another job, 250 ms each.
    few = pool.folder / "few.parquet"
    pq.write_table(pq.ParquetFile(sorted(place.data.iterdir())[0]).read_row_group(0), few)
    text = 'cpu_threads = 1\n[loader]\nprefetch_bytes = 1\n[loader.fault_injection]\ndecode = "250ms"\n'
    server = pool.start({"flights": few, "others": place.data}, config=config(pool.folder, text))
    others = Trainer(server.location, {**place.train(), "dataset": "others"}, 0.0, reports=False)
    crowd = threading.Thread(target=others.run)
    if slow:
        crowd.start()
    seen = watch(server, Trainer(server.location, place.train(epochs=400), COMPUTE_S), 900)
    others.stop()
    if slow:
        crowd.join()
    return seen


SCENARIOS: dict[str, Callable[[Place, Pool, bool], Seen]] = {
    "storage": storage,
    "decode": decode,
    "gather": gather,
    "network": network,
    "compute": compute,
    "queued": queued,
}


Measure = Callable[[str, int], tuple[Seen, Seen]]


@pytest.fixture(scope="module")
def measure(small_groups: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Yields a function that returns measurement `number` of a scenario: one run without its delay and one with it. The first runs with
    a delay are concurrent, because they mostly wait: one per core, and at least two. More of them would delay each other."""
    folder = tmp_path_factory.mktemp("stalls")
    with s3_server(folder / "s3.log") as endpoint:
        bucket = Bucket(endpoint, "stalls")
        bucket.client().create_bucket(Bucket=bucket.name)
        bucket.upload_folder(small_groups, "flights")
        place = Place(folder, small_groups, bucket)

        def run(name: str, slow: bool, number: int = 0) -> Seen:
            pool = Pool(folder / f"{name}-{slow}-{number}")
            pool.folder.mkdir()
            try:
                return SCENARIOS[name](place, pool, slow)
            finally:
                pool.close()

        before = {name: run(name, False) for name in SCENARIOS}
        with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as executor:
            after = {name: executor.submit(run, name, True) for name in SCENARIOS}
            first = {name: (before[name], after[name].result()) for name in SCENARIOS}
        yield lambda name, number: (run(name, False, number), run(name, True, number)) if number else first[name]


@pytest.mark.parametrize("stage", SCENARIOS)
def test_a_delay_in_a_stage_is_charged_to_it_and_named_as_bottleneck(stage: str, measure: Measure) -> None:
    for number in range(MEASUREMENTS):
        is_last = number == MEASUREMENTS - 1
        with contextlib.nullcontext() if is_last else contextlib.suppress(AssertionError):
            check(stage, *measure(stage, number))
            break


def check(stage: str, before: Seen, after: Seen) -> None:
    """Asserts that the delay of a stage is charged to it, and that no other bottleneck is named."""
    print(f"{stage}: before {before}, after {after}")
    of_trainer = (lambda seen: seen.computed) if stage == "compute" else (lambda seen: seen.waited)
    injected = of_trainer(after) - of_trainer(before)
    assert injected > 15, "the delay is too short to measure"
    charged = after.seconds[stage] - before.seconds[stage]
    assert charged == pytest.approx(injected, rel=0.1)
    assert sum(after.seconds.values()) == pytest.approx(after.waited + after.computed, rel=0.01)
    assert sum(after.seconds.values()) == pytest.approx(after.wall, rel=0.01)
    assert after.named_after.get(stage, 1e9) <= VERDICT_WITHIN_S, after.named_after
    others = set(after.named_after) - {stage, "unknown", "idle"}
    assert not others, f"also named: {others}"


def test_a_cache_removes_the_bottleneck_of_a_slow_bucket(
    small_groups: Path, tmp_path: Path
) -> None:
    """Compares training without and with a cache. Without it, every epoch reads the bucket, and the accelerator is mostly idle.
    With it, the second epoch runs as fast as the accelerator."""
    compute, columns = 0.01, ["delay", "distance"]
    train = {"dataset": "flights", "columns": columns, "batch_size": BATCH, **ONE_BLOCK}
    with s3_server(tmp_path / "s3.log") as endpoint:
        bucket = Bucket(endpoint, "petastorm")
        bucket.client().create_bucket(Bucket=bucket.name)
        for path in sorted(small_groups.iterdir())[:3]:
            bucket.upload(path, f"flights/{path.name}")
        with slow_way(endpoint.removeprefix("http://"), 0.25) as way:
            env = {**bucket.environment, "AWS_ENDPOINT": f"http://{way}"}

            def run(name: str, settings: str, *epochs: int) -> dict[str, Any]:
                """Trains for each of the numbers of epochs, one after another. Returns the last verdict of the last run."""
                (tmp_path / name).mkdir()
                pool = Pool(tmp_path / name)
                try:
                    text = settings + "[storage]\nconcurrent_requests = 1\n"
                    server = pool.start({"flights": bucket.url("flights")}, config=config(pool.folder, text), env=env)
                    for count in epochs:
                        seen = watch(server, Trainer(server.location, {**train, "epochs": count}, compute), None)
                    return seen.verdict
                finally:
                    pool.close()

            with ThreadPoolExecutor(2) as executor:
                without = executor.submit(run, "without", COLD, 2)
                cached = executor.submit(run, "cached", "", 1, 7)
                without, cached = without.result(), cached.result()
    print(without["summary"], cached["summary"], sep="\n")
    assert without["bottleneck"] == "storage"
    assert without["compute_fraction"] < 0.2
    assert any(advice["setting"] in ("cache_memory", "cache_disk") for advice in without["advice"]), without
    assert cached["bottleneck"] == "compute"
    assert cached["compute_fraction"] > 0.9
    assert cached["summary"].startswith("The trainer computes for ")
