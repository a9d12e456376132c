"""Calls of functions, as docs/reference/sql.md lists them, if DuckDB has a function with the same meaning.

A call is a node whose text has `{}` for each operand, and whose value is the function that computes its exact value. A null operand makes it
null, except for `concat`.
"""

from __future__ import annotations

import math
import random
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Callable

from differential import calendar, casts, literals
from differential.expressions import Failure, Node
from differential.rounding import rounded

if TYPE_CHECKING:
    from differential.grammar import Grammar


def call(name: str, args: list[Node], family: str, compute: Callable, what: str = "", **more: Any) -> Node:
    """Returns a call with the given operands. Further attributes are those of `Node`."""
    more.setdefault("text", f"{name}({', '.join(['{}'] * len(args))})")
    return Node(name, tuple(args), family, what=what or family, value=compute, **more)


def draw(grammar: Grammar, family: str, depth: int) -> Node | None:
    """Draws a call with a result of `family`, whose operands are up to `depth` - 1 deep. Returns None for other families."""
    rng = grammar.rng
    kinds = DRAWN.get(family)
    if kinds is None:
        return None
    found = rng.choice(kinds)(grammar, rng, depth - 1)
    if found is None or depth < 2 or rng.random() > 0.3:
        return found
    shape = rng.choice(["NULLIF", "CASE", "COALESCE"])
    more = {"what": found.what, "bits": found.bits, "digits": found.digits}
    if shape == "NULLIF":
        return Node(shape, (found, grammar.literal(found)), family, **more)
    chosen = Node("CASE", (grammar.condition(depth - 2), found, literals.null(family)), family, **more)
    return chosen if shape == "CASE" else Node(shape, (chosen, found), family, **more)


# Functions of texts.


def of_text(name: str, compute: Callable[[str], Any], family: str = "text", what: str = "", duck: str = "") -> Callable:
    return lambda grammar, rng, depth: call(name, [grammar.value("text", depth)], family, compute, what, duck=duck)


def with_part(name: str, compute: Callable[[str, str], Any], family: str, what: str = "") -> Callable:
    """A function of a text and of a part that it can have."""

    def drawn(grammar: Grammar, rng: random.Random, depth: int) -> Node:
        part = literals.text(rng.choice(PARTS)) if rng.random() < 0.7 else grammar.column("text")
        return call(name, [grammar.value("text", depth), part], family, compute, what)

    return drawn


PARTS = ("a", "b", "A", "J", "ü", "水", " ", "n", "ab", "_", "\U00010000")


def with_count(name: str, compute: Callable[[str, int], str], counts: range) -> Callable:
    def drawn(grammar: Grammar, rng: random.Random, depth: int) -> Node:
        return call(name, [grammar.value("text", depth), literals.whole(rng.choice(counts))], "text", compute)

    return drawn


def right(value: str, count: int) -> str:
    return value[max(len(value) - count, 0) :] if count >= 0 else value[-count:]


def substr(grammar: Grammar, rng: random.Random, depth: int) -> Node:
    # DuckDB counts a negative start from the end.
    start, length = rng.randint(0, 4), rng.randint(0, 3)
    args = [grammar.value("text", depth), literals.whole(start), literals.whole(length)]
    if rng.random() < 0.5:
        return call("substr", args[:2], "text", lambda value, start: value[max(start - 1, 0) :])
    return call("substr", args, "text", lambda value, start, length: value[max(start - 1, 0) : max(start - 1 + length, 0)])


def split_part(grammar: Grammar, rng: random.Random, depth: int) -> Node:
    def compute(value: str, delimiter: str, number: int) -> str:
        parts = value.split(delimiter)
        index = number - 1 if number > 0 else len(parts) + number
        return parts[index] if 0 <= index < len(parts) else ""

    args = [grammar.value("text", depth), literals.text(rng.choice(PARTS)), literals.whole(rng.choice([1, 2, 3, -1, -2]))]
    return call("split_part", args, "text", compute)


def translate(grammar: Grammar, rng: random.Random, depth: int) -> Node:
    of, to = rng.choice([("ab", "x"), ("ü水", "uW"), ("a", ""), ("aa", "xy"), (" _", "_ ")])
    table = {ord(each): None for each in reversed(of)}
    for each, new in reversed([*zip(of, to)]):
        table[ord(each)] = ord(new)
    args = [grammar.value("text", depth), literals.text(of), literals.text(to)]
    return call("translate", args, "text", lambda value, *_: value.translate(table))


