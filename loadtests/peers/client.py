"""A stock pyarrow client that receives the stream of a ticket. `client.py URL`, then the protocol of lines.py."""

from __future__ import annotations

import sys
from typing import Iterator

import pyarrow.flight as flight

from accelerator import Batch, consume
from lines import answer_all


def main() -> None:
    client = flight.FlightClient(sys.argv[1])

    def batches(ticket: str) -> Iterator[Batch]:
        for chunk in client.do_get(flight.Ticket(ticket.encode())):
            yield chunk.data.num_rows, chunk.data.nbytes, chunk.data

    answer_all(lambda ticket, compute_ms: consume(lambda: batches(ticket), compute_ms))


if __name__ == "__main__":
    main()
