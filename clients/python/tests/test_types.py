"""mypy and pyright find no errors in the package, whose annotations users rely on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).resolve().parents[1]
TIMEOUT_S = 280


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package without its native part, which has a stub, and the configuration of the checkers."""
    for name in ("forebay", "typings"):
        shutil.copytree(PACKAGE / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "pyrightconfig.json"):
        shutil.copy(PACKAGE / name, tmp_path)
    return tmp_path


def errors(folder: Path, *command: str) -> str:
    """Runs a checker. Returns its report if it found errors."""
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not in this environment; the other one has it")
    # pyright is a program for node in a package of npm, which make wheel has downloaded.
    variables = {"PYRIGHT_PYTHON_CACHE_DIR": str(Path(sys.prefix) / "pyright"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


CHECKERS = [("mypy", "--cache-dir", "cache"), ("pyright", "--pythonpath", sys.executable)]


@pytest.mark.parametrize("command", CHECKERS, ids=("mypy", "pyright"))
def test_the_package_has_no_errors_of_types(copy: Path, command: tuple[str, ...]) -> None:
    assert errors(copy, *command) == ""
    # An error that the checkers have to find.
    (copy / "forebay" / "wrong.py").write_text("from forebay.cuda import is_cuda\n\nnumber: int = is_cuda('cuda:0').upper()\n")
    assert "wrong.py" in errors(copy, *command)
