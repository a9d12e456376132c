"""Comparison of one expression: what the server delivers, what DuckDB computes, and what is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from differential.calls import APPROXIMATE
from differential.datasets import Dataset
from differential.dialect import Dialect
from differential.duck import Duck, Refused
from differential.evaluation import evaluate
from differential.expressions import DUCK_FLAT, DUCK_FULL, FLAT, FULL, Failure, Node
from differential.faults import NO_FAULT, Fault
from differential.kinds import Span, same
from differential.served import UNPRUNED, Served

ABSENT = "not compared"


@dataclass
class Difference:
    """A value that is not as expected.

    Attributes:
        what: `wrong` or `refused` for the server, `oracle` for an expectation that DuckDB contradicts without an entry.
        way: The request that showed it.
        text: The expression, file or keys.
        row: The first row that differs, or -1.
        ours, exact, duck: Values of this row, or messages.
        shape: What it is about, without names and numbers. Differences of one shape have one cause.
    """

    what: str
    way: str
    text: str
    row: int
    ours: Any
    exact: Any
    duck: Any = ABSENT
    shape: str = ""
    seed: int = 0
    case: int = 0
    files: str = ""

    def __str__(self) -> str:
        values = f"served {shown(self.ours)}, exact {shown(self.exact)}, DuckDB {shown(self.duck)}"
        return f"{self.what} [{self.seed}:{self.case}] {self.files}\n    {self.way}: {self.text}\n    row {self.row}: {values}"


def with_length(value: Any) -> Any:
    """Returns the length of a span: DuckDB has one type for durations and intervals."""
    return value.length if isinstance(value, Span) else value


def agrees(node: Node, value: Any, wanted: Any) -> bool:
    """Returns true for the same value, or for a neighbour of the value of a transcendental function."""
    if same(value, wanted):
        return True
    is_close = isinstance(value, float) and isinstance(wanted, float) and abs(value - wanted) <= math.ulp(wanted)
    return node.op in APPROXIMATE and is_close


def shown(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) < 400 else text[:400] + "..."


def shape(node: Node) -> str:
    if node.op in ("column", "field"):
        return node.what
    if node.op == "literal":
        return "null" if node.value is None else "literal"
    return f"{node.op}({', '.join(map(shape, node.args))})"


@dataclass
class Judge:
    """Judges expressions over a dataset. With a fault, the server receives what a server with this fault would have understood."""

    dataset: Dataset
    served: Served
    duck: Duck
    dialect: Dialect
    fault: Fault = NO_FAULT
    without_duck: int = field(default=0)

    def second_opinion(self, text: str, node: Node) -> list | Refused | str:
        known = self.duck.finite if any(part.is_call for part in node.parts()) else self.duck.columns
        if not node.columns() <= known:
            return ABSENT
        try:
            return self.duck.values(text)
        except Refused as error:
            return error

    def judge(self, nodes: list[Node]) -> list[Difference | None]:
        """Returns the first difference of each expression, or None."""
        flat = self.served.values([self.fault.flat(node) for node in nodes])
        full = self.served.values([self.fault.full(node) for node in nodes])
        return [self.judge_one(node, *found) for node, *found in zip(nodes, flat, full)]

    def judge_one(self, node: Node, flat: list | Refused, full: list | Refused) -> Difference | None:
        try:
            exact = [evaluate(node, row) for row in self.dataset.row_dicts]
        except Failure as failure:
            return self.of_failure(node, failure, flat, full)
        found = self.of_values(node, FLAT(node), flat, exact) or self.of_values(node, FULL(node), full, exact)
        # A filter shows no more of a fault than the same condition in `select`. Where DuckDB overflows, too, there are no values.
        if found or node.family != "bool" or self.fault != NO_FAULT or isinstance(flat, Refused):
            return found
        matching = [row for row, value in enumerate(exact) if value is True]
        for way, text in (("filter", FLAT(node)), ("filter", FULL(node)), ("filter without pruning", UNPRUNED.format(FLAT(node)))):
            try:
                ids = self.served.matching(text)
            except Refused as error:
                return Difference("refused", way, text, -1, error, matching, shape=shape(node))
            if ids != matching:
                row = min(set(ids) ^ set(matching), default=-1)
                return Difference("wrong", way, text, row, row in ids, row in matching, shape=shape(node))
        return None

    def of_failure(self, node: Node, failure: Failure, flat: list | Refused, full: list | Refused) -> Difference | None:
        """Returns a difference if a server delivers values for an expression that is an error for a row."""
        for text, ours in ((FLAT(node), flat), (FULL(node), full)):
            if not isinstance(ours, Refused):
                return Difference("wrong", "select", text, -1, ours[:5], failure, shape=shape(node))
        return None

    def of_values(self, node: Node, text: str, ours: list | Refused, exact: list) -> Difference | None:
        way = "select"
        duck_text = DUCK_FLAT(node) if text == FLAT(node) else DUCK_FULL(node)
        duck = self.second_opinion(duck_text, node)
        if isinstance(ours, Refused):
            if isinstance(duck, Refused) and "overflow" in str(ours).lower() and "overflow" in str(duck).lower():
                return None
            theirs = duck if isinstance(duck, (str, Refused)) else duck[:3]
            return Difference("refused", way, text, -1, ours, exact[:3], theirs, shape(node))
        if not isinstance(duck, list):
            self.without_duck += 1
        for row, (value, wanted) in enumerate(zip(ours, exact)):
            theirs = duck[row] if isinstance(duck, list) else duck
            # A float that is equal to an integer or a decimal has another type than promised.
            if not agrees(node, value, wanted) or isinstance(value, float) != isinstance(wanted, float):
                return Difference("wrong", way, text, row, value, wanted, theirs, shape(node))
        if len(ours) != len(exact):
            return Difference("wrong", way, text, -1, f"{len(ours)} rows", f"{len(exact)} rows", duck, shape(node))
        if isinstance(duck, list):
            differing = (row for row, pair in enumerate(zip(duck, exact)) if not agrees(node, *map(with_length, pair)))
            row = next(differing, None)
            if row is not None and not self.dialect.explains(node):
                return Difference("oracle", way, duck_text, row, ours[row], exact[row], duck[row], shape(node))
        return None
