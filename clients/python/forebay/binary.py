"""The server's binary that is installed with the package."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def binary() -> str:
    """Returns the path of the server's binary: `$FOREBAY_BIN`, that of this environment, or the first one on the PATH.

    Raises:
        FileNotFoundError: There is no such binary.
    """
    if "FOREBAY_BIN" in os.environ:
        return os.environ["FOREBAY_BIN"]
    here = Path(sysconfig.get_path("scripts"), "forebay")
    found = str(here) if here.is_file() else shutil.which("forebay")
    if found is None:
        raise FileNotFoundError(f"the server's binary was not found: neither {here} nor 'forebay' on the PATH exists")
    return found
