"""Shuffling quality of windows in the worst case, data sorted by label, and the detection of label skew."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api import get
from client import Client
from conftest import GROUP_ROWS
from server import Pool, Server, until

BLOCKS = 64
ROWS = BLOCKS * GROUP_ROWS
POSITIVE_SHARE = 0.3
BATCH_ROWS = 4096
WINDOWS = 8
# A smaller dataset whose epochs are short, so that there can be many.
SMALL_BLOCK_ROWS = 128
EPOCHS = 1000


def sorted_labels(rows: int) -> np.ndarray:
    return (np.arange(rows) >= (1 - POSITIVE_SHARE) * rows).astype(np.int8)


def small_labels() -> np.ndarray:
    return sorted_labels(BLOCKS * SMALL_BLOCK_ROWS)


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return sorted_labels(ROWS)


@pytest.fixture(scope="module")
def server(module_pool: Pool, labels: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of a dataset that is sorted by label: all negatives, then all positives, in 64 blocks."""
    folder = tmp_path_factory.mktemp("sorted")
    pq.write_table(pa.table({"label": labels}), folder / "sorted.parquet", row_group_size=GROUP_ROWS)
    # Small row groups of one file would be one block.
    (folder / "small").mkdir()
    for block, values in enumerate(small_labels().reshape(BLOCKS, SMALL_BLOCK_ROWS)):
        pq.write_table(pa.table({"label": values}), folder / "small" / f"part-{block:02}.parquet")
    return module_pool.start({"sorted": folder / "sorted.parquet", "small": folder / "small"})


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.location) as opened:
        yield opened


def batch_means(client: Client, batch_rows: int, dataset: str = "sorted", **request: Any) -> np.ndarray:
    batches = client.batches(dataset=dataset, batch_size=batch_rows, **request)
    return np.array([batch.data.column("label").to_numpy().mean() for batch in batches])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shuffle", [{"shuffle": {"global": {}}}, {}], ids=["global", "default"])
def test_with_one_window_the_label_means_of_batches_match_random_sampling(
    client: Client, labels: np.ndarray, shuffle: dict, seed: int
) -> None:
    share = labels.mean()
    means = batch_means(client, BATCH_ROWS, seed=seed, **shuffle)
    assert len(means) == ROWS // BATCH_ROWS
    # Sampling without replacement: the binomial deviation with the finite population correction.
    deviation = np.sqrt(share * (1 - share) / BATCH_ROWS * (ROWS - BATCH_ROWS) / (ROWS - 1))
    scores = (means - share) / deviation
    assert np.abs(scores).max() < 5
    chi_squared, degrees = (scores**2).sum(), len(scores) - 1
    assert abs(chi_squared - degrees) < 5 * np.sqrt(2 * degrees)


def test_over_8_windows_means_vary_like_a_sample_of_blocks(
    client: Client, record_property: Callable[[str, object], None]
) -> None:
    labels = small_labels()
    window_rows = len(labels) // WINDOWS
    request = {"dataset": "small", "shuffle": {"window_rows": window_rows}, "epochs": EPOCHS}
    summary = client.plan(batch_size=window_rows, **request).summary
    assert int(summary["blocks_per_window"]) == BLOCKS // WINDOWS

    means = batch_means(client, window_rows, **request)
    assert len(means) == EPOCHS * WINDOWS
    measured = ((means - labels.mean()) ** 2).mean()

    block_means = labels.reshape(BLOCKS, SMALL_BLOCK_ROWS).mean(axis=1)
    in_a_window = BLOCKS // WINDOWS
    predicted = block_means.var(ddof=1) / in_a_window * (1 - in_a_window / BLOCKS)
    fair = labels.mean() * (1 - labels.mean()) / window_rows
    print(f"variance of window label means: {measured:.3e}; a sample of blocks {predicted:.3e}; random sampling of rows {fair:.3e}")
    record_property("window_mean_variance", float(measured))
    record_property("window_mean_variance_predicted", float(predicted))
    # A variance that is estimated from 8,000 means has a standard error of 1.6%. The bound is four times as large.
    assert 0.936 < measured / predicted < 1.064


def test_within_a_window_the_label_means_of_batches_match_random_sampling_of_its_rows(client: Client) -> None:
    window_rows = ROWS // WINDOWS
    batches_a_window = window_rows // BATCH_ROWS
    means = batch_means(client, BATCH_ROWS, shuffle={"window_rows": window_rows}, seed=4).reshape(
        WINDOWS, batches_a_window
    )
    shares = means.mean(axis=1, keepdims=True)
    deviations = np.sqrt(shares * (1 - shares) / BATCH_ROWS * (1 - BATCH_ROWS / window_rows))
    scores = (means - shares) / np.maximum(deviations, 1e-12)
    assert np.abs(scores).max() < 5


def events_of_skew(server: Server) -> list[dict]:
    return [event for event in get(server, "/api/v1/events")["events"] if event["kind"] == "label_skew"]


@pytest.mark.parametrize(
    ("request_for_order", "is_flagged"),
    [
        ({"shuffle": {"none": {}}}, True),
        ({"shuffle": {"window_rows": ROWS // WINDOWS}}, True),
        ({"shuffle": {"global": {}}}, False),
        ({}, False),
    ],
    ids=["sorted", "narrow windows", "shuffled", "default"],
)
def test_a_sorted_stream_is_flagged_and_a_shuffled_one_is_not(
    server: Server, client: Client, request_for_order: dict, is_flagged: bool
) -> None:
    events_before = len(events_of_skew(server))
    request = {"batch_size": BATCH_ROWS, "label_column": "label", "epochs": 100, **request_for_order}
    batches = client.batches(dataset="sorted", **request)

    def label() -> dict:
        return get(server, "/api/v1/sessions")["sessions"][-1]["label"]

    with closing(batches):
        for _ in range(2 * ROWS // BATCH_ROWS):
            next(batches)
        until(lambda: label()["batches"] >= 2 * ROWS // BATCH_ROWS and label()["dataset_mean"] is not None)
        # The server checks sessions once per second. Wait for the next check.
        time.sleep(1.5)
        assert label()["column"] == "label"
        assert label()["skewed"] is is_flagged, label()
        assert label()["dataset_mean"] == pytest.approx(POSITIVE_SHARE, abs=0.02)
        gauge = f'forebay_label_skewed_sessions{{dataset="sorted"}} {int(is_flagged)}'
        until(lambda: gauge in server.http_get("/metrics")[1])
        until(lambda: len(events_of_skew(server)) == events_before + is_flagged)
    until(lambda: not get(server, "/api/v1/sessions")["sessions"])
