"""Random expressions over the columns of a dataset. Each pair of operators is asked for in turn."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pyarrow.types as at

from differential import calls, literals
from differential.expressions import COMPARISONS, DISTINCT, OPERATORS, TESTS, Node
from differential.kinds import Kind

LOGICAL = ("AND", "OR", "NOT")
TESTS_OF_BOOLS = tuple(name for name in TESTS if "NULL" not in name)
ARITHMETIC = ("+", "-", "*", "/", "%", "negate")
LIKES = ("LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE")
ANY_OPERANDS = (*COMPARISONS, *DISTINCT, "BETWEEN", "NOT BETWEEN", "IN", "NOT IN", "IS NULL", "IS NOT NULL")
PATTERNS = ("%a%", "a%", "_", "%", "", "J%n_", "%é", "a_b", "abc", "水%")


def positions(op: str) -> range:
    if op in ("NOT", "negate", *TESTS, *LIKES):
        return range(1)
    return range(3 if op in ("BETWEEN", "NOT BETWEEN") else 2)


def fits(outer: str, inner: str) -> bool:
    """Returns true if a value of `inner` can be an operand of `outer`."""
    of_numbers, of_texts = inner in ARITHMETIC, inner == "||"
    if outer in ANY_OPERANDS:
        return True
    if outer in ARITHMETIC:
        return of_numbers
    if outer in ("||", *LIKES):
        return of_texts
    return not of_numbers and not of_texts


# Operators of one precedence and form, and the pairs of these groups that can be nested, with the position of the inner operator.
GROUPS = (
    ("OR",),
    ("AND",),
    ("NOT",),
    TESTS,
    DISTINCT,
    COMPARISONS,
    ("BETWEEN", "NOT BETWEEN"),
    ("IN", "NOT IN"),
    LIKES,
    ("||",),
    ("+", "-"),
    ("*", "/", "%"),
    ("negate",),
)
PAIRS = [
    (outer, inner, position)
    for outer in GROUPS
    for inner in GROUPS
    if any(fits(one, other) for one in outer for other in inner)
    for position in positions(outer[0])
]
# Neighbours differ, so that a short run has some of everything.
random.Random(0).shuffle(PAIRS)


@dataclass(frozen=True)
class Column:
    """A column of a dataset, with its values for the choice of literals. A calm one has small values, for arithmetic."""

    name: str
    kind: Kind
    values: list
    calm: bool = False

    @property
    def node(self) -> Node:
        arrow = self.kind.arrow
        what = "integer" if at.is_integer(arrow) else "decimal" if at.is_decimal(arrow) else self.kind.name
        digits = (arrow.precision - arrow.scale, arrow.scale) if what == "decimal" else (0, 0)
        return Node("column", (), self.kind.family, what=what, bits=self.kind.float_bits, text=self.name, digits=digits)


class Grammar:
    """Draws expressions over `columns`, with calls of functions if `has_calls` is true."""

    def __init__(self, rng: random.Random, columns: list[Column], has_calls: bool = False) -> None:
        self.rng, self.has_calls = rng, has_calls
        self.columns = {column.name: column for column in columns}
        # Whether arithmetic has integers only, as an operand of a division or of a remainder.
        self.only_integers = False
        self.of: dict[str, list[Column]] = {}
        for column in columns:
            self.of.setdefault(column.kind.family, []).append(column)
        self.comparable = [name for name in self.of if name not in ("list", "struct")]

    def anything(self, depth: int) -> Node:
        return self.value(self.rng.choice(["number", *self.comparable]), depth)

    def condition(self, depth: int) -> Node:
        if depth == 0 or self.rng.random() < 0.1:
            if self.rng.random() < 0.2:
                return self.column("bool")
            return self.operation(self.rng.choice([*COMPARISONS, *COMPARISONS, *DISTINCT, *TESTS[:2], "IN", "BETWEEN"]), 0, None)
        if self.has_calls and self.rng.random() < 0.6:
            return self.tested(depth)
        op = self.rng.choice([*LOGICAL, *LOGICAL, *TESTS, *DISTINCT, *DISTINCT, *ANY_OPERANDS, *LIKES, "CASE", "COALESCE"])
        return self.operation(op, depth, None)

    def called(self, depth: int) -> Node:
        """Draws a call of a function, or an expression if there is no function of its family."""
        family = self.rng.choice(["number", "number", "text", *(name for name in calls.DRAWN if name in self.of)])
        return calls.draw(self, family, depth) or self.value(family, depth)

    def tested(self, depth: int) -> Node:
        """Compares a call of a function, or draws one that is a condition."""
        first = self.called(depth)
        if first.family == "bool":
            return first
        op = self.rng.choice([*COMPARISONS, "IN", "BETWEEN", *DISTINCT, "IS NULL"])
        count = {"IS NULL": 0, "IN": 2, "BETWEEN": 2}.get(op, 1)
        return self.node(op, [first, *(self.counterpart(first, depth - 1) for _ in range(count))], None, "bool")

    def simple(self) -> Node:
        """Compares a column with constants, by which row groups and pages are excluded."""
        columns = [column for name in self.comparable for column in self.of[name]]
        exact = [column for column in columns if column.node.what in ("integer", "decimal")]
        first = self.rng.choice(exact if self.rng.random() < 0.5 else columns).node
        op = self.rng.choice([*COMPARISONS, "=", "=", "IN", "BETWEEN", "IS NOT DISTINCT FROM"])
        count = {"IN": 2, "BETWEEN": 2}.get(op, 1)
        return self.node(op, [first, *(self.literal(first) for _ in range(count))], None, "bool")

    def operation(self, op: str, depth: int, forced: tuple[int, Node] | None) -> Node:
        """Draws an operation whose operands are up to `depth` deep, one of which can be given with its position."""
        given = forced[1] if forced else None
        if op in LOGICAL or op in TESTS_OF_BOOLS:
            operands = [self.condition(max(depth - 1, 0)) for _ in positions(op)]
            return self.node(op, operands, forced, "bool")
        if op in LIKES:
            operands = [self.value("text", depth - 1), literals.text(self.rng.choice(PATTERNS))]
            return self.node(op, operands, forced, "bool")
        if op in ("CASE", "COALESCE"):
            return self.chosen(op, self.column("bool"), depth)
        if op == "||":
            operands = [self.value("text", depth - 1), self.value("text", depth - 1)]
            return self.node(op, operands, forced, "text", "text")
        if op in ARITHMETIC:
            return self.arithmetic(op, depth, forced)
        # A truth value on the right is what a parser can confuse with a condition that follows.
        likely = ["bool"] if op in DISTINCT and self.rng.random() < 0.3 else ["number", "number", *self.comparable]
        family = given.family if given else self.rng.choice(likely)
        return self.compared(op, family, depth, forced)

    def node(self, op: str, operands: list[Node], forced: tuple[int, Node] | None, family: str, what: str = "bool", bits: int = 0) -> Node:
        if forced:
            operands[forced[0]] = forced[1]
        return Node(op, tuple(operands), family, what=what, bits=bits)

    def compared(self, op: str, family: str, depth: int, forced: tuple[int, Node] | None) -> Node:
        first = self.value(family, depth - 1)
        count = {"IS NULL": 0, "IS NOT NULL": 0, "BETWEEN": 2, "NOT BETWEEN": 2, "IN": 3, "NOT IN": 3}.get(op, 1)
        others = [self.counterpart(first, depth) for _ in range(count)]
        return self.node(op, [first, *others], forced, "bool")

    def counterpart(self, first: Node, depth: int) -> Node:
        """Returns an operand to compare with `first`: often a literal near its values."""
        chance = self.rng.random()
        if chance < 0.03:
            return literals.null(first.family)
        if chance < 0.65:
            return self.literal(first)
        if first.family in ("date", "naive") and chance < 0.8:
            other = self.column(self.rng.choice([name for name in ("date", "naive") if name in self.of]))
            return other if chance < 0.72 else self.literal(other)
        return self.value(first.family, depth - 1)

    def literal(self, partner: Node) -> Node:
        names = sorted(partner.columns())
        columns = [self.columns[name] for name in names if self.columns[name].kind.family == partner.family]
        if not columns and partner.is_call and partner.what == "integer":
            return literals.number(str(self.rng.randint(-1, 12)))
        if not columns:
            columns = self.of[partner.family]
        column = self.rng.choice(columns)
        found = literals.near(self.rng, column.kind, column.values)
        return found if found is not None else literals.null(partner.family)

    def column(self, family: str) -> Node:
        return self.rng.choice(self.of[family]).node

    def value(self, family: str, depth: int) -> Node:
        if self.has_calls and depth > 0 and self.rng.random() < 0.5:
            found = calls.draw(self, family, depth)
            if found is not None:
                return found
        if family == "bool":
            return self.condition(max(depth, 0)) if depth > 0 else self.column("bool")
        if family == "number" and depth > 0 and self.rng.random() < 0.5:
            return self.operation(self.rng.choice(ARITHMETIC), depth, None)
        if family == "text" and depth > 0 and self.rng.random() < 0.3:
            return self.operation("||", depth, None)
        if family == "number" and "struct" in self.of and self.rng.random() < 0.05:
            return self.field()
        if depth > 0 and self.rng.random() < 0.3:
            op = self.rng.choice(["CASE", "CASE OF", "COALESCE", "NULLIF", "GREATEST", "LEAST"])
            return self.chosen(op, self.column(family), depth)
        return self.column(family)

    def field(self) -> Node:
        of = self.column("struct")
        kind = self.columns[of.text].kind.arrow
        name = self.rng.choice(["x", "z", "w"])
        arrow = kind.field(name).type
        what = "integer" if at.is_integer(arrow) else "decimal" if at.is_decimal(arrow) else "float64"
        return Node("field", (of,), "number", what=what, bits=64 if what == "float64" else 0, text=name)

    def chosen(self, op: str, like: Node, depth: int) -> Node:
        """Returns one of the values of columns of one type, so that none of them has to be converted."""
        kind = self.columns[like.text].kind
        same = [column.node for column in self.of[like.family] if column.kind.arrow == kind.arrow]
        pick = lambda: self.rng.choice(same)
        if op == "CASE":
            operands = [self.condition(depth - 1), like, pick()]
        elif op == "CASE OF":
            of = self.column(self.rng.choice(self.comparable))
            operands = [of, self.literal(of), like, pick()]
        elif op == "NULLIF":
            operands = [like, self.counterpart(like, 0)]
        else:
            operands = [like, pick()]
        return Node(op, tuple(operands), like.family, what=like.what, bits=like.bits)

    def result(self) -> Node:
        """Returns one of several values: of columns of different types in NULLIF, otherwise of a column and of constants."""
        families = [name for name in ("number", "number", "bool", "text", "date", "time", "naive", "zoned") if name in self.of]
        first = self.column(self.rng.choice(families))
        kind, values = self.columns[first.text].kind, self.columns[first.text].values
        if self.rng.random() < 0.4:
            related = ("date", "naive") if first.family in ("date", "naive") else (first.family,)
            other = self.column(self.rng.choice([name for name in related if name in self.of]))
            return self.one_of("NULLIF", first, other if self.rng.random() < 0.5 else self.literal(other))
        same = [column.node for column in self.of[first.family] if column.kind.arrow == kind.arrow]
        second = literals.exact(self.rng, kind, values) or self.rng.choice(same)
        pair = (first, second) if self.rng.random() < 0.7 else (second, first)
        extremes = ("GREATEST", "LEAST") if first.family not in ("bool", "text") else ()
        op = self.rng.choice(["COALESCE", "CASE", "NVL2", *extremes])
        if op == "CASE":
            return self.one_of(op, self.condition(0), *pair, like=first)
        if op == "NVL2":
            return self.one_of(op, self.column(self.rng.choice(self.comparable)), *pair, like=first)
        return self.one_of(op, *pair, like=first)

    def one_of(self, op: str, *operands: Node, like: Node | None = None) -> Node:
        like = like or operands[0]
        return Node(op, operands, like.family, what=like.what, bits=like.bits)

    def arithmetic(self, op: str, depth: int, forced: tuple[int, Node] | None) -> Node:
        """Draws arithmetic of small values, all of them integers, decimals or doubles: with one of these, or with integers."""
        calm = [column for column in self.of["number"] if column.calm]
        whole = [column for column in calm if at.is_integer(column.kind.arrow)]
        if self.only_integers or op in ("/", "%") or forced and forced[1].what == "integer":
            calm = whole
        first = (forced[1] if forced else None) or self.rng.choice(calm).node
        if op == "negate":
            return self.node(op, [first], None, "number", first.what, first.bits)
        alike = [column.node for column in calm if column.node.what == first.what]
        if op in "/%":
            inner = forced[1].op if forced and forced[0] == 1 else ""
            # A divisor is constant, because it must not be zero.
            second = self.constant(inner) if inner else literals.whole(self.rng.choice([2, 3, 7]))
            operands = [self.rng.choice(whole).node if inner else first, second]
        else:
            operands = [first, self.rng.choice([*alike, literals.whole(self.rng.randint(1, 3))])]
            if forced and forced[0] == 1:
                operands = [self.rng.choice(alike or [first]), forced[1]]
        return self.node(op, operands, None, "number", first.what, first.bits)

    def constant(self, op: str) -> Node:
        """Returns an operation of constants whose value is 2."""
        low, high = {"+": (1, 1), "-": (5, 3), "*": (2, 1), "/": (6, 3), "%": (5, 3)}.get(op, (2, 0))
        operands = (literals.whole(low),) if op == "negate" else (literals.whole(low), literals.whole(high))
        return Node(op, operands, "number", what="integer")


def pair(grammar: Grammar, number: int) -> Node:
    """Returns an expression with the pair of operators whose turn it is: all groups first, then other operators of each."""
    outer, inner, position = PAIRS[number % len(PAIRS)]
    turn = number // len(PAIRS)
    nested = [(one, other) for one in outer for other in inner if fits(one, other)]
    one, other = nested[turn % len(nested)]
    grammar.only_integers = one in ("/", "%")
    return grammar.operation(one, 1, (position, grammar.operation(other, 1, None)))
