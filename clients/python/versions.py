#!/usr/bin/env python3
"""Installs the wheel into an environment of each version of Python, and runs the tests that depend on the version.

    clients/python/versions.py target/python/wheels/*.whl
    clients/python/versions.py target/python/wheels/*.whl --python 3.14 --python /opt/python/cp312-cp312/bin/python

Versions that this machine lacks are downloaded by `--download`, and skipped otherwise. The environments are
target/python/versions/VERSION. Fails if a test fails, or if no version was tested.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from prepare import HERE, HOME, LOCKS, ROOT, Unavailable, install_wheel, run, say, uv

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# Processes, forks, signals, pickles, buffers and asyncio differ between versions. The other tests are about the server.
TESTS = ["test_batches", "test_outputs", "test_splits"]
if sys.platform == "linux":
    # These tests find processes, threads and descriptors in /proc.
    TESTS += ["test_training", "test_map", "test_open", "test_aio"]


def interpreter(version: str, downloads: bool) -> Path | None:
    """Returns an interpreter of a version, or that with this path; None if there is none."""
    if os.sep in version:
        return Path(version)
    if downloads:
        uv("python", "install", "--quiet", version, env={"UV_PYTHON_DOWNLOADS": "manual"})
    try:
        return Path(uv("python", "find", "--no-project", version).strip())
    except Unavailable:
        return None


def test(python: Path, wheel: Path, tests: list[str]) -> bool:
    """Runs the tests with an interpreter. Returns true if all have passed."""
    name = run(python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])").strip()
    folder = HOME / "versions" / name
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    installed = folder / "bin" / "python"
    uv("pip", "sync", "--quiet", "--require-hashes", "--python", installed, LOCKS / "versions.txt")
    install_wheel(installed, wheel)
    say(f"Python {name}: testing {wheel.name}")
    files = [HERE / "tests" / f"{each}.py" for each in tests]
    # The server is the one of the wheel.
    environment = {**os.environ, "FOREBAY_BIN": str(folder / "bin" / "forebay")}
    done = subprocess.run([installed, "-m", "pytest", "-q", *files], cwd=ROOT, env=environment)
    say(f"Python {name}: {'passed' if done.returncode == 0 else 'failed'}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, help="the wheel")
    parser.add_argument("--python", action="append", help="version or path of an interpreter (default: 3.9 to 3.14)")
    parser.add_argument("--download", action="store_true", help="download the versions that this machine lacks")
    parser.add_argument("--test", action="append", help=f"name of a file of tests (default: {', '.join(TESTS)})")
    options = parser.parse_args()
    results = []
    try:
        for version in options.python or VERSIONS:
            python = interpreter(version, options.download)
            if python is None:
                say(f"Python {version}: not on this machine, skipped")
            else:
                results.append(test(python, options.wheel.resolve(), options.test or TESTS))
    except (Unavailable, OSError) as reason:
        say(str(reason))
        return 1
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
