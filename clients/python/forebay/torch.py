"""The training dataset as a PyTorch `IterableDataset`."""

from __future__ import annotations

import sys

import torch.utils.data

from forebay.training import TrainingDataset


class TorchTrainingDataset(TrainingDataset, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A training dataset for `DataLoader(ds, batch_size=None, num_workers=0)`.

    `Client.train` returns this class if PyTorch was imported before the call. Worker processes are rejected: batches are
    assembled by the server and prefetched by threads, so workers would only add a copy, and `state_dict` would not include
    their position. A DataLoader that `Accelerator.prepare` returned is rejected: its first process would read for all.

    Raises:
        RuntimeError: On iteration in a worker process of a DataLoader, or by a DataLoader that Accelerate has prepared.
    """

    def _begin(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError("num_workers must be 0: the dataset prefetches batches itself, and its state is in this process")
        self._check_not_prepared()

    def _check_not_prepared(self) -> None:
        """Checks that this iteration is not that of a DataLoader which Accelerate has prepared.

        Raises:
            RuntimeError: It is.
        """
        accelerate = sys.modules.get("accelerate.data_loader")
        if accelerate is None:
            return
        active = accelerate.GradientState().active_dataloader
        dataset = getattr(active, "dataset", None)
        if isinstance(dataset, accelerate.IterableDatasetShard):
            dataset = dataset.dataset
        if dataset is self:
            active.end()
            raise RuntimeError(
                "Accelerate has prepared the DataLoader of this dataset, so the first process would read for all processes, and "
                "the rows of the others would be lost; iterate over the dataset itself, or over a DataLoader with "
                "batch_size=None that is not passed to prepare()"
            )
