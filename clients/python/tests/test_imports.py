"""The modules of the package do not import each other in a circle, also not within functions or for type checkers."""

from __future__ import annotations

import ast
from pathlib import Path

import forebay


def imports(path: Path, modules: set[str]) -> set[str]:
    """Returns the modules of the package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("forebay.") for alias in node.names if alias.name.startswith("forebay.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "forebay":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("forebay."):
            found.add(node.module.removeprefix("forebay."))
    return found & modules


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {path.stem: path for path in Path(forebay.__file__).parent.glob("*.py")}
    assert {"client", "training", "batch"} <= set(files)
    remaining = {name: imports(path, set(files)) for name, path in files.items()}
    while free := {name for name, needed in remaining.items() if not needed & set(remaining)}:
        remaining = {name: needed for name, needed in remaining.items() if name not in free}
    assert not remaining, f"modules in or above a circle: {remaining}"
