"""Cases of a dataset by its seed: which they are, and how they are run and reported."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from client import Client
from differential import calls, lookups, tensors, wide_deltas, writers
from differential.datasets import Dataset, generate
from differential.dialect import Dialect
from differential.duck import Duck, Refused
from differential.expressions import Node
from differential.faults import NO_FAULT, Fault
from differential.grammar import Column, Grammar, pair
from differential.judge import Difference, Judge
from differential.kinds import plain_values, same
from differential.served import Served
from differential.shrink import shrunk
from server import Pool

# Cases of a dataset: 0 reads all rows, the others are expressions, tensors and lookups.
EXPRESSIONS = 25
# Expressions whose result is one of several values of different types.
RESULTS = (9, 12, 21)
TENSORS = range(EXPRESSIONS + 1, EXPRESSIONS + 3)
LOOKUPS = range(EXPRESSIONS + 3, EXPRESSIONS + 5)
# Expressions with calls of functions.
CALLS = range(EXPRESSIONS + 5, EXPRESSIONS + 13)
CASES = EXPRESSIONS + 13
MAX_SHRUNK = 6


@dataclass
class Report:
    """Counts and differences of a run."""

    cases: int = 0
    without_duck: int = 0
    differences: list[Difference] = field(default_factory=list)
    dialect: Dialect = field(default_factory=Dialect)

    def add(self, other: Report) -> None:
        self.cases += other.cases
        self.without_duck += other.without_duck
        self.differences += other.differences
        self.dialect.add(other.dialect)

    def by_cause(self) -> dict[str, list[Difference]]:
        causes: dict[str, list[Difference]] = {}
        for each in self.differences:
            causes.setdefault(cause(each), []).append(each)
        return causes

    def __str__(self) -> str:
        lines = [f"{self.cases} cases, {self.without_duck} values not compared with DuckDB, {len(self.differences)} differences"]
        for name, found in sorted(self.by_cause().items(), key=lambda item: -len(item[1])):
            lines += [f"{len(found)} x {name}", f"  {min(found, key=lambda each: len(each.text))}"]
        return "\n".join(lines)


# Parts of a message that differ from case to case: what follows the message, names, units and numbers.
VARIABLE = (
    (r"\s+", " "),
    (r"^.*?message: |\. gRPC client debug context.*|\.? Client context.*", ""),
    (r"^dataset '[^']*': (\S+ in \S+?, row groups? [\d to]+: )?", ""),
    (r"\b(c\d+|id)_\w+|\S*/\S+|'[^']*'", "_"),
    (r"\((s|ms|µs|us|ns)(, \"[^\"]*\")?\)", "(unit)"),
    (r"(Int|UInt|Float|Decimal|Date|Utf|Timestamp|Time)\d*(\([^)]*\))?( value [^ ]*)?", r"\1"),
    (r"(?<![A-Za-z])[-+]?\d[\d.:T]*(e[-+]?\d+)?", "N"),
)


def cause(found: Difference) -> str:
    """Returns what differences with one cause have in common."""
    if found.what != "refused":
        return f"{found.what} in {found.way}: {found.shape}"
    message = str(found.ours)
    for pattern, short in VARIABLE:
        message = re.sub(pattern, short, message)
    return f"refused: {message[:150]}"


def writer_of(seed: int) -> str:
    return random.Random(f"writer {seed}").choice(writers.WRITERS)


def dataset_of(seed: int) -> Dataset:
    writer = writer_of(seed)
    # DuckDB writes -0 as 0.
    return generate(seed, writers.allowed_for(writer), has_negative_zeros=writer not in ("duckdb", "mixed"))


def run_datasets(seeds: list[int], folder: Path, only: int | None = None, fault: Fault = NO_FAULT, dialect: Dialect | None = None) -> Report:
    """Runs the datasets with these seeds on one server, whose files are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    report, prepared = Report(dialect=dialect or Dialect()), [prepare(seed, folder) for seed in seeds]
    config = folder / "forebay.toml"
    config.write_text("".join(f'[online.{each.name}]\nkey = ["{each.key.name}"]\n' for each in prepared))
    pool = Pool(folder)
    try:
        server = pool.start({each.name: each.path for each in prepared}, config=config)
        with Client(server.location) as client:
            for each in prepared:
                run(each, client, report, only, fault)
    finally:
        pool.close()
    return report


