"""Files that servers create in a cache folder. The folder of `cache_dir` can also have files of other programs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Sequence

from forebay.errors import ServerStartError
from forebay.folders import CACHED, LOCK, STATE

# The file that marks a folder as a cache, as the server writes it, and its first line.
MARKER = os.path.join("columns", "CACHEDIR.TAG")
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
# Paths of the files below the cache folder. Files that are being written have another ending.
OWN = re.compile(
    r"columns/(CACHEDIR\.TAG|[0-9a-f]{2}/[0-9a-f]{32}-[0-9a-f]{16}\.col(\.tmp)?)"
    r"|footers/[0-9a-f]{2}/[0-9a-f]{32}(\.\d+-\d+\.tmp)?"
    r"|indexes/[^/]+/[0-9a-f]{32}\.(index|\d+\.tmp)"
    r"|state/[a-z]+/[\w-]+\.(job|values|charge|dataset|keyed-dataset|key|state)(#\d+)?"
    r"|state/snapshots/[^/]+/[0-9a-f.]+\.(manifest|counts)(#\d+)?"
)
# Beginning of the list of members of a cluster, which a server stores. Other programs have files of this name, too.
MEMBERS, MEMBERS_START = "members.json", b'{"sources":'
# Number of files that a message names.
SHOWN_FILES = 3


def check_unmarked(folder: Path) -> None:
    """Checks that a folder may become a cache folder: the places of the server in it have no files of other programs, or a server has used it.

    The server checks only `columns` when it starts.

    Raises:
        ServerStartError: A file has another origin. `forebay cache --clear` could not tell it from those of the server.
    """
    if _is_marked(folder):
        return
    # Hidden files belong to the system, such as .nfs0000 and .DS_Store.
    found = [path for path in _others(folder, (STATE, *CACHED)) if not path.rpartition("/")[2].startswith(".")]
    with suppress(OSError):
        if os.stat(folder / LOCK).st_size > 0:
            found.append(LOCK)
    if found:
        raise ServerStartError(
            f"the server does not start: the cache folder {folder} has files of another program ({shown(found)}) where the server keeps its "
            "own; choose another cache_dir, or move these files"
        )


def remove(folder: Path, names: Sequence[str]) -> list[str]:
    """Removes what servers have created in a cache folder.

    Args:
        folder: The cache folder. Its lock has to be held.
        names: Names in it: those of folders and files of the server.

    Returns:
        Paths below the folder of the files with other origins that are left.
    """
    for path in list(_files(folder, names)):
        if _is_own(folder, path):
            (folder / path).unlink(missing_ok=True)
    for name in names:
        for parent, _, _ in os.walk(folder / name, topdown=False):
            # The call fails if the folder has other files.
            with suppress(OSError):
                os.rmdir(parent)
    return list(_files(folder, names))


def shown(paths: Sequence[str]) -> str:
    """Returns a few paths, and the number of the others, for a message."""
    rest = f" and {len(paths) - SHOWN_FILES} more" if len(paths) > SHOWN_FILES else ""
    return ", ".join(sorted(paths)[:SHOWN_FILES]) + rest


def _others(folder: Path, names: Sequence[str]) -> list[str]:
    return [path for path in _files(folder, names) if not _is_own(folder, path)]


def _files(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Yields the paths of all files with these names, and in the folders with these names."""
    for name in names:
        if not os.path.isdir(folder / name):
            if os.path.lexists(folder / name):
                yield name
            continue
        for parent, children, files in os.walk(folder / name):
            # A link to a folder is not followed.
            for file in (*files, *(child for child in children if os.path.islink(os.path.join(parent, child)))):
                yield os.path.relpath(os.path.join(parent, file), folder)


def _is_own(folder: Path, path: str) -> bool:
    if path == MEMBERS:
        with suppress(OSError), open(folder / path, "rb") as file:
            return file.read(len(MEMBERS_START)) == MEMBERS_START
    return OWN.fullmatch(path) is not None


def _is_marked(folder: Path) -> bool:
    """Returns true if a server has used the folder."""
    with suppress(OSError), open(folder / MARKER, "rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE
    return False
