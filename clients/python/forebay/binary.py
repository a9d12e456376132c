"""The server's binary that is installed with the package."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path


def binary() -> str:
    """Returns the path of the server's binary: that of this environment, otherwise the first one on the PATH.

    Raises:
        SystemExit: There is no such binary.
    """
    here = Path(sysconfig.get_path("scripts"), "forebay")
    found = str(here) if here.is_file() else shutil.which("forebay")
    if found is None:
        sys.exit(f"forebay: the server's binary was not found: neither {here} nor 'forebay' on the PATH exists")
    return found
