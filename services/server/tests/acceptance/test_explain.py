"""`forebay explain`: reproduces batches byte for byte, a day and two snapshots later, and lists the rows that they contain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from client import Batch, Client
from server import ROOT, Pool, Server, binary, forebay, until
from test_auth import token_file

ROWS, ROW_GROUP_ROWS = 60_000, 5000
DAY_S = 86_400
ALL_ROWS = ["--max-listed-rows", "1000000"]

TENSOR = {"tensors": [{"name": "x", "columns": ["a", "b"], "dtype": "float32", "null_value": 0}]}
ITEMS = {"tensors": [{"name": "items", "columns": ["items"], "ragged": True}]}
DISTINCT = {"dedupe": [{"key": ["user"], "tensor": "who", "columns": ["user"]}]}
# Every job sends the column `id`.
JOBS: dict[str, dict[str, Any]] = {
    "windows": {"shuffle": {"window_rows": 20_000}, "world_size": 3, "lanes": 2, "epochs": 2},
    "global": {"shuffle": {"global": {}}, "world_size": 2, "columns": ["id", "name", "items"]},
    "file-order": {"shuffle": {"none": {}}, "batch_size": 1000, "seed": 0},
    "tensors": {"columns": ["id"], **TENSOR, "shuffle": {"window_rows": 30_000, "keep_block_order": True}, "lanes": 3},
    "filtered": {"filter": "a > 0.3 AND id % 7 <> 2", "select": ["id", "a * 2 AS y"], "world_size": 2},
    "grouped": {"group_by": ["user"], "filter": "id % 5 <> 1", "columns": ["id", "user"], **DISTINCT, "batch_size": 50},
    "packed": {"group_by": ["user"], "max_pack_rows": 300, "columns": ["id", "user"], "batch_size": 2, "world_size": 2, "remainder": "PAD"},
    "padded": {"columns": ["id"], **ITEMS, "remainder": "PAD", "batch_size": 1700, "world_size": 2},
    "partitioned": {"shuffle": {"window_rows": 40_000, "partitions": 2}, "world_size": 2, "columns": ["id"]},
    "mixture": {"columns": ["id"], **TENSOR, "mix": [{"dataset": "more", "fraction": 0.25, "filter": "b < 40"}]},
}
REQUESTS = {
    name: {"dataset": "rows", "batch_size": 800, "seed": 5, "job_name": name, "label_column": "click", **job}
    for name, job in JOBS.items()
}
Key = tuple[int, int, int]


def table(start: int, rows: int) -> pa.Table:
    ids = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "user": pa.array([row // 17 for row in ids], pa.int32()),
            "a": pa.array([None if row % 11 == 0 else (row * 37 % 1000) / 1000 for row in ids], pa.float32()),
            "b": pa.array([row % 97 for row in ids], pa.int16()),
            "name": [None if row % 13 == 0 else f"row {row}" for row in ids],
            "items": pa.array([list(range(row % 4)) for row in ids], pa.list_(pa.int64())),
            "click": pa.array([None if row % 101 == 0 else row % 3 == 0 for row in ids], pa.bool_()),
        }
    )


def write(path: Path, start: int, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(start, rows), path, row_group_size=ROW_GROUP_ROWS)


@dataclass
class Past:
    """The batches of all jobs as they were sent, the state, and the datasets, which have grown in two snapshots since."""

    rows: Path
    more: Path
    cache_dir: Path
    sent: dict[str, dict[Key, Batch]]
    plans: dict[str, dict[str, Any]]
    tickets: dict[str, bytes]

    @property
    def datasets(self) -> dict[str, Path]:
        return {"rows": self.rows, "more": self.more}

    @property
    def state(self) -> Path:
        return self.cache_dir / "state"

    def local(self) -> list[str]:
        """Returns the arguments with which `forebay explain` works without a server."""
        return ["--state", str(self.state), "--dataset", f"rows={self.rows}", "--dataset", f"more={self.more}"]

    def picked(self, job: str) -> list[Key]:
        """Returns the keys of some batches of a job: the first one, one in the middle, and the last one of every rank."""
        keys = sorted(self.sent[job])
        return sorted({keys[0], keys[len(keys) // 2], *keys[-3:]})


def backdate(record: Path) -> None:
    """Changes a job record as if it had been written a day earlier."""
    head, _, body = record.read_bytes().partition(b"\n")
    fields = json.loads(body)
    fields["first_seen"] -= DAY_S
    fields["last_seen"] -= DAY_S
    body = json.dumps(fields).encode()
    kind, version = head.decode().split()[:2]
    record.write_bytes(f"{kind} {version} {xxhash.xxh3_64(body).hexdigest()} {len(body)}\n".encode() + body)
    os.utime(record, (time.time() - DAY_S,) * 2)


@pytest.fixture(scope="module")
def past(module_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("past")
    made = Past(folder / "rows", folder / "more", folder / "cache", {}, {}, {})
    for part in range(4):
        write(made.rows / f"part-{part}.parquet", part * ROWS // 4, ROWS // 4)
    write(made.more / "only.parquet", 1_000_000, 7000)
    server = module_pool.start(made.datasets, cache_dir=made.cache_dir)
    with Client(server.location) as client:
        for name, request in REQUESTS.items():
            plan = client.plan(**request)
            made.plans[name], made.tickets[name] = plan.summary, plan.tickets[-1].ticket
            batches = [batch for ticket in plan.tickets for batch in client.read(ticket)]
            made.sent[name] = {(batch.meta.epoch, batch.meta.step, batch.meta.rank): batch for batch in batches}
    # Records are written in the background, and the jobs are listed from them. A stopping server waits for them only half a second.
    until(lambda: len(json.loads(server.http_get("/api/v1/jobs")[1])["jobs"]) == len(REQUESTS))
    server.stop()
    # Two more snapshots: one from a restart, one from a refresh. The new files sort before, between and after the old ones.
    write(made.rows / "a-new.parquet", 2_000_000, 9000)
    write(made.rows / "part-2b.parquet", 3_000_000, 9000)
    server = module_pool.start(made.datasets, cache_dir=made.cache_dir)
    write(made.rows / "z-new.parquet", 4_000_000, 9000)
    write(made.more / "b.parquet", 5_000_000, 9000)
    with Client(server.location) as client:
        changed = [client.refresh(dataset) for dataset in made.datasets]
    assert all(refreshed["changed"] for refreshed in changed)
    server.stop()
    assert len(list((made.state / "snapshots" / "rows").glob("*.manifest"))) == 3
    records = list((made.state / "jobs").iterdir())
    assert len(records) == len(REQUESTS)
    for record in records:
        backdate(record)
    return made


@pytest.fixture(scope="module")
def later(past: Past, module_pool: Pool) -> Iterator[Server]:
    """A server of the grown datasets with empty caches."""
    yield module_pool.start(
        past.datasets, cache_dir=past.cache_dir.with_name("another-cache"), state=past.state, cpu_threads=1
    )


def explain(*arguments: object, fails: bool = False) -> str:
    done = forebay("explain", *map(str, arguments))
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def at(key: Key) -> list[str]:
    return [part for name, number in zip(("--epoch", "--step", "--rank"), key) for part in (name, str(number))]


def message_of(stream: bytes) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Returns the batch of an Arrow stream and the body of its message."""
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
    assert reader.read_next_message().type == "schema"
    body = reader.read_next_message().body
    with pytest.raises(StopIteration):
        reader.read_next_message()
    (batch,) = pa.ipc.open_stream(stream)
    return batch, body


