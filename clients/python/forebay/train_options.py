"""The keyword arguments of `Client.train`, for type checkers."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence, TypedDict

from forebay.agreement import RendezvousStore
from forebay.conversion import Missing, Strings
from forebay.training import TrainingDataset


class TrainOptions(TypedDict, total=False):
    """All but `output`, which decides the type of the items. `Client.train` documents them."""

    batch_size: int | None
    max_pack_rows: int | None
    columns: str | Sequence[str] | None
    select: str | Sequence[str] | None
    filter: str | None
    values: Mapping[str, Any] | None
    tensors: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    dedupe: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    group_by: str | Sequence[str] | None
    mix: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    seed: int | None
    shuffle: bool | int | Mapping[str, Any] | None
    partitions: int | None
    epoch: int
    epochs: int | None
    rank: int | None
    world_size: int | None
    mesh: Any
    lanes: int
    remainder: str | None
    snapshot: str | None
    job_name: str | None
    label_column: str | None
    strings: Strings
    missing: Missing
    device: Any
    device_prefetch: int
    pin_memory: bool
    rendezvous_store: RendezvousStore | None
    progress: bool
    callbacks: Sequence[Callable[[TrainingDataset[Any]], None]]
    gpu_utilization: Callable[[], float | None] | None
