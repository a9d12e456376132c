"""Each row is in one part of a split, and once in an evaluation."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import numpy as np
import pytest

import forebay
from server import Pool

pytestmark = pytest.mark.once

BATCH = 50_000


def test_each_row_is_in_one_part_of_a_split(client: forebay.Client) -> None:
    def rows(**more: object) -> np.ndarray:
        batches = client.train("flights", batch_size=BATCH, columns=["distance"], **more)
        return np.concatenate([batch["distance"].to_numpy().filled(-1) for batch in batches])

    def part(filter: str) -> np.ndarray:
        return rows(filter=filter, remainder="SHORT")

    whole = rows(seed=3)
    train, test = (part(each) for each in forebay.split(0.75, by="distance"))
    assert not np.intersect1d(train, test).size
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.sort(whole))
    kinds = len(np.unique(train)) / len(np.unique(whole))
    assert abs(kinds - 0.75) < 0.06, "of the distinct distances"
    other, _ = (part(each) for each in forebay.split(0.75, by="distance", seed=1))
    assert not np.array_equal(np.unique(other), np.unique(train))
    before, after = (part(each) for each in forebay.split(by="distance", at=500))
    assert before.max() < 500 <= after.min() and len(before) + len(after) == len(whole)


@pytest.mark.parametrize("border", ["2024-03-01", datetime.date(2024, 3, 1), datetime.datetime(2024, 3, 1)])
def test_a_split_at_a_time_has_rows_without_one_in_the_first_part(pool: Pool, tmp_path: Path, border: object) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    days = [None, *(datetime.datetime(2024, month, 1) for month in range(1, 7))]
    table = {"day": pa.array(days, pa.date32()), "time": pa.array(days, pa.timestamp("us")), "row": range(7)}
    pq.write_table(pa.table(table), tmp_path / "days.parquet")
    client = forebay.connect(pool.start({"days": tmp_path / "days.parquet"}).location)
    for column in ("day", "time"):
        parts = []
        for condition in forebay.split(by=column, at=border):
            (batch,) = client.train("days", batch_size=7, columns=["row"], filter=condition, shuffle={"none": {}})
            parts.append(batch["row"].to_numpy().tolist())
        assert parts == [[0, 1, 2], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0.5, "at": 1}, "either a fraction or at"),
        ({}, "either a fraction or at"),
        ({"fraction": 0}, "more than 0"),
        ({"fraction": 1}, "less than 1"),
        ({"at": True}, "expected a number, a string, a date or a time"),
        ({"at": float("nan")}, "expected a finite number"),
        ({"at": np.float64("inf")}, "at is np.float64.inf., expected a finite number"),
        ({"at": np.datetime64("NaT")}, "expected a number, a string, a date or a time"),
        ({"at": np.timedelta64(1, "D")}, "expected a number, a string, a date or a time"),
        ({"fraction": "0.5"}, "fraction is '0.5', expected a number"),
        ({"fraction": float("nan")}, "fraction is nan, expected a number"),
        ({"fraction": True}, "fraction is True, expected a number"),
        ({"fraction": 0.5, "seed": "a"}, "seed is 'a', expected a whole number"),
        ({"fraction": 0.5, "seed": None}, "seed is None, expected a whole number"),
        ({"fraction": 0.5, "seed": 2**64}, "seed is 18446744073709551616, expected a whole number from 0 to 9223372036854775807"),
        ({"fraction": 0.5, "by": None}, "by is None, expected the name of a column"),
        ({"fraction": 0.5, "by": ["x"]}, r"by is \['x'\], expected a string"),
    ],
)
def test_a_split_without_two_parts_is_rejected(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forebay.split(**{"by": "x", **arguments})


@pytest.mark.parametrize(
    ("border", "same"),
    [
        (np.int64(500), 500),
        (np.float32(0.5), 0.5),
        (np.float64(1e300), 1e300),
        (np.str_("it's"), "it's"),
        (np.datetime64("2024-03-01"), datetime.date(2024, 3, 1)),
        (np.datetime64("2024-03-01T12:30:00"), datetime.datetime(2024, 3, 1, 12, 30)),
    ],
)
def test_a_border_of_numpy_is_that_of_python(border: object, same: object) -> None:
    assert forebay.split(by="x", at=border) == forebay.split(by="x", at=same)  # type: ignore[arg-type]


def test_a_decimal_border_has_all_of_its_digits() -> None:
    first, _ = forebay.split(by="x", at=decimal.Decimal("1000.1000000000000000000000001"))
    assert forebay.split(by="x", at=decimal.Decimal("1E+3"))[0] == '("x" < 1000) IS NOT FALSE'
    assert first == '("x" < 1000.1000000000000000000000001) IS NOT FALSE'


def test_a_split_at_a_time_of_a_day_divides_a_column_of_days_after_that_day(pool: Pool, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    days = [datetime.datetime(2024, 3, day) for day in (1, 2, 3)]
    times = {"zone": pa.array(days, pa.timestamp("us", "UTC")), "time": pa.array(days, pa.timestamp("ms")), "day": pa.array(days, pa.date32())}
    pq.write_table(pa.table({**times, "row": range(3)}), tmp_path / "days.parquet")
    client = forebay.connect(pool.start({"days": tmp_path / "days.parquet"}).location)
    for column in times:
        first, _ = forebay.split(by=column, at=datetime.datetime(2024, 3, 2, 12))
        (batch,) = client.train("days", batch_size=3, columns=["row"], filter=first, shuffle={"none": {}}, remainder="SHORT")
        assert batch["row"].to_list() == [0, 1], column


@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_an_evaluation_has_each_row_once_over_all_ranks(client: forebay.Client, world_size: int) -> None:
    options = {"batch_size": 100_000, "columns": ["distance"], "world_size": world_size}
    loops = [client.eval("flights", rank=rank, **options) for rank in range(world_size)]
    assert len({len(ds) for ds in loops}) == 1
    steps = list(zip(*loops))
    rows = [batch["distance"].to_numpy()[batch["valid"].to_numpy() == 1] for step in steps for batch in step]
    stored = client.train("flights", batch_size=BATCH, columns=["distance"], shuffle={"none": {}})
    expected = np.concatenate([batch["distance"].to_numpy() for batch in stored])
    np.testing.assert_array_equal(np.concatenate(rows), expected)
    again = [batch["distance"].to_numpy().tobytes() for batch in loops[0]]
    assert again == [step[0]["distance"].to_numpy().tobytes() for step in steps]
    with pytest.raises(TypeError, match="does not take seed, shuffle"):
        client.eval("flights", batch_size=1, shuffle={"global": {}}, seed=1)