def check_bytes(stream: bytes, sent: Batch) -> None:
    batch, body = message_of(stream)
    assert xxhash.xxh3_64(body).intdigest() == sent.meta.content_hash
    assert batch.schema == sent.data.schema
    assert batch.equals(sent.data)
    assert batch.serialize() == sent.data.serialize()


def stored(row_ranges: list[dict[str, Any]], columns: list[str]) -> list[dict[str, Any]]:
    """Reads the rows of the row ranges with a plain Parquet reader. Returns them in the order of the batch."""
    rows: dict[int, dict[str, Any]] = {}
    for row_range in row_ranges:
        assert row_range["row_count"] == len(row_range["rows"]) == len(row_range["batch_row_indices"])
        file = pq.ParquetFile(row_range["url"])
        before = sum(file.metadata.row_group(group).num_rows for group in range(row_range["row_group"]))
        assert row_range["row_group_offset"] == before
        taken = file.read_row_group(row_range["row_group"], columns=columns).take(row_range["rows"]).to_pylist()
        rows.update(zip(row_range["batch_row_indices"], taken))
    assert sorted(rows) == list(range(len(rows)))
    return [rows[row] for row in range(len(rows))]


@pytest.mark.parametrize("job", REQUESTS)
def test_a_batch_is_reproduced_byte_for_byte_a_day_and_two_snapshots_later(
    past: Past, later: Server, tmp_path: Path, job: str
) -> None:
    for key in past.picked(job):
        sent = past.sent[job][key]
        here, there = tmp_path / "here.arrow", tmp_path / "there.arrow"
        explain("--job-name", job, *at(key), *past.local(), "--output", here)
        explain("--job-name", job, *at(key), "--server", later.http, "--output", there)
        assert here.read_bytes() == there.read_bytes()
        check_bytes(here.read_bytes(), sent)


