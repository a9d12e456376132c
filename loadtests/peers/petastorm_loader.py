"""Petastorm's batch reader with two workers, and its DataLoader with a shuffling queue.

`petastorm_loader.py REQUEST`, then the protocol of lines.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Iterator

import torch
from petastorm import make_batch_reader
from petastorm.pytorch import BatchedDataLoader

from accelerator import Batch, consume
from lines import answer_all
from table import needed

WORKERS = 2
BUFFER_ROWS = 262_144


def main() -> None:
    request = json.loads(sys.argv[1])
    url = Path(request["files"][0]).parent.as_uri()

    def batches(ticket: str) -> Iterator[Batch]:
        asked = json.loads(ticket)
        for epoch in range(asked["epoch"], asked["epoch"] + asked["epochs"]):
            reader = make_batch_reader(
                url, schema_fields=needed(request), reader_pool_type="process", workers_count=WORKERS, seed=epoch
            )
            loader = BatchedDataLoader(
                reader, batch_size=request["batch_size"], shuffling_queue_capacity=BUFFER_ROWS
            )
            with loader:
                for batch in loader:
                    columns = batch
                    for tensor in request["tensors"]:
                        parts = [batch[name].to(getattr(torch, tensor["dtype"])) for name in tensor["columns"]]
                        columns = {**columns, tensor["name"]: torch.stack(parts, dim=1)}
                    size = sum(tensor.numel() * tensor.element_size() for tensor in batch.values())
                    yield len(next(iter(batch.values()))), size, columns

    answer_all(lambda ticket, compute_ms: consume(lambda: batches(ticket), compute_ms))


if __name__ == "__main__":
    main()
