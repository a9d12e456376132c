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
        path = shutil.which(named)
        if path is None:
            is_path, exists = bool(os.path.dirname(named)), os.path.exists(named)
            reason = "is not on the PATH" if not is_path else "is no program that this user can run" if exists else "does not exist"
            raise FileNotFoundError(f"FOREBAY_BIN is {named!r}, which {reason}; expected the path of the server's binary")
        return os.path.abspath(path)
    here = Path(sysconfig.get_path("scripts"), "forebay")
    found = str(here) if here.is_file() else shutil.which("forebay")
    if found is None:
        raise FileNotFoundError(f"the server's binary was not found: neither {here} nor 'forebay' on the PATH exists")
    return os.path.abspath(found)