@pytest.mark.parametrize("job", REQUESTS)
def test_the_listed_rows_are_the_rows_of_the_batch(past: Past, later: Server, job: str) -> None:
    for key in past.picked(job):
        sent = past.sent[job][key]
        text = explain("--job-name", job, *at(key), *past.local(), "--json", *ALL_ROWS)
        summary = json.loads(text)
        assert json.loads(explain("--job-name", job, *at(key), "--server", later.http, "--json", *ALL_ROWS)) == summary
        rows = stored(summary["row_ranges"], ["id", "click"])
        assert [row["id"] for row in rows] == sent.data.column("id").to_pylist()[: sent.meta.rows]
        assert (summary["epoch"], summary["step"], summary["rank"]) == key
        assert (summary["rows"], summary["position"]) == (sent.meta.rows, sent.meta.position)
        assert summary["mixed_positions"] == sent.meta.mixed_positions
        assert summary["padding"] == sent.data.num_rows - sent.meta.rows
        assert summary["groups"] == (len(sent.meta.group_offsets) - 1 if sent.meta.group_offsets else None)
        assert int(summary["content_hash"], 16) == sent.meta.content_hash
        assert (summary["steps"], summary["snapshot"]) == (
            int(past.plans[job]["steps"]),
            past.plans[job]["snapshot"],
        )
        plan = past.plans[job]
        assert summary["partitions"] == (int(plan["partitions"]) if "partitions" in plan else None)
        assert summary["rank_blocks"] == plan.get("rank_blocks")
        assert summary["same_blocks_every_epoch"] is plan.get("same_blocks_every_epoch", False)
        # The statistics of the label do not require that its column was sent.
        clicks = [row["click"] for row in rows if row["click"] is not None]
        assert summary["label"]["nulls"] == len(rows) - len(clicks)
        assert summary["label"]["mean"] == (pytest.approx(sum(clicks) / len(clicks)) if clicks else None)
        ids = next(column for column in summary["columns"] if column["name"] == "id")
        expected = sent.data.column("id").slice(0, sent.meta.rows).to_pylist()
        if expected:
            assert (ids["min"], ids["max"]) == (min(expected), max(expected))
            assert ids["mean"] == pytest.approx(sum(expected) / len(expected))


def test_an_explanation_says_what_partitions_mean_for_a_rank(past: Past, later: Server) -> None:
    status, body = later.http_get("/api/v1/explain?job_name=partitioned&step=1")
    answer = json.loads(body)
    # The dataset has four blocks, two in each partition. A window of a partition has both.
    assert (status, answer["partitions"], answer["rank_blocks"], answer["same_blocks_every_epoch"]) == (200, 2, 2.0, True)
    text = explain("--job-name", "partitioned", "--step", 1, *past.local())
    assert "2 partitions; a batch of a rank mixes the rows of about 2.0 blocks" in text


