"""Trains with the Trainer of transformers on several processes, and resumes from its checkpoint with another number of them.

    torchrun --nproc-per-node 4 train_transformers.py --url grpc://127.0.0.1:8815 --folder trainer
    torchrun --nproc-per-node 2 train_transformers.py --url grpc://127.0.0.1:8815 --folder trainer

The global batch stays the same, so the second run continues with the rows that the first one has not read.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

import forebay

GLOBAL_BATCH = 120_000


class ServedTrainer(Trainer):
    """A Trainer that uses the batches as the server assembles them, without a collator and without Accelerate."""

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)


class DatasetState(TrainerCallback, ExportableState):
    """Position of a dataset in the Trainer's checkpoints."""

    def __init__(self, ds: forebay.TrainingDataset) -> None:
        self.ds = ds

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"dataset": self.ds.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > 0:
            self.ds.load_state_dict(state.stateful_callbacks["DatasetState"]["attributes"]["dataset"])


class Delays(torch.nn.Module):
    """A linear model that prints the digest of the rows of each step."""

    def __init__(self, ds: forebay.TrainingDataset) -> None:
        super().__init__()
        self.ds, self.linear = ds, torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = digest_of_all_ranks(x, y)
        if self.ds.rank == 0:
            print(f"epoch {self.ds.epoch} step {self.ds.step - 1} rows {rows}", flush=True)
        return {"loss": torch.nn.functional.mse_loss(self.linear(x), y)}


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
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("trainer"), help="folder of the checkpoints")
    options = parser.parse_args()

    arguments = TrainingArguments(
        str(options.folder),
        max_steps=options.steps,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        # The state of the dataset is its position. The Trainer would skip further batches.
        ignore_data_skip=True,
        optim="sgd",
        learning_rate=1e-8,
        lr_scheduler_type="constant",
        seed=0,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    ds = forebay.connect(options.url).train(
        "flights",
        batch_size=GLOBAL_BATCH // arguments.world_size,
        tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
        seed=7,
        output="torch",
        job_name="delays",
    )
    trainer = ServedTrainer(Delays(ds), arguments, train_dataset=ds, callbacks=[DatasetState(ds)])
    # The Trainer writes trainer_state.json last: a checkpoint without it is incomplete.
    saved = [path.parent for path in options.folder.glob("checkpoint-*/trainer_state.json")]
    last = max(saved, key=lambda path: int(path.name.split("-")[1]), default=None)
    trainer.train(resume_from_checkpoint=last and str(last))


if __name__ == "__main__":
    main()
