"""The copy-only baseline of pyarrow: a server that sends one prepared batch repeatedly."""

from __future__ import annotations

import json
import sys
from typing import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

from lines import serve
from table import deliver, needed, plain

CANDIDATES = 16


class CopyOnly(flight.FlightServerBase):
    def __init__(self, request: dict) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.rows = sum(pq.ParquetFile(file).metadata.num_rows for file in request["files"])
        self.size = request["batch_size"]
        self.batch = deliver(average_rows(request, self.size), request)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        epochs = json.loads(ticket.ticket)["epochs"]
        return flight.GeneratorStream(self.batch.schema, self.batches(epochs))

    def batches(self, epochs: int) -> Iterator[pa.RecordBatch]:
        whole, rest = divmod(self.rows, self.size)
        for _ in range(epochs):
            for _ in range(whole):
                yield self.batch
            if rest:
                yield self.batch.slice(0, rest)


def average_rows(request: dict, rows: int) -> pa.Table:
    """Returns the batch whose size is nearest to the mean of the first batches."""
    batches = []
    for batch in pq.ParquetFile(request["files"][0]).iter_batches(rows, columns=needed(request)):
        batches.append(batch)
        if len(batches) == CANDIDATES:
            break
    whole = [batch for batch in batches if len(batch) == rows] or batches
    mean = sum(batch.nbytes for batch in whole) / len(whole)
    return plain(pa.Table.from_batches([min(whole, key=lambda batch: abs(batch.nbytes - mean))]))


if __name__ == "__main__":
    serve(CopyOnly(json.loads(sys.argv[1])))
