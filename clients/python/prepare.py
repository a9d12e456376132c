#!/usr/bin/env python3
"""Builds the wheel, and environments that have nothing of Forebay but that wheel, under target/python.

    venv/     numpy, pyarrow, JAX, polars
    torch/    a Python that has PyTorch (where this machine has none and is a container's, Debian's is installed)

Needs what `services/server/tests/acceptance/prepare.py` needs, and the release binary. What can't be had leaves a note,
`torch.missing`: the tests that need it are then skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "services" / "server" / "tests" / "acceptance"))

from prepare import Unavailable, run, say  # noqa: E402

HOME = ROOT / "target" / "python"
MATURIN = "maturin==1.16.0"
TESTING = ["pytest==8.4.2", "pytest-timeout==2.4.0"]
FRAMEWORKS = ["numpy", "pyarrow", "jax", "polars", "tqdm"]
# Debian's PyTorch is built for NumPy 1, and so is this one.
BESIDE_TORCH = ["pyarrow==21.0.0"]


def venv(name: str, interpreter: str, packages: list[str], *options: str) -> Path:
    """An environment with these packages; kept while they stay the same."""
    folder, wanted = HOME / name, "\n".join([interpreter, *packages, *options])
    python, stamp = folder / "bin" / "python", folder / "forebay-stamp"
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"python: {name}: installing")
        run(interpreter, "-m", "venv", "--clear", *options, folder)
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        stamp.write_text(wanted)
    return python


def wheel() -> Path:
    """The package with the server's binary in it."""
    maturin = venv("build", sys.executable, [MATURIN]).parent / "maturin"
    scripts = HERE / "forebay.data" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / "target" / "release" / "forebay", scripts / "forebay")
    shutil.rmtree(HOME / "wheels", ignore_errors=True)
    run(maturin, "build", "--release", "--locked", "--out", HOME / "wheels", cwd=HERE)
    return next((HOME / "wheels").glob("*.whl"))


def install(python: Path, built: Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps", built)


def has_torch(python: str) -> bool:
    try:
        run(python, "-c", "import torch, venv, ensurepip")
    except Unavailable:
        return False
    return True


def python_with_torch() -> str:
    candidates = [sys.executable, "/usr/bin/python3"]
    for python in candidates:
        if has_torch(python):
            return python
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"none of {', '.join(candidates)} has PyTorch, and it is not ours to install it here")
    say("python: installing Debian's PyTorch")
    run("apt-get", "update", "--quiet")
    run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "python3-torch", "python3-venv")
    if not has_torch(candidates[-1]):
        raise Unavailable(f"{candidates[-1]} has no PyTorch even now")
    return candidates[-1]


def main() -> int:
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        built = wheel()
        install(venv("venv", sys.executable, TESTING + FRAMEWORKS), built)
    except Unavailable as reason:
        say(f"python: {reason}")
        return 1
    say(f"python: {built.name}")
    note = HOME / "torch.missing"
    try:
        install(venv("torch", python_with_torch(), TESTING + BESIDE_TORCH, "--system-site-packages"), built)
        note.unlink(missing_ok=True)
    except Unavailable as reason:
        shutil.rmtree(HOME / "torch", ignore_errors=True)
        note.write_text(f"{reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
