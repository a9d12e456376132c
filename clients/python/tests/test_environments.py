"""Each test runs in at least one environment, and in both if PyTorch matters to it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

TESTS = Path(__file__).parent
FRAMEWORKS = ("torch", "torchdata")


def is_once(tree: ast.Module) -> bool:
    """Returns true if a module of tests has the mark `once`."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    return any("pytest.mark.once" in ast.unparse(node.value) for node in assigned)


def imported(tree: ast.Module) -> set[str]:
    """Returns the first parts of the names of all modules that a module imports, or that `importorskip` imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # An argument of importorskip, or a script.
            names.update(name for name in FRAMEWORKS if name in node.value)
    return names


def test_a_test_that_uses_pytorch_is_not_left_out_of_the_environment_with_it() -> None:
    paths = [*TESTS.glob("test_*.py"), *TESTS.glob("tier/test_*.py")]
    trees = {path.name: ast.parse(path.read_text()) for path in paths if path.name != Path(__file__).name}
    once = {name for name, tree in trees.items() if is_once(tree)}
    assert {"test_tier.py", "test_open.py"} <= once
    assert "test_torch.py" not in once
    wrong = {name for name in once if imported(trees[name]).intersection(FRAMEWORKS)}
    assert not wrong, f"{wrong} use PyTorch, but have the mark `once`"


def test_the_suite_with_pytorch_leaves_out_only_what_the_other_one_runs() -> None:
    makefile = (TESTS.parents[2] / "Makefile").read_text()
    recipe = makefile.partition("\ntest-python:")[2].partition("\n\n")[0]
    without, with_pytorch = (line for line in recipe.splitlines() if "-m pytest" in line)
    assert "venv/bin/python" in without and " -m \"" not in without
    assert with_pytorch.count('-m "not once"') == 1
