"""If name servers hang, only the stores that are addressed by name are affected."""

from __future__ import annotations

from pathlib import Path

from s3 import make_bucket, s3_server
from server import until
from test_hanging_file_system import WHOLE, io_threads
from test_hangs import NO_DEADLINE, Hangs, datasets, hangs, library  # noqa: F401

# Each dataset needs 24 requests, one per block.
DATASETS = 20
NAME = "localhost"


def test_local_datasets_are_read_while_the_name_servers_of_twenty_others_hang(hangs: Hangs, tmp_path: Path) -> None:  # noqa: F811
    hanging = hangs.folder(tmp_path / "unused")
    with s3_server(tmp_path / "s3.log") as endpoint:
        bucket = make_bucket(endpoint, "hangs")
        stored = [f"stored-{number}" for number in range(DATASETS)]
        for name in stored:
            bucket.upload_folder(hangs.datasets["mine"], name)
        hangs.datasets = {"local": hangs.datasets["others"], **{name: bucket.url(name) for name in stored}}
        # No idle connections are kept, so that each request looks up the name.
        env = {
            **bucket.environment,
            "AWS_ENDPOINT": endpoint.replace("127.0.0.1", NAME),
            "AWS_POOL_MAX_IDLE_PER_HOST": "0",
            "HANG_NAME": NAME,
        }
        settings = f"{NO_DEADLINE}[loader]\ndecode_bytes = 1073741824\n"
        server = hangs.start(settings, env=env, cache_memory="1GiB", cache_disk=0)
        digest = lambda name, seed: hangs.digest(name, **{**WHOLE, "seed": seed})
        idle = io_threads(server)
        hanging.hang()
        waiting = [hangs.begin(digest, name, 0) for name in stored]
        # All streams wait, and their first requests have failed to connect.
        until(lambda: server.log().count("transport error of kind Timeout") >= DATASETS, failure="the name servers do not hang")

        found = hangs.in_time(digest, "local", 0)
        hangs.check_probes()
        assert not any(stream.done() for stream in waiting), "the name servers do not hang"
        assert io_threads(server) < idle + DATASETS, "the lookups of one name are not shared"

        hanging.answer()
        for stream in waiting:
            hangs.result(stream, 60)
        assert found == hangs.in_time(digest, "local", 0)
