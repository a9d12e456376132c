"""Libraries in C that change the calls of a process to libc, loaded by LD_PRELOAD."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(name: str, folder: Path, *flags: str) -> Path:
    """Compiles NAME.c of this folder and returns the library. Without a C compiler, the test is skipped."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip(f"there is no C compiler, which {name}.c requires")
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", *flags, "-o", str(library), str(source)], check=True)
    return library
