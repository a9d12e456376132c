"""Trains with JAX on several processes, whose batches form one sharded array, and resumes with another number of processes.

    for i in 0 1; do python train_jax_sharded.py --coordinator 127.0.0.1:1234 --processes 2 --process $i & done; wait

On a cluster that `jax.distributed.initialize()` knows, such as Slurm, the three options are not needed.
"""

import argparse
import hashlib
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import forebay

GLOBAL_BATCH = 120_000

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="grpc://127.0.0.1:8815")
parser.add_argument("--coordinator", help="HOST:PORT of the first process")
parser.add_argument("--processes", type=int, help="number of processes")
parser.add_argument("--process", type=int, help="number of this process, from 0")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--checkpoint", default="sharded.pickle")
options = parser.parse_args()

jax.distributed.initialize(options.coordinator, options.processes, options.process)
by_rows = NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))

# The rank comes from jax.distributed. Each process reads the rows of its own devices.
ds = forebay.connect(options.url).train(
    "flights",
    batch_size=GLOBAL_BATCH // jax.process_count(),
    tensors={"x": {"columns": ["distance", "delay"], "dtype": "float32"}},
    seed=7,
    output="numpy",
)
weight = jnp.zeros(())
if os.path.exists(options.checkpoint):
    with open(options.checkpoint, "rb") as file:
        saved = pickle.load(file)
    weight = jnp.asarray(saved["weight"])
    ds.load_state_dict(saved["data"])


@jax.jit
def step(weight, rows):
    slope = jax.grad(lambda weight: jnp.mean((rows[:, 0] * weight - rows[:, 1]) ** 2))(weight)
    return weight - 1e-7 * slope


for batch in ds.epochs(options.epochs):
    rows = jax.make_array_from_process_local_data(by_rows, batch["x"])
    weight = step(weight, rows)
    # The same for the same rows in the same order, however many processes share them.
    digest = hashlib.sha256(np.asarray(multihost_utils.process_allgather(rows, tiled=True)).tobytes()).hexdigest()[:16]
    if ds.rank == 0:
        with open(options.checkpoint + ".part", "wb") as file:
            pickle.dump({"weight": np.asarray(weight), "data": ds.state_dict()}, file)
        os.replace(options.checkpoint + ".part", options.checkpoint)
        print(f"epoch {ds.epoch} step {ds.step} rows {digest}", flush=True)
jax.distributed.shutdown()
