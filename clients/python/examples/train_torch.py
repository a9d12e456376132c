"""Predicts late arrivals with PyTorch, and resumes from its checkpoint.

    forebay serve --dataset flights=flights-3m.parquet
    python train_torch.py --url grpc://127.0.0.1:8815 --checkpoint late.pt
"""

import argparse
import hashlib
import os

import torch

import forebay

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="grpc://127.0.0.1:8815")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--checkpoint", default="late.pt")
parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_of = torch.nn.BCEWithLogitsLoss()

# The hour is computed from a timestamp, which is delivered as a plain column.
tensors = {"distance": {"columns": ["distance"], "dtype": "float32"}, "delay": {"columns": ["delay"], "dtype": "float32"}}
ds = forebay.connect(options.url).train("flights", batch_size=16_384, seed=7, columns=["date"], tensors=tensors)

if os.path.exists(options.checkpoint):
    saved = torch.load(options.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    ds.load_state_dict(saved["data"])
    print(f"resuming at epoch {ds.epoch}, step {ds.step}", flush=True)


def save() -> None:
    """Replaces the checkpoint atomically, so that a killed process leaves the earlier one."""
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": ds.state_dict()}
    torch.save(whole, options.checkpoint + ".part")
    os.replace(options.checkpoint + ".part", options.checkpoint)


while ds.epoch < options.epochs and (ds.epoch, ds.step) != (options.epochs - 1, len(ds)):
    for batch in ds:
        hours = torch.from_numpy(batch["date"].to_numpy().astype("datetime64[h]").astype("int64") % 24)
        distance = batch["distance"].to_torch() / 1000
        late = (batch["delay"].to_torch() > 15).float()
        optimizer.zero_grad()
        loss = loss_of(model(torch.cat([distance, hours.unsqueeze(1) / 24], dim=1)), late)
        loss.backward()
        optimizer.step()
        if ds.step % options.every == 0:
            save()
            print(f"epoch {batch.epoch} step {batch.step} loss {loss.item():.4f}", flush=True)

parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print(f"loss {loss.item():.4f}, parameters {hashlib.sha256(parameters).hexdigest()[:16]}")
