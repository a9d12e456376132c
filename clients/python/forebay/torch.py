"""A training as PyTorch's DataLoader wants it."""

from __future__ import annotations

import torch.utils.data

from forebay.training import Training


class TorchTraining(Training, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """For `DataLoader(ds, batch_size=None, num_workers=0)`. Batches are made by the server and received ahead, so a worker
    process would only add a copy, and `state_dict()` would not know what it has read: it is refused."""

    def _begin(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("num_workers must be 0: Forebay receives ahead by itself, and its state is here")