@dataclass(frozen=True)
class Prepared:
    """A dataset with its files, the name to serve it as, and the column to index."""

    dataset: Dataset
    path: Path
    name: str
    key: Column


def prepare(seed: int, folder: Path) -> Prepared:
    """Writes the files of a dataset."""
    dataset, path = dataset_of(seed), folder / f"seed-{seed}"
    writers.write(dataset, path, writer_of(seed))
    return Prepared(dataset, path, f"seed-{seed}", lookups.key_column(dataset, wide_deltas.columns(dataset, path)))


def run(prepared: Prepared, client: Client, report: Report, only: int | None = None, fault: Fault = NO_FAULT) -> None:
    """Runs the cases of a dataset, or one of them, and adds what it finds to `report`."""
    name, path = prepared.name, prepared.path
    served = Served(client, name)
    dataset = wide_deltas.without_refused(prepared.dataset, served, path, report.dialect)
    duck = Duck(dataset)
    judge = Judge(dataset, served, duck, report.dialect, fault)
    found: dict[int, Difference | None] = {0: rows_differ(dataset, served)}
    # Nothing is compared in a dataset that cannot be read, because everything would differ.
    if found[0] is None:
        chosen = lambda numbers: [number for number in numbers if only in (None, number)]
        numbers = chosen([*range(1, EXPRESSIONS + 1), *CALLS])
        nodes = [expression(dataset, number) for number in numbers]
        for number, node, difference in zip(numbers, nodes, judge.judge(nodes)):
            if difference and sum(each is not None for each in found.values()) < MAX_SHRUNK:
                _, difference = shrunk(node, difference, lambda smaller: judge.judge([smaller])[0])
            found[number] = difference
        for number in chosen(TENSORS):
            found[number] = tensors.check(dataset, served, random.Random(f"tensor {dataset.seed} {number}"))
        for number in chosen(LOOKUPS):
            found[number] = lookups.check(prepared.key, client, name, random.Random(f"lookup {dataset.seed} {number}"))
    for number, difference in found.items():
        report.cases += 1
        if difference:
            difference.seed, difference.case = dataset.seed, number
            difference.files = ", ".join(sorted(each.name for each in path.iterdir()))
            report.differences.append(difference)
    report.without_duck += judge.without_duck
    duck.close()


def is_pair(number: int) -> bool:
    """Returns true for the cases that have a certain pair of operators; the others are larger."""
    return number % 3 != 0


def expression(dataset: Dataset, number: int) -> Node:
    grammar = Grammar(random.Random(f"expression {dataset.seed} {number}"), dataset.columns, number in CALLS)
    if number == CALLS[0]:
        return calls.approximate(grammar)
    if number in CALLS:
        return grammar.called(3) if number % 2 else grammar.condition(3)
    if is_pair(number):
        return pair(grammar, dataset.seed * EXPRESSIONS + number)
    if number in RESULTS:
        return grammar.result()
    if (number // 3) % 2:
        return grammar.simple()
    return grammar.condition(3) if number % 4 else grammar.anything(2)


def rows_differ(dataset: Dataset, served: Served) -> Difference | None:
    """Compares all columns of a dataset with the rows that were written."""
    try:
        table = served.read(columns=[column.name for column in dataset.columns])
    except Refused as error:
        return Difference("refused", "read", "all columns", -1, error, f"{dataset.rows} rows")
    for column in dataset.columns:
        found = plain_values(table[column.name])
        for row, (ours, exact) in enumerate(zip(found, column.values)):
            if not same(ours, exact):
                return Difference("wrong", "read", column.name, row, ours, exact, shape=column.kind.name)
        if len(found) != dataset.rows:
            return Difference("wrong", "read", column.name, -1, f"{len(found)} rows", f"{dataset.rows} rows")
    return None
