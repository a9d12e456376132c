"""Casts between kinds of values, with CAST and TRY_CAST."""

from __future__ import annotations

import math
import random
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Callable

from differential import calendar
from differential.expressions import Failure, Node
from differential.kinds import DAY_NS
from differential.rounding import rounded

if TYPE_CHECKING:
    from differential.grammar import Grammar

INTEGERS = {
    **{name: (bits, True, name) for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))},
    **{f"{name} UNSIGNED": (bits, False, f"U{name}") for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INTEGER", 32), ("BIGINT", 64))},
}
DECIMALS = ((9, 2), (18, 4), (20, 2), (38, 10), (5, 0), (38, 0))
FLOATS = {"FLOAT": 32, "DOUBLE": 64}


def cast(
    rng: random.Random, of: Node, name: str, family: str, convert: Callable, what: str = "", duck: str = "", op: str = "", **more: Any
) -> Node:
    """Returns a cast, or more often TRY_CAST, to the type `name`, which is `duck` in DuckDB. With `op`, returns this one."""
    op = op or rng.choice(["CAST", "TRY_CAST", "TRY_CAST"])

    def compute(value: Any) -> Any:
        try:
            return convert(value)
        except Failure:
            if op == "TRY_CAST":
                return None
            raise

    text, theirs = f"{op}({{}} AS {name})", f"{op}({{}} AS {duck})" if duck else ""
    return Node(op, (of,), family, what=what or family, text=text, duck=theirs, value=compute, **more)


def to_integer(bits: int, signed: bool) -> Callable[[Any], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def convert(value: Any) -> int:
        if not math.isfinite(value) or not low <= int(value) <= high:
            raise Failure(f"{value} is no integer of {bits} bits")
        return int(value)

    return convert


def to_decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    def convert(value: Any) -> Decimal:
        if not math.isfinite(value):
            raise Failure(f"{value} is no decimal")
        # The product of a float and a power of ten is a DOUBLE.
        units = Decimal(value * 10.0**scale) if isinstance(value, float) else Decimal(value).scaleb(scale)
        if not units.is_finite():
            raise Failure(f"{value} has more than {precision} digits")
        found = units.quantize(Decimal(1), ROUND_HALF_UP).scaleb(-scale)
        if abs(found) >= Decimal(10) ** (precision - scale):
            raise Failure(f"{value} has more than {precision} digits")
        return found

    return convert


def to_float(bits: int) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if isinstance(value, float) and (not math.isfinite(value) or value == 0):
            return value
        return rounded(Decimal(value), bits)

    return convert


def to_number(rng: random.Random, of: Node) -> Node:
    shape = rng.random()
    if shape < 0.5:
        name = rng.choice([*INTEGERS])
        bits, signed, duck = INTEGERS[name]
        return cast(rng, of, name, "number", to_integer(bits, signed), "integer", duck)
    if shape < 0.75 and of.family == "number":
        precision, scale = rng.choice(DECIMALS)
        digits = (precision - scale, scale)
        return cast(rng, of, f"DECIMAL({precision}, {scale})", "number", to_decimal(precision, scale), "decimal", digits=digits)
    name = rng.choice([*FLOATS])
    bits = FLOATS[name]
    return cast(rng, of, name, "number", to_float(bits), f"float{bits}", bits=bits)


def to_text(rng: random.Random, of: Node) -> Node:
    def convert(value: Any) -> str:
        # All digits of the type.
        return f"{value:.{of.digits[1]}f}" if isinstance(value, Decimal) else str(value).lower()

    return cast(rng, of, "VARCHAR", "text", convert)


def draw(grammar: Grammar, family: str, depth: int) -> Node | None:
    """Draws a cast to a type of `family`, or returns None if there is no operand."""
    rng = grammar.rng
    numbers, texts = grammar.of["number"], grammar.of["text"]
    if family == "number":
        if rng.random() < 0.2:
            # A text is one of a number, so that it can be read.
            return to_number(rng, grammar.column("bool")) if rng.random() < 0.5 else parsed(rng, grammar)
        inner = rng.choice(numbers).node
        if depth > 0 and rng.random() < 0.3:
            inner = grammar.value("number", depth)
        return to_number(rng, inner)
    if family == "text":
        plain = [column.node for column in (*numbers, *grammar.of["bool"]) if not column.kind.float_bits]
        return to_text(rng, rng.choice(plain))
    if family == "bool":
        integers = [column.node for column in numbers if column.node.what == "integer"]
        return cast(rng, rng.choice(integers), "BOOLEAN", "bool", lambda value: value != 0)
    columns = [*grammar.of.get("naive", []), *(grammar.of.get("date", []) if family == "naive" else [])]
    usual = {id(column): calendar.has_usual_years(column.kind.family, column.values) for column in columns}
    there = [column for column in columns if family == "naive" or usual[id(column)]]
    if not there:
        return None
    drawn = rng.choice(there)
    of = drawn.node
    if family == "date":
        return cast(rng, of, "DATE", "date", lambda value: value // DAY_NS, "date32")
    if family == "time":
        return cast(rng, of, "TIME", "time", lambda value: value % DAY_NS, "time_ns", "TIME_NS" if of.what == "timestamp_ns" else "")
    # CAST of a timestamp that is compared with a constant is not computed, so that a value out of its range is no error.
    op = "" if usual[id(drawn)] else "TRY_CAST"
    return cast(rng, of, "TIMESTAMP(6)", "naive", lambda value: microseconds(of, value), "timestamp_us", "TIMESTAMP", op=op)


def microseconds(of: Node, value: int) -> int:
    """Returns a timestamp of microseconds, truncated towards 1970."""
    nanoseconds = value * DAY_NS if of.family == "date" else value
    units = abs(nanoseconds) // 1000 * (1 if nanoseconds >= 0 else -1)
    if not -(2**63) <= units < 2**63:
        raise Failure(f"{value} is beyond the range of a timestamp in us")
    return units * 1000


def parsed(rng: random.Random, grammar: Grammar) -> Node:
    """Reads the text of an integer or a decimal as a number."""
    of = rng.choice([column.node for column in grammar.of["number"] if not column.kind.float_bits])
    found = to_text(rng, of)
    if of.what == "integer":
        name = rng.choice([*INTEGERS])
        bits, signed, duck = INTEGERS[name]
        return cast(rng, found, name, "number", lambda value: to_integer(bits, signed)(int(value)), "integer", duck)
    precision, scale = rng.choice(DECIMALS)
    convert = lambda value: to_decimal(precision, scale)(Decimal(value))
    return cast(rng, found, f"DECIMAL({precision}, {scale})", "number", convert, "decimal", digits=(precision - scale, scale))
