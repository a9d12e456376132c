"""Artifacts of an earlier version, as `compatibility/record.py` recorded them, and current servers over them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from server import Pool, Server

FOLDER = Path(__file__).resolve().parent / "compatibility" / "39b7b77"
RECORDED: dict[str, Any] = json.loads((FOLDER / "recorded.json").read_text())
REQUESTS: dict[str, Any] = RECORDED["requests"]
DATASETS = ("events", "other")
# Begin of the first expression of the requests that have one. The earlier version recorded no version of the semantics of expressions.
EXPRESSIONS = {
    name: (recorded["request"].get("filter") or recorded["request"]["mix"][0]["filter"]).partition("'")[0]
    for name, recorded in REQUESTS.items()
    if any(part.get("filter") for part in (recorded["request"], *recorded["request"].get("mix", ())))
}
WITHOUT_EXPRESSIONS = [name for name in REQUESTS if name not in EXPRESSIONS]


def copy(folder: Path) -> None:
    """Copies the data and the cache directory, which contains the state, to `folder`."""
    for name in ("data", "cache"):
        shutil.copytree(FOLDER / name, folder / name)
    # The ids of snapshots depend on the modification times.
    for path in (folder / "data").rglob("*.parquet"):
        os.utime(path, ns=(RECORDED["mtime_ns"], RECORDED["mtime_ns"]))


def add_files(folder: Path) -> None:
    """Adds a file to each dataset of a copy. The recorded snapshots are then described by their manifests only."""
    for name in DATASETS:
        shutil.copyfile(folder / "data" / name / "part-0.parquet", folder / "data" / name / "part-9.parquet")


def start(pool: Pool, folder: Path) -> Server:
    """Starts a current server over a copy."""
    config = folder / "forebay.toml"
    config.write_text('[loader]\ndisk_writes = "always"\n')
    return pool.start(
        {name: folder / "data" / name for name in DATASETS},
        cache_dir=folder / "cache",
        config=config,
        cache_disk="64MiB",
        cache_memory="64MiB",
        online="other=id",
    )
