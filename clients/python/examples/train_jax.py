"""Predicts late arrivals with JAX, and resumes from its checkpoint.

    forebay serve --dataset flights=flights-3m.parquet
    python train_jax.py --url grpc://127.0.0.1:8815 --checkpoint late.pickle
"""

import argparse
import hashlib
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np

import forebay

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="grpc://127.0.0.1:8815")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--checkpoint", default="late.pickle")
parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
options = parser.parse_args()

first, second = jax.random.split(jax.random.PRNGKey(0))
weights = {
    "w1": jax.random.normal(first, (2, 16)) * 0.5,
    "b1": jnp.zeros(16),
    "w2": jax.random.normal(second, (16, 1)) * 0.5,
    "b2": jnp.zeros(1),
}


def loss_of(weights, features, late):
    hidden = jax.nn.relu(features @ weights["w1"] + weights["b1"])
    logits = (hidden @ weights["w2"] + weights["b2"])[:, 0]
    return jnp.mean(jnp.logaddexp(0.0, logits) - late * logits)


@jax.jit
def step(weights, distance, hours, delay):
    features = jnp.concatenate([distance / 1000, hours[:, None] / 24], axis=1)
    loss, slopes = jax.value_and_grad(loss_of)(weights, features, (delay[:, 0] > 15).astype(jnp.float32))
    return {name: weights[name] - 0.3 * slopes[name] for name in weights}, loss


tensors = {"distance": {"columns": ["distance"], "dtype": "float32"}, "delay": {"columns": ["delay"], "dtype": "float32"}}
ds = forebay.connect(options.url).train("flights", batch_size=16_384, seed=7, columns=["date"], tensors=tensors)

if os.path.exists(options.checkpoint):
    with open(options.checkpoint, "rb") as file:
        saved = pickle.load(file)
    weights = {name: jnp.asarray(value) for name, value in saved["weights"].items()}
    ds.load_state_dict(saved["data"])
    print(f"resuming at epoch {ds.epoch}, step {ds.step}", flush=True)

while ds.epoch < options.epochs and (ds.epoch, ds.step) != (options.epochs - 1, len(ds)):
    for batch in ds:
        hours = (batch["date"].to_numpy().astype("datetime64[h]").astype("int64") % 24).astype(np.float32)
        weights, loss = step(weights, batch["distance"].to_jax(), hours, batch["delay"].to_jax())
        if ds.step % options.every == 0:
            with open(options.checkpoint + ".part", "wb") as file:
                kept = {name: np.asarray(value) for name, value in weights.items()}
                pickle.dump({"weights": kept, "data": ds.state_dict()}, file)
            os.replace(options.checkpoint + ".part", options.checkpoint)
            print(f"epoch {batch.epoch} step {batch.step} loss {loss:.4f}", flush=True)

parameters = b"".join(np.asarray(weights[name]).tobytes() for name in sorted(weights))
print(f"loss {loss:.4f}, parameters {hashlib.sha256(parameters).hexdigest()[:16]}")
