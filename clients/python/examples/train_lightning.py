"""Trains with Lightning on several processes, and resumes from its checkpoint with another number of them.

    python train_lightning.py --url grpc://127.0.0.1:8815 --devices 4 --folder lightning
    torchrun --nproc-per-node 2 train_lightning.py --url grpc://127.0.0.1:8815 --devices 2 --folder lightning

The global batch stays the same, so the second run continues with the rows that the first one has not read.
"""

import argparse
import hashlib
import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

import forebay

GLOBAL_BATCH = 120_000


class Flights(lightning.LightningDataModule):
    """Rows of all ranks, whose position is a part of Lightning's checkpoints."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def setup(self, stage: str) -> None:
        # Lightning has initialized torch.distributed, from which the dataset takes its rank.
        self.ds = forebay.connect(self.url).train(
            "flights",
            batch_size=GLOBAL_BATCH // self.trainer.world_size,
            tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
            seed=7,
            output="torch",
            job_name="delays",
        )

    def train_dataloader(self) -> forebay.TrainingDataset:
        return self.ds

    def state_dict(self) -> dict[str, Any]:
        return self.ds.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ds.load_state_dict(state)


class Delays(lightning.LightningModule):
    """A linear model that prints the digest of the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        ds, rows = self.trainer.datamodule.ds, digest_of_all_ranks(batch["x"], batch["y"])
        self.print(f"epoch {ds.epoch} step {ds.step - 1} rows {rows}", flush=True)
        return torch.nn.functional.mse_loss(self.model(batch["x"]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-8)


def digest_of_all_ranks(x: torch.Tensor, y: torch.Tensor) -> str:
    """Returns the same digest for the same rows in the same order, however many ranks share them."""
    own = torch.cat([x, y], dim=1).cpu().numpy().tobytes()
    parts: list = [own]
    if dist.is_initialized():
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--folder", default="lightning", help="folder of the checkpoints")
    options = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=options.devices,
        max_epochs=options.epochs,
        callbacks=[ModelCheckpoint(options.folder, filename="delays", every_n_train_steps=1, enable_version_counter=False)],
        logger=False,
        enable_progress_bar=False,
    )
    checkpoint = os.path.join(options.folder, "delays.ckpt")
    trainer.fit(Delays(), datamodule=Flights(options.url), ckpt_path=checkpoint if os.path.exists(checkpoint) else None)


if __name__ == "__main__":
    main()
