"""The metric of the autoscaler: trainers of a known rate demand what arithmetic gives, and no server is added for a slow store."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Iterator

import pytest

from metrics import scrape
from s3 import Bucket, s3_server
from server import Pool, Server, until
from slow import slow_way
from trainer import Trainer

BATCH = 16_384
# Gathering takes this long and one thread does it, so that the server sends 12.5 batches per second at most.
GATHER_S = 0.08
TRAINERS = 4
# Two windows of a verdict, and the time until reports are settled.
SETTLED_S = 24
# Number of times that a demand is compared with what the trainers measure, until both agree. A pause of one process of a busy machine
# falls into only one of the two.
MEASUREMENTS = 3
TARGET_LOAD = 0.8


def train(job: int, **more: Any) -> dict[str, Any]:
    """The request of a job, whose rows are the same for all jobs."""
    request = {"dataset": "flights", "columns": ["delay"], "batch_size": BATCH, "epochs": 100}
    return {**request, "job_name": f"job-{job}", **more}


@contextmanager
def running(trainers: list[Trainer]) -> Iterator[None]:
    """Runs trainers until the block ends."""
    threads = [threading.Thread(target=trainer.run) for trainer in trainers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for trainer in trainers:
            trainer.stop()
        for thread in threads:
            thread.join()


def wanted(server: Server) -> float:
    return scrape(server).value("forebay_wanted_servers")


def averages(server: Server, seconds: float) -> float:
    """Returns the average of the metric over a time, as an autoscaler that smooths it sees it."""
    (average,) = averages_of([server], seconds)
    return average


def averages_of(servers: list[Server], seconds: float) -> list[float]:
    """Returns the average of the metric of each server over a time."""
    values: list[list[float]] = []
    until_then = time.monotonic() + seconds
    while time.monotonic() < until_then:
        values.append([wanted(server) for server in servers])
        time.sleep(0.5)
    return [sum(of) / len(of) for of in zip(*values)]


def gathers_slowly(pool: Pool) -> Path:
    path = pool.folder / "forebay.toml"
    path.write_text(f'cpu_threads = 1\n[loader.fault_injection]\ngather = "{GATHER_S * 1000:.0f}ms"\n')
    return path


def growths(trainers: list[Trainer], before: list[tuple[float, float]]) -> list[float]:
    """Returns for each trainer the rate that it would take without waiting, divided by the rate that it has, as it measures it
    since `before`."""
    found = []
    for trainer, (waited, computed) in zip(trainers, before):
        waited, computed = trainer.waited - waited, trainer.computed - computed
        found.append((waited + computed) / computed)
    return found


@pytest.mark.timeout(180)
def test_trainers_demand_the_servers_for_the_rate_that_they_would_take(pool: Pool, small_groups: Path) -> None:
    server = pool.start({"flights": small_groups}, config=gathers_slowly(pool))
    assert wanted(server) == 0
    # Each takes a batch per 160 ms if it never waits: 25 per second together, twice the rate of the server.
    trainers = [Trainer(server.location, train(job), 2 * GATHER_S) for job in range(TRAINERS)]
    with running(trainers):
        time.sleep(SETTLED_S)
        for _ in range(MEASUREMENTS):
            before = [(trainer.waited, trainer.computed) for trainer in trainers]
            average = averages(server, 10)
            grown = growths(trainers, before)
            # All have the same share of a thread that is always busy. No job demands more than one server at the target load.
            expected = sum(min(TARGET_LOAD, growth / TRAINERS) for growth in grown)
            print(f"wanted {average:.2f}, {expected:.2f} by the trainers, which would take {grown} times their rates")
            if average == (close := pytest.approx(expected, rel=0.15)):
                break
    assert average > 1.5
    assert average == close
    until(lambda: wanted(server) == 0, 30, "the demand of trainers that ended remains")


@pytest.mark.timeout(180)
def test_the_demand_of_a_job_on_two_servers_adds_up_to_at_most_its_number_of_partitions(pool: Pool, small_groups: Path) -> None:
    ranks, config = 4, gathers_slowly(pool)
    # The job with 2 partitions and the one with 4 have two servers each, whose ranks read one half of the partitions each.
    servers = {count: [pool.start({"flights": small_groups}, config=config) for _ in range(2)] for count in (2, 4)}
    # Two ranks would take 1.4 times the rate of their server if they never waited.
    trainers = {
        count: [
            Trainer(
                pair[rank * len(pair) // ranks].location,
                train(count, world_size=ranks, rank=rank, shuffle={"partitions": count}),
                2 * GATHER_S / 1.4,
            )
            for rank in range(ranks)
        ]
        for count, pair in servers.items()
    }

    def expected(count: int) -> float:
        # Half of the ranks share a thread that is always busy, so each has half of a server.
        limit = TARGET_LOAD * count / 2
        return sum(min(limit, sum(of) / 2) for of in (grown[count][:2], grown[count][2:]))

    with running([*trainers[2], *trainers[4]]):
        time.sleep(SETTLED_S)
        for _ in range(MEASUREMENTS):
            before = {count: [(each.waited, each.computed) for each in of] for count, of in trainers.items()}
            averages = averages_of([*servers[2], *servers[4]], 10)
            grown = {count: growths(of, before[count]) for count, of in trainers.items()}
            print(f"wanted {averages}, growths {grown}")
            sums = [sum(averages[:2]), sum(averages[2:])]
            if sums == (close := pytest.approx([expected(2), expected(4)], rel=0.15)):
                break
    assert sums == close
    assert all(average <= TARGET_LOAD * count * 1.001 for count, average in zip((2, 4), sums))
    assert sums[1] > 1.5 * sums[0]


@pytest.mark.timeout(120)
def test_a_job_that_one_server_has_to_decode_does_not_demand_a_second_one(pool: Pool, small_groups: Path) -> None:
    server = pool.start({"flights": small_groups}, config=gathers_slowly(pool))
    ranks = [Trainer(server.location, train(0, world_size=4, rank=rank), GATHER_S) for rank in range(4)]
    with running(ranks):
        time.sleep(SETTLED_S)
        values = [wanted(server) for _ in range(3)]
    assert values == pytest.approx([TARGET_LOAD] * 3)


@pytest.mark.timeout(180)
def test_no_server_is_demanded_for_a_slow_store(small_groups: Path, pool: Pool) -> None:
    with ExitStack() as stack:
        bucket = Bucket(stack.enter_context(s3_server(pool.folder / "s3.log")), "autoscaling")
        bucket.client().create_bucket(Bucket=bucket.name)
        bucket.upload_folder(small_groups, "flights")
        way = stack.enter_context(slow_way(bucket.endpoint.removeprefix("http://"), 0.25))
        config = pool.folder / "forebay.toml"
        config.write_text('cache_memory = "4 MiB"\ncache_disk = 0\n[storage]\nconcurrent_requests = 1\n')
        env = {**bucket.environment, "AWS_ENDPOINT": f"http://{way}"}
        server = pool.start({"flights": bucket.url("flights")}, config=config, env=env)
        # The trainer waits for each block.
        one_block = {"batch_size": 4096, "shuffle": {"window_rows": 16_384}}
        trainer = Trainer(server.location, train(0, **one_block), 0.002)
        with running([trainer]):
            time.sleep(SETTLED_S)
            before = [(trainer.waited, trainer.computed)]
            average = averages(server, 10)
            (growth,) = growths([trainer], before)
    print(f"wanted {average:.2f}, measured by the trainer {growth:.2f}")
    assert growth > 4, "the trainer does not wait for the store"
    assert 0 < average < 0.5
