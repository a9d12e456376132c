"""Descriptions of datasets, and the progress of counting their rows and of loading the first window."""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from pathlib import Path
from typing import Callable, ClassVar, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay import errors, loading
from s3_store import BUCKET, Store, s3_store
from server import Pool, until

pytestmark = pytest.mark.once

FILES, FILE_ROWS = 12, 1000


def test_a_client_lists_the_datasets_of_a_server_with_their_sizes(pool: Pool, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(10), "x": [0.5] * 10}), tmp_path / "small.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"no Parquet file")
    server = pool.start({"small": tmp_path / "small.parquet", "broken": tmp_path / "broken.parquet"})
    client = forebay.connect(server.location)
    broken, small = client.datasets()
    assert (small.name, small.rows, small.files, small.blocks, small.error) == ("small", 10, 1, 1, None)
    assert small.stored_bytes == (tmp_path / "small.parquet").stat().st_size and small.decoded_bytes >= 160
    assert small.snapshot == client.train("small", batch_size=2).summary["snapshot"]
    assert client.dataset("small") == small
    assert (broken.name, broken.rows, broken.snapshot) == ("broken", 0, None)
    assert broken.error is not None and "broken.parquet" in broken.error
    with pytest.raises(errors.NotFoundError, match="did you mean 'small'"):
        client.dataset("smal")
    with pytest.raises(errors.DataLossError, match="broken.parquet"):
        client.dataset("broken")


class Bar:
    """Notes what a bar of tqdm shows."""

    shown: ClassVar[list[tuple[str, int, int]]] = []
    texts: ClassVar[list[str]] = []

    def __init__(self, total: int, desc: str, **options: object) -> None:
        self.total, self.desc, self.n = total, desc, 0

    def update(self, count: int = 1) -> None:
        self.n += count
        self.shown.append((self.desc, self.n, self.total))

    def set_postfix_str(self, text: str) -> None:
        self.texts.append(text)

    def close(self) -> None:
        self.shown.append((self.desc, -1, self.total))


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch) -> type[Bar]:
    monkeypatch.setattr(Bar, "shown", [])
    monkeypatch.setattr(Bar, "texts", [])
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    return Bar


class SlowRows:
    """A dataset in a store. After `slow`, its files are sent one after the other until a condition holds."""

    def __init__(self, pool: Pool, store: Store) -> None:
        store.secrets["id"] = "secret"
        for number in range(FILES):
            file = io.BytesIO()
            pq.write_table(pa.table({"n": range(number * FILE_ROWS, (number + 1) * FILE_ROWS)}), file)
            store.objects[f"rows/{number:02}.parquet"] = file.getvalue()
        self.store, self.released, self.enough = store, threading.Semaphore(0), threading.Event()
        server = pool.start({"rows": f"s3://{BUCKET}/rows"}, env=store.environment("id", "secret"))
        self.client = forebay.connect(server.location)
        until(lambda: self.client.dataset("rows").rows == FILES * FILE_ROWS)

    def slow(self, is_enough: Callable[[], bool]) -> None:
        self.store.before_read = lambda key: None if self.enough.is_set() else self.released.acquire() and None
        threading.Thread(target=self._release, args=(is_enough,), daemon=True).start()

    def _release(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self.released.release()
            time.sleep(0.5)
        self.enough.set()
        self.released.release(1000)


@pytest.fixture
def rows(pool: Pool) -> Iterator[SlowRows]:
    with s3_store() as store:
        slow = SlowRows(pool, store)
        yield slow
        slow.enough.set()
        slow.released.release(1000)


def logged(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in list(caplog.records) if part in record.getMessage()]


def test_the_counting_of_rows_is_shown_in_a_bar_and_in_the_log(
    rows: SlowRows, bar: type[Bar], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "forebay"):
        rows.slow(lambda: bool(logged(caplog, "counting rows")))
        ds = rows.client.train("rows", batch_size=100, filter="n % 4 = 1", progress=True)
        assert ds.num_rows == FILES * FILE_ROWS // 4
    (message,) = logged(caplog, "counting rows")
    assert re.fullmatch(rf"'rows': counting rows: \d+ of {FILES} blocks, (25% of the rows match|no rows yet)", message), message
    *shown, last = bar.shown
    assert last == ("counting rows", -1, FILES) and shown
    assert all(desc == "counting rows" and 0 <= done <= total == FILES for desc, done, total in shown)


def test_the_loading_of_the_first_window_is_shown_in_the_bar_and_in_the_log(
    rows: SlowRows, bar: type[Bar], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "FIRST_LOG_S", 0)
    with caplog.at_level(logging.WARNING, "forebay"):
        rows.slow(lambda: bool(logged(caplog, "loading the first window")))
        ds = rows.client.train("rows", batch_size=1000, shuffle=FILES * FILE_ROWS, progress=True)
        assert sum(len(batch) for batch in ds) == FILES * FILE_ROWS
    (message,) = logged(caplog, "loading the first window")
    assert re.fullmatch(rf"'rows': loading the first window: \d+ of {FILES} blocks", message), message
    assert message.removeprefix("'rows': ") in bar.texts
    assert [done for desc, done, _ in bar.shown if desc == "epoch 0"] == [*range(1, 13), -1]


def test_the_progress_of_counting_is_described_before_the_first_rows() -> None:
    assert loading.kept_share({}) == "no rows yet"
    assert loading.kept_share({"rows": "200", "rows_kept": 24}) == "12% of the rows match"
