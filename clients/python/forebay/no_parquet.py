"""Hints for files that the server rejects because they do not end as Parquet files do: what they are, and what to do."""

from __future__ import annotations

import re

# The server's message for such a file. A path is that of a file on this host.
MESSAGE = re.compile(r"(/.*) is corrupt: the file ends in .*, expected \"PAR1\"", re.DOTALL)
START = b"PAR1"
UNFINISHED = (
    "if a program is still writing the file, open the dataset again when it has ended. A writer can avoid this with a name that does not end "
    "in .parquet, and rename the complete file"
)
# What to do with other files, by their first bytes.
OTHERS = {
    b"\x1f\x8b": "a file that is compressed as a whole with gzip; decompress it",
    b"\x28\xb5\x2f\xfd": "a file that is compressed as a whole with Zstandard; decompress it",
    b"PK\x03\x04": "a ZIP archive; extract its files",
    b"ARROW1": "an Arrow file, also known as Feather; convert it to Parquet",
    b"ORC": "an ORC file; convert it to Parquet",
    b"version https://git-lfs": "a pointer of Git LFS; run `git lfs pull`",
    b"<": "a page or another text; download the file itself",
}
LONGEST = max(map(len, OTHERS))


def hint(message: str) -> str | None:
    """Returns what to do about a server's message for a file without the end of a Parquet file; None for another message."""
    if (found := MESSAGE.search(message)) is None:
        return None
    try:
        with open(found[1], "rb") as file:
            start = file.read(LONGEST)
    except OSError:
        # The file is in an object store, for example.
        return UNFINISHED
    # Some file systems show zeros where nothing is written yet.
    if start.startswith((START, b"\0")):
        return UNFINISHED
    what = next((what for begin, what in OTHERS.items() if start.startswith(begin)), "another file, such as CSV or JSON; convert it to Parquet")
    return f"it is no Parquet file, because it does not begin with PAR1 either: it is {what}"