def test_parquet_and_json_hold_the_same_values(past: Past, later: Server, tmp_path: Path) -> None:
    for job in ["windows", "tensors", "padded", "packed"]:
        key = past.picked(job)[-1]
        data = past.sent[job][key].data
        for source in (past.local(), ["--server", later.http]):
            for name in ("batch.parquet", "batch.json"):
                explain("--job-name", job, *at(key), *source, "--output", tmp_path / name)
            assert pq.read_table(tmp_path / "batch.parquet").to_batches()[0].equals(data)
            rows = json.loads((tmp_path / "batch.json").read_text())
            assert len(rows) == data.num_rows
            assert [row["id"] for row in rows] == data.column("id").to_pylist()
            if job == "windows":
                assert pa.RecordBatch.from_pylist(rows, data.schema).equals(data)


def test_column_statistics_match_the_data(past: Past) -> None:
    key = past.picked("windows")[1]
    data = past.sent["windows"][key].data
    summary = json.loads(explain("--job-name", "windows", *at(key), *past.local(), "--json"))
    columns = {column["name"]: column for column in summary["columns"]}
    assert list(columns) == data.schema.names
    assert all(columns[name]["nulls"] == data.column(name).null_count for name in columns)
    floats = [value for value in data.column("a").to_pylist() if value is not None]
    assert (columns["a"]["min"], columns["a"]["max"], columns["a"]["nans"]) == (min(floats), max(floats), 0)
    names = sorted(filter(None, data.column("name").to_pylist()))
    assert (columns["name"]["min"], columns["name"]["max"]) == (names[0], names[-1])
    text = explain("--job-name", "windows", *at(key), *past.local())
    assert all(word in text for word in ["windows", summary["id"], "part-", "row group", "mean", summary["content_hash"]])


def test_a_batch_can_be_selected_by_ticket_instead_of_job_name(past: Past, later: Server, tmp_path: Path) -> None:
    ticket, out = tmp_path / "ticket.json", tmp_path / "batch.arrow"
    for job in ["windows", "mixture"]:
        ticket.write_bytes(past.tickets[job])
        train = json.loads(past.tickets[job])["train"]
        for source in (past.local(), ["--server", later.http]):
            # Step and rank are those of the ticket by default: its first step, and its rank.
            explain("--ticket", ticket, *source, "--output", out)
            check_bytes(out.read_bytes(), past.sent[job][0, 0, int(train.get("rank", 0))])
            explain("--ticket", ticket, "--step", 3, "--rank", 0, *source, "--output", out)
            check_bytes(out.read_bytes(), past.sent[job][0, 3, 0])
    loose = {name: value for name, value in train.items() if name != "snapshot"}
    ticket.write_text(json.dumps({"train": loose}))
    for source in (past.local(), ["--server", later.http]):
        assert "snapshot: is missing" in explain("--ticket", ticket, *source, fails=True)


def test_the_longest_ticket_of_a_stream_can_be_explained(past: Past, later: Server) -> None:
    for length, status in [(1 << 20, 200), ((1 << 20) + 1, 413)]:
        body = past.tickets["windows"].ljust(length)
        request = urllib.request.Request(f"http://{later.http}/api/v1/explain?step=3&rank=0&format=arrow", body, method="POST")
        try:
            with urllib.request.urlopen(request) as answer:
                assert status == 200
                check_bytes(answer.read(), past.sent["windows"][0, 3, 0])
        except urllib.error.HTTPError as refused:
            assert refused.code == status


