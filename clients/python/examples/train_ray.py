"""Trains with Ray Train on several workers, and resumes from its checkpoint with another number of them.

    python train_ray.py --url grpc://127.0.0.1:8815 --workers 4 --folder ray
    python train_ray.py --url grpc://127.0.0.1:8815 --workers 2 --folder ray

The global batch stays the same, so the second run continues with the rows that the first one has not read.
"""

import argparse
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import Checkpoint, RunConfig, ScalingConfig

import forebay

GLOBAL_BATCH = 120_000


def train(options: dict[str, Any]) -> None:
    """Trains on one worker."""
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    # Ray has initialized torch.distributed, from which the dataset takes its rank.
    ds = forebay.connect(options["url"]).train(
        "flights",
        batch_size=GLOBAL_BATCH // ray.train.get_context().get_world_size(),
        tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
        seed=7,
        output="torch",
        device=ray.train.torch.get_device(),
        job_name="delays",
    )
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        ds.load_state_dict(saved["data"])

    for batch in ds.epochs(options["epochs"]):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = digest_of_all_ranks(batch["x"], batch["y"])
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ds.rank == 0:
                whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": ds.state_dict()}
                torch.save(whole, os.path.join(folder, "state.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)
        if ds.rank == 0:
            with open(options["log"], "a") as log:
                print(f"epoch {ds.epoch} step {ds.step - 1} rows {rows}", file=log)


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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("ray"), help="folder of the checkpoints")
    options = parser.parse_args()

    ray.init(num_cpus=options.workers + 1, object_store_memory=200_000_000, include_dashboard=False)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"url": options.url, "epochs": options.epochs, "log": str(folder / "rows.log")},
        scaling_config=ScalingConfig(num_workers=options.workers),
        # A run of the same name continues with the last checkpoint of the earlier one.
        run_config=RunConfig(name="delays", storage_path=str(folder)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
