"""The verdict names a store that does not answer, and the rank whose input is slow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from s3 import make_bucket, s3_server
from server import Pool, Server, until
from slow import Gate, slow_way
from trainer import Trainer

# A cache that is too small to keep blocks, and windows of one block: each window reads the store.
SETTINGS = 'cache_memory = "4 MiB"\ncache_disk = 0\n'
TRAIN = {
    "dataset": "flights",
    "job_name": "resnet",
    "columns": ["delay", "distance"],
    "batch_size": 4096,
    "epochs": 1000,
    "shuffle": {"window_rows": 16_384},
}


def get(server: Server, path: str) -> Any:
    status, body = server.http_get(f"/api/v1/{path}")
    assert status == 200, body
    return json.loads(body)


def test_a_store_that_does_not_answer_is_named_with_the_time_since_its_last_answer(
    pool: Pool, small_groups: Path, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3.log") as endpoint:
        bucket = make_bucket(endpoint, "silence")
        bucket.upload_folder(small_groups, "flights")
        gate = Gate(endpoint.removeprefix("http://"))
        env = {**bucket.environment, "AWS_ENDPOINT": f"http://{gate.address}"}
        config = tmp_path / "forebay.toml"
        config.write_text(SETTINGS)
        server = pool.start({"flights": bucket.url("flights")}, config=config, env=env)
        dataset = lambda: get(server, "datasets")["datasets"][0]
        assert dataset()["silent_seconds"] is None
        trainer = Trainer(server.location, TRAIN, 0.001)
        training = threading.Thread(target=trainer.run, daemon=True)
        training.start()
        until(lambda: trainer.steps >= 10)
        gate.close()
        until(lambda: dataset()["silent_seconds"] is not None)
        seconds = dataset()["silent_seconds"]
        assert seconds >= 3
        until(lambda: (dataset()["silent_seconds"] or 0) > seconds)
        verdict = lambda: get(server, "overview")["verdict"]
        until(lambda: verdict()["silent_dataset"] == "flights", failure=lambda: str(verdict()))
        now = verdict()
        assert now["silent_seconds"] >= 3 and now["what_if"] is None and now["advice"] == []
        assert now["summary"].startswith("No answer from the store of dataset 'flights' for ")
        assert "at most" not in now["summary"]
        (session,) = get(server, "sessions")["sessions"]
        assert session["verdict"]["summary"].startswith("No answer from the store of dataset 'flights' for ")
        steps = trainer.steps
        gate.open()
        until(lambda: trainer.steps > steps + 10)
        until(lambda: dataset()["silent_seconds"] is None and verdict()["silent_dataset"] is None)
        trainer.stop()
        training.join()


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_whose_input_is_slow_is_named_as_the_straggler(
    pool: Pool, small_groups: Path, tmp_path: Path, slow: int
) -> None:
    server = pool.start({"flights": small_groups})
    with slow_way(server.grpc, bytes_per_second=100_000) as way:
        location = lambda rank: f"grpc://{way}" if rank == slow else server.location
        # The other one computes for most of the time.
        trainers = [
            Trainer(location(rank), {**TRAIN, "world_size": 2, "rank": rank}, 0.001 if rank == slow else 0.1)
            for rank in range(2)
        ]
        threads = [threading.Thread(target=trainer.run, daemon=True) for trainer in trainers]
        [thread.start() for thread in threads]
        jobs: list[dict[str, Any]] = []

        def is_named() -> bool:
            jobs[:] = get(server, "overview")["jobs"]
            return [job["straggler"] for job in jobs] == [slow]

        until(is_named, failure=lambda: str(jobs))
        (job,) = jobs
        assert (job["job_name"], job["world_size"], job["running_ranks"]) == ("resnet", 2, 2)
        assert [rank["rank"] for rank in job["ranks"]] == [0, 1]
        begin = f"Rank {slow} of job 'resnet' is the straggler: it waits "
        assert job["summary"].startswith(begin) and job["summary"].endswith("and the other ranks wait for it."), job
        [trainer.stop() for trainer in trainers]
        [thread.join() for thread in threads]
