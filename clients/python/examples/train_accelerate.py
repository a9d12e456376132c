"""Trains with Accelerate on several processes, and resumes from its checkpoint with another number of them.

    accelerate launch --multi_gpu --num_processes 4 train_accelerate.py --url grpc://127.0.0.1:8815 --folder accelerate
    accelerate launch --multi_gpu --num_processes 2 train_accelerate.py --url grpc://127.0.0.1:8815 --folder accelerate

The global batch stays the same, so the second run continues with the rows that the first one has not read.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed

import forebay

GLOBAL_BATCH = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("accelerate"), help="folder of the checkpoints")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    model = torch.nn.Linear(1, 1)
    # The dataset is not prepared: each process reads its own rows.
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-8))
    ds = forebay.connect(options.url).train(
        "flights",
        batch_size=GLOBAL_BATCH // accelerator.num_processes,
        tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
        seed=7,
        output="torch",
        device=accelerator.device,
        job_name="delays",
    )
    accelerator.register_for_checkpointing(ds)
    if saved := sorted(options.folder.glob("step-*[0-9]")):
        accelerator.load_state(saved[-1])

    for batch in ds.epochs(options.epochs):
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        rows = digest_of_all_ranks(batch["x"], batch["y"])
        save(accelerator, options.folder, ds.epoch * len(ds) + ds.step)
        accelerator.print(f"epoch {ds.epoch} step {ds.step - 1} rows {rows}", flush=True)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Saves a checkpoint and removes the previous one. The name shows that the checkpoint is complete."""
    path = folder / f"step-{step:06}"
    part = path.with_suffix(".part")
    accelerator.save_state(part)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        part.rename(path)
        shutil.rmtree(folder / f"step-{step - 1:06}", ignore_errors=True)


def digest_of_all_ranks(x: torch.Tensor, y: torch.Tensor) -> str:
    """Returns the same digest for the same rows in the same order, however many ranks share them."""
    parts = gather_object([torch.cat([x, y], dim=1).cpu().numpy().tobytes()])
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


if __name__ == "__main__":
    main()