def test_jobs_are_listed_with_their_requests(past: Past, later: Server) -> None:
    here = json.loads(explain("--list", "--json", "--state", past.state))["jobs"]
    status, body = later.http_get("/api/v1/jobs")
    assert (status, json.loads(body)["jobs"]) == (200, here)
    jobs = {job["job_name"]: job for job in here}
    assert set(jobs) == set(REQUESTS)
    mixture = jobs["mixture"]
    assert (mixture["dataset"], mixture["world_size"], mixture["batch_size"]) == ("rows", 1, 800)
    assert mixture["snapshot"] == past.plans["mixture"]["snapshot"]
    assert mixture["request"]["mix"][0]["snapshot"]
    assert "rank" not in mixture["request"] and "lane" not in mixture["request"]
    assert time.time() - 1.5 * DAY_S < mixture["first_seen"] <= mixture["last_seen"] < time.time() - 0.9 * DAY_S
    text = explain("--list", "--state", past.state)
    assert all(job["id"] in text for job in here)
    # A job can also be selected by its id.
    by_id = json.loads(explain("--job-name", mixture["id"], "--step", 1, *past.local(), "--json"))
    assert (by_id["job_name"], by_id["id"]) == ("mixture", mixture["id"])


def test_a_job_name_selects_the_most_recently_seen_job(pool: Pool, past: Past, tmp_path: Path) -> None:
    server = pool.start({"rows": past.rows})
    ids = []
    with Client(server.location) as client:
        for seed, jobs in ((1, 1), (2, 2), (1, 2)):
            (batch,) = client.batches(dataset="rows", batch_size=100, seed=seed, job_name="twice", steps=1)
            until(lambda: len(json.loads(server.http_get("/api/v1/jobs")[1])["jobs"]) == jobs)
            summary = json.loads(explain("--job-name", "twice", "--step", 0, "--server", server.http, "--json"))
            ids.append((summary["id"], summary["others"]))
    (first, none), (second, before), (still, _) = ids
    assert none == [] and before == [first] and second != first
    # The first job was streamed again, but the record of a job that was seen a moment ago is not rewritten.
    assert still == second


def test_invalid_requests_are_rejected_with_the_reason(past: Past, later: Server, tmp_path: Path) -> None:
    steps = int(past.plans["windows"]["steps"])
    for source in (past.local(), ["--server", later.http]):
        for arguments, words in [
            (["--job-name", "window", "--step", 0], ["no job 'window'", "did you mean 'windows'"]),
            (["--job-name", "qqqqq", "--step", 0], ["no job 'qqqqq'", f"{len(REQUESTS)} names"]),
            (["--job-name", "windows", "--step", steps], [f"step: is {steps}", f"expected 0 to {steps - 1}"]),
            (["--job-name", "windows", "--step", 0, "--rank", 3], ["rank: is 3", "expected 0 to 2"]),
            (["--job-name", "windows", "--step", 0, "--output", "batch.csv"], ["batch.csv", ".parquet"]),
            (["--step", 0], ["--job-name NAME", "--list"]),
            (["--job-name", "windows"], ["--step"]),
        ]:
            error = explain(*arguments, *source, fails=True)
            assert all(word in error for word in words), (arguments, error)
    # Without a server, the caller must name the URL of every dataset of the job.
    error = explain("--job-name", "mixture", "--step", 0, *past.local()[:4], fails=True)
    assert "--dataset more=URL" in error
    assert "no jobs are recorded" in explain("--job-name", "x", "--step", 0, "--state", tmp_path, fails=True)
    # Over HTTP, each error has its own status.
    for query, status, word in [
        ("job_name=window&step=0", 404, "did you mean"),
        ("job_name=windows", 400, "step"),
        ("job_name=windows&step=-1", 400, "step"),
        ("job_name=windows&step=0&format=csv", 400, "format"),
        (f"job_name=windows&step={steps}", 400, f"0 to {steps - 1}"),
    ]:
        found, body = later.http_get(f"/api/v1/explain?{query}")
        assert found == status and word in json.loads(body)["error"], body


