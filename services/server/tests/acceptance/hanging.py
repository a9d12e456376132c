"""A folder on a simulated disk that hangs and answers again on demand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HangingFolder:
    """While `hang` is in effect, every call of a server on a file below `folder` blocks."""

    folder: Path
    library: Path
    flag: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the server."""
        return {"LD_PRELOAD": str(self.library), "HANG_FOLDER": str(self.folder), "HANG_WHILE": str(self.flag)}

    def hang(self) -> None:
        self.flag.touch()

    def answer(self) -> None:
        self.flag.unlink(missing_ok=True)
