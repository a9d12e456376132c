"""Keys are sent exactly or not at all: NumPy never chooses their type."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay import sending
from server import Pool, Server

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2026, 3, 29, 1, 30, 59, 123456)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("keys")
    pq.write_table(pa.table({"id": pa.array([1, 2**63, 2**63 + 1], pa.uint64()), "row": [0, 1, 2]}), folder / "ids.parquet")
    pq.write_table(pa.table({"name": ["a", "b"], "row": [0, 1]}), folder / "names.parquet")
    pool = Pool(folder)
    keys = {"ids": "ids=id", "names": "names=name"}
    yield {name: pool.start({name: folder / f"{name}.parquet"}, online=key) for name, key in keys.items()}
    pool.close()


def found(servers: dict[str, Server], dataset: str, **keys: Any) -> list[Any]:
    return forebay.connect(servers[dataset].location).lookup(dataset, keys, columns=["row"])["row"].to_list()


def test_integers_beyond_floats_find_their_rows(servers: dict[str, Server]) -> None:
    for ids in ([1, 2**63], (2**63 + 1, 2**63), [np.uint64(2**63), np.int64(1)], np.array([2**63, 1], np.uint64), [2**63, None]):
        expected = [{1: 0, 2**63: 1, 2**63 + 1: 2}.get(None if each is None else int(each)) for each in ids]
        assert found(servers, "ids", id=ids) == expected, ids


def test_text_that_utf_8_cannot_represent_is_refused(servers: dict[str, Server]) -> None:
    with pytest.raises(forebay.errors.RequestError, match=r"column 'name' has a text that UTF-8 cannot represent \(a lone surrogate\)"):
        found(servers, "names", name=["a", "\ud800"])


def test_text_of_every_library_finds_its_rows(servers: dict[str, Server]) -> None:
    texts = ["b", "a", "c"]
    kinds: list[Any] = [texts, np.array(texts), np.array(texts, object), pa.array(texts), pa.array(texts).dictionary_encode()]
    kinds += [pa.array(texts, pa.large_string()), pa.chunked_array([["b"], ["a", "c"]]), pa.array(texts, pa.string_view())]
    for name in ("polars", "pandas"):
        library = pytest.importorskip(name, reason=f"{name} is not in this environment; the other one has it")
        kinds += [library.Series(texts)]
        table = library.DataFrame({"name": texts})
        rows = forebay.connect(servers["names"].location).lookup("names", table, columns=["row"])
        assert rows["row"].to_list() == [1, 0, None], name
    pandas = pytest.importorskip("pandas", reason="pandas is not in this environment; the other one has it")
    kinds += [pandas.Series(texts, dtype=pandas.ArrowDtype(pa.string())), pandas.Series(texts, dtype="category")]
    for texts_of_kind in kinds:
        assert found(servers, "names", name=texts_of_kind) == [1, 0, None], repr(texts_of_kind)


def sent(values: Any) -> tuple[Any, ...]:
    ((_, *rest),) = sending.keys({"key": values})
    return tuple(rest)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2**63], "<u8"), ([-1, 2**62], "<i8"), ([-1, 2**63], "decimal128(0)"), ([1, 2.5], "<f8"), ([True, None], "|b1"),
        ([Decimal("1.25"), 3], "decimal128(2)"), ([np.float32(0.1)], "<f4"), ([np.int8(1), np.int8(2)], "|i1"), ([], "null"), ([None], "null"),
        ([datetime.date(2026, 1, 1), None], "date32"), ([MOMENT], "<M8[us]"), ([MOMENT.replace(tzinfo=UTC)], "<M8[us] UTC"),
        (np.array(["2026-01-01", "NaT"], "M8[D]"), "date32"), (np.array([1], ">i4"), "<i4"), (np.array([1], "M8[h]"), "<M8[s]"),
    ],
)  # fmt: skip
def test_python_values_have_the_first_type_that_holds_all_of_them(values: Any, kind: str) -> None:
    found_kind, shape, _, valid = sent(values)
    assert (found_kind, shape) == (kind, (len(values),))
    has_nulls = any(value is None for value in values) or (isinstance(values, np.ndarray) and values.dtype.kind == "M" and np.isnat(values).any())
    assert (valid is not None) == (has_nulls and kind != "null")


def test_values_are_encoded_exactly() -> None:
    _, _, whole, _ = sent([Decimal("-1.25"), 3])
    assert [int.from_bytes(whole[at : at + 16], "little", signed=True) for at in (0, 16)] == [-125, 300]
    aware = MOMENT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    _, _, micros, _ = sent([aware])
    assert np.frombuffer(micros, "<i8")[0] == np.datetime64(MOMENT - datetime.timedelta(hours=2), "us").astype(np.int64)
    kind, shape, values, _ = sent([[1, 2], [3, 4]])
    assert (kind, shape, np.frombuffer(values, "<i8").tolist()) == ("<i8", (2, 2), [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2**53 + 1, 0.5], "the integer 9007199254740993 between floats"), ([1, "a"], "of the types int, str"), ([True, 1], "of the types bool, int"),
        ([MOMENT, MOMENT.replace(tzinfo=UTC)], "of the types datetime"), ([10**39], "more than 38 decimal digits"), ([[1], [1, 2]], "different shapes"),
        (np.array(["9999999-01-01"], "M8[D]"), "a date that date32 cannot represent"), (7, "a single value"), ("a", "a single value"),
        ([Decimal("nan")], "not finite"),
    ],
)  # fmt: skip
def test_what_no_type_holds_exactly_is_refused(values: Any, message: str) -> None:
    with pytest.raises(forebay.errors.RequestError, match=message):
        sent(values)
