"""The training dataset as a PyTorch `IterableDataset`."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from forebay.training import TrainingDataset


class TorchTrainingDataset(TrainingDataset[Any], torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A training dataset for `DataLoader(ds, batch_size=None, num_workers=0)`.

    `Client.train` returns this class if PyTorch was imported before the call. Worker processes are rejected: batches are
    assembled by the server and prefetched by threads, so workers would only add a copy, and `state_dict` would not include
    their position.

    Raises:
        RuntimeError: On iteration in a worker process of a DataLoader.
    """

    def _begin(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("num_workers must be 0: the dataset prefetches batches itself, and its state is in this process")
