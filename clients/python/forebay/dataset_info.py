"""Descriptions of datasets: their rows, files and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset of a server, as `Client.datasets` and `Client.dataset` return it.

    Attributes:
        name: Name of the dataset.
        snapshot: Id of the current snapshot; None if the dataset cannot be opened.
        rows: Number of rows.
        files: Number of files.
        blocks: Number of blocks, the unit of shuffling.
        stored_bytes: Size of the files in bytes.
        decoded_bytes: Estimated size of all values in memory, in bytes.
        error: Reason why the dataset cannot be opened; None if it is open.
    """

    name: str
    snapshot: str | None
    rows: int
    files: int
    blocks: int
    stored_bytes: int
    decoded_bytes: int
    error: str | None


def dataset_info(fields: Mapping[str, Any]) -> DatasetInfo:
    """Returns the dataset with these fields of DatasetInfo of the protocol."""
    numbers = {name: int(fields.get(name, 0)) for name in ("rows", "files", "blocks", "stored_bytes", "decoded_bytes")}
    return DatasetInfo(
        name=fields["dataset"], snapshot=fields.get("snapshot") or None, error=fields.get("error") or None, **numbers
    )
