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
    if sys.argv[1:2] == ["profile"]:
        trial.main(sys.argv[2:])
        return
    found = binary()
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
