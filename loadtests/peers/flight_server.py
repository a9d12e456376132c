"""A minimal pyarrow Flight server with the table in memory, which delivers shuffled rows.

Threads prefetch batches: `take` releases the interpreter lock, and otherwise each `take` would wait for the previous send.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from lines import serve
from table import load

TAKERS = 2


class Shuffled(flight.FlightServerBase):
    def __init__(self, request: dict) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.table = load(request)
        self.size = request["batch_size"]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        asked = json.loads(ticket.ticket)
        epochs = range(asked["epoch"], asked["epoch"] + asked["epochs"])
        return flight.GeneratorStream(self.table.schema, self.batches(epochs))

    def batches(self, epochs: range) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(TAKERS) as pool:
            ahead: deque[Future] = deque()
            for rows in self.indices(epochs):
                ahead.append(pool.submit(self.table.take, rows))
                if len(ahead) > TAKERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def indices(self, epochs: range) -> Iterator[pa.Array]:
        for epoch in epochs:
            order = np.random.default_rng(epoch).permutation(self.table.num_rows)
            for first in range(0, len(order), self.size):
                yield pa.array(order[first : first + self.size])


if __name__ == "__main__":
    serve(Shuffled(json.loads(sys.argv[1])))
