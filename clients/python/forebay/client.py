"""The servers of a tier, and what is asked of them."""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Callable, Mapping, Sequence, Union

from forebay import _forebay
from forebay.agreement import Store
from forebay.training import Training

Tensors = Union[Mapping[str, Union[Sequence[str], Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
Path = Union[str, "os.PathLike[str]"]

LOG = logging.getLogger("forebay")


def connect(
    *urls: str,
    token: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    server_name: str | None = None,
    deadline: float = 300,
    connect_timeout: float = 10,
    prefetch_bytes: int = 64 << 20,
    prefetch_batches: int = 256,
    idle_bytes: int = 256 << 20,
    max_batch_bytes: int = 1 << 30,
    stream_window_bytes: int = 2 << 20,
    connection_window_bytes: int = 8 << 20,
    verify_hash: bool = True,
    report: bool = True,
) -> Client:
    """The tier whose servers are at `urls`: `grpc://HOST:PORT`, `grpc+tls://HOST:PORT` or `unix:/path`, the preferred one
    first. Nothing is connected before it is needed, and nothing stays connected that is not.

    token, token_file    the bearer token that the servers want to see; the file is read for every call
    ca, certificate, key PEM files: whom to trust (default: whom browsers trust), and who this is
    server_name          the name in the server's certificate, if it is not the host of its URL
    deadline             seconds that one batch, or one call, may take in all, attempts on every server included
    prefetch_bytes, prefetch_batches
                         received batches that wait for the loop, a rank; and how many, a lane
    idle_bytes           memory of batches that is kept for the next ones, a rank
    max_batch_bytes      largest batch that is received
    stream_window_bytes, connection_window_bytes
                         bytes that may be on their way; raise them for servers further away than a millisecond
    verify_hash          whether the hash of every batch is asked for and checked
    report               whether the server is told once a second how long the loop waits and computes
    """
    options = {name: value for name, value in locals().items() if name != "urls" and value is not None}
    options = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    return Client(urls, options)


class Client:
    """A tier. It holds no connection and no thread, and may be pickled and forked (with its token in it)."""

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        self._urls, self._options = list(urls), dict(options)
        self._tier = _forebay.Tier(self._urls, self._options)

    def __getstate__(self) -> dict[str, Any]:
        return {"urls": self._urls, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["urls"], state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<forebay.Client of {', '.join(self._urls)}>"

    def train(
        self,
        dataset: str,
        *,
        batch_size: int,
        columns: Sequence[str] | None = None,
        select: Sequence[str] | None = None,
        filter: str | None = None,
        tensors: Tensors | None = None,
        dedupe: Tensors | None = None,
        group_by: Sequence[str] | None = None,
        mix: Mapping[str, Any] | None = None,
        seed: int = 0,
        shuffle: Mapping[str, Any] | None = None,
        epoch: int = 0,
        epochs: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int = 1,
        remainder: str | None = None,
        snapshot: str | None = None,
        job: str | None = None,
        label: str | None = None,
        output: str = "batch",
        device: Any = None,
        store: Store | None = None,
        progress: bool = False,
        callbacks: Sequence[Callable[[Training], None]] = (),
    ) -> Training:
        """The batches of one rank: an iterable, each of whose loops is the next epoch.

        batch_size           rows a rank a step, or groups with `group_by`
        columns              plain columns, in this order; all, or none with `tensors`
        select               expressions in SQL that `columns` and `tensors` may name, such as `log1p(delay) AS y`; without those
                             two they are the columns
        filter               a condition in SQL; other rows are left out, as if the dataset did not hold them
        tensors              `{"x": ["delay", "i*"]}`, or `{"x": {"columns": [...], "dtype": "float32", "fill": 0}}`: columns of
                             one type as one `[rows, values]` matrix. Of columns of lists: `"max_len": 50` pads or cuts them,
                             with a mask beside; `"ragged": True` sends items and lengths
        dedupe               `{"query": {"key": ["query_id"], "columns": ["q_*"]}}`: tensors of which a batch carries each distinct
                             row once, `query`, and for each row its number there, `query_index`; see `Batch.expand`
        group_by             columns whose values the rows of a group share: groups are shuffled whole, and batch_size counts them;
                             see `Batch.group_offsets`
        mix                  `{"other": 0.25}`, or `{"other": {"share": 0.25, "filter": "..."}}`: other datasets that have this
                             share of the rows of every batch; an epoch is one of `dataset`
        seed, shuffle, remainder, snapshot, job, label
                             as docs/protocol.md says
        epoch                the first one
        epochs               how many to stream without a pause between them; by default each loop opens its own stream
        rank, world_size     which of how many; default: RANK and WORLD_SIZE of the environment, else the only one
        lanes                parallel streams, merged in order
        output               what a loop yields: "batch", or a dict of "numpy", "torch" or "jax" arrays, or "arrow" batches
        device               "cuda" or "cuda:1": batches are copied there ahead, for "batch", "torch" and "jax"; any other one is
                             where "torch" tensors are copied to
        store                where the ranks agree on snapshot and order before their first step: anything with `set(key, value)`
                             and a `get(key)` that waits, such as a `torch.distributed.Store`, or a dict that they share; new for
                             each run.
                             Default: the store of `torch.distributed`, when that is initialized
        progress             show each epoch with tqdm
        callbacks            called with this training after every step
        """
        rank, world_size = _place(rank, world_size)
        request: dict[str, Any] = {"dataset": dataset, "batch_size": batch_size, "seed": seed, "lanes": lanes}
        request.update(rank=rank, world_size=world_size, epoch=epoch)
        if tensors is not None:
            request["tensors"] = _tensors(tensors, "name")
        if dedupe is not None:
            request["dedupe"] = _tensors(dedupe, "tensor")
        if mix is not None:
            shares = ((name, what if isinstance(what, Mapping) else {"share": what}) for name, what in mix.items())
            request["mix"] = [{"dataset": name, **what} for name, what in shares]
        optional = {
            "columns": list(columns) if columns is not None else None,
            "select": list(select) if select is not None else None,
            "filter": filter,
            "group_by": list(group_by) if group_by is not None else None,
            "shuffle": shuffle,
            "remainder": remainder,
            "snapshot": snapshot,
            "job": job,
            "label": label,
        }
        request.update((name, value) for name, value in optional.items() if value is not None)
        return _training_class()(
            self,
            request,
            epochs=epochs,
            output=output,
            device=device,
            store=store,
            progress=progress,
            callbacks=tuple(callbacks),
        )

    def action(self, kind: str, **body: Any) -> list[dict[str, Any]]:
        """Runs an action such as `client.action("refresh", dataset="flights")`, and returns its results."""
        return [json.loads(result) for result in self._tier.action(kind, json.dumps(body).encode())]

    def refresh(self, dataset: str) -> dict[str, Any]:
        """Looks for new files, and makes what is there now the current snapshot."""
        return self.action("refresh", dataset=dataset)[-1]

    def _plan(self, request: Mapping[str, Any]) -> _forebay.Plan:
        return self._tier.plan(json.dumps({"train": request}))


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size; those of the environment are said aloud, for they decide which rows a process sees."""
    if (rank is None) != (world_size is None):
        missing = "rank" if rank is None else "world_size"
        raise ValueError(f"{missing} is missing: rank and world_size go together")
    if rank is None and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        LOG.warning("rank %d of %d, by RANK and WORLD_SIZE: 1/%d of the rows", rank, world_size, world_size)
    rank, world_size = rank or 0, world_size or 1
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1}")
    return rank, world_size


def _tensors(tensors: Tensors, called: str) -> list[dict[str, Any]]:
    if not isinstance(tensors, Mapping):
        return [dict(tensor) for tensor in tensors]
    asked = []
    for name, what in tensors.items():
        if not isinstance(what, Mapping):
            what = {"columns": [what] if isinstance(what, str) else list(what)}
        asked.append({called: name, **what})
    return asked


def _training_class() -> type[Training]:
    """Where PyTorch is in use, a training is one of its IterableDatasets, which is what a DataLoader looks for."""
    import sys

    if "torch" not in sys.modules:
        return Training
    from forebay.torch import TorchTraining

    return TorchTraining
