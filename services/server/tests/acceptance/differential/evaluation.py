"""Values of expressions, computed exactly with the integers and decimals of Python.

This is what docs/reference/sql.md promises: numbers of different types are compared exactly, NaN is greater than all numbers and equals
itself, -0 equals 0, durations and intervals are compared by their length, and a literal that is compared with a floating-point column is rounded to its type.
"""

from __future__ import annotations

import functools
import math
import re
from decimal import Decimal
from typing import Any, Callable, Iterable, Iterator

from differential.expressions import Node
from differential.kinds import DAY_NS, Span
from differential.rounding import rounded

Row = dict[str, Any]


def evaluate(node: Node, row: Row) -> Any:
    """Returns the plain value of `node` for a row of plain values by name. Raises Failure where docs/reference/sql.md promises an error.

    As there, operands on which the result does not depend are not evaluated.
    """
    if node.op == "column":
        return row[node.text]
    if node.op == "literal":
        return node.value
    if node.op in BY_NODE:
        return BY_NODE[node.op](node, row)
    values = [evaluate(each, row) for each in node.args]
    if node.is_call:
        return node.value(*values) if node.takes_null or None not in values else None
    if node.op in STRICT:
        return None if any(value is None for value in values) else STRICT[node.op](node, *values)
    return BY_VALUE[node.op](node, *values)


def order(one: Node, a: Any, other: Node, b: Any) -> int:
    """Returns -1, 0 or 1 for the order of two values that are not null."""
    if other.bits and one.is_literal:
        a = rounded(a, other.bits)
    if one.bits and other.is_literal:
        b = rounded(b, one.bits)
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    if isinstance(a, Span):
        a, b = a.length, b.length
    # A date is midnight of its day.
    a, b = (value * DAY_NS if node.family == "date" else value for node, value in ((one, a), (other, b)))
    nan_a, nan_b = a != a, b != b
    if nan_a or nan_b:
        return nan_a - nan_b
    return (a > b) - (a < b)


def equals(one: Node, a: Any, other: Node, b: Any) -> bool | None:
    return None if a is None or b is None else order(one, a, other, b) == 0


def conjunction(values: Iterable[bool | None]) -> bool | None:
    """Returns the conjunction of values, which ends at the first false one."""
    found: bool | None = True
    for value in values:
        if value is False:
            return False
        found = None if value is None else found
    return found


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def disjunction(values: Iterable[bool | None]) -> bool | None:
    return negation(conjunction(negation(value) for value in values))


def each_of(nodes: Iterable[Node], row: Row) -> Iterator[Any]:
    """Yields values, each of which is computed when it is needed."""
    return (evaluate(each, row) for each in nodes)


def between(node: Node, row: Row) -> bool | None:
    value = evaluate(node.args[0], row)
    if value is None:
        return None

    def within(bound: Node, sign: int) -> bool | None:
        limit = evaluate(bound, row)
        return None if limit is None else sign * order(node.args[0], value, bound, limit) >= 0

    return conjunction(within(bound, sign) for bound, sign in zip(node.args[1:], (1, -1)))


def among(node: Node, row: Row) -> bool | None:
    value = evaluate(node.args[0], row)
    if value is None:
        return None
    return disjunction(equals(node.args[0], value, each, evaluate(each, row)) for each in node.args[1:])


def null_if(node: Node, row: Row) -> Any:
    value = evaluate(node.args[0], row)
    return None if value is None or equals(node.args[0], value, node.args[1], evaluate(node.args[1], row)) else value


def distinct(node: Node, a: Any, b: Any) -> bool:
    if a is None or b is None:
        return (a is None) != (b is None)
    return order(node.args[0], a, node.args[1], b) != 0


@functools.lru_cache(maxsize=4096)
def pattern(text: str, ignores_case: bool) -> re.Pattern:
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(each, re.escape(each)) for each in text), re.DOTALL | (re.IGNORECASE if ignores_case else 0))


def arithmetic(of_floats: Callable, exact: Callable) -> Callable:
    def compute(node: Node, a: Any, b: Any) -> Any:
        return of_floats(double(a), double(b)) if node.bits else exact(a, b)

    return compute


