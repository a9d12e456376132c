"""Expressions as trees, with their spelling in SQL.

A tree is spelled with all parentheses, or with only those that the precedence of PostgreSQL and DuckDB requires. DuckDB reads both, so
that a wrong entry in `OPERATORS` shows as a difference between its two answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator

# Precedence and position of each operator. Operators that do not appear here are spelled like functions.
OR, AND, NOT, IS, COMPARISON, RANGE, OTHER, SUM, PRODUCT, SIGN = range(1, 11)
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
DISTINCT = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")
TESTS = ("IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN", "IS NOT UNKNOWN")
# Operators and functions that compare their operands; CASE OF and NULLIF only the first two.
COMPARING = (*COMPARISONS, *DISTINCT, "BETWEEN", "NOT BETWEEN", "IN", "NOT IN", "CASE OF", "NULLIF")
OPERATORS: dict[str, tuple[int, str]] = {
    "OR": (OR, "left"),
    "AND": (AND, "left"),
    "NOT": (NOT, "prefix"),
    **{name: (IS, "postfix") for name in TESTS},
    **{name: (IS, "none") for name in DISTINCT},
    **{name: (COMPARISON, "none") for name in COMPARISONS},
    **{name: (RANGE, "range") for name in ("BETWEEN", "NOT BETWEEN")},
    **{name: (RANGE, "postfix") for name in ("IN", "NOT IN")},
    **{name: (RANGE, "none") for name in ("LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE")},
    "||": (OTHER, "left"),
    **{name: (SUM, "left") for name in "+-"},
    **{name: (PRODUCT, "left") for name in "*/%"},
    "negate": (SIGN, "prefix"),
}
FUNCTIONS = ("CASE", "CASE OF", "COALESCE", "NULLIF", "NVL2", "GREATEST", "LEAST")


class Failure(Exception):
    """A value that is an error, so that a request for it must be refused."""


@dataclass(frozen=True)
class Node:
    """A part of an expression.

    Attributes:
        op: `column`, `literal`, `field`, or an operator or function.
        args: Operands.
        family: Family of the type of the value, as in Kind.
        what: Type of the value as far as its semantics depend on it: the name of a Kind, `integer`, `decimal`, `float64`, `literal`.
        bits: Width of a floating-point value, or 0.
        text: Name of a column or field, spelling of a literal, or of a call, with `{}` for each operand.
        duck: Spelling in DuckDB if it is another one.
        value: Value of a literal, or the function that computes the value of a call.
        digits: Digits of a decimal column or of the result of a call before and after the point.
        takes_null: Whether a call computes a value of null operands.
    """

    op: str
    args: tuple[Node, ...]
    family: str
    what: str = ""
    bits: int = 0
    text: str = ""
    duck: str = ""
    value: Any = None
    digits: tuple[int, int] = (0, 0)
    takes_null: bool = False

    def parts(self) -> Iterator[Node]:
        yield self
        for each in self.args:
            yield from each.parts()

    @property
    def is_literal(self) -> bool:
        return self.op == "literal"

    @property
    def is_call(self) -> bool:
        return callable(self.value)

    def columns(self) -> set[str]:
        return {part.text for part in self.parts() if part.op == "column"}

    def pairs(self) -> Iterator[tuple[str, str, int]]:
        """Yields each pair of nested operators, with the position of the inner one."""
        for part in self.parts():
            for position, each in enumerate(part.args):
                if part.op in OPERATORS and each.op in OPERATORS:
                    yield part.op, each.op, position


class Spelling:
    """Spells trees for Forebay, or for DuckDB.

    Args:
        full: Whether each operation is in parentheses.
        duck: Whether the text is for DuckDB.
    """

    def __init__(self, full: bool, duck: bool = False) -> None:
        self.full, self.duck = full, duck

    def __call__(self, node: Node) -> str:
        return self.group(lambda: self.spell(node, 0, 0))

    def group(self, spelled: Callable[[], str]) -> str:
        """Returns a text that ends at a parenthesis, a comma, a keyword or the end."""
        return spelled()

    def spell(self, node: Node, left: int, right: int) -> str:
        """Spells `node` between operators of the given precedences; 0 stands for none."""
        if node.op not in OPERATORS:
            return self.atom(node)
        own, place = OPERATORS[node.op]
        takes_left, takes_right = place != "prefix", place != "postfix"
        needed = (takes_left and left >= own) or (takes_right and (right > own or (right == own and place in ("none", "range"))))
        if self.full or needed:
            return f"({self.group(lambda: self.operation(node, own, place, 0, 0))})"
        return self.operation(node, own, place, left, right)

    def operation(self, node: Node, own: int, place: str, left: int, right: int) -> str:
        if place == "prefix":
            return ("NOT " if node.op == "NOT" else "- ") + self.spell(node.args[0], own - 1, right)
        first = self.spell(node.args[0], left, own)
        if node.op in ("IN", "NOT IN"):
            return f"{first} {node.op} ({', '.join(self(each) for each in node.args[1:])})"
        if place == "postfix":
            return " ".join([first, node.op, *(self(each) for each in node.args[1:])])
        if place == "range":
            # The lower bound ends at AND, therefore nothing that binds less tightly stands there.
            return f"{first} {node.op} {self.spell(node.args[1], own, SIGN)} AND {self.spell(node.args[2], own, right)}"
        sign = "//" if self.duck and node.op == "/" and not node.bits else node.op
        return f"{first} {sign} {self.second(node, own, right)}"

    def second(self, node: Node, own: int, right: int) -> str:
        """Spells the right side of an operator with two operands."""
        return self.spell(node.args[1], own, right)

    def atom(self, node: Node) -> str:
        if node.op == "column":
            return node.text
        if node.op == "field":
            return f"{self(node.args[0])}['{node.text}']"
        if node.op == "literal":
            return node.duck if self.duck and node.duck else node.text
        inside = [self(each) for each in node.args]
        if node.op == "CASE":
            return f"CASE WHEN {inside[0]} THEN {inside[1]} ELSE {inside[2]} END"
        if node.op == "CASE OF":
            return f"CASE {inside[0]} WHEN {inside[1]} THEN {inside[2]} ELSE {inside[3]} END"
        if node.op == "NVL2" and self.duck:
            return f"CASE WHEN ({inside[0]}) IS NOT NULL THEN {inside[1]} ELSE {inside[2]} END"
        if node.is_call:
            return (node.duck if self.duck and node.duck else node.text).format(*inside)
        return f"{node.op}({', '.join(inside)})"


FLAT, FULL = Spelling(False), Spelling(True)
DUCK_FLAT, DUCK_FULL = Spelling(False, duck=True), Spelling(True, duck=True)
