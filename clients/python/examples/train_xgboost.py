"""Trains with XGBoost on batches of a server, and resumes from its checkpoint.

    python train_xgboost.py --url grpc://127.0.0.1:8815 --folder xgboost

XGBoost passes over the rows several times before the first round. Each pass has each row once, in the same order.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
import xgboost

import forebay

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="grpc://127.0.0.1:8815")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--folder", type=Path, default=Path("xgboost"), help="folder of the checkpoints and of XGBoost's cache")
options = parser.parse_args()


class Rows(xgboost.DataIter):
    """Batches of a dataset for XGBoost, which prints number and digest of the rows of each pass."""

    def __init__(self, ds: forebay.TrainingDataset, cache: Path) -> None:
        super().__init__(cache_prefix=str(cache))
        self.ds = ds
        self.reset()

    def reset(self) -> None:
        self.batches, self.rows, self.digest = iter(self.ds), 0, hashlib.sha256()

    def next(self, input_data) -> bool:
        batch = next(self.batches, None)
        if batch is None:
            print(f"pass of {self.rows} rows {self.digest.hexdigest()[:16]}", flush=True)
            return False
        self.rows += len(batch["x"])
        self.digest.update(np.concatenate([batch["x"], batch["y"]], axis=1).tobytes())
        input_data(data=batch["x"], label=batch["y"][:, 0])
        return True


class Report(xgboost.callback.TrainingCallback):
    """Prints each round."""

    def after_iteration(self, model: xgboost.Booster, epoch: int, evals_log: dict) -> bool:
        print(f"round {model.num_boosted_rounds()}", flush=True)
        return False


options.folder.mkdir(parents=True, exist_ok=True)
saved = sorted(options.folder.glob("model_*.ubj"), key=lambda path: int(path.stem.split("_")[1]))
model = xgboost.Booster(model_file=saved[-1]) if saved else None

# Without a shuffle, all passes and all runs have the same order. The model has the name of the snapshot.
ds = forebay.connect(options.url).train(
    "flights",
    batch_size=262_144,
    tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
    shuffle={"none": {}},
    snapshot=model and model.attr("snapshot"),
    output="numpy",
)
matrix = xgboost.ExtMemQuantileDMatrix(Rows(ds, options.folder / "cache"))
if model is None:
    model = xgboost.train({"max_depth": 3}, matrix, num_boost_round=0)
    model.set_attr(snapshot=ds.summary["snapshot"])
trained = model.num_boosted_rounds()
checkpoints = xgboost.callback.TrainingCheckPoint(options.folder, name="model", interval=1)
model = xgboost.train(
    {"max_depth": 3, "nthread": 1},
    matrix,
    num_boost_round=options.rounds - trained,
    xgb_model=model,
    callbacks=[checkpoints, Report()],
)
print(f"trained {model.num_boosted_rounds()} rounds on snapshot {model.attr('snapshot')}")
