"""Trains with Lightning on 90% of the airports, and validates on the flights of the others after each epoch.

    python train_lightning_validated.py --url grpc://127.0.0.1:8815 --devices 2
"""

import argparse

import lightning
import torch

import forebay

GLOBAL_BATCH = 120_000


class Flights(lightning.LightningDataModule):
    """Flights of two sets of airports: one for training, one for validation."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def setup(self, stage: str) -> None:
        client = forebay.connect(self.url)
        request = {
            "batch_size": GLOBAL_BATCH // self.trainer.world_size,
            "tensors": {"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
            "output": "torch",
        }
        train, valid = forebay.split(0.9, by="origin")
        self.ds = client.train("flights", filter=train, seed=7, **request)
        self.valid = client.eval("flights", filter=valid, **request)

    def train_dataloader(self) -> forebay.TrainingDataset:
        return self.ds

    def val_dataloader(self) -> forebay.TrainingDataset:
        return self.valid


class Delays(lightning.LightningModule):
    """A linear model that prints the number of validated rows and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.model(batch["x"]), batch["y"])

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch: dict[str, torch.Tensor], number: int) -> None:
        # The last batches are filled with rows that are not valid.
        valid = batch["valid"].bool()
        error = (self.model(batch["x"]) - batch["y"])[valid]
        self.sums += torch.tensor([error.double().square().sum(), valid.sum()], dtype=torch.float64)

    def on_validation_epoch_end(self) -> None:
        squares, rows = self.all_gather(self.sums).reshape(-1, 2).sum(dim=0)
        self.log("valid_loss", squares / rows)
        self.print(f"validated {int(rows)} rows, loss {squares / rows:.0f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args()

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=options.devices,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Delays(), datamodule=Flights(options.url))


if __name__ == "__main__":
    main()
