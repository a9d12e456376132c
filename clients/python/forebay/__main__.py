"""`python -m forebay serve ...` runs the server that came with the package; `python -m forebay profile ...` tells where
a loader's time goes."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def binary() -> str:
    """The server's binary: of this environment, else of the PATH."""
    here = Path(sysconfig.get_path("scripts"), "forebay")
    found = str(here) if here.is_file() else shutil.which("forebay")
    if found is None:
        sys.exit(f"forebay: the server's binary is neither at {here} nor on the PATH")
    return found


def main() -> None:
    if sys.argv[1:2] == ["profile"]:
        from forebay.profiling import main as profile

        profile(sys.argv[2:])
        return
    found = binary()
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
