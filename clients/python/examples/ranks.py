"""Several ranks read one global order of the rows, and resume from a checkpoint with another number of ranks.

    python ranks.py --url grpc://127.0.0.1:8815 --world-size 4 --steps 100 --checkpoint state.json
    python ranks.py --url grpc://127.0.0.1:8815 --world-size 2 --checkpoint state.json

The global batch stays the same, so the second run continues where the first one ended. A sum over the rows of each global
batch stands for the gradient. Each row is weighted by its position, so that another order results in another sum.
"""

import argparse
import json
import multiprocessing
import os

import numpy as np

import forebay

GLOBAL_BATCH = 120_000


def one_rank(options: argparse.Namespace, rank: int, store, gradients, barrier) -> None:
    ds = forebay.connect(options.url, retry_deadline=60).train(
        "flights",
        batch_size=GLOBAL_BATCH // options.world_size,
        tensors={"x": {"columns": ["delay", "distance"], "dtype": "float64"}},
        seed=5,
        rank=rank,
        world_size=options.world_size,
        remainder="DROP",
        rendezvous_store=store,
    )
    if os.path.exists(options.checkpoint):
        with open(options.checkpoint) as file:
            ds.load_state_dict(json.load(file)["data"])
    for batch in ds:
        positions = np.arange(batch.position, batch.position + batch.num_rows)
        # Integers below 2^53, whose sum is exact in any order.
        gradients[rank] = (positions @ batch["x"].to_numpy()).tolist()
        barrier.wait()
        if rank == 0:
            total = np.sum([gradients[other] for other in range(options.world_size)], axis=0)
            print(f"step {batch.step} sum {total[0]:.0f} {total[1]:.0f}", flush=True)
            with open(options.checkpoint + ".part", "w") as file:
                json.dump({"data": ds.state_dict()}, file)
            os.replace(options.checkpoint + ".part", options.checkpoint)
        barrier.wait()
        if ds.step == options.steps:
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--world-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="stop before this step (default: at the end of the epoch)")
    parser.add_argument("--checkpoint", default="state.json")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        shared = manager.dict(), manager.dict(), manager.Barrier(options.world_size)
        ranks = [context.Process(target=one_rank, args=(options, rank, *shared)) for rank in range(options.world_size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    raise SystemExit(max(abs(rank.exitcode) for rank in ranks))


if __name__ == "__main__":
    main()
