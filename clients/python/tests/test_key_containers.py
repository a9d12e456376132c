"""Keys of every type find their rows, whatever container of whatever library holds them.

The expected rows come from a dict of Python. The types and their values at both ends are those of the differential tests of the server.
"""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import random
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402
import pyarrow.types as at  # noqa: E402

PRECISION = decimal.getcontext().prec
from differential.keys import DAY_NS, exact_keys, fitting, is_key, others, types_of_keys  # noqa: E402
from differential.kinds import INTEGERS, NANOSECONDS, Kind, array_of, plain_values  # noqa: E402
from differential.kinds import KINDS as ALL  # noqa: E402

import forebay  # noqa: E402
from server import Pool  # noqa: E402

# The differential tests compute in this precision, and set it for their whole process.
EXACT_PRECISION = decimal.getcontext().prec
decimal.getcontext().prec = PRECISION

KINDS = {name: kind for name, kind in ALL.items() if is_key(kind)}
EPOCH = datetime.datetime(1970, 1, 1)
# Python has the years 1 to 9999.
MICROSECONDS = range(-62_135_596_800 * 10**6, 253_402_300_800 * 10**6)
# Digits of the decimals that the client makes of Python's.
DIGITS = 38

# Keys in a container, and their exact values. Those of dates and timestamps are nanoseconds.
Sent = tuple[Any, list[Any]]


def plain_rows(kind: Kind) -> list[Any]:
    """Returns the values of a key column: the ends of the type and others, each once."""
    rng = random.Random(f"rows {kind.name}")
    drawn = [*kind.extremes, *(kind.draw(rng) for _ in range(20))]
    return rng.sample(there := list(dict.fromkeys(drawn)), len(there))


def rows_of(kind: Kind) -> list[Any]:
    return exact_keys(kind.arrow, plain_rows(kind))


@pytest.fixture(scope="module", autouse=True)
def exact_decimals() -> Iterator[None]:
    with decimal.localcontext() as context:
        context.prec = EXACT_PRECISION
        yield


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[forebay.Client]:
    folder = tmp_path_factory.mktemp("containers")
    for name, kind in KINDS.items():
        keys = plain_rows(kind)
        pq.write_table(pa.table({"key": array_of(kind, keys), "row": range(len(keys))}), folder / f"{name}.parquet")
    config = folder / "forebay.toml"
    config.write_text("".join(f'[online.{name}]\nkey = ["key"]\n' for name in KINDS))
    pool = Pool(folder)
    yield forebay.connect(pool.start({name: folder / f"{name}.parquet" for name in KINDS}, config=config).location)
    pool.close()


def candidates(kind: Kind, rng: random.Random) -> list[Any]:
    """Returns stored keys and others, in random order."""
    keys = [*rows_of(kind), *exact_keys(kind.arrow, [kind.draw(rng) for _ in range(5)]), *others(kind)]
    return rng.sample(keys, len(keys))


def in_arrow(kind: Kind, keys: list[Any], rng: random.Random) -> Iterator[Sent]:
    for arrow in types_of_keys(kind):
        array = fitting(arrow, [None, *keys])
        values, cut = exact_keys(arrow, plain_values(array)), rng.randrange(len(array))
        yield array, values
        yield array.slice(cut), values[cut:]
        yield pa.chunked_array([array.slice(0, cut), array.slice(cut)]), values
        if not (at.is_string_view(arrow) or at.is_binary_view(arrow) or at.is_decimal(arrow)):
            yield array.dictionary_encode(), values


def in_python(kind: Kind, keys: list[Any], rng: random.Random) -> Iterator[Sent]:
    made, values = python_values(kind, keys)
    yield made, values
    yield tuple(made), values
    yield [*made, None], [*values, None]


