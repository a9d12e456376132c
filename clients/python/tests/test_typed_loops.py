"""Type checkers know the items of a loop and the arguments of `train`."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay.train_options import TrainOptions

LOOPS = """
import forebay
import pyarrow as pa
from typing_extensions import assert_type

client = forebay.connect("grpc://127.0.0.1:8815")
for batch in client.train("flights", batch_size=2):
    assert_type(batch, forebay.Batch)
    batch["x"].to_numpy().mean()
for arrays in client.train("flights", batch_size=2, output="torch", missing="mask", tensors={"x": ["a", "b"]}):
    assert_type(arrays, forebay.BatchDict)
    assert_type(arrays.step, int)
for rows in client.train("flights", batch_size=2, output="arrow"):
    assert_type(rows, pa.RecordBatch)
client.train("flights", batch_size="many")  # rejected
client.train("flights", bach_size=2)  # rejected
"""


def test_type_checkers_know_every_argument_of_train() -> None:
    arguments = list(inspect.signature(forebay.Client.train).parameters)
    assert arguments[:2] == ["self", "dataset"] and set(arguments[2:]) == {*TrainOptions.__annotations__, "output"}


def test_mypy_knows_the_items_of_a_loop(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not in this environment; the other one has it")
    (tmp_path / "loops.py").write_text(LOOPS)
    # mypy spends most of its time on JAX, whose types the loops do not use. The last option applies the one before it to JAX's stubs.
    config = "[mypy]\n[mypy-jax.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
    (tmp_path / "mypy.ini").write_text(config)
    options = ["--ignore-missing-imports", "--follow-imports=silent", "--hide-error-context", "--cache-dir", "cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "loops.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    lines = [number for number, line in enumerate(LOOPS.splitlines(), 1) if "rejected" in line]
    errors = {line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line}
    assert errors == {str(number) for number in lines}, done.stdout + done.stderr
