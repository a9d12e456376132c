"""Faults that the machine must find: the SQL of a request is spelled as a server with the fault would have understood it.

Only the text for the server changes. The exact values and the text for DuckDB do not.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Callable

from differential.expressions import COMPARING, DISTINCT, FLAT, FULL, Node, Spelling


@dataclass(frozen=True)
class Fault:
    """A fault of a server.

    Attributes:
        name: Name on the command line.
        flat: Spells what the server understood from an expression without needless parentheses.
        full: Spells what it understood from an expression with all parentheses.
    """

    name: str
    flat: Callable[[Node], str]
    full: Callable[[Node], str]


def with_doubles(node: Node) -> Node:
    """Returns an expression whose compared literals are DOUBLEs, as if they were rounded before the comparison."""
    args = tuple(map(with_doubles, node.args))
    if node.op in COMPARING:
        compared = 2 if node.op in ("CASE OF", "NULLIF") else len(args)
        args = (*map(as_double, args[:compared]), *args[compared:])
    return dataclasses.replace(node, args=args)


def as_double(node: Node) -> Node:
    """Returns a literal as a DOUBLE if it has a point, an exponent or more than 64 bits. Others were always exact."""
    if not node.is_literal or node.family != "number" or node.value is None:
        return node
    is_integer = node.text.lstrip("-").isdigit() and -(2**63) <= int(node.text) < 2**64
    return node if is_integer else dataclasses.replace(node, text=f"CAST({node.text} AS DOUBLE)")


class GreedyDistinct(Spelling):
    """Spells IS [NOT] DISTINCT FROM as if its right side ended where the enclosing parentheses, list or CASE end."""

    def __init__(self) -> None:
        super().__init__(full=False)
        # Right sides of the current group that have not ended.
        self.begun = 0

    def group(self, spelled: Callable[[], str]) -> str:
        outer, self.begun = self.begun, 0
        text = spelled() + ")" * self.begun
        self.begun = outer
        return text

    def second(self, node: Node, own: int, right: int) -> str:
        if node.op not in DISTINCT:
            return super().second(node, own, right)
        self.begun += 1
        return "(" + super().second(node, own, right)


NO_FAULT = Fault("none", FLAT, FULL)
ROUNDED_LITERALS = Fault("rounded-literals", lambda node: FLAT(with_doubles(node)), lambda node: FULL(with_doubles(node)))
GREEDY_DISTINCT = Fault("greedy-distinct", GreedyDistinct(), FULL)
FAULTS = {fault.name: fault for fault in (NO_FAULT, ROUNDED_LITERALS, GREEDY_DISTINCT)}
