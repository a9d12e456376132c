"""The programs of docs/how-to/migrate.md: one for each section, with both sides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "migrate.md"
ROWS = 3_000_000
TIMEOUT_S = 600


def sections() -> dict[str, list[str]]:
    """Returns the Python blocks of each section, by its heading."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        found[heading] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found


def interpreter(section: str) -> Path:
    """Returns the Python for a section. Petastorm requires older packages, and has an environment of its own in the same folder."""
    return Path(sys.prefix).parent / "petastorm" / "bin" / "python" if section == "Petastorm" else Path(sys.executable)


def check(section: str, location: str, file: Path, folder: Path) -> None:
    """Runs the blocks of a section in a new process, and compares the numbers of rows that both sides read."""
    theirs, ours = sections()[section]
    (folder / "flights-3m.parquet").symlink_to(file)
    text = f"{theirs}\n{ours}\nprint('read', rows, ours)\n".replace("grpc://127.0.0.1:8815", location)
    program = folder / "program.py"
    program.write_text(text.replace("/data/flights-3m.parquet", str(folder / "flights-3m.parquet")))
    done = subprocess.run([str(interpreter(section)), str(program)], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert f"read {ROWS} {ROWS}" in done.stdout.splitlines(), done.stdout