def test_errors_name_changed_files_and_missing_snapshots(pool: Pool, tmp_path: Path) -> None:
    for part in range(3):
        write(tmp_path / "rows" / f"part-{part}.parquet", part * 20_000, 20_000)
    server = pool.start({"rows": tmp_path / "rows"}, cache_dir=tmp_path / "cache")
    with Client(server.location) as client:
        sent = list(client.batches(dataset="rows", batch_size=100, job_name="old", shuffle={"none": {}}, steps=400))
    server.stop()
    write(tmp_path / "rows" / "part-1.parquet", 20_000, 19_999)
    server = pool.start({"rows": tmp_path / "rows"}, cache_dir=tmp_path / "cache", cache_disk=0)
    local = ["--state", tmp_path / "cache" / "state", "--dataset", f"rows={tmp_path / 'rows'}"]
    # Batches without rows of the changed file can still be explained.
    explain("--job-name", "old", "--step", 0, *local, "--output", tmp_path / "batch.arrow")
    check_bytes((tmp_path / "batch.arrow").read_bytes(), sent[0])
    for source in (local, ["--server", server.http]):
        error = explain("--job-name", "old", "--step", 399, *source, fails=True)
        assert "part-1.parquet has changed" in error, error
    for manifest in (tmp_path / "cache" / "state" / "snapshots" / "rows").iterdir():
        manifest.unlink()
    server.stop()
    server = pool.start({"rows": tmp_path / "rows"}, cache_dir=tmp_path / "cache")
    for source in (local, ["--server", server.http]):
        error = explain("--job-name", "old", "--step", 0, *source, fails=True)
        assert "has no snapshot" in error and "rows" in error, error


