"""Types of columns, the values at their ends, and conversions between Arrow arrays and plain values.

A plain value is None, an int, a Decimal, a float, a str, bytes, a bool, a list, a dict or a Span. Dates are days since 1970; times of day
and timestamps are nanoseconds, whatever their unit. Thus values of different types compare as Python compares them: exactly.
"""

from __future__ import annotations

import decimal
import math
import random
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Callable, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from differential.rounding import rounded

decimal.getcontext().prec = 400

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_MS = 86_400_000
DAY_NS = 86_400 * 10**9
# Rounding, truncation of bounds, escapes and orders of code units: frequent faults with texts.
TEXTS = (
    *("", "a", "A", "b", "ab", "a b", "aé", "Jana", "Jürgen", "Jörg", "Katrin", "%", "_", "it's", "\\"),
    *("ä", "水", "\uffff", "\U00010000", "z" * 70, "\U0010ffff" * 20),
)
BYTES = (b"", b"\x00", b"a", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x00\xff", b"\xff" * 70, b"a" * 65)


class Span(NamedTuple):
    """A duration, which has nanoseconds only, or an interval."""

    months: int
    days: int
    nanoseconds: int

    @property
    def length(self) -> int:
        """Nanoseconds of the whole span. A month has 30 days, and a day 24 hours."""
        return (self.months * 30 + self.days) * DAY_NS + self.nanoseconds


@dataclass(frozen=True)
class Kind:
    """A type of a column.

    Attributes:
        name: Name in reports and in names of columns.
        arrow: Type of the values.
        family: Types of one family can be compared: number, text, bytes, bool, date, time, naive, zoned, span; list and struct with none.
        extremes: Plain values at the ends of the type.
        draw: Returns another plain value.
        calm: Returns a plain value for arithmetic that does not overflow, or None if the type has no arithmetic.
    """

    name: str
    arrow: pa.DataType
    family: str
    extremes: tuple
    draw: Callable[[random.Random], Any]
    calm: Callable[[random.Random], Any] | None = None

    @property
    def float_bits(self) -> int:
        """Width of a floating-point type; 0 for others."""
        return self.arrow.bit_width if at.is_floating(self.arrow) else 0


def integer(bits: int, signed: bool) -> Kind:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    around = [low, low + 1, -1, 0, 1, high - 1, high, 2**24 + 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63]
    name = f"{'' if signed else 'u'}int{bits}"
    return Kind(
        name,
        getattr(pa, name)(),
        "number",
        tuple(sorted({value for value in around if low <= value <= high})),
        lambda rng: rng.randint(low, high) if rng.random() < 0.5 else rng.randint(max(low, -50), min(high, 50)),
        (lambda rng: rng.randint(-4, 4)) if signed else None,
    )


def real(bits: int) -> Kind:
    largest = {16: 65504.0, 32: float(np.finfo(np.float32).max), 64: 1.7976931348623157e308}[bits]
    smallest = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[bits]
    values = [0.0, -0.0, math.nan, math.inf, -math.inf, largest, -largest, smallest, -smallest, 0.5, 1.0, -1.5, 0.1, 71.04, 2.0**24]
    if bits > 16:
        values += [2.0**53, 2.0**63, -(2.0**63), 2.0**64, 16777217.0]
    draw: Callable[[random.Random], float] = lambda rng: rounded(Decimal(rng.randint(-(10**6), 10**6)) / 100, bits)
    return Kind(
        f"float{bits}",
        getattr(pa, f"float{bits}")(),
        "number",
        tuple(value if not math.isfinite(value) else math.copysign(rounded(Decimal(value), bits), value) for value in values),
        draw,
        (lambda rng: rng.randint(-16, 16) / 4) if bits == 64 else None,
    )


def exact_decimal(arrow: pa.DataType) -> Kind:
    digits, scale = arrow.precision, arrow.scale
    largest = 10**digits - 1
    units = [0, 1, -1, largest, -largest, largest - 1, 7104 * 10 ** max(scale - 2, 0), 2**53 + 1, 2**63, -(2**63), 5, 25]
    values = tuple(Decimal(unit).scaleb(-scale) for unit in units if abs(unit) <= largest)

    def draw(rng: random.Random) -> Decimal:
        bound = largest if rng.random() < 0.3 else min(largest, 10 ** (scale + 4))
        return Decimal(rng.randint(-bound, bound)).scaleb(-scale)

    return Kind(
        str(arrow).replace("(", "_").replace(", ", "_").rstrip(")"),
        arrow,
        "number",
        values,
        draw,
        (lambda rng: Decimal(rng.randint(-40, 40)).scaleb(-min(scale, 1))) if digits < 16 and digits - scale > 1 else None,
    )


def timestamp(unit: str, zone: str | None) -> Kind:
    each = NANOSECONDS[unit]
    # Parquet has no seconds: they are stored as milliseconds.
    bound = (2**63 - 1) // (1000 if unit == "s" else 1) * each
    usual = [0, -each, each, 10**18, -(10**18), 951_782_400 * 10**9, 1_600_000_000 * 10**9 + 123_456_789]
    far = [bound, -bound, 32_503_680_000 * 10**9, -62_135_596_800 * 10**9]
    values = sorted({value // each * each for value in usual + far if abs(value) <= bound})
    suffix = {None: "", "UTC": "_utc"}.get(zone, "_zone")
    return Kind(
        f"timestamp_{unit}{suffix}",
        pa.timestamp(unit, zone),
        "naive" if zone is None else "zoned",
        tuple(values),
        lambda rng: rng.randint(-(10**9), 2 * 10**9) * 10**9 // each * each,
    )


def time_of_day(arrow: pa.DataType) -> Kind:
    each = NANOSECONDS[arrow.unit]
    day = 86_400 * 10**9
    return Kind(
        f"time_{arrow.unit}", arrow, "time", (0, each, day // 2, day - each), lambda rng: rng.randrange(day) // each * each
    )


def duration(unit: str) -> Kind:
    each = NANOSECONDS[unit]
    bound = (2**63 - 1) * each
    values = [0, each, -each, DAY_NS, -DAY_NS, DAY_NS + each, 30 * DAY_NS, 365 * DAY_NS, bound, -bound]
    return Kind(
        f"duration_{unit}",
        pa.duration(unit),
        "span",
        tuple(Span(0, 0, value // each * each) for value in values),
        lambda rng: Span(0, 0, rng.randint(-(10**6), 10**6) * 10**9 // each * each),
    )


def interval() -> Kind:
    """Intervals as Parquet has them: milliseconds, and no part is negative. Some of them have the same length."""
    spans = [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 30, 0), (0, 1, 0), (0, 0, DAY_MS), (1, 1, 1), (12, 5, 0), (0, 365, 0), (0, 0, 2**32 - 1)]
    return Kind(
        "interval",
        pa.month_day_nano_interval(),
        "span",
        tuple(Span(months, days, each * 10**6) for months, days, each in spans),
        lambda rng: Span(rng.randrange(3), rng.randrange(70), rng.randrange(2 * DAY_MS) * 10**6),
    )


def date(arrow: pa.DataType) -> Kind:
    values = (0, -1, 1, 11_016, 18_000, -719_162, 2_932_896, 2**31 - 2, -(2**31) + 2)
    return Kind(str(arrow).split("[")[0], arrow, "date", values, lambda rng: rng.randint(-20_000, 30_000))


def some_text(rng: random.Random) -> str:
    return "".join(rng.choice("abcABé 1水_%") for _ in range(rng.randrange(6)))


def list_of(kind: Kind) -> Kind:
    def draw(rng: random.Random) -> list:
        return [None if rng.random() < 0.2 else rng.choice(kind.extremes) for _ in range(rng.randrange(4))]

    return Kind(f"list_{kind.name}", pa.list_(kind.arrow), "list", ([], [None]), draw)


def struct_of(**kinds: Kind) -> Kind:
    def draw(rng: random.Random) -> dict:
        return {name: None if rng.random() < 0.2 else rng.choice(kind.extremes) for name, kind in kinds.items()}

    arrow = pa.struct([(name, kind.arrow) for name, kind in kinds.items()])
    empty = {name: None for name in kinds}
    return Kind("struct", arrow, "struct", (empty,), draw)


INTEGERS = [integer(bits, signed) for signed in (True, False) for bits in (8, 16, 32, 64)]
FLOATS = [real(bits) for bits in (16, 32, 64)]
DECIMALS = [
    exact_decimal(arrow)
    for arrow in (
        *(pa.decimal32(digits, scale) for digits, scale in ((4, 2), (9, 2), (9, 9))),
        *(pa.decimal64(digits, scale) for digits, scale in ((15, 2), (18, 0), (18, 4))),
        *(pa.decimal128(digits, scale) for digits, scale in ((9, 2), (18, 4), (20, 2), (38, 0), (38, 10), (38, 38))),
        *(pa.decimal256(digits, scale) for digits, scale in ((50, 5), (76, 0))),
    )
]
TEXT = Kind("text", pa.string(), "text", TEXTS, some_text)
BINARY = Kind("binary", pa.binary(), "bytes", BYTES, lambda rng: rng.randbytes(rng.randrange(5)))
FIXED = Kind("fixed", pa.binary(4), "bytes", (b"\0" * 4, b"\xff" * 4, b"\x7fabc", b"\x80abc"), lambda rng: rng.randbytes(4))
BOOL = Kind("bool", pa.bool_(), "bool", (False, True), lambda rng: rng.random() < 0.5)
DATES = [date(pa.date32()), date(pa.date64())]
TIMES = [time_of_day(pa.time32("ms")), time_of_day(pa.time64("us")), time_of_day(pa.time64("ns"))]
TIMESTAMPS = [timestamp(unit, zone) for unit in NANOSECONDS for zone in (None, "UTC", "Europe/Paris")]
DURATIONS = [duration(unit) for unit in NANOSECONDS]
INTERVAL = interval()
SPANS = [*DURATIONS, INTERVAL, INTERVAL]
NESTED = [
    list_of(INTEGERS[2]),
    list_of(TEXT),
    list_of(DECIMALS[1]),
    struct_of(x=INTEGERS[3], y=TEXT, z=DECIMALS[1], w=FLOATS[2]),
]
NUMBERS = INTEGERS + FLOATS + DECIMALS
KINDS = {kind.name: kind for kind in [*NUMBERS, TEXT, BINARY, FIXED, BOOL, *DATES, *TIMES, *TIMESTAMPS, *DURATIONS, INTERVAL, *NESTED]}


def array_of(kind: Kind, values: list) -> pa.Array:
    """Returns an array of the type of `kind` with plain values."""
    return arrow_array(kind.arrow, values)


def arrow_array(arrow: pa.DataType, values: list) -> pa.Array:
    if at.is_date32(arrow) or at.is_date64(arrow):
        return pa.array(values, pa.int32()).view(pa.date32()).cast(arrow)
    if at.is_time(arrow) or at.is_timestamp(arrow):
        each = NANOSECONDS[arrow.unit]
        units = [None if value is None else value // each for value in values]
        return pa.array(units, pa.int32() if at.is_time32(arrow) else pa.int64()).view(arrow)
    if at.is_duration(arrow):
        return pa.array([None if value is None else value.nanoseconds // NANOSECONDS[arrow.unit] for value in values], pa.int64()).view(arrow)
    if at.is_float16(arrow):
        return pa.array([None if value is None else np.float16(value) for value in values], arrow)
    if at.is_list(arrow):
        items = arrow_array(arrow.value_type, [item for value in values if value is not None for item in value])
        ends, total = [], 0
        for value in values:
            ends.append(None if value is None else total)
            total += len(value or ())
        return pa.ListArray.from_arrays(pa.array([*ends, total], pa.int32()), items)
    if at.is_struct(arrow):
        fields = [arrow_array(field.type, [(value or {}).get(field.name) for value in values]) for field in arrow]
        mask = pa.array([value is None for value in values])
        return pa.StructArray.from_arrays(fields, fields=list(arrow), mask=mask)
    return pa.array(values, arrow)


def plain_values(array: pa.Array | pa.ChunkedArray) -> list:
    """Returns the plain values of an array of any type."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in plain_values(chunk)]
    arrow = array.type
    if at.is_dictionary(arrow):
        return plain_values(array.dictionary_decode())
    if at.is_date32(arrow):
        return array.view(pa.int32()).to_pylist()
    if at.is_date64(arrow):
        return [None if value is None else value // DAY_MS for value in array.view(pa.int64()).to_pylist()]
    if at.is_time(arrow) or at.is_timestamp(arrow):
        each = NANOSECONDS[arrow.unit]
        units = array.view(pa.int32() if at.is_time32(arrow) else pa.int64()).to_pylist()
        return [None if unit is None else unit * each for unit in units]
    if at.is_duration(arrow):
        each = NANOSECONDS[arrow.unit]
        return [None if value is None else Span(0, 0, value * each) for value in array.view(pa.int64()).to_pylist()]
    if at.is_interval(arrow):
        return [None if value is None else Span(*value) for value in array.to_pylist()]
    if at.is_list(arrow) or at.is_large_list(arrow) or at.is_fixed_size_list(arrow):
        items, ends = plain_values(array.flatten()), 0
        lists = []
        for length in array.value_lengths().to_pylist():
            lists.append(None if length is None else items[ends : ends + length])
            ends += length or 0
        return lists
    if at.is_struct(arrow):
        fields = [plain_values(field) for field in array.flatten()]
        names = [field.name for field in arrow]
        return [dict(zip(names, row)) if valid else None for row, valid in zip(zip(*fields), array.is_valid().to_pylist())]
    if at.is_floating(arrow):
        return [None if value is None else float(value) for value in array.to_pylist()]
    return array.to_pylist()


def same(one: Any, other: Any) -> bool:
    """Returns true if two plain values are the same: NaN equals NaN, -0 does not equal 0, 1 equals 1.00, True does not equal 1."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, bool) != isinstance(other, bool) or (one is None) != (other is None):
        return False
    return one == other
