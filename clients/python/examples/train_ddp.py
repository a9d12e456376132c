"""Trains with DistributedDataParallel, and resumes from its checkpoint with another number of processes.

    torchrun --nproc-per-node 4 train_ddp.py --url grpc://127.0.0.1:8815 --checkpoint ddp.pt
    torchrun --nproc-per-node 2 train_ddp.py --url grpc://127.0.0.1:8815 --checkpoint ddp.pt

The global batch stays the same, so the second run continues with the rows that the first one has not read.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist

import forebay

GLOBAL_BATCH = 120_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", default="ddp.pt")
    options = parser.parse_args()

    has_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpus else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if has_gpus else "cpu")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)

    # The rank comes from torch.distributed.
    ds = forebay.connect(options.url).train(
        "flights",
        batch_size=GLOBAL_BATCH // dist.get_world_size(),
        tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
        seed=7,
        device=device,
        job_name="delays",
    )
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        ds.load_state_dict(saved["data"])

    for batch in ds.epochs(options.epochs):
        x, y = batch["x"].to_torch(), batch["y"].to_torch()
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = digest_of_all_ranks(x, y)
        if ds.rank == 0:
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": ds.state_dict()}
            torch.save(whole, options.checkpoint + ".part")
            os.replace(options.checkpoint + ".part", options.checkpoint)
            print(f"epoch {batch.epoch} step {batch.step} rows {rows}", flush=True)
    dist.destroy_process_group()


def digest_of_all_ranks(x: torch.Tensor, y: torch.Tensor) -> str:
    """Returns the same digest for the same rows in the same order, however many ranks share them."""
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, torch.cat([x, y], dim=1).cpu().numpy().tobytes())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


if __name__ == "__main__":
    main()