def test_a_caller_sees_and_explains_only_jobs_of_datasets_it_may_read(pool: Pool, past: Past, tmp_path: Path) -> None:
    tokens = token_file(tmp_path / "tokens.toml", rows=(["rows"], None), all=(["*"], None), none=(["payments"], None))
    server = pool.start(past.datasets, state=past.state, tokens=tokens)

    def get(path: str, who: str | None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer token-of-{who}"} if who else {}
        return server.http_get(path, **headers)

    seen = {who: json.loads(get("/api/v1/jobs", who)[1])["jobs"] for who in ("rows", "all", "none")}
    assert {job["job_name"] for job in seen["all"]} == set(REQUESTS)
    # The mixture contains rows of a dataset that this token may not read.
    assert {job["job_name"] for job in seen["rows"]} == set(REQUESTS) - {"mixture"}
    assert seen["none"] == []
    mixture = next(job["id"] for job in seen["all"] if job["job_name"] == "mixture")
    for who, job, status in [
        ("rows", "windows", 200),
        ("rows", "mixture", 404),
        ("rows", mixture, 404),
        ("all", mixture, 200),
        ("none", "windows", 404),
        (None, "windows", 401),
    ]:
        assert get(f"/api/v1/explain?job_name={job}&step=0", who)[0] == status, (who, job)
    # The answer does not say that the job exists.
    unknown = "0" * 32
    answers = [get(f"/api/v1/explain?job_name={job}&step=0", "rows")[1].replace(job, "") for job in (mixture, unknown)]
    assert answers[0] == answers[1]
    secret = tmp_path / "token"
    secret.write_text("token-of-rows\n")
    asked = ["--job-name", "windows", "--step", 0, "--server", f"http://{server.http}"]
    assert "part-" in explain(*asked, "--token-file", secret)
    assert "token" in explain(*asked, fails=True)


def test_a_stream_neither_waits_nor_fails_if_job_records_cannot_be_saved(pool: Pool, past: Past, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "jobs").write_text("a file instead of a folder")
    server = pool.start({"rows": past.rows}, state=state)
    with Client(server.location) as client:
        for seed in range(5):
            assert len(list(client.batches(dataset="rows", batch_size=100, seed=seed, job_name="j", steps=3))) == 3
    server.stop()
    assert server.log().count("cannot save job records") == 1


def test_the_newest_job_records_are_kept_up_to_max_jobs(pool: Pool, past: Past, tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[limits]\nmax_jobs = 4\n")
    server = pool.start({"rows": past.rows}, config=config)
    records, clock = server.cache_dir / "state" / "jobs", tmp_path / "clock"

    def is_past(job_name: str) -> bool:
        """True if the record of the job is written, and a file that is written now is newer."""
        listed = json.loads(server.http_get("/api/v1/jobs")[1])["jobs"]
        if not listed or listed[0]["job_name"] != job_name:
            return False
        clock.write_text("")
        try:
            newest = max(path.stat().st_mtime_ns for path in records.iterdir())
        except FileNotFoundError:
            # The server has deleted an old record since it was found.
            return False
        return newest < clock.stat().st_mtime_ns

    with Client(server.location) as client:
        for seed in range(9):
            list(client.batches(dataset="rows", batch_size=100, seed=seed, job_name=f"job-{seed}", steps=1))
            until(lambda: is_past(f"job-{seed}"))
    server.stop()
    kept = json.loads(explain("--list", "--json", "--cache-dir", server.cache_dir, "--config", config))["jobs"]
    assert {job["job_name"] for job in kept} == {f"job-{seed}" for seed in range(5, 9)}


def test_many_jobs_of_one_dataset_do_not_displace_the_job_records_of_another(
    pool: Pool, past: Past, tmp_path: Path
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[limits]\nmax_jobs = 4\n")
    server = pool.start(past.datasets, config=config)
    listed = lambda: {job["job_name"] for job in json.loads(server.http_get("/api/v1/jobs")[1])["jobs"]}
    with Client(server.location) as client:
        list(client.batches(dataset="more", batch_size=100, job_name="kept", steps=1))
        until(lambda: "kept" in listed())
        for seed in range(9):
            list(client.batches(dataset="rows", batch_size=100, seed=seed, job_name=f"job-{seed}", steps=1))
            until(lambda: f"job-{seed}" in listed())
            assert "kept" in listed()
    until(lambda: len(list((server.cache_dir / "state" / "jobs").iterdir())) == 4)
    server.stop()
    kept = json.loads(explain("--list", "--json", "--cache-dir", server.cache_dir, "--config", config))["jobs"]
    assert "kept" in {job["job_name"] for job in kept} and len(kept) == 4


def test_a_batch_too_large_for_http_can_be_written_without_a_server(pool: Pool, past: Past, tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[limits]\nmax_explain_bytes = 10000\n")
    server = pool.start(past.datasets, state=past.state, config=config)
    status, body = server.http_get("/api/v1/explain?job_name=windows&step=0&format=json")
    assert status == 413 and "max_explain_bytes" in json.loads(body)["error"], body
    assert server.http_get("/api/v1/explain?job_name=windows&step=0")[0] == 200
    explain("--job-name", "windows", "--step", 0, *past.local(), "--output", tmp_path / "batch.json")
    assert (tmp_path / "batch.json").stat().st_size > 10_000


DOCUMENT = (ROOT / "docs" / "how-to" / "explain-a-batch.md").read_text()


def test_the_commands_of_the_how_to_guide_run_as_written(pool: Pool, tmp_path: Path) -> None:
    """Runs every code block of docs/how-to/explain-a-batch.md, in order, in one folder."""
    rows = 5_400_000
    users = pa.array(range(rows), pa.int64())
    clicks = pa.table({"user": users, "price": pa.array([0.5] * rows, pa.float32()), "click": [False, True] * (rows // 2)})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "forebay").symlink_to(binary())
    (tmp_path / "clicks").mkdir()
    pq.write_table(clicks, tmp_path / "clicks" / "part-0.parquet", row_group_size=100_000)
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    (serve, *commands) = [text for language, text in blocks if language == "sh"]
    assert serve == "forebay serve --dataset clicks=./clicks --cache-dir ./cache\n"
    server = pool.start({"clicks": tmp_path / "clicks"}, cache_dir=tmp_path / "cache")
    (stream, check) = [text for language, text in blocks if language == "python"]

    def run(program: list[str], text: str) -> str:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        text = text.replace("127.0.0.1:8815", server.grpc).replace("127.0.0.1:8816", server.http)
        done = subprocess.run(
            [*program, text], cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        return done.stdout

    run([sys.executable, "-c"], stream)
    said = "".join(run(["sh", "-ec"], command) for command in commands)
    assert "step 81234" in said and "part-0.parquet" in said
    assert (tmp_path / "batch.parquet").exists()
    assert "the same" in run([sys.executable, "-c"], stream + check)
