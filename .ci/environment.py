"""Python environments below target/, installed by uv from lock files.

The `prepare.py` scripts of the tests import this module. It requires Python 3.9 or later with pip; uv itself is installed
from PyPI into target/uv.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

CI = Path(__file__).resolve().parent
TARGET = CI.parent / "target"
UV_LOCK = CI / "uv.txt"

COMMAND_TIMEOUT_S = 900


class Unavailable(Exception):
    """A download or a command failed. The message is one line."""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Runs a command without output.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        env: Variables that are added to the environment.

    Returns:
        Standard output of the command.

    Raises:
        Unavailable: The command is missing, failed or ran for more than 15 minutes. The message has its last line of output.
    """
    words = [str(word) for word in command]
    name = Path(words[0]).name
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{name}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"{name} failed with exit status {done.returncode}: {lines[-1].strip()}")
    return done.stdout


def python_of(folder: Path) -> Path:
    """Interpreter of an environment."""
    return folder / "bin" / "python"


def is_current(folder: Path, lock: Path) -> bool:
    """True if the environment was installed completely from this lock file by this version of Python."""
    stamp = folder / "forebay-stamp"
    return stamp.exists() and stamp.read_text() == _identity(lock)


def install(folder: Path, lock: Path) -> Path:
    """Installs the packages of a lock file into a new environment, unless it is current.

    Args:
        folder: Folder of the environment. An earlier environment is replaced.
        lock: Requirements with hashes, as `uv pip compile --generate-hashes` writes them.

    Returns:
        Interpreter of the environment.

    Raises:
        Unavailable: uv or a package cannot be installed.
    """
    if not is_current(folder, lock):
        uv("venv", "--quiet", "--clear", "--python", sys.executable, folder)
        uv("pip", "sync", "--quiet", "--require-hashes", "--python", python_of(folder), lock)
        (folder / "forebay-stamp").write_text(_identity(lock))
    return python_of(folder)


def uv(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """Runs uv, which is installed if necessary, and returns its standard output.

    Args:
        arguments: Arguments of uv.
        env: Variables that are added to the environment.

    Raises:
        Unavailable: uv cannot be installed or failed.
    """
    folder = TARGET / "uv"
    program = folder / "bin" / "uv"
    stamp = folder / "forebay-stamp"
    if not stamp.exists() or stamp.read_text() != _identity(UV_LOCK):
        # A target folder instead of an environment: it requires neither the venv module nor write access to this Python.
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
        run(sys.executable, "-m", "pip", "install", *options, "--target", folder, "--require-hashes", "-r", UV_LOCK)
        stamp.write_text(_identity(UV_LOCK))
    # The cache is on the file system of the environments, so that uv links files instead of copying them.
    settings = {"UV_CACHE_DIR": str(TARGET / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
    return run(program, *arguments, env={**settings, **(env or {})})


def _identity(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
