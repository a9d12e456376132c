"""The commands and examples of the README run as pasted."""

from __future__ import annotations

import re
import subprocess
import sys

import server
from server import Server

README = (server.ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_first_block_holds_exactly_the_two_commands() -> None:
    first = re.search(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert first.group(1).splitlines() == ["cargo run --release -- demo", "make test"]


def test_the_pyarrow_examples_run_as_pasted(flights_server: Server) -> None:
    stream, plan = (block for block in blocks("python") if "import forebay" not in block)
    assert len(stream.splitlines()) == 5
    pasted = (stream + "rank = 2\n" + plan + "print('rank 2', stream.read_chunk().data.num_rows)\n").replace(
        "grpc://127.0.0.1:8815", flights_server.location
    )
    done = subprocess.run([sys.executable, "-c", pasted], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(int(line.split()[0]) for line in lines[:-1]) == 3_000_000
    assert lines[-1] == "rank 2 4096"
