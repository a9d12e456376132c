"""The servers of a tier, and what is asked of them."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from forebay import _forebay, sending
from forebay.agreement import Store
from forebay.online import Rows, Work, works
from forebay.training import Training

Tensors = Union[Mapping[str, Union[Sequence[str], Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
Path = Union[str, "os.PathLike[str]"]

LOG = logging.getLogger("forebay")

# As W3C Trace Context spells it.
TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


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
    traceparent: str | None = None,
    max_requests: int = 256,
    idle_exchange: float = 60,
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
    traceparent          the W3C trace that all calls are part of, for servers that export traces (default: TRACEPARENT of the
                         environment, where OpenTelemetry's tools leave it)
    max_requests         lookups of one kind, or requests to one queue, that may be on their way; more of them wait
    idle_exchange        seconds after which what lookups and requests go by is closed; the next one opens it again
    """
    if traceparent is None and TRACEPARENT.fullmatch(os.environ.get("TRACEPARENT", "")):
        traceparent = os.environ["TRACEPARENT"]
    options = {name: value for name, value in locals().items() if name != "urls" and value is not None}
    options = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    return Client(urls, options)


class Client:
    """A tier. It may be pickled and forked (with its token in it), and shared by threads. It holds no connection and no thread,
    until `lookup` or `infer` is called: from then on one thread, and the exchanges with servers of the last eight kinds of
    lookups and the last eight queues, which are closed while they are idle and opened again when needed. A forked child and a
    pickled copy begin without."""

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
        batch_size: int | None = None,
        batch_rows: int | None = None,
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
        gpu_utilization: Callable[[], float | None] | None = None,
    ) -> Training:
        """The batches of one rank: an iterable, each of whose loops is the next epoch.

        batch_size           rows a rank a step, or groups with `group_by`
        batch_rows           with `group_by`: groups are put into packs of at most so many rows, and batch_size, then 1 if nothing
                             is said, counts packs
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
        gpu_utilization      called once a second, by another thread: how busy the GPU is, 0 to 1, for the server's page. Default:
                             NVML's word, with `nvidia-ml-py` installed, on the CUDA device of `device` or of PyTorch
        """
        rank, world_size = _place(rank, world_size)
        if batch_size is None:
            if not batch_rows:
                raise TypeError("train() wants a batch_size, or with group_by batch_rows")
            batch_size = 1
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
            "batch_rows": batch_rows,
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
            gpu_utilization=gpu_utilization,
        )

    def lookup(
        self,
        dataset: str,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        tensors: Tensors | None = None,
        select: Sequence[str] | None = None,
        filter: str | None = None,
        max_age: float | None = None,
        key: Sequence[str] | None = None,
        others: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Rows:
        """The rows of `keys`, in their order, equal to those of training. The column `found` (uint8) says of which keys there is
        a row; the others are null, or zero in tensors.

        keys                 a dict of lists or arrays, such as `{"user_id": [7, 42]}`, or an Arrow batch or table of any library
        columns, tensors, select
                             as in `train`; nothing: all columns
        filter               a condition in SQL, as in `train`: keys whose rows it does not keep are missing
        max_age              seconds: an answer whose snapshot was last seen to be current longer ago is a ChangedError
        key                  the columns of `keys` that are the dataset's key, in its order; nothing: those of the same names
        others               `{"items": {"key": ["item_id"], "columns": [...]}}`: rows of other datasets by other columns of `keys`;
                             their columns come behind, each with its own `items_found`

        Any number of threads may call it. Calls with the same request and types of keys share an exchange with a server; one that
        fails is made again, also with other servers, until `deadline` is over. Few large ones are cheaper than many small ones.

        Raises RequestError, NotFoundError, ChangedError and so on, by the server's status."""
        request = {"dataset": dataset, **_wanted(columns, tensors, select, filter)}
        if max_age is not None:
            request["max_age"] = max_age
        if key is not None:
            request["key"] = list(key)
        if others is not None:
            request["with"] = [_other(name, **what) for name, what in others.items()]
        return Rows(*self._tier.lookup(json.dumps({"lookup": request}), sending.keys(keys)))

    def infer(self, queue: str, keys: Any, *, timeout: float | None = None) -> Rows:
        """What the workers of `queue` make of `keys`, a row for each; their names and types are the workers' to say.

        keys                 as in `lookup`
        timeout              seconds in which the answer is of use; nothing: the queue's own

        Any number of threads may call it. Calls with the same types of keys share an exchange with a server. Once it is sent
        a request is not sent again.

        Raises Refused when this request has no answer: the queue is full, its time is over, the worker failed; UnavailableError
        when the server went away meanwhile."""
        return Rows(*self._tier.infer(queue, sending.keys(keys), timeout))

    def serve(self, queue: str, *, credits: int = 2) -> Iterator[Work]:
        """The batches of `queue`, to compute and reply to:

            for batch in client.serve("ranker"):
                batch.reply(model(batch["x"].to_torch()))

        A batch that has no reply when the loop goes on or is left, by an exception say, has failed, and its callers get an error.
        `credits` is how many batches the loop may have at a time, the one in hand included. The loop goes on over lost
        connections and restarts, on whichever server answers; it ends when the server ends the queue, or raises DeadlineError
        when none was reached until `deadline` was over. While it waits, other Python threads run, and Ctrl-C works."""
        return works(self._tier.serve(queue, credits))

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


def _wanted(
    columns: Sequence[str] | None, tensors: Tensors | None, select: Sequence[str] | None, filter: str | None
) -> dict[str, Any]:
    """What is wanted of a row, as far as something is said."""
    wanted: dict[str, Any] = {}
    if columns is not None:
        wanted["columns"] = list(columns)
    if tensors is not None:
        wanted["tensors"] = _tensors(tensors, "name")
    if select is not None:
        wanted["select"] = list(select)
    if filter is not None:
        wanted["filter"] = filter
    return wanted


def _other(
    dataset: str,
    *,
    key: Sequence[str],
    columns: Sequence[str] | None = None,
    tensors: Tensors | None = None,
    select: Sequence[str] | None = None,
    filter: str | None = None,
) -> dict[str, Any]:
    """A lookup in another dataset."""
    return {"dataset": dataset, "key": list(key), **_wanted(columns, tensors, select, filter)}


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
