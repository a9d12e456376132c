"""Generated data, filters, expressions, tensors and lookups have the exact values, and those of DuckDB.

Each failure names a seed and a case: `target/acceptance/venv/bin/python services/server/tests/acceptance/differential SEED:CASE`
runs it again. The environment variables FOREBAY_DIFFERENTIAL_CASES and FOREBAY_DIFFERENTIAL_SEED are the number of cases and the
seed of the first dataset.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="duckdb has no wheel for this Python")

from differential.grammar import PAIRS, Grammar, pair
from differential.runner import CASES, EXPRESSIONS, dataset_of, is_pair, run_datasets

FIRST = int(os.environ.get("FOREBAY_DIFFERENTIAL_SEED", "1"))
DATASETS = -(-int(os.environ.get("FOREBAY_DIFFERENTIAL_CASES", "300")) // CASES)
DATASETS_PER_TEST = 10


@pytest.mark.parametrize("seed", range(FIRST, FIRST + DATASETS, DATASETS_PER_TEST))
def test_generated_requests_have_exact_values(tmp_path: Path, seed: int) -> None:
    report = run_datasets(list(range(seed, min(seed + DATASETS_PER_TEST, FIRST + DATASETS))), tmp_path)
    assert not report.differences, f"\n{report}"
    assert report.without_duck < report.cases


def test_three_hundred_cases_have_each_pair_of_kinds_of_operators() -> None:
    turns = [seed * EXPRESSIONS + number for seed in range(10) for number in range(1, EXPRESSIONS + 1) if is_pair(number)]
    seen = {turn % len(PAIRS) for turn in turns}
    assert len(seen) > 0.6 * len(PAIRS)
    grammar = Grammar(random.Random(1), dataset_of(1).columns)
    for number, (outer, inner, position) in enumerate(PAIRS):
        found = pair(grammar, number).pairs()
        assert any(one in outer and other in inner and at == position for one, other, at in found), (outer, inner, position)
