"""Differences between DuckDB and exact values that are DuckDB's, each with its reason and the number of its hits.

An entry never excuses a value of the server: its values are compared with the exact ones first, and with DuckDB's only if those differ
from the exact ones. What an entry explains is a value of DuckDB that is neither. One entry is about columns that the server refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable

from differential.expressions import COMPARING, Node

# Where the operands that are one of several possible values begin.
CHOOSING = {"CASE": 1, "CASE OF": 2, "NVL2": 1, "COALESCE": 0, "GREATEST": 0, "LEAST": 0}
MOST_DIGITS = 38
CASTS = ("CAST", "TRY_CAST")


@dataclass
class Entry:
    """A known difference.

    Attributes:
        operator: Operators that differ.
        types: Types of the operands.
        reason: What DuckDB does instead.
        applies: Returns true for a part of an expression that has the difference.
    """

    operator: str
    types: str
    reason: str
    applies: Callable[[Node], bool]


def with_double_literal(node: Node) -> bool:
    """Returns true for comparisons of exact types with a literal that is a DOUBLE in DuckDB."""
    literals = [each.text for each in node.args if each.is_literal and each.what == "literal"]
    is_double = any("e" in text or sum(map(str.isdigit, text)) > MOST_DIGITS for text in literals if text[-1:].isdigit())
    return node.op in COMPARING and is_double and any(each.what in EXACT for each in node.args)


def compares(*types: set[str]) -> Callable[[Node], bool]:
    """Returns a test for comparisons whose operands have a type of each of the given sets."""

    def applies(node: Node) -> bool:
        if node.op not in COMPARING:
            return False
        operands = node.args[:2] if node.op in ("CASE OF", "NULLIF") else node.args
        found = {each.what for each in operands}
        return all(found & wanted for wanted in types)

    return applies


def digits(node: Node) -> tuple[int, int]:
    """Returns the digits of a decimal column or of a literal before and after the point."""
    if not node.is_literal or node.value is None:
        return node.digits
    before, _, after = node.text.lstrip("-").partition(".")
    return len(before.lstrip("0")), len(after)


def chooses_long_decimals(node: Node) -> bool:
    """Returns true if the common type of several decimals needs more digits than a DECIMAL of DuckDB has."""
    if node.op not in CHOOSING or node.what != "decimal":
        return False
    before, after = zip(*map(digits, node.args[CHOOSING[node.op] :]))
    return max(before) + max(after) > MOST_DIGITS


def truncates(node: Node) -> bool:
    """Returns true for a cast of a type with fractions to an integer."""
    return node.op in CASTS and node.what == "integer" and (node.args[0].what == "decimal" or node.args[0].bits > 0)


def narrows(node: Node) -> bool:
    """Returns true for a cast to a floating-point type of fewer bits than the operand has."""
    return node.op in CASTS and 0 < node.bits < node.args[0].bits


def is_text_of_fraction(node: Node) -> bool:
    """Returns true for the text of a decimal type without digits before the point."""
    return node.op in CASTS and node.family == "text" and node.args[0].what == "decimal" and node.args[0].digits[0] == 0


def splits_nanoseconds(node: Node) -> bool:
    """Returns true for a function of time of a timestamp with nanoseconds."""
    return node.is_call and any(each.what == "timestamp_ns" for each in node.args)


FLOATS = {"float16", "float32", "float64"}
EXACT = {"integer", "decimal"}


WIDE_DELTAS = Entry(
    "reading",
    "INTEGER, UINTEGER and DATE in files of DuckDB with PARQUET_VERSION v2",
    "Deltas of 33 bits, which the format does not allow, and Arrow does not read. The server refuses the column by name.",
    lambda node: False,
)

ENTRIES = [
    WIDE_DELTAS,
    Entry(
        "comparisons",
        "integer or DECIMAL with a literal that has an exponent or more than 38 digits",
        "The literal is a DOUBLE in DuckDB, and all operands are compared as such.",
        with_double_literal,
    ),
    Entry(
        "comparisons",
        "integer or DECIMAL with FLOAT or DOUBLE",
        "DuckDB casts the integer or DECIMAL to the floating-point type, which rounds it.",
        compares(EXACT, FLOATS),
    ),
    Entry(
        "comparisons",
        "floats of 16 bits with a literal",
        "DuckDB has no such type. The values are stored as FLOAT, to which the literal is rounded.",
        compares({"float16"}, {"literal"}),
    ),
    Entry(
        "one of several values",
        "DECIMAL with a literal or another DECIMAL that together have more than 38 digits",
        "DuckDB rounds the values to a DECIMAL of 38 digits.",
        chooses_long_decimals,
    ),
    Entry(
        "casts to integers",
        "DECIMAL and floats",
        "DuckDB rounds. The server truncates, as docs/reference/sql.md states.",
        truncates,
    ),
    Entry(
        "casts to FLOAT",
        "DOUBLE beyond the range of FLOAT",
        "DuckDB has no value. The server's is infinite.",
        narrows,
    ),
    Entry(
        "casts to VARCHAR",
        "DECIMAL without digits before the point",
        "DuckDB writes no 0 before the point.",
        is_text_of_fraction,
    ),
    Entry(
        "trunc",
        "floats",
        "DuckDB keeps the sign of a zero. The server delivers 0, as docs/reference/sql.md states.",
        lambda node: node.op == "trunc" and node.bits > 0,
    ),
    Entry(
        "functions of time",
        "timestamps of nanoseconds",
        "DuckDB converts them to microseconds first, and truncates those before 1970 towards it.",
        splits_nanoseconds,
    ),
]


@dataclass
class Dialect:
    """Finds the entry that explains a difference. `hits` counts the expressions that each one has explained."""

    hits: list[int] = field(default_factory=lambda: [0] * len(ENTRIES))

    def explains(self, node: Node) -> bool:
        for number, entry in enumerate(ENTRIES):
            if any(entry.applies(part) for part in node.parts()):
                self.hits[number] += 1
                return True
        return False

    def hit(self, entry: Entry) -> None:
        self.hits[ENTRIES.index(entry)] += 1

    def add(self, other: Dialect) -> None:
        self.hits = [one + more for one, more in zip(self.hits, other.hits)]

    def __str__(self) -> str:
        lines = [f"{hits:7} hits  {entry.operator}, {entry.types}: {entry.reason}" for hits, entry in zip(self.hits, ENTRIES)]
        return "\n".join(["differences of DuckDB, by entry of the dialect (an entry without a hit can be removed):", *lines])
