"""Every block of docs/python.md runs as written."""

from __future__ import annotations

import ctypes.util
import re
from pathlib import Path

import pytest

import forebay
from server import Pool, Server

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "python.md"


def test_every_block_runs_as_written(flights_server: Server, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        code = block.replace("grpc://127.0.0.1:8815", flights_server.location)
        code = compile(code, str(PAGE), "exec")
        if 'device="cuda"' in block and ctypes.util.find_library("cuda") is None:
            with pytest.raises(forebay.errors.DeviceError, match="has no\\s+NVIDIA driver"):
                exec(code, names)
        else:
            exec(code, names)
    out = capsys.readouterr()
    assert "184 steps an epoch" in out.out and "183 steps for each of 4 ranks" in out.out
    assert "did you mean 'flights'" in out.out and "forebay.profile: 46 steps" in out.err


def test_the_blocks_of_the_views_run_as_written(
    pool: Pool, flights: Path, rankings: Path, capsys: pytest.CaptureFixture
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "views.md").read_text(), re.MULTILINE | re.DOTALL)
    first, packs, distinct, mixture, model = blocks
    location = pool.start({"flights": flights, "rankings": rankings, "old-flights": flights}).location
    names: dict[str, object] = {}
    exec(first.replace("grpc://127.0.0.1:8815", location), names)
    rows = int(capsys.readouterr().out.split()[0])
    assert 0.85 * 3_000_000 < rows < 0.95 * 3_000_000
    exec(mixture, names)
    assert (names["ds"].columns, len(names["ds"])) == ({"distance": "Int64"}, 3750)
    exec(packs, names)
    # Of 400,000 rows in queries of 20: a pack begins within 4,077.
    assert (len(names["ds"]), max(batch.num_rows for batch in names["ds"]) <= 4096) == (99, True)
    pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")
    exec(distinct, names)
    exec(model.replace("grpc://127.0.0.1:8815", location), names)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < losses[0]


def test_the_block_of_the_readme_runs_as_written(flights_server: Server) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "import forebay" in block)
    names: dict[str, object] = {}
    exec(block.replace("grpc://127.0.0.1:8815", flights_server.location), names)
    assert names["state"]["step"] == 733


def test_tensorboard_gets_stall_and_rates(client: forebay.Client) -> None:
    from forebay.tensorboard import TensorBoard

    class Writer:
        written: list[tuple[str, float, int]] = []

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.written.append((tag, value, step))

    ds = client.train("flights", batch_size=10_000, columns=["delay"], callbacks=[TensorBoard(Writer(), every=50)])
    for _ in range(2):
        for batch in ds:
            pass
    steps = sorted({step for _, _, step in Writer.written})
    assert steps == list(range(50, 601, 50))
    values = {tag: value for tag, value, _ in Writer.written}
    assert 0 <= values["forebay/stall"] <= 1 and values["forebay/rows_per_second"] > 10_000