def double(value: Any) -> float:
    return value if isinstance(value, float) else rounded(value, 64)


def float_quotient(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1, b)


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def extreme(sign: int) -> Callable:
    def choose(node: Node, *values: Any) -> Any:
        there = [value for value in values if value is not None]
        if there and isinstance(there[0], Span):
            # Months first, then days, then the rest, as in DuckDB.
            return max(there) if sign > 0 else min(there)
        key = functools.cmp_to_key(lambda a, b: sign * order(node, a, node, b))
        return max(there, key=key) if there else None

    return choose


def case(node: Node, row: Row) -> Any:
    condition, then, otherwise = node.args
    return evaluate(then if evaluate(condition, row) else otherwise, row)


def case_of(node: Node, row: Row) -> Any:
    of, when, then, otherwise = node.args
    return evaluate(then if equals(of, evaluate(of, row), when, evaluate(when, row)) else otherwise, row)


def nvl2(node: Node, row: Row) -> Any:
    tested, then, otherwise = node.args
    return evaluate(otherwise if evaluate(tested, row) is None else then, row)


def field(node: Node, row: Row) -> Any:
    found = evaluate(node.args[0], row)
    return None if found is None else found[node.text]


BY_NODE: dict[str, Callable[[Node, Row], Any]] = {
    "AND": lambda node, row: conjunction(each_of(node.args, row)),
    "OR": lambda node, row: disjunction(each_of(node.args, row)),
    "BETWEEN": between,
    "NOT BETWEEN": lambda node, row: negation(between(node, row)),
    "IN": among,
    "NOT IN": lambda node, row: negation(among(node, row)),
    "CASE": case,
    "CASE OF": case_of,
    "COALESCE": lambda node, row: next((value for value in each_of(node.args, row) if value is not None), None),
    "NULLIF": null_if,
    "NVL2": nvl2,
    "field": field,
}
STRICT: dict[str, Callable] = {
    "=": lambda node, a, b: order(node.args[0], a, node.args[1], b) == 0,
    "<>": lambda node, a, b: order(node.args[0], a, node.args[1], b) != 0,
    "<": lambda node, a, b: order(node.args[0], a, node.args[1], b) < 0,
    "<=": lambda node, a, b: order(node.args[0], a, node.args[1], b) <= 0,
    ">": lambda node, a, b: order(node.args[0], a, node.args[1], b) > 0,
    ">=": lambda node, a, b: order(node.args[0], a, node.args[1], b) >= 0,
    "NOT": lambda node, a: not a,
    "LIKE": lambda node, a, like: bool(pattern(like, False).fullmatch(a)),
    "NOT LIKE": lambda node, a, like: not pattern(like, False).fullmatch(a),
    "ILIKE": lambda node, a, like: bool(pattern(like, True).fullmatch(a)),
    "NOT ILIKE": lambda node, a, like: not pattern(like, True).fullmatch(a),
    "||": lambda node, a, b: a + b,
    "+": arithmetic(lambda a, b: a + b, lambda a, b: a + b),
    "-": arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "*": arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "/": arithmetic(float_quotient, truncated),
    "%": arithmetic(math.fmod, lambda a, b: a - truncated(a, b) * b),
    "negate": lambda node, a: a.copy_negate() if isinstance(a, Decimal) else -a,
}
BY_VALUE: dict[str, Callable] = {
    "IS NULL": lambda node, a: a is None,
    "IS NOT NULL": lambda node, a: a is not None,
    "IS UNKNOWN": lambda node, a: a is None,
    "IS NOT UNKNOWN": lambda node, a: a is not None,
    "IS TRUE": lambda node, a: a is True,
    "IS NOT TRUE": lambda node, a: a is not True,
    "IS FALSE": lambda node, a: a is False,
    "IS NOT FALSE": lambda node, a: a is not False,
    "IS DISTINCT FROM": distinct,
    "IS NOT DISTINCT FROM": lambda node, a, b: not distinct(node, a, b),
    "GREATEST": extreme(1),
    "LEAST": extreme(-1),
}
