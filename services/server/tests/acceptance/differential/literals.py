"""Literals near the values of a column, where conversions and bounds are wrong first."""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow.types as at

from differential.expressions import Node
from differential.kinds import DAY_NS, NANOSECONDS, Kind, Span

EPOCH = datetime.datetime(1970, 1, 1)
# Years 1 to 9999.
FIRST_NS, LAST_NS = -62_135_596_800 * 10**9, 253_402_300_799 * 10**9
FAR = ("1e30", "-1e30", "1e300", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "0.1", "1e-30", "-0.0")


def literal(family: str, text: str, value: Any, duck: str = "") -> Node:
    return Node("literal", (), family, what="literal", text=text, duck=duck, value=value)


def null(family: str) -> Node:
    return literal(family, "NULL", None)


def number(text: str) -> Node:
    return literal("number", text, Decimal(text))


def whole(value: int) -> Node:
    return Node("literal", (), "number", what="integer", text=str(value), value=value)


def near(rng: random.Random, kind: Kind, values: list) -> Node | None:
    """Returns a literal that is equal or close to one of `values`, or None if the type has no literals."""
    there = [value for value in values if value is not None] or list(kind.extremes)
    value = rng.choice(there if rng.random() < 0.7 else kind.extremes)
    return {
        "number": near_number,
        "text": lambda rng, kind, value: text(value if rng.random() < 0.8 else value + "a"),
        "bytes": lambda rng, kind, value: binary(value if rng.random() < 0.8 else value + b"\0"),
        "bool": lambda rng, kind, value: literal("bool", str(value).upper(), value),
        "date": near_date,
        "time": near_time,
        "naive": near_timestamp,
        "zoned": near_timestamp,
        "span": near_span,
    }.get(kind.family, lambda *_: None)(rng, kind, value)


def exact(rng: random.Random, kind: Kind, values: list) -> Node | None:
    """Returns a literal near `values` that the type has, so that it is converted without a loss; some are texts. None for other types."""
    found = near(rng, kind, values)
    if found is None or kind.float_bits:
        return None
    if kind.family == "number":
        # DuckDB has decimals of 38 digits, and reads a literal with an exponent as a DOUBLE.
        is_whole = at.is_integer(kind.arrow)
        fits = "e" not in found.text.lower() and sum(map(str.isdigit, found.text)) <= 18 and (not is_whole or "." not in found.text)
        if at.is_decimal(kind.arrow):
            # A common type has at most 76 digits.
            fits &= kind.arrow.precision - kind.arrow.scale + len(found.text.partition(".")[2]) <= 76
        return found if fits else whole(rng.randint(0, 99))
    if kind.family in ("time", "naive", "zoned"):
        unit = NANOSECONDS[kind.arrow.unit]
        if found.value % unit or abs(found.value) // unit >= 2**63:
            return None
    is_plain = kind.family in ("bool", "date", "time", "naive", "zoned") and rng.random() < 0.4
    return as_text(found) if is_plain else found


def as_text(found: Node) -> Node:
    """Returns a literal as the text of its value."""
    quoted = "'" + found.text.split("'")[1] + "'" if "'" in found.text else f"'{found.text.lower()}'"
    return literal(found.family, quoted, found.value)


def text(value: str) -> Node:
    return literal("text", "'" + value.replace("'", "''") + "'", value)


def binary(value: bytes) -> Node:
    escaped = "".join(f"\\x{byte:02X}" for byte in value)
    return literal("bytes", f"X'{value.hex()}'", value, f"'{escaped}'::BLOB")


def near_number(rng: random.Random, kind: Kind, value: Any) -> Node:
    if rng.random() < 0.1 or not math.isfinite(value):
        # A literal beyond the range of a narrow type would be infinite there.
        return number(rng.choice([each for each in FAR if kind.float_bits in (0, 64) or abs(float(each)) < 60000]))
    if kind.float_bits:
        spelled = repr(value)
        return number(spelled if rng.random() < 0.7 else f"{Decimal(value):f}" if abs(value) < 1e20 else spelled)
    step = Decimal(1).scaleb(-getattr(kind.arrow, "scale", 0))
    moved = Decimal(value) + rng.choice([0, 0, 0, step, -step, step / 2, -step / 2, step / 10])
    shape = rng.random()
    if shape < 0.1:
        return number(f"{moved:e}")
    return number(f"{moved:f}" + ("0" if shape < 0.2 and "." in f"{moved:f}" else ""))


def near_date(rng: random.Random, kind: Kind, value: int) -> Node:
    day = (EPOCH + datetime.timedelta(days=value)).date() if -719_162 <= value <= 2_932_896 else EPOCH.date()
    return literal("date", f"DATE '{day.isoformat()}'", (day - EPOCH.date()).days)


def clock(nanoseconds: int, digits: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    fraction = f".{rest:09d}"[: digits + 1] if digits else ""
    return f"{seconds // 3600:02d}:{(seconds // 60) % 60:02d}:{seconds % 60:02d}{fraction}"


DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def near_time(rng: random.Random, kind: Kind, value: int) -> Node:
    value, digits = close_time(rng, kind, value, 0, DAY_NS - 1)
    return literal("time", f"TIME '{clock(value, digits)}'", value, f"TIME_NS '{clock(value, digits)}'" if digits == 9 else "")


def close_time(rng: random.Random, kind: Kind, value: int, least: int, most: int) -> tuple[int, int]:
    """Returns a time that is equal or close to `value`, and the number of digits of its seconds, which can be more than the type has."""
    unit = kind.arrow.unit if rng.random() < 0.7 else rng.choice([*NANOSECONDS])
    each = NANOSECONDS[unit]
    moved = value + rng.choice([0, 0, 0, each, -each])
    return min(max(moved, least), most) // each * each, DIGITS[unit]


def near_timestamp(rng: random.Random, kind: Kind, value: int) -> Node:
    value, digits = close_time(rng, kind, value, FIRST_NS, LAST_NS)
    days, rest = divmod(value, DAY_NS)
    day = EPOCH + datetime.timedelta(days=days)
    moment = f"{day.year:04d}-{day.month:02d}-{day.day:02d} {clock(rest, digits)}"
    if kind.family == "zoned":
        return literal("zoned", f"TIMESTAMPTZ '{moment}+00:00'", value, f"TIMESTAMPTZ_NS '{moment}+00:00'" if digits == 9 else "")
    return literal("naive", f"TIMESTAMP '{moment}'", value, f"TIMESTAMP_NS '{moment}'" if digits == 9 else "")


def near_span(rng: random.Random, kind: Kind, value: Span) -> Node:
    """Returns an interval of about this length, in one unit or in several. DuckDB has no unit below microseconds."""
    largest = 100 * 365 * DAY_NS
    length = min(max(value.length + rng.choice([0, 0, 0, 1000, -1000, 10**6, -(10**6)]), -largest), largest)
    sign = -1 if length < 0 else 1
    months, rest = divmod(abs(length), 30 * DAY_NS) if rng.random() < 0.3 else (0, abs(length))
    days, rest = divmod(rest, DAY_NS) if rng.random() < 0.5 else (0, rest)
    microseconds, rest = divmod(rest, 1000)
    parts = [(months, "months"), (days, "days"), (microseconds, "microseconds"), (rest, "nanoseconds")]
    spelled = " ".join(f"{sign * count} {unit}" for count, unit in parts if count) or "0 days"
    found = Span(sign * months, sign * days, sign * (microseconds * 1000 + rest))
    return literal("span", f"INTERVAL '{spelled}'", found)
