"""Command line of the package.

`python -m forebay profile ...` compares a plain Parquet loader with Forebay. Every other command, such as
`python -m forebay serve ...`, runs the server's binary.
"""

from __future__ import annotations

import os
import sys

from forebay import trial
from forebay.binary import binary


def main() -> None:
    """Runs the command in `sys.argv`."""
    try:
        found = binary()
    except FileNotFoundError as error:
        sys.exit(f"forebay: {error}")
    if sys.argv[1:2] == ["profile"]:
        trial.main(sys.argv[2:])
        return
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