def concat(grammar: Grammar, rng: random.Random, depth: int) -> Node:
    args = [grammar.value("text", depth), grammar.column("text")]
    if rng.random() < 0.5:
        return call("concat", args, "text", lambda *values: "".join(filter(None, values)), takes_null=True)
    compute = lambda by, *values: by.join(value for value in values if value is not None)
    return call("concat_ws", [literals.text("-"), *args], "text", compute, takes_null=True)


# Functions of numbers.


def number(grammar: Grammar, rng: random.Random, depth: int, *kinds: str) -> Node | None:
    """Draws a number of one of the given kinds: `integer`, `decimal`, `float`."""
    there = [column.node for column in grammar.of["number"] if kind_of(column.node) in kinds]
    if depth > 0 and rng.random() < 0.5:
        found = draw(grammar, "number", depth)
        if found and kind_of(found) in kinds and (kind_of(found) != "decimal" or any(found.digits)):
            return found
    return rng.choice(there) if there else None


def kind_of(node: Node) -> str:
    return "float" if node.bits else node.what


def absolute(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = number(grammar, rng, depth, "integer", "decimal", "float")
    compute = lambda value: value.copy_abs() if isinstance(value, Decimal) else abs(value)
    return of and call("abs", [of], "number", compute, of.what, bits=of.bits, digits=of.digits)


def to_whole(name: str, mode: str | None, of_float: Callable[[float], float]) -> Callable:
    """A function that removes the fraction of a float, or with a mode that of a decimal, whose type stays."""

    def drawn(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
        of = number(grammar, rng, depth, "float", *(["decimal"] if mode else []))
        if of is None:
            return None
        if of.bits:

            def compute(value: float) -> float:
                if name == "trunc" and value == 0:
                    # But trunc(-0.5) is -0.0.
                    return 0.0
                return value if not math.isfinite(value) else math.copysign(of_float(value), value)

            # Only floats of 32 bits keep their type.
            bits = 32 if of.bits == 32 else 64
            return call(name, [of], "number", compute, f"float{bits}", bits=bits)
        return call(name, [of], "number", lambda value: fitting(value.quantize(Decimal(1), mode), of.digits), "decimal", digits=of.digits)

    return drawn


def half_away(value: float) -> float:
    """Returns the nearest whole number; halves away from zero."""
    return float(Decimal(value).quantize(Decimal(1), ROUND_HALF_UP))


def fitting(value: Decimal, digits: tuple[int, int]) -> Decimal:
    if abs(value) >= 10 ** digits[0]:
        raise Failure(f"{value} has more than {digits[0]} digits before the point")
    return value


def round_decimal(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = number(grammar, rng, depth, "decimal")
    if of is None:
        return None
    scale = rng.choice([0, 0, 1, 2])
    kept = min(scale, of.digits[1])
    compute = lambda value, *_: value.quantize(Decimal(1).scaleb(-kept), ROUND_HALF_UP)
    args = [of, literals.whole(scale)] if scale else [of]
    return call("round", args, "number", compute, "decimal", digits=(sum(of.digits) - kept, kept))


def sqrt(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = number(grammar, rng, depth, "integer", "float")
    if of is None or of.bits == 32:
        return None
    compute = lambda value: math.sqrt(rounded(value, 64) if not isinstance(value, float) else value) if not value < 0 else math.nan
    return call("sqrt", [of], "number", compute, "float64", bits=64)


def common_divisor(name: str, compute: Callable[[int, int], int]) -> Callable:
    def drawn(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
        calm = [column.node for column in grammar.of["number"] if column.calm and column.node.what == "integer"]
        return call(name, [rng.choice(calm), literals.whole(rng.randint(0, 12))], "number", compute, "integer") if calm else None

    return drawn


# Transcendental functions, whose last bit depends on the C library. They are never operands. DuckDB has no log1p.
APPROXIMATE = {"ln": math.log, "exp": math.exp, "log10": math.log10, "log2": math.log2, "log1p": math.log1p}


def approximate(grammar: Grammar) -> Node:
    """Returns a call whose value is known up to its last bit."""
    columns = [column.node for column in grammar.of["number"] if column.kind.float_bits == 64 or column.calm]
    name = grammar.rng.choice([*APPROXIMATE])

    def compute(value: Any) -> float:
        x = value if isinstance(value, float) else rounded(value, 64)
        if x == math.inf or x != x or name == "exp":
            return transcendental(name, x)
        pole = -1 if name == "log1p" else 0
        return math.nan if x < pole else -math.inf if x == pole else transcendental(name, x)

    return call(name, [grammar.rng.choice(columns)], "number", compute, "float64", bits=64)


def transcendental(name: str, x: float) -> float:
    try:
        return APPROXIMATE[name](x)
    except OverflowError:
        return math.inf


# Functions of dates and times.


def moment(grammar: Grammar, rng: random.Random, *families: str, usual: bool = False) -> Node | None:
    """Draws a column of one of the families, with `usual` years only."""
    # Seconds are stored as milliseconds, and have the range of either.
    columns = [column for family in families for column in grammar.of.get(family, []) if column.kind.name != "timestamp_s"]
    there = [column.node for column in columns if not usual or calendar.has_usual_years(column.kind.family, column.values)]
    return rng.choice(there) if there else None


def date_part(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = moment(grammar, rng, "date", "naive", "time", usual=True)
    if of is None:
        return None
    parts = calendar.PARTS if of.family == "naive" else calendar.DATE_PARTS if of.family == "date" else calendar.TIME_PARTS
    part = rng.choice([*parts])
    spelled = f"EXTRACT({part} FROM {{}})" if rng.random() < 0.3 else f"date_part('{part}', {{}})"
    return call("date_part", [of], "number", lambda value: calendar.part(part, of.family, value), "integer", text=spelled)


def date_trunc(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = moment(grammar, rng, "date", "naive")
    if of is None:
        return None
    unit, what = calendar.unit_of(of)
    granularity = rng.choice(calendar.GRANULARITIES)
    compute = lambda value: calendar.in_range(calendar.truncated(granularity, of.family, value), unit)
    return call("date_trunc", [of], "naive", compute, what, text=f"date_trunc('{granularity}', {{}})")


def date_bin(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = moment(grammar, rng, "date", "naive")
    if of is None:
        return None
    unit, what = calendar.unit_of(of)
    count, name, width = rng.choice([(15, "minutes", 900), (1, "hours", 3600), (7, "days", 604_800)])
    compute = lambda value: calendar.in_range(calendar.binned(width, of.family, value), unit)
    text = f"INTERVAL '{count} {name}', {{}}"
    return call("date_bin", [of], "naive", compute, what, text=f"date_bin({text})", duck=f"time_bucket({text}, TIMESTAMP '1970-01-01')")


def of_cast(family: str) -> Callable:
    return lambda grammar, rng, depth: casts.draw(grammar, family, depth)


def is_nan(grammar: Grammar, rng: random.Random, depth: int) -> Node | None:
    of = number(grammar, rng, depth, "float")
    return of and call("isnan", [of], "bool", lambda value: value != value)


DRAWN: dict[str, list[Callable]] = {
    "text": [
        of_text("lower", str.lower),
        of_text("upper", str.upper),
        of_text("btrim", lambda value: value.strip(" "), duck="trim({})"),
        of_text("ltrim", lambda value: value.lstrip(" ")),
        of_text("rtrim", lambda value: value.rstrip(" ")),
        of_text("reverse", lambda value: value[::-1]),
        with_count("left", lambda value, count: value[:count], range(-2, 4)),
        with_count("right", right, range(-2, 4)),
        substr,
        split_part,
        translate,
        concat,
        of_cast("text"),
    ],
    "number": [
        of_text("character_length", len, "number", "integer", duck="length({})"),
        of_text("octet_length", lambda value: len(value.encode()), "number", "integer", duck="strlen({})"),
        of_text("bit_length", lambda value: 8 * len(value.encode()), "number", "integer"),
        of_text("ascii", lambda value: ord(value[0]) if value else 0, "number", "integer"),
        with_part("strpos", lambda value, part: value.find(part) + 1, "number", "integer"),
        absolute,
        to_whole("ceil", ROUND_CEILING, math.ceil),
        to_whole("floor", ROUND_FLOOR, math.floor),
        to_whole("trunc", ROUND_DOWN, math.trunc),
        to_whole("round", None, half_away),
        round_decimal,
        sqrt,
        common_divisor("gcd", math.gcd),
        common_divisor("lcm", math.lcm),
        date_part,
        date_part,
        *[of_cast("number")] * 8,
    ],
    "bool": [
        with_part("starts_with", str.startswith, "bool"),
        with_part("ends_with", str.endswith, "bool"),
        with_part("contains", lambda value, part: part in value, "bool"),
        is_nan,
        of_cast("bool"),
    ],
    "date": [of_cast("date")],
    "time": [of_cast("time")],
    "naive": [date_trunc, date_trunc, date_bin, of_cast("naive")],
}
