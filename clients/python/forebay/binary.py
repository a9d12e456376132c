"""The server's binary that is installed with the package."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def binary() -> str:
    """Returns the absolute path of the server's binary: `$FOREBAY_BIN`, that of this environment, or the first one on the PATH.

    The value of `$FOREBAY_BIN` may also be a name without a folder, which is searched on the PATH.

    Raises:
        FileNotFoundError: There is no such binary.
    """
    if named := os.environ.get("FOREBAY_BIN"):
        if shutil.which(named) is None:
            kind = "a program that this user can run" if os.path.exists(named) else "an existing program"
            raise FileNotFoundError(f"the variable FOREBAY_BIN is '{named}', expected the path of {kind}: the server's binary")
        return os.path.abspath(named) if os.path.dirname(named) else named
    here = Path(sysconfig.get_path("scripts"), "forebay")
    found = str(here) if here.is_file() else shutil.which("forebay")
    if found is None:
        raise FileNotFoundError(f"the server's binary was not found: neither {here} nor 'forebay' on the PATH exists")
    return os.path.abspath(found)
