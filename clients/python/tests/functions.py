"""Functions that the tests of `map` run in worker processes, which import this module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import forebay


def place(batch: forebay.Batch) -> tuple[int, int]:
    return batch.epoch, batch.step


def scaled(batch: forebay.Batch) -> dict[str, Any]:
    """Arrays, among them an empty one, and other values."""
    x = batch["x"].to_numpy()
    return {"x": x * 2, "place": (batch.epoch, batch.step), "parts": [x[:1], x[:0], x[::2, 0]], "name": "ä" * 1000}


def of_arrays(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
    return arrays["x"].sum(axis=0), os.getpid()


def fails_at_step_7(batch: forebay.Batch) -> tuple[int, int]:
    if batch.step == 7:
        raise LookupError("no such word", 7)
    return place(batch)


class Fixable:
    """Fails at step 7 until a file exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batch: forebay.Batch) -> tuple[int, int]:
        return place(batch) if self.path.exists() else fails_at_step_7(batch)


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("not its arguments")


def raises_unpicklable(batch: forebay.Batch) -> NoReturn:
    raise Unpicklable(1, 2)


def sum_of_ids(batch: forebay.Batch) -> int:
    return int(batch["id"].to_numpy().sum())


def whole_batch(batch: forebay.Batch) -> forebay.Batch:
    return batch


class KilledAt:
    """Kills its process at some steps: once each, or always without a folder."""

    def __init__(self, steps: set[int], folder: Path | None = None) -> None:
        self.steps, self.folder = steps, folder

    def __call__(self, batch: forebay.Batch) -> dict[str, Any]:
        if batch.step in self.steps:
            mark = None if self.folder is None else self.folder / str(batch.step)
            if mark is None or not mark.exists():
                if mark is not None:
                    mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return scaled(batch)


class Marked:
    """Leaves a file for each batch that it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batch: forebay.Batch) -> int:
        (self.folder / f"{batch.epoch}-{batch.step}").touch()
        return batch.step


class Hanging:
    """Writes the id of its process, and does not return. A child of it keeps all its descriptors."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batch: forebay.Batch) -> None:
        self.path.with_suffix(f".{os.getpid()}").touch()
        while True:
            time.sleep(0.1)


def runs_a_process(batch: forebay.Batch) -> str:
    return subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True).stdout


def tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    import torch

    x = arrays["x"]
    return {
        "x": x * 2,
        "half": x.to(torch.bfloat16),
        "bits": x > 0,
        "columns": x.t(),
        "empty": x[:0],
        "one": x[0, 0],
        "complex": torch.complex(x, x).conj(),
        "threads": torch.get_num_threads(),
    }
