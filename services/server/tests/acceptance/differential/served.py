"""The server that is tested: the values and rows that it delivers, over stock Flight."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from client import FAILURES, Client
from differential.duck import Refused
from differential.kinds import plain_values

IN_ORDER = {"shuffle": {"none": {}}, "batch_size": 100_000}
# A condition in this form excludes no row group and no page by its bounds.
UNPRUNED = "CASE WHEN {} THEN TRUE ELSE FALSE END"


class Served:
    """A dataset of a server."""

    def __init__(self, client: Client, dataset: str) -> None:
        self.client, self.dataset = client, dataset

    def read(self, **train: Any) -> pa.Table | None:
        """Returns the rows of a request, or None if there are none."""
        try:
            batches = [batch.data for batch in self.client.batches(dataset=self.dataset, **IN_ORDER, **train)]
        except FAILURES as error:
            raise Refused(str(error)) from error
        return pa.Table.from_batches(batches) if batches else None

    def matching(self, condition: str) -> list[int]:
        """Returns the ids of the rows for which `condition` is true."""
        table = self.read(columns=["id"], filter=condition)
        return [] if table is None else table["id"].to_pylist()

    def values(self, expressions: list[str]) -> list[list | Refused]:
        """Returns the values of each expression for all rows. One that is refused does not affect the others."""
        if not expressions:
            return []
        select = [f"{text} AS e{number}" for number, text in enumerate(expressions)]
        try:
            table = self.read(select=select)
        except Refused as error:
            if len(expressions) == 1:
                return [error]
            middle = len(expressions) // 2
            return self.values(expressions[:middle]) + self.values(expressions[middle:])
        return [[] if table is None else plain_values(table.column(number)) for number in range(len(expressions))]
