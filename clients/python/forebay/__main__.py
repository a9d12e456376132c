"""Command line of the package.

`python -m forebay profile ...` compares a plain Parquet loader with Forebay. `status`, `stop`, `dashboard` and `cache` are for the server
that `forebay.open` starts. Every other command, such as `python -m forebay serve ...`, runs the server's binary.
"""

from __future__ import annotations

import os
import subprocess
import sys

from forebay import local_commands, trial
from forebay.binary import binary


def main() -> None:
    """Runs the command in `sys.argv`."""
    if sys.argv[1:2] and sys.argv[1] in ("status", "stop", "dashboard", "cache"):
        local_commands.main(sys.argv[1:])
        return
    try:
        found = binary()
    except FileNotFoundError as error:
        sys.exit(f"forebay: {error}")
    if sys.argv[1:2] == ["profile"]:
        trial.main(sys.argv[2:])
        return
    if sys.argv[1:] in ([], ["-h"], ["--help"], ["help"]):
        done = subprocess.run([found, *sys.argv[1:]])
        print("\nCommand of the Python package:\n  profile    Compares a plain Parquet loader with Forebay; see `python -m forebay profile --help`")
        sys.exit(done.returncode)
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
