"""A PyTorch DataLoader over pyarrow: two workers read row groups, fill a shuffle buffer, and yield tensors from it.

`torch_loader.py REQUEST`, then the protocol of lines.py. With `by_column`, the workers yield one tensor per column, as is common,
and the trainer stacks the matrices. Otherwise, the workers stack them, tile by tile. The workers start before the first run and
persist.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from accelerator import Batch, consume
from lines import answer_all
from table import matrix, needed

WORKERS = 2
BUFFER_ROWS = 262_144
# An epoch without rows.
NO_EPOCH = -1


class Rows(torch.utils.data.IterableDataset):
    """The rows of the epoch `epoch`, which persistent workers read from shared memory when an iteration begins."""

    def __init__(self, request: dict) -> None:
        self.request, self.epoch = request, torch.multiprocessing.Value("q", NO_EPOCH)
        self.files: dict[str, pq.ParquetFile] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, epoch = torch.utils.data.get_worker_info(), self.epoch.value
        torch.set_num_threads(1)
        self.files = self.files or {file: pq.ParquetFile(file) for file in self.request["files"]}
        if epoch == NO_EPOCH:
            return
        groups = [(file, group) for file, opened in self.files.items() for group in range(opened.metadata.num_row_groups)]
        np.random.default_rng(epoch).shuffle(groups)
        rng, pending = np.random.default_rng((epoch, worker.id)), []
        for file, group in groups[worker.id :: worker.num_workers]:
            columns = needed(self.request)
            pending.append(self.files[file].read_row_group(group, columns=columns, use_threads=False))
            if sum(table.num_rows for table in pending) >= BUFFER_ROWS:
                yield from self.shuffled(pending, rng)
                pending = []
        if pending:
            yield from self.shuffled(pending, rng)

    def shuffled(self, pending: list[pa.Table], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        table = pa.concat_tables(pending)
        if self.request.get("by_column"):
            arrays = {name: table.column(name).to_numpy() for name in needed(self.request)}
        else:
            arrays = {name: table.column(name).to_numpy() for name in self.request["columns"]}
            arrays.update({tensor["name"]: matrix(table, tensor) for tensor in self.request["tensors"]})
        order, size = rng.permutation(table.num_rows), self.request["batch_size"]
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            yield {name: torch.from_numpy(values[rows]) for name, values in arrays.items()}


def stacked(columns: dict[str, Any], request: dict) -> dict[str, Any]:
    """Returns the tensors of a request, stacked from one tensor per column."""
    batch = {name: columns[name] for name in request["columns"]}
    for tensor in request["tensors"]:
        dtype = getattr(torch, tensor["dtype"])
        batch[tensor["name"]] = torch.stack([columns[name].to(dtype) for name in tensor["columns"]], dim=1)
    return batch


def main() -> None:
    request = json.loads(sys.argv[1])
    dataset = Rows(request)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    # Starts the workers.
    assert not list(loader)

    def batches(ticket: str) -> Iterator[Batch]:
        asked = json.loads(ticket)
        for epoch in range(asked["epoch"], asked["epoch"] + asked["epochs"]):
            dataset.epoch.value = epoch
            for batch in loader:
                if request.get("by_column"):
                    batch = stacked(batch, request)
                size = sum(tensor.numel() * tensor.element_size() for tensor in batch.values())
                yield len(next(iter(batch.values()))), size, batch

    answer_all(lambda ticket, compute_ms: consume(lambda: batches(ticket), compute_ms))


if __name__ == "__main__":
    main()