def python_values(kind: Kind, keys: list[Any]) -> tuple[list[Any], list[Any]]:
    """Returns those keys that Python's types represent, and their exact values."""
    if kind.family in ("date", "naive", "zoned"):
        zone = datetime.timezone.utc if kind.family == "zoned" else None
        values = [value for value in keys if value % 1000 == 0 and value // 1000 in MICROSECONDS]
        times = [(EPOCH + datetime.timedelta(microseconds=value // 1000)).replace(tzinfo=zone) for value in values]
        if kind.family == "date":
            return [time.date() for time in times], values
        return times, values
    if kind.family == "number":
        unit = 10 ** getattr(kind.arrow, "scale", 0)
        values = [value for value in keys if value * unit == int(value * unit) and abs(value * unit) < 10**DIGITS]
        made = [int(value) if at.is_integer(kind.arrow) else decimal.Decimal(value).normalize() for value in values]
        return made, values
    return keys, keys


def in_numpy(kind: Kind, keys: list[Any], rng: random.Random) -> Iterator[Sent]:
    python, values = python_values(kind, keys)
    yield np.array([*python, None], object), [*values, None]
    if kind.family == "number":
        for each in INTEGERS:
            bounds = np.iinfo(each.name)
            there = [int(value) for value in keys if value == int(value) and bounds.min <= value <= bounds.max]
            array = np.array(there, each.name)
            yield array, there
            yield array.astype(array.dtype.newbyteorder(">"))[::2], there[::2]
            yield list(array), there
            mask = [rng.random() < 0.3 for _ in there]
            yield np.ma.masked_array(array, mask), [None if masked else value for value, masked in zip(there, mask)]
    if kind.family == "bool":
        yield np.array(keys), keys
    if kind.family == "text":
        # NumPy drops zeros at the end of a text, of which there are none.
        yield np.array(keys), keys
    if kind.family in ("naive", "date"):
        for unit, each in (*NANOSECONDS.items(), ("D", DAY_NS)):
            bound = 2**31 - 1 if unit == "D" else 2**63 - 1
            there = [value for value in keys if value % each == 0 and abs(value // each) <= bound]
            yield np.array([value // each for value in there], np.int64).view(f"M8[{unit}]"), there


def in_torch(kind: Kind, keys: list[Any], rng: random.Random) -> Iterator[Sent]:
    if importlib.util.find_spec("torch") is None or kind.family not in ("number", "bool"):
        return
    import torch

    for array, values in in_numpy(kind, keys, rng):
        if isinstance(array, np.ndarray) and array.dtype.kind in "iub" and array.dtype.isnative and not isinstance(array, np.ma.MaskedArray):
            yield torch.from_numpy(array.copy()), values


def in_series(library: str) -> Callable[[Kind, list[Any], random.Random], Iterator[Sent]]:
    def made(kind: Kind, keys: list[Any], rng: random.Random) -> Iterator[Sent]:
        module = pytest.importorskip(library, reason=f"{library} is not in this environment; the other one has it")
        python, values = python_values(kind, keys)
        if kind.family not in ("date", "naive", "zoned"):
            arrays = [(array, there) for array, there in in_numpy(kind, keys, rng) if isinstance(array, np.ndarray)]
            plain = [(array, there) for array, there in arrays if array.dtype.isnative and array.dtype.kind in "iub"]
            yield from ((module.Series(array), there) for array, there in plain if not isinstance(array, np.ma.MaskedArray))
        if not at.is_integer(kind.arrow):
            yield module.Series(python), values
        if library == "pandas":
            stored = fitting(kind.arrow, [None, *keys])
            yield module.Series(stored, dtype=module.ArrowDtype(kind.arrow)), exact_keys(kind.arrow, plain_values(stored))

    return made


CONTAINERS = {
    "arrow": in_arrow,
    "python": in_python,
    "numpy": in_numpy,
    "torch": in_torch,
    "pandas": in_series("pandas"),
    "polars": in_series("polars"),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_keys_of_every_type_in_every_container_find_their_rows(client: forebay.Client, container: str) -> None:
    tried = 0
    for name, kind in KINDS.items():
        row_of = {key: row for row, key in enumerate(rows_of(kind))}
        rng = random.Random(f"{container} {name}")
        for keys, values in CONTAINERS[container](kind, candidates(kind, rng), rng):
            if not values:
                continue
            rows = client.lookup(name, {"key": keys}, columns=["row"])
            found = [row if there else None for row, there in zip(rows["row"].to_arrow().to_pylist(), rows["found"].to_numpy())]
            expected = [row_of.get(value) for value in values]
            wrong = [(value, one, other) for value, one, other in zip(values, found, expected) if one != other]
            assert len(found) == len(expected) and not wrong, f"{name} by {type(keys)} {keys!r:.200}: key, found row, expected row {wrong[:3]}"
            tried += 1
    assert tried or container == "torch"
