"""The same Parquet through a plain loader and through Forebay, beside each other."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterable, Iterator

from forebay.client import connect
from forebay.profiling import Report, profile


def trial(options: argparse.Namespace) -> None:
    """Runs both, and says what each spent its time on."""
    path = Path(options.path).resolve()
    columns = options.columns or _plain_columns(path)
    with _server(options, path) as (url, dataset):
        ds = connect(url).train(dataset, batch_size=options.batch_size, columns=columns)
        steps = min(options.steps, len(ds))
        plain = _run(_plain_loader(path, columns, options.batch_size), steps, options)
        for name in ("cold", "warm"):
            forebay = _run(ds, steps, options)
            print(f"\nForebay, {name} ({url}):\n{forebay}")
    print(f"\npyarrow in this process, in file order, unshuffled:\n{plain}")
    if forebay.wait > 0:
        print(f"\nthe loop waits {plain.wait / forebay.wait:.2f} times as long for pyarrow as for Forebay once warm")


def _run(loader: Iterable[Any], steps: int, options: argparse.Namespace) -> Report:
    profiled = profile(loader, say=False)
    for _ in itertools.islice(profiled, steps):
        if options.compute_ms:
            time.sleep(options.compute_ms / 1e3)
    return profiled.report


def _plain_columns(path: Path) -> list[str]:
    """Every column of a type that needs no dictionary, list or string."""
    import pyarrow as pa
    import pyarrow.dataset

    schema = pyarrow.dataset.dataset(path).schema
    plain = [field.name for field in schema if pa.types.is_primitive(field.type)]
    return plain or schema.names


def _plain_loader(path: Path, columns: list[str], batch_size: int) -> Iterator[Any]:
    import pyarrow.dataset

    for batch in pyarrow.dataset.dataset(path).to_batches(columns=columns, batch_size=batch_size):
        yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}


@contextmanager
def _server(options: argparse.Namespace, path: Path) -> Iterator[tuple[str, str]]:
    """The server that was named, or one of this package for the time being."""
    if options.url is not None:
        yield options.url, options.dataset or path.stem
        return
    from forebay.__main__ import binary

    with tempfile.TemporaryDirectory() as folder:
        command = [binary(), "serve", "--dataset", f"data={path}", "--cache-dir", folder]
        command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                sys.exit("forebay: the server did not start")
            yield f"grpc://{json.loads(ready)['grpc']}", "data"
        finally:
            process.terminate()
            process.wait()
