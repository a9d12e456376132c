"""Trains with Keras 3, and resumes from its checkpoint within an epoch.

    KERAS_BACKEND=torch python train_keras.py --url grpc://127.0.0.1:8815 --folder keras
"""

import argparse
import collections
import hashlib
import json
from pathlib import Path
from typing import Any, Iterator

import keras
import numpy as np

import forebay


class Rows:
    """Batches of a dataset for `fit`, and the position of the training among them.

    Keras takes batches from a generator before it trains on them. Therefore, the position counts the trained batches.
    """

    def __init__(self, ds: forebay.TrainingDataset) -> None:
        self.ds, self.trained = ds, 0
        self.digests: collections.deque[str] = collections.deque()

    def rest_of_epoch(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in self.ds.epochs(self.trained // len(self.ds) + 1):
            values = np.concatenate([batch["x"], batch["y"]], axis=1)
            self.digests.append(hashlib.sha256(values.tobytes()).hexdigest()[:16])
            yield batch["x"], batch["y"]

    def state_dict(self) -> dict[str, Any]:
        epoch, step = divmod(self.trained, len(self.ds))
        return {**self.ds.state_dict(), "epoch": epoch, "step": step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ds.load_state_dict(state)
        self.trained = state["epoch"] * len(self.ds) + state["step"]


class Checkpoint(keras.callbacks.Callback):
    """Saves the model and the position of its training after every batch, and prints the digest of the rows."""

    def __init__(self, rows: Rows, folder: Path) -> None:
        super().__init__()
        self.rows, self.folder = rows, folder

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        epoch, step = divmod(self.rows.trained, len(self.rows.ds))
        self.rows.trained += 1
        path = self.folder / f"{self.rows.trained:06}"
        self.model.save(path.with_suffix(".keras"))
        # The position is written last, because a model without it is incomplete.
        path.with_suffix(".part").write_text(json.dumps(self.rows.state_dict()))
        path.with_suffix(".part").rename(path.with_suffix(".json"))
        for old in self.folder.glob(f"{self.rows.trained - 1:06}.*"):
            old.unlink()
        print(f"epoch {epoch} step {step} rows {self.rows.digests.popleft()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="grpc://127.0.0.1:8815")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("keras"), help="folder of the checkpoints")
    options = parser.parse_args()

    ds = forebay.connect(options.url).train(
        "flights",
        batch_size=120_000,
        tensors={"x": {"columns": ["distance"], "dtype": "float32"}, "y": {"columns": ["delay"], "dtype": "float32"}},
        seed=7,
        remainder="DROP",
        output="numpy",
    )
    rows = Rows(ds)
    options.folder.mkdir(parents=True, exist_ok=True)
    if saved := sorted(options.folder.glob("*.json")):
        model = keras.saving.load_model(saved[-1].with_suffix(".keras"))
        rows.load_state_dict(json.loads(saved[-1].read_text()))
    else:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-8), loss="mse")

    while rows.trained < options.epochs * len(ds):
        epoch, step = divmod(rows.trained, len(ds))
        model.fit(
            rows.rest_of_epoch(),
            steps_per_epoch=len(ds) - step,
            initial_epoch=epoch,
            epochs=epoch + 1,
            shuffle=False,
            callbacks=[Checkpoint(rows, options.folder)],
            verbose=0,
        )


if __name__ == "__main__":
    main()
