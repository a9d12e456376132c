"""The command `profile`: reads the same Parquet with a plain loader and with Forebay."""

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

from forebay.binary import binary
from forebay.client import connect
from forebay.errors import Error
from forebay.profiling import Report, profile
from forebay.server_process import end


def main(arguments: list[str]) -> None:
    """Reads the same Parquet with a plain loader and with Forebay, and prints where the time of both goes."""
    parser = argparse.ArgumentParser(prog="python -m forebay profile", description=main.__doc__)
    parser.add_argument("path", help="Parquet file, or folder of Parquet files")
    parser.add_argument("--try", dest="url", metavar="URL", help="URL of a Forebay server (default: a temporary one)")
    parser.add_argument("--dataset", help="name of the dataset at that server (default: the name of the file or folder)")
    parser.add_argument("--columns", nargs="*", help="columns to read (default: all of a primitive type)")
    parser.add_argument("--batch-size", type=int, default=4096, help="rows per step (default: 4096)")
    parser.add_argument("--steps", type=int, default=500, help="maximum number of steps per loader (default: 500)")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="simulated compute time per step in ms (default: 0)")
    options = parser.parse_args(arguments)
    try:
        compare(options)
    except (OSError, Error, ValueError, ImportError) as error:
        sys.exit(f"forebay: {error}")


def compare(options: argparse.Namespace) -> None:
    """Runs both loaders and prints their reports."""
    path = Path(options.path).resolve()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist, expected a Parquet file or a folder of Parquet files")
    columns = options.columns or _primitive_columns(path)
    with _server(options, path) as (url, dataset):
        ds = connect(url).train(dataset, batch_size=options.batch_size, columns=columns)
        steps = min(options.steps, len(ds))
        plain = _run(_plain_loader(path, columns, options.batch_size), steps, options)
        for name in ("cold", "warm"):
            forebay = _run(ds, steps, options)
            print(f"\nForebay, {name} ({url}):\n{forebay}")
    print(f"\npyarrow in this process, in file order, unshuffled:\n{plain}")
    if forebay.wait > 0:
        print(f"\nthe loop waits {plain.wait / forebay.wait:.2f} times as long for pyarrow as for Forebay with a warm cache")


def _run(loader: Iterable[Any], steps: int, options: argparse.Namespace) -> Report:
    profiled = profile(loader, print_report=False)
    for _ in itertools.islice(profiled, steps):
        if options.compute_ms:
            time.sleep(options.compute_ms / 1e3)
    return profiled.report


def _primitive_columns(path: Path) -> list[str]:
    """Returns the columns of primitive types (no dictionaries, lists or strings), or all columns if there are none."""
    import pyarrow as pa
    import pyarrow.dataset

    schema = pyarrow.dataset.dataset(path).schema
    primitive = [field.name for field in schema if pa.types.is_primitive(field.type)]
    return primitive or schema.names


def _plain_loader(path: Path, columns: list[str], batch_size: int) -> Iterator[Any]:
    import pyarrow.dataset

    for batch in pyarrow.dataset.dataset(path).to_batches(columns=columns, batch_size=batch_size):
        yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}


@contextmanager
def _server(options: argparse.Namespace, path: Path) -> Iterator[tuple[str, str]]:
    """Yields URL and dataset of the given server, or of a temporary one that ends with the context."""
    if options.url is not None:
        yield options.url, options.dataset or path.stem
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [binary(), "serve", "--dataset", f"data={path}", "--cache-dir", folder]
        command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                sys.exit(f"forebay: the server failed to start; run it to see why: {' '.join(command)}")
            yield f"grpc://{json.loads(ready)['grpc']}", "data"
        finally:
            end(process)
