"""Generated data, filters, expressions, tensors and lookups have the exact values, and those of DuckDB.

Each failure names a seed and a case: `target/acceptance/venv/bin/python services/server/tests/acceptance/differential SEED:CASE`
runs it again. The environment variables FOREBAY_DIFFERENTIAL_CASES and FOREBAY_DIFFERENTIAL_SEED are the number of cases and the
seed of the first dataset.
"""

from __future__ import annotations

import datetime
import os
import random
from pathlib import Path

import pytest

duckdb = pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")

from differential import calendar, wide_deltas
from differential.dialect import Dialect
from differential.evaluation import evaluate
from differential.expressions import Failure, Node
from differential.faults import GREEDY_DISTINCT, ROUNDED_LITERALS, Fault
from differential.grammar import PAIRS, Grammar, pair
from differential.literals import null, number
from differential.runner import CASES, EXPRESSIONS, dataset_of, is_pair, run_datasets

FIRST = int(os.environ.get("FOREBAY_DIFFERENTIAL_SEED", "1"))
DATASETS = -(-int(os.environ.get("FOREBAY_DIFFERENTIAL_CASES", "300")) // CASES)
DATASETS_PER_TEST = 10


@pytest.mark.parametrize("seed", range(FIRST, FIRST + DATASETS, DATASETS_PER_TEST))
def test_generated_requests_have_exact_values(tmp_path: Path, seed: int) -> None:
    report = run_datasets(list(range(seed, min(seed + DATASETS_PER_TEST, FIRST + DATASETS))), tmp_path)
    assert not report.differences, f"\n{report}"
    assert report.without_duck < report.cases


class Anything(Dialect):
    """Excuses every value of DuckDB."""

    def explains(self, node: Node) -> bool:
        return True


@pytest.mark.parametrize("fault", [ROUNDED_LITERALS, GREEDY_DISTINCT], ids=lambda fault: fault.name)
def test_faults_are_found_and_no_entry_of_the_dialect_excuses_them(tmp_path: Path, fault: Fault) -> None:
    report = run_datasets(list(range(1, 11)), tmp_path, fault=fault, dialect=Anything())
    assert any(each.what == "wrong" for each in report.differences), str(report)
    assert all(each.what in ("wrong", "refused") and each.way == "select" for each in report.differences), str(report)


@pytest.mark.parametrize(
    "fault, text",
    [
        (ROUNDED_LITERALS, "CASE price WHEN CAST(0.1 AS DOUBLE) THEN price ELSE 0.1 END = CAST(0.1 AS DOUBLE) AND price IN (1, CAST(1e2 AS DOUBLE))"),
        (GREEDY_DISTINCT, "NOT price IS DISTINCT FROM (0.1 AND (price IS NOT DISTINCT FROM (0.1 OR price IN (0.1))) OR price IS NULL)"),
    ],
    ids=lambda each: each.name if isinstance(each, Fault) else "",
)
def test_a_fault_changes_what_the_server_reads(fault: Fault, text: str) -> None:
    price, tenth = Node("column", (), "number", text="price"), number("0.1")
    node = lambda op, *args: Node(op, args, "bool")
    if fault == ROUNDED_LITERALS:
        given = node("AND", node("=", node("CASE OF", price, tenth, price, tenth), tenth), node("IN", price, number("1"), number("1e2")))
    else:
        inner = node("OR", node("IS NOT DISTINCT FROM", price, tenth), node("IN", price, tenth))
        outer = node("AND", node("NOT", node("IS DISTINCT FROM", price, tenth)), inner)
        given = node("OR", outer, node("IS NULL", price))
    assert fault.flat(given) == text


def test_three_hundred_cases_have_each_pair_of_kinds_of_operators() -> None:
    turns = [seed * EXPRESSIONS + number for seed in range(-(-300 // CASES)) for number in range(1, EXPRESSIONS + 1) if is_pair(number)]
    seen = {turn % len(PAIRS) for turn in turns}
    assert len(seen) > 0.6 * len(PAIRS)
    grammar = Grammar(random.Random(1), dataset_of(1).columns)
    for number, (outer, inner, position) in enumerate(PAIRS):
        found = pair(grammar, number).pairs()
        assert any(one in outer and other in inner and at == position for one, other, at in found), (outer, inner, position)


@pytest.mark.parametrize("version, wide", [("v1", set()), ("v2", {"ends", "dates", "unsigned", "lists"})])
def test_only_columns_whose_pages_have_wide_deltas_may_be_refused(tmp_path: Path, version: str, wide: set[str]) -> None:
    path = tmp_path / "0-duckdb.parquet"
    least, most = -(2**31), 2**31 - 1
    # The deltas of `near` take 32 bits.
    columns = [
        f"unnest([{least}, {most}, NULL])::INTEGER AS ends",
        f"unnest([{least // 2}, {-least // 2 - 1}, NULL])::INTEGER AS near",
        f"unnest([DATE '1970-01-01' - {most - 1}, DATE '1970-01-01' + {most - 1}, NULL]) AS dates",
        f"unnest([{2**31}, {2**31 + 1}, NULL])::UINTEGER AS unsigned",
        f"unnest([[{least}, NULL, {most}], [], NULL])::INTEGER[] AS lists",
        f"unnest([{-(2**63)}, {2**63 - 1}, NULL])::BIGINT AS long",
    ]
    duckdb.sql(f"COPY (SELECT {', '.join(columns)}) TO '{path}' (FORMAT parquet, PARQUET_VERSION {version})")
    assert wide_deltas.names_in(path) == wide


def test_the_calendar_is_that_of_python() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        day = datetime.date.fromordinal(rng.randint(1, datetime.date.max.toordinal()))
        days = (day - datetime.date(1970, 1, 1)).days
        assert calendar.civil(days) == (day.year, day.month, day.day)
        assert calendar.day_number(*calendar.civil(days)) == days
        found = [calendar.part(name, "date", days) for name in ("week", "doy", "isodow")]
        assert found == [day.isocalendar().week, day.timetuple().tm_yday, day.isoweekday()]


def test_an_operand_fails_only_for_rows_whose_result_depends_on_it() -> None:
    def fail(value: int) -> bool:
        raise Failure(value)

    x, none = Node("column", (), "number", text="x"), null("number")
    fails = Node("CAST", (x,), "bool", text="CAST({} AS BOOLEAN)", value=fail)
    yes, no = Node("literal", (), "bool", text="TRUE", value=True), Node("literal", (), "bool", text="FALSE", value=False)
    node = lambda op, *args: Node(op, args, "bool")
    decided = [
        (node("AND", no, fails), False),
        (node("OR", yes, fails), True),
        (node("COALESCE", yes, fails), True),
        (node("CASE", no, fails, yes), True),
        (node("IN", x, x, fails), True),
        (node("IN", none, fails), None),
        (node("BETWEEN", x, number("2"), fails), False),
        (node("NULLIF", none, fails), None),
    ]
    for part, value in decided:
        assert evaluate(part, {"x": 1}) is value, part
    for part in (node("AND", fails, no), node("AND", yes, fails), node("IN", x, number("2"), fails), node("COALESCE", none, fails)):
        with pytest.raises(Failure):
            evaluate(part, {"x": 1})
    assert evaluate(fails, {"x": None}) is None
