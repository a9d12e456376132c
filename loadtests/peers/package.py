"""Forebay's Python package: `package.py URL [--expand]`, then the protocol of lines.py. A ticket is a JSON command."""

from __future__ import annotations

import json
import sys
from typing import Iterator

import forebay

from accelerator import Batch, consume
from lines import answer_all

TICKET_FIELDS = {"content_hash", "lane", "start_step", "steps", "plan_version"}


def main() -> None:
    client = forebay.connect(sys.argv[1], verify_hash=False)
    expand = "--expand" in sys.argv

    def arrays(asked: dict, batch: forebay.Batch) -> dict:
        expanded = [each["tensor"] for each in asked.get("dedupe", [])] if expand else []
        return {**batch.to_numpy(), **{name: batch.expand(name) for name in expanded}}

    def batches(ticket: str) -> Iterator[Batch]:
        asked = json.loads(ticket)["train"]
        numbers = {name: int(asked[name]) for name in ("batch_size", "seed", "epoch", "epochs") if name in asked}
        request = {name: value for name, value in asked.items() if name not in TICKET_FIELDS}
        ds = client.train(**{**request, **numbers})
        for _ in range(numbers.get("epochs", 1)):
            for batch in ds:
                if "tensors" in asked and not asked.get("columns"):
                    yield batch.num_rows, batch.nbytes, arrays(asked, batch)
                else:
                    yield batch.num_rows, batch.nbytes, batch.to_arrow()

    answer_all(lambda ticket, compute_ms: consume(lambda: batches(ticket), compute_ms))


if __name__ == "__main__":
    main()
