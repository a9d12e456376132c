"""Random datasets: columns of several types, files and row groups, and the rows that must be read from them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from differential.grammar import Column
from differential.kinds import BOOL, DATES, DECIMALS, FLOATS, INTEGERS, KINDS, NESTED, NUMBERS, SPANS, TEXT, TIMES, TIMESTAMPS, Kind, Span, array_of

CALM = [kind for kind in NUMBERS if kind.calm]


@dataclass
class Dataset:
    """The rows of a dataset by column, in the order of its files. `ends` are the numbers of rows up to the end of each file."""

    seed: int
    columns: list[Column]
    ends: list[int]
    group_rows: int
    row_dicts: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        self.row_dicts = [dict(zip(names, row)) for row in zip(*(column.values for column in self.columns))]

    @property
    def rows(self) -> int:
        return self.ends[-1]

    def table(self) -> pa.Table:
        return pa.table({column.name: array_of(column.kind, column.values) for column in self.columns})

    def parts(self) -> list[pa.Table]:
        """Returns the rows of each file."""
        table, starts = self.table(), [0, *self.ends[:-1]]
        return [table.slice(start, end - start) for start, end in zip(starts, self.ends)]


def generate(seed: int, allowed: list[Kind] | None = None, has_negative_zeros: bool = True) -> Dataset:
    """Draws a dataset of the types in `allowed`, or of all types."""
    rng = random.Random(f"dataset {seed}")
    rows = rng.choice([1, 2, 30, 60, 100])
    kinds = drawn_kinds(rng, allowed or list(KINDS.values()))
    columns = [Column("id", KINDS["int64"], list(range(rows)))]
    for number, (kind, calm) in enumerate(kinds):
        name = f"c{number}_{kind.name}{'_calm' if calm else ''}"
        drawn = values(rng, kind, calm, rows)
        columns.append(Column(name, kind, drawn if has_negative_zeros else list(map(with_positive_zeros, drawn)), calm))
    cuts = sorted(rng.randint(0, rows) for _ in range(rng.choice([0, 0, 1, 2])))
    return Dataset(seed, columns, [*cuts, rows], rng.choice([4, 16, 1000]))


def drawn_kinds(rng: random.Random, allowed: list[Kind]) -> list[tuple[Kind, bool]]:
    """Draws the types of the columns. Some families are always there, so that each operator has operands."""

    def one(group: list[Kind]) -> list[Kind]:
        there = [kind for kind in group if kind in allowed]
        return [rng.choice(there)] if there else []

    always = (INTEGERS, INTEGERS, DECIMALS, DECIMALS, FLOATS, [TEXT], [TEXT], [BOOL], [BOOL], DATES, TIMES, TIMESTAMPS, TIMESTAMPS, SPANS, SPANS, NESTED)
    groups = (*always, list(KINDS.values()), list(KINDS.values()))
    found = [(kind, False) for group in groups for kind in one(group)]
    found += [(kind, True) for group in (INTEGERS[:4], CALM) for kind in one(group)]
    rng.shuffle(found)
    return found


def values(rng: random.Random, kind: Kind, calm: bool, rows: int) -> list:
    nulls = rng.choice([0, 0.1, 0.1, 0.3, 1]) if not calm else 0.1
    ends = rng.choice([0.2, 0.7, 1])
    if nulls == 1 and rng.random() < 0.6:
        nulls = 0.1

    # Few different values are often equal to literals, and make other bounds than many.
    extremes = rng.sample(kind.extremes, min(len(kind.extremes), rng.choice([2, 4, 4, 100])))

    def one() -> Any:
        if rng.random() < nulls:
            return None
        if calm:
            return kind.calm(rng)
        return rng.choice(extremes) if rng.random() < ends else kind.draw(rng)

    drawn = [one() for _ in range(rows)]
    # Sorted values give row groups and pages bounds that exclude something.
    if rng.random() < 0.4 and kind.family not in ("list", "struct"):
        there = sorted((value for value in drawn if value is not None), key=sort_key)
        drawn = [None if value is None else there.pop(0) for value in drawn]
    return drawn


def with_positive_zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: with_positive_zeros(each) for name, each in value.items()}
    return abs(value) if isinstance(value, float) and value == 0 else value


def sort_key(value: Any) -> tuple:
    if isinstance(value, Span):
        return False, value.length
    is_nan = value != value
    return is_nan, 0 if is_nan else value
