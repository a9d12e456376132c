"""Lookups return the rows of training, for any number of threads, after server restarts and forks."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import forebay
from forebay import errors
from ports import free_port
from server import Pool, Server, until

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

pytestmark = pytest.mark.once

USERS = 20_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "users").mkdir()
    ids = np.arange(USERS)
    rows = {"user_id": ids, "name": [f"user {id}" for id in ids]}
    rows |= {f"f{column}": ids.astype(np.float32) * 8 + column for column in range(8)}
    pq.write_table(pa.table(rows), tmp_path / "users" / "all.parquet", row_group_size=5000)
    return tmp_path / "users"


@pytest.fixture
def users(pool: Pool, data: Path) -> Server:
    return pool.start({"users": data}, online="users=user_id")


def look_up(client: forebay.Client, ids: list[int], **options) -> forebay.Rows:
    return client.lookup("users", {"user_id": ids}, columns=["name"], tensors={"x": ["f*"]}, **options)


def assert_rows(rows: forebay.Rows, ids: list[int]) -> None:
    assert rows["name"].to_arrow().to_pylist() == [f"user {id}" for id in ids]
    assert (rows["x"].to_numpy() == np.asarray(ids)[:, None] * 8 + np.arange(8)).all()
    assert rows["found"].to_numpy().all() and len(rows) == len(ids)


def test_rows_have_their_snapshot_and_missing_keys_are_null_or_zero(users: Server) -> None:
    client = forebay.connect(users.location)
    rows = look_up(client, [7, -1, 42])
    assert rows["name"].to_arrow().to_pylist() == ["user 7", None, "user 42"]
    assert rows["found"].to_numpy().tolist() == [1, 0, 1]
    assert not rows["x"].to_numpy()[1].any() and rows["x"].to_numpy().ctypes.data % 64 == 0
    assert rows.snapshot == client.train("users", batch_size=1).summary["snapshot"]
    assert rows.snapshot_age_seconds >= 0 and int(rows.metadata["found"]) == 2
    assert repr(rows).startswith("<forebay.Rows: 3 of name")
    assert rows.to_arrow().num_rows == 3
    assert client.lookup("users", {"user_id": [3]}, select=["f1 * 2 AS y"])["y"].to_numpy().tolist() == [50.0]
    assert len(look_up(client, np.array([], np.int64))) == 0
    assert look_up(client, [6, 7], filter="user_id < 7")["name"].to_arrow().to_pylist() == ["user 6", None]


def test_the_blocks_of_the_docs_run_as_written(users: Server, capsys: pytest.CaptureFixture) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "lookups.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block.replace("grpc://127.0.0.1:8815", users.location), names)
    assert_rows(names["rows"], [7, 42])
    out = capsys.readouterr().out
    assert names["rows"].snapshot in out and "['user 7', 'user 42']" in out


def test_keys_are_lists_arrays_or_arrow_data(pool: Pool, tmp_path: Path) -> None:
    days = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
    times = [datetime.datetime(2020, 1, day, 3, 4, 5, 6) for day in (1, 2, 3)]
    columns = {"int": [1, 2, 3], "text": ["a", "b", "c"], "bytes": [b"a\0", b"b", b"c"], "day": days, "time": times}
    datasets, online = {}, []
    for name, values in columns.items():
        pq.write_table(pa.table({"key": values, "row": [0, 1, 2]}), tmp_path / f"{name}.parquet")
        datasets[name] = tmp_path / f"{name}.parquet"
        online.append(f"{name}=key")
    servers = [pool.start({name: path}, online=f"{name}=key") for name, path in datasets.items()]
    for (name, values), server in zip(columns.items(), servers):
        client = forebay.connect(server.location)
        kinds = [values, tuple(values), pa.array(values), pa.array(values).slice(0)]
        if name != "bytes":
            kinds += [np.array(values), np.array(values, dtype=object)]
        if name in ("text", "bytes"):
            kinds += [[*values, None][:3]]
        keys = [{"key": kind} for kind in kinds]
        table = pa.table({"key": values})
        keys += [table, table.to_batches()[0], pa.concat_tables([table.slice(0, 1), table.slice(1)])]
        for key in keys:
            assert client.lookup(name, key, columns=["row"])["row"].to_arrow().to_pylist() == [0, 1, 2], (name, key)
        missing = client.lookup(name, {"key": pa.array([values[1], None])}, columns=["row"])
        assert missing["found"].to_numpy().tolist() == [1, 0]


def test_invalid_keys_are_an_error_and_the_next_lookup_succeeds(users: Server) -> None:
    client = forebay.connect(users.location)
    for kind, message, keys in [
        (errors.RequestError, "expected a dict of columns", [1, 2]),
        (errors.RequestError, "expected one value per row", {"user_id": 7}),
        (errors.RequestError, "expected only integers", {"user_id": [None, object()]}),
        (errors.RequestError, "dimensions", {"user_id": np.zeros((1, 1, 1))}),
        (errors.RequestError, "complex|c16", {"user_id": np.zeros(1, complex)}),
        (errors.RequestError, "different lengths", {"user_id": [1], "b": [1, 2]}),
        (errors.RequestError, "user_id", {"b": [1]}),
        (errors.RequestError, "65,?536", {"user_id": range(65_537)}),
        (errors.RequestError, "of the types float, str, expected only integers", {"user_id": [1.5, "a"]}),
    ]:
        with pytest.raises(kind, match=message):
            client.lookup("users", keys, columns=["name"], tensors={"x": ["f*"]})
        assert_rows(look_up(client, [1, 2]), [1, 2])
    with pytest.raises(errors.NotFoundError):
        client.lookup("usrs", {"user_id": [1]})
    with pytest.raises(errors.RequestError, match="f9"):
        client.lookup("users", {"user_id": [1]}, columns=["f9"])
    with pytest.raises(errors.RequestError, match="max_age_seconds is 0, expected seconds above 0, or None for no limit"):
        look_up(client, [1], max_age_seconds=0)
    with pytest.raises(errors.SnapshotUnavailableError, match="max_age_seconds"):
        time.sleep(0.01)
        look_up(client, [1], max_age_seconds=1e-3)


def test_threads_share_a_stream_and_each_receives_its_own_rows(users: Server) -> None:
    client, failures = forebay.connect(users.location, max_in_flight=4), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                ids = rng.integers(0, USERS, rng.integers(1, 50)).tolist()
                assert_rows(look_up(client, ids), ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_lookups_succeed_after_their_stream_was_closed_as_idle_or_least_recently_used(users: Server) -> None:
    client = forebay.connect(users.location, idle_timeout=0.05)
    for _ in range(2):
        for column in range(8):
            for extra in ([], ["name"]):
                rows = client.lookup("users", {"user_id": [5]}, columns=[f"f{column}", *extra])
                assert rows[f"f{column}"].to_numpy().tolist() == [40.0 + column]
        time.sleep(0.2)


def test_a_killed_and_restarted_server_only_delays_a_lookup(pool: Pool, data: Path, tmp_path: Path) -> None:
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache", "online": "users=user_id"}
    server = pool.start({"users": data}, **place)
    client = forebay.connect(server.location, retry_deadline=30)
    assert_rows(look_up(client, [1]), [1])
    server.kill()
    with pytest.raises(errors.DeadlineError):
        look_up(forebay.connect(server.location, retry_deadline=0.5, wait_for_server=True), [1])
    with pytest.raises(errors.UnavailableError, match="refused.*wait_for_server=True"):
        look_up(forebay.connect(server.location), [1])
    pool.start({"users": data}, **place)
    assert_rows(look_up(client, [2, 3]), [2, 3])


def test_a_server_that_does_not_answer_is_a_deadline_error_after_the_timeout(users: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = forebay.connect(f"grpc://127.0.0.1:{silent.getsockname()[1]}")
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(errors.DeadlineError):
                look_up(client, [1], timeout=0.2)
        assert time.monotonic() - begun < 20
        with pytest.raises(ValueError, match="timeout"):
            look_up(client, [1], timeout=-1)
        # Another server is asked after the attempt timeout.
        client = forebay.connect(f"grpc://127.0.0.1:{silent.getsockname()[1]}", users.location, attempt_timeout=0.3)
        assert_rows(look_up(client, [1, 2], timeout=20), [1, 2])


def in_child(client: forebay.Client) -> None:
    assert_rows(look_up(client, [9, 8]), [9, 8])


def test_a_client_with_open_streams_can_be_pickled_and_forked(users: Server) -> None:
    client = forebay.connect(users.location)
    assert_rows(look_up(client, [1]), [1])
    assert_rows(look_up(pickle.loads(pickle.dumps(client)), [2]), [2])
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(client,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert_rows(look_up(client, [3]), [3])


@pytest.mark.alone
def test_a_dropped_client_leaves_no_thread(users: Server) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    client = forebay.connect(users.location)
    look_up(client, [1])
    assert threads() == before + 1
    del client
    # The kernel lists a joined thread for a moment longer.
    until(lambda: threads() == before)
