"""Wait fraction and throughput of a training in TensorBoard.

    from torch.utils.tensorboard import SummaryWriter
    ds = client.train("flights", batch_size=4096, callbacks=[TensorBoard(SummaryWriter())])
"""

from __future__ import annotations

from typing import Any

from forebay.training import TrainingDataset


class TensorBoard:
    """A callback for `Client.train` that writes three scalars, each over the last `every` steps.

    `PREFIX/stall` is the fraction of the time that the loop waited for batches, 0 to 1. `PREFIX/rows_per_second` and
    `PREFIX/bytes_per_second` are the throughput. The global step is `epoch * steps_per_epoch + step`.

    Args:
        writer: Object with a method `add_scalar(tag, value, step)`, such as `SummaryWriter`.
        every: Number of steps between two writes.
        prefix: Prefix of the tags.
    """

    def __init__(self, writer: Any, every: int = 100, prefix: str = "forebay") -> None:
        self._writer, self._every, self._prefix = writer, every, prefix
        self._before: dict[str, float] = {}

    def __call__(self, ds: TrainingDataset) -> None:
        """Writes the scalars if the step is a multiple of `every`."""
        if ds.step % self._every != 0:
            return
        now = ds.stats()
        since = {name: now[name] - self._before.get(name, 0) for name in now if name != "stall"}
        self._before = now
        wait, compute, copy = (since.get(f"{part}_seconds", 0.0) for part in ("wait", "compute", "copy"))
        total = wait + compute + copy
        if total <= 0:
            return
        step = ds.epoch * ds.steps_per_epoch + ds.step
        values = {"stall": wait / total, "rows_per_second": since["rows"] / total, "bytes_per_second": since["bytes"] / total}
        for name, value in values.items():
            self._writer.add_scalar(f"{self._prefix}/{name}", value, step)
