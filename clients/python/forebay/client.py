"""Connections to a cluster, and requests to it."""

from __future__ import annotations

import json
import math
import logging
import operator
import os
import re
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal, Mapping, Sequence, Union, overload

import numpy as np

from forebay import arguments, ranks, sending
from forebay.agreement import RendezvousStore
from forebay.checkpoint import ANY_WINDOWS
from forebay.cluster import Cluster, to_json
from forebay.conversion import Missing, Strings
from forebay.dataset_info import DatasetInfo, dataset_info
from forebay.errors import RequestError
from forebay.hints import HINTS, check_known, checked, keywords
from forebay.online import InferenceBatch, Rows, inference_batches
from forebay.training import TrainingDataset
from forebay.value_sets import ClusterWithValues, ValueSets

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from forebay.batch import Batch
    from forebay.batch_dict import BatchDict
    from forebay.train_options import TrainOptions

Tensors = Union[Mapping[str, Union[Sequence[str], Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
Path = Union[str, "os.PathLike[str]"]
Shuffle = Union[bool, int, Mapping[str, Any], None]

LOG = logging.getLogger("forebay")

# Values of `remainder`. AUTO is the default.
REMAINDERS = ("AUTO", "SHORT", "DROP", "PAD")
# The format of W3C Trace Context.
TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def connect(
    *urls: str,
    token: str | None = None,
    token_file: Path | None = None,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    server_name: str | None = None,
    retry_deadline: float = 300,
    wait_for_server: bool | float = False,
    attempt_timeout: float = 60,
    failback_interval: float = 60,
    connect_timeout: float = 10,
    keepalive_interval: float = 20,
    keepalive_timeout: float = 20,
    trusted_hosts: Sequence[str] = (),
    replan_interval: float = 300,
    zone: str | None = None,
    prefetch_bytes: int = 64 << 20,
    prefetch_batches: int = 256,
    idle_bytes: int = 256 << 20,
    max_batch_bytes: int = 1 << 30,
    stream_window_bytes: int = 2 << 20,
    connection_window_bytes: int = 8 << 20,
    verify_hash: bool = True,
    report: bool = True,
    traceparent: str | None = None,
    max_in_flight: int = 256,
    idle_timeout: float = 60,
) -> Client:
    """Returns a client of the cluster whose servers are at `urls`. Does not block: connections are opened on demand.

    Args:
        *urls: URLs of the servers, the preferred one first: `grpc://HOST:PORT`, `grpc+tls://HOST:PORT` or `unix:/path`. `HOST:PORT`
            is the same as `grpc://HOST:PORT`.
        token: Bearer token to send with every call.
        token_file: File with the bearer token, read again for every call.
        ca: PEM file with the CA certificates that verify the server. Default: the public CAs.
        certificate: PEM file with this client's certificate. Requires `key`.
        key: PEM file with the private key of `certificate`.
        server_name: Name expected in the server's certificate. Default: the host of its URL.
        retry_deadline: Time limit for one batch or one call in seconds, including all attempts on all servers. A call that takes
            longer than 3 s logs a warning, and another one every 30 s.
        wait_for_server: Time in seconds to wait for a server that refuses connections or whose host is unknown; True for
            `retry_deadline`. Default: such a server is an error at once. A client that was connected before always waits until
            `retry_deadline`, because the server is then restarting.
        attempt_timeout: Time without received data after which the next server is asked, in seconds. Doubles after each
            round over all servers, and is at least the time that the batch or call has taken so far. In the first round it is
            at most half of the remaining time. Later attempts for which that would be too short, and attempts with a single
            server, last until the deadline. Lookups that a server does not answer in this time are sent again.
        failback_interval: Time in seconds after which a client that uses another server than the first URL tries that one
            again.
        connect_timeout: Time limit for opening a connection, in seconds.
        keepalive_interval: Time without received data after which a ping is sent, in seconds.
        keepalive_timeout: Time to wait for the answer to a ping before the connection is closed, in seconds.
        trusted_hosts: Hosts of the servers in a plan (locations) to which the client sends requests and its token: names, IP
            addresses, or `*.DOMAIN` for the names below a domain, without a port. Default: the names below the parent domain of the
            hosts of `urls`, and the loopback addresses if one of `urls` has one. The hosts of `urls` are always trusted.
        replan_interval: Interval in seconds at which a training loop requests the servers for its streams again, at least 0.1.
            Only used with servers that have the setting `members`.
        zone: Zone of this client. If the zone has servers, the streams use these.
        prefetch_bytes: Maximum size of the prefetched batches per rank, in bytes.
        prefetch_batches: Maximum number of prefetched batches per lane.
        idle_bytes: Maximum size of unused receive buffers that are kept for reuse per rank, in bytes.
        max_batch_bytes: Maximum size of a received batch, in bytes.
        stream_window_bytes: HTTP/2 flow-control window per stream, in bytes. Increase it for round trips above 1 ms.
        connection_window_bytes: HTTP/2 flow-control window per connection, in bytes. With a small window, HTTP/2 closes connections
            on which many batches of less than 256 bytes wait to be read.
        verify_hash: Request and verify a content hash of every batch.
        report: Report the wait and compute time of training loops to the server once per second, for the dashboard.
        traceparent: Parent trace of all calls in W3C Trace Context form. Default: the environment variable TRACEPARENT.
        max_in_flight: Maximum number of concurrent lookups of one kind, or of requests to one queue. Further ones wait.
        idle_timeout: Time without a request after which the DoExchange stream of lookups or of a queue is closed, in seconds.
            The next request opens a new one.

    Returns:
        A client. It can be pickled, forked and shared by threads.

    Raises:
        RequestError: A URL or an option is invalid.
        ValueError: A duration is negative.
    """
    if traceparent is None and TRACEPARENT.fullmatch(os.environ.get("TRACEPARENT", "")):
        traceparent = os.environ["TRACEPARENT"]
    options = {name: value for name, value in locals().items() if name != "urls" and value is not None}
    arguments.check_options({name: value for name, value in options.items() if name not in ("trusted_hosts", "wait_for_server")})
    if isinstance(wait_for_server, bool):
        options["wait_for_server"] = retry_deadline if wait_for_server else 0
    else:
        arguments.number("wait_for_server", wait_for_server, "True, False or a number of seconds")
    options = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    arguments.check_server_urls(urls)
    if isinstance(trusted_hosts, str):
        raise RequestError(f"trusted_hosts is {trusted_hosts!r}, expected a sequence of hosts")
    options["trusted_hosts"] = list(trusted_hosts)
    return Client(urls, options)


class Client:
    """A client of a cluster, as `connect` returns it.

    It can be pickled and forked (including its token) and shared by threads. It has no connection and no thread until the first
    call of `lookup` or `infer`. From then on it has one thread, and DoExchange streams for the last eight kinds of lookups and
    the last eight queues, which are closed when idle. Forked children and pickled copies start without them.
    """

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        self._cluster = Cluster(urls, options)

    def __repr__(self) -> str:
        return f"<forebay.Client of {', '.join(self._cluster.urls)}>"

    @overload
    def train(
        self, dataset: str, *, output: Literal["batch"] = "batch", **options: Unpack[TrainOptions]
    ) -> TrainingDataset[Batch]: ...
    @overload
    def train(
        self, dataset: str, *, output: Literal["numpy", "torch", "jax"], **options: Unpack[TrainOptions]
    ) -> TrainingDataset[BatchDict]: ...
    @overload
    def train(
        self, dataset: str, *, output: Literal["arrow"], **options: Unpack[TrainOptions]
    ) -> TrainingDataset[pa.RecordBatch]: ...
    @overload
    def train(self, dataset: str, *, output: str, **options: Unpack[TrainOptions]) -> TrainingDataset[Any]: ...
    @checked
    def train(
        self,
        dataset: str,
        *,
        batch_size: int | None = None,
        max_pack_rows: int | None = None,
        columns: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        filter: str | None = None,
        values: Mapping[str, Any] | None = None,
        tensors: Tensors | None = None,
        dedupe: Tensors | None = None,
        group_by: str | Sequence[str] | None = None,
        mix: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = 0,
        shuffle: Shuffle = None,
        partitions: int | None = None,
        epoch: int = 0,
        epochs: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        lanes: int = 1,
        remainder: str | None = None,
        snapshot: str | None = None,
        job_name: str | None = None,
        label_column: str | None = None,
        output: str = "batch",
        strings: Strings = "list",
        missing: Missing = "keep",
        device: Any = None,
        device_prefetch: int = 1,
        pin_memory: bool = False,
        rendezvous_store: RendezvousStore | None = None,
        progress: bool = False,
        callbacks: Sequence[Callable[[TrainingDataset[Any]], None]] = (),
        gpu_utilization: Callable[[], float | None] | None = None,
    ) -> TrainingDataset[Any]:
        """Returns the batches of one rank as an iterable. Each iteration is one epoch.

        Does not block: the server is called when the dataset is first used, and errors of the request are raised then.

        Args:
            dataset: Name of the dataset.
            batch_size: Rows per rank and step. With `group_by`, groups per rank and step. With `max_pack_rows`, packs per
                rank and step; the default is then 1. Otherwise required.
            max_pack_rows: With `group_by`: combines groups into packs of at most this many rows.
            columns: Plain columns to return, in this order, or the name of a single one. Default: all columns, or none with
                `tensors`.
            select: SQL expressions that `columns` and `tensors` may name, such as `log1p(delay) AS y`. Without those two,
                exactly these expressions are returned.
            filter: Row condition in SQL. Other rows are excluded, as if the dataset did not contain them.
            values: Values that `filter` and the filters of `mix` refer to by name, as arrays, lists or sets:
                `filter="id IN (:ids)", values={"ids": ids}`. The values of a name have at most 32 MiB, such as 4 million integers.
                They are sent once, and stored by the servers.
            tensors: Columns of one type that are combined to a matrix `[rows, values]`, by name: `{"x": ["delay", "i*"]}` or
                `{"x": {"columns": ["delay"], "dtype": "float32", "null_value": 0}}`. For columns of lists,
                `"max_list_length": 50` truncates or pads the lists and adds a mask; `"ragged": True` returns items and lengths.
            dedupe: Tensors of which a batch carries each distinct row once, by name:
                `{"query": {"key": ["query_id"], "columns": ["q_*"]}}` returns the distinct rows as `query` and the index of
                each row among them as `query_index`. See `Batch.expand`.
            group_by: Columns whose values are equal within a group. Groups are shuffled as a whole. See `Batch.group_offsets`.
            mix: Further datasets with a fixed fraction of the rows of every batch: `{"other": 0.25}` or
                `{"other": {"fraction": 0.25, "filter": "..."}}`. An epoch covers `dataset` once. As a list, it may name a dataset
                several times: `[{"dataset": "clicks", "fraction": 0.25, "filter": "label = 1"}]`.
            seed: Shuffle seed. 0 is a regular seed, and None is the same as 0: the order never depends on chance.
            shuffle: True or None for windows of the server's default size, a number for windows of that number of rows, or False for the
                order of the files. After `load_state_dict`, None means the mode of the state, and True means windows of the size in the
                state. Also a mode of the protocol: `{"window_rows": N}`, `{"window_rows": N, "keep_block_order": True}`, `{"global": {}}`
                or `{"none": {}}`.
            partitions: Number of partitions of the dataset. Each has its own order, and every global batch has the same number
                of rows from each. A rank reads the blocks of its own partitions only, the same in every epoch. The number must
                divide the global batch. The same as `"partitions"` in `shuffle`. Default: 1.
            epoch: First epoch.
            epochs: Number of epochs that one stream delivers without a pause. Default: each iteration opens a stream.
            rank: Rank of this process, from 0. Default: that of torch.distributed or jax.distributed if one of them is initialized
                when the dataset is first used; otherwise that of the launcher, from the environment variable RANK, those of an
                MPI, or those of a task of Slurm's srun.
            world_size: Number of ranks, together with `rank`.
            mesh: A `DeviceMesh` of PyTorch in place of `rank` and `world_size`. Its data-parallel dimensions number the
                ranks: `data`, `dp`, `ddp`, `fsdp`, `hsdp`, `replicate`, `shard`, and names that begin with `dp_` or `data_`.
                Processes that differ only in dimensions such as `tp` and `pp` get equal batches.
            lanes: Number of parallel streams, which are merged in order.
            remainder: Treatment of an incomplete last step: `"SHORT"`, `"DROP"` or `"PAD"`. Default: `"SHORT"` for one rank,
                `"DROP"` for several.
            snapshot: Id of the snapshot. Default: the current one.
            job_name: Name that groups the ranks of a job in the dashboard, in metrics and in `forebay explain`.
            label_column: Column whose batch means the server monitors for label skew.
            output: Type of the items: `"batch"` for `Batch`, `"numpy"`, `"torch"` or `"jax"` for a dict of arrays,
                `"arrow"` for a pyarrow record batch.
            strings: With `"numpy"`, `"torch"` and `"jax"`: text as a `"list"` of `str` or as an `"array"` of NumPy. See
                `Column.to_numpy`.
            missing: With these outputs: `"keep"`, `"nan"`, `"mask"` or a number for the nulls of numbers and times. See
                `Column.to_numpy`.
            device: `"cuda"` or `"cuda:1"` prefetches batches into the memory of that GPU, for the outputs `"batch"`,
                `"torch"` and `"jax"`. Without a number: the current device of PyTorch if that is not the first one, otherwise
                the number in LOCAL_RANK. With output `"torch"`, any other device to which tensors are copied.
            device_prefetch: With a CUDA device: number of batches that are copied to it before the loop requests them, 1 to 64. The
                batches occupy device memory for one batch more than that, and for those that the loop keeps. More than 1 helps
                if the loop takes several batches at once, or the time of its steps varies.
            pin_memory: Receive batches into page-locked host memory, for a loop that copies them to a CUDA device itself. With
                `non_blocking=True`, keep a batch until its copy has completed: the memory is reused after the batch and its
                arrays are released. Arrays that are copies, such as those of columns with nulls, are not page-locked. Without
                `device`, in this process only.
            rendezvous_store: Store in which the ranks agree on snapshot, order and start position before their first step:
                a `torch.distributed.Store`, any object with `set(key, value)` and a blocking `get(key)`, or a shared dict.
                Use a new store for each run. Default: the store of `torch.distributed` if that is initialized.
            progress: Show a progress bar per epoch. Requires tqdm.
            callbacks: Functions that are called with the dataset after every step.
            gpu_utilization: Function that returns the GPU utilization, 0 to 1, or None, for the dashboard. Called once per
                second on another thread. Default: NVML, if `nvidia-ml-py` is installed, for the CUDA device of `device` or
                of PyTorch.

        Returns:
            A training dataset. If PyTorch was imported before, it also is a `torch.utils.data.IterableDataset`.

        Raises:
            TypeError: Neither `batch_size` nor `max_pack_rows` is given, or `partitions` is also in `shuffle`.
            ValueError: `output`, `strings`, `missing`, `device`, `device_prefetch`, `pin_memory`, `epochs`, `rank`, `world_size` or
                `mesh` is invalid.
            RequestError: Another argument is invalid, such as an empty list of columns.
        """
        place = ranks.place(rank, world_size, mesh)
        if batch_size is None:
            if not max_pack_rows:
                raise TypeError("train() requires batch_size, or max_pack_rows with group_by")
            batch_size = 1
        order = _shuffled(shuffle)
        if partitions is not None:
            if "partitions" in (order or {}):
                raise TypeError("train() takes partitions as an argument or in shuffle, not both")
            order = {**(order or {}), "partitions": arguments.whole_number("partitions", partitions, least=1)}
        request: dict[str, Any] = {
            "dataset": arguments.text("dataset", dataset),
            "batch_size": arguments.whole_number("batch_size", batch_size, least=1),
            "seed": 0 if seed is None else arguments.whole_number("seed", seed),
            "lanes": arguments.whole_number("lanes", lanes, least=1),
            "epoch": arguments.whole_number("epoch", epoch),
            **_projection(columns, tensors, select, filter, dedupe),
            **_given(
                dedupe=arguments.tensors("dedupe", dedupe, "tensor"),
                mix=_mixed(mix),
                group_by=arguments.texts("group_by", group_by),
                max_pack_rows=None if max_pack_rows is None else arguments.whole_number("max_pack_rows", max_pack_rows),
                shuffle=order,
                remainder=_remainder(remainder),
                snapshot=arguments.text("snapshot", snapshot),
                job_name=arguments.text("job_name", job_name),
                label_column=arguments.text("label_column", label_column),
            ),
        }
        cluster = self._cluster.with_mixed([mixed["dataset"] for mixed in request.get("mix", ())])
        if values is not None:
            sets = ValueSets(values)
            request["values"], cluster = sets.named(), ClusterWithValues(cluster, sets)
        return _dataset_class()(
            cluster,
            request,
            place=place,
            epochs=epochs,
            output=output,
            strings=strings,
            missing=missing,
            device=device,
            device_prefetch=device_prefetch,
            pin_memory=pin_memory,
            rendezvous_store=rendezvous_store,
            progress=progress,
            callbacks=tuple(callbacks),
            gpu_utilization=gpu_utilization,
        )

    def datasets(self) -> list[DatasetInfo]:
        """Returns the datasets that this client may read, sorted by name. Blocks.

        Those that the server cannot open have an `error`.

        Raises:
            DeadlineError: No server answered until the retry deadline expired.
            Error: Any other error of `forebay.errors`, according to the server's status.
        """
        return [dataset_info(fields) for fields in self._cluster.datasets()]

    def dataset(self, name: str) -> DatasetInfo:
        """Returns the current snapshot of a dataset, its number of rows and its size. Blocks.

        Args:
            name: Name of the dataset.

        Raises:
            NotFoundError: There is no such dataset.
            DeadlineError: No server answered until the retry deadline expired.
            Error: Any other error of `forebay.errors`, according to the server's status, such as that of a file that cannot be read.
        """
        return dataset_info(self._cluster.dataset(name))

    @checked
    def eval(self, dataset: str, *, batch_size: int, **options: Any) -> TrainingDataset:
        """Returns the rows of a dataset for an evaluation: in their stored order, each row once over all ranks.

        All ranks take the same number of steps. The column `valid` (uint8) is 0 for rows that fill the last batches.

        Args:
            dataset: Name of the dataset.
            batch_size: Rows per rank and step.
            **options: Further arguments of `train`, except `seed`, `shuffle`, `partitions`, `remainder` and `mix`.

        Returns:
            A training dataset. Each iteration has the same batches.

        Raises:
            TypeError: An option would change the order or the rows.
        """
        fixed: dict[str, Any] = {"seed": 0, "shuffle": {"none": {}}, "partitions": None, "remainder": "PAD", "mix": None}
        if taken := sorted(fixed.keys() & options.keys()):
            raise TypeError(f"eval() has a fixed order and does not take {', '.join(taken)}")
        check_known("eval", list(options), keywords(Client.train), HINTS)
        return self.train(dataset, batch_size=batch_size, **fixed, **options)

    def lookup(
        self,
        dataset: str,
        keys: Any,
        *,
        columns: str | Sequence[str] | None = None,
        tensors: Tensors | None = None,
        select: str | Sequence[str] | None = None,
        filter: str | None = None,
        max_age_seconds: float | None = None,
        key: str | Sequence[str] | None = None,
        joins: Mapping[str, Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Returns one row per key, in the order of the keys, with the same values as in training.

        The column `found` (uint8) is 1 for keys that exist. The rows of other keys are null, or zero in tensors.

        Blocks without the GIL until the answer arrives. Any number of threads may call it: calls with the same request and the
        same types of keys share a DoExchange stream. A failed call is retried on all servers until the retry deadline
        expires. One call with many keys is faster than many calls.

        Args:
            dataset: Name of a dataset that the server offers for lookups.
            keys: Dict of lists or arrays, such as `{"user_id": [7, 42]}`, or an Arrow batch or table of any library.
            columns: Plain columns, as in `train`.
            tensors: Tensors, as in `train`.
            select: SQL expressions, as in `train`.
            filter: Row condition in SQL, as in `train`. A key whose row does not match counts as missing.
            max_age_seconds: Maximum time in seconds since the snapshot was last verified to be current. Default: no limit.
            key: Columns of `keys` that are the dataset's key, in the order of the key. Default: the columns with the names of
                the key.
            joins: Rows of further datasets by other columns of `keys`, by dataset:
                `{"items": {"key": ["item_id"], "columns": ["price"]}}`. Their columns follow those of `dataset`, each
                with its own `items_found`. The fields are `key`, `columns`, `tensors`, `select` and `filter`.
            timeout: Time limit for the answer in seconds, including all attempts. Default: `retry_deadline`, which also limits it.

        Returns:
            The rows, with the snapshot that they are from.

        Raises:
            RequestError: The request or the keys are invalid.
            NotFoundError: There is no such dataset.
            SnapshotUnavailableError: The snapshot exceeds `max_age_seconds`.
            DeadlineError: No server answered until the timeout or the retry deadline expired.
            Error: Any other error of `forebay.errors`, according to the server's status.
        """
        command = lookup_command(dataset, columns, tensors, select, filter, max_age_seconds, key, joins)
        sent = sending.keys(keys)
        return Rows(*self._cluster.with_datasets(lambda: self._cluster.native.lookup(command, sent, timeout)))

    def infer(
        self, queue: str, keys: Any, *, timeout: float | None = None, priority: Literal["normal", "low"] = "normal"
    ) -> Rows:
        """Returns one row per key, as the workers of a batch queue compute them.

        Blocks without the GIL until the answer arrives. Any number of threads may call it: calls with the same types of keys
        share a DoExchange stream. A request is not sent a second time.

        Args:
            queue: Name of the queue.
            keys: Keys of the features, as in `lookup`, and the request columns of the queue. A column with several values per row
                is a two-dimensional array.
            timeout: Time limit for the answer in seconds. Default: the queue's `default_timeout`.
            priority: A request of low priority waits for the others, and is the first to be rejected when the queue is full.

        Returns:
            The rows of the reply. Names and types of the columns depend on the workers.

        Raises:
            RequestRejectedError: There is no answer: the queue is full, the timeout expired, or the worker failed.
            UnavailableError: The connection was lost after the request was sent.
        """
        return Rows(*self._cluster.native.infer(queue, sending.keys(keys), timeout, is_low_priority(priority)))

    def worker(self, queue: str, *, credits: int = 2, max_unanswered: int = 1) -> Iterator[InferenceBatch]:
        """Iterates over the batches of a queue, to compute and reply to them.

            for batch in client.worker("ranker"):
                batch.reply(model(batch["x"].to_torch()))

        A batch fails, with an error for its callers, if it has no reply when the next batch is requested, or when the iteration
        ends, for example by an exception. The iterator reconnects to any server after lost connections and restarts. While
        it waits, other Python threads run and Ctrl-C works.

        With `max_unanswered`, a loop works on several batches at the same time. Replies may be sent in any order, and by other
        threads. A batch without a reply then fails when it is the oldest of `max_unanswered` ones and the next batch is
        requested, or when the last reference to it is released.

        Args:
            queue: Name of the queue.
            credits: Maximum number of batches in flight to this worker, including the current ones.
            max_unanswered: Maximum number of batches without a reply, including the next one, 1 to `credits`.

        Yields:
            The next batch. The iteration ends when the server closes the queue.

        Raises:
            DeadlineError: No server was reached until the retry deadline expired.
            ValueError: `max_unanswered` is not in its range.
        """
        if not 1 <= max_unanswered <= max(credits, 1):
            raise ValueError(f"max_unanswered is {max_unanswered}, expected 1 to credits, which is {credits}")
        return inference_batches(self._cluster.native.worker(queue, credits), max_unanswered)

    def action(self, kind: str, **body: Any) -> list[dict[str, Any]]:
        """Runs an action of the server, such as `client.action("refresh", dataset="flights")`. Blocks until it ends.

        Args:
            kind: Name of the action, as in the protocol reference.
            **body: Fields of the action's body.

        Returns:
            The results of the action.

        Raises:
            Error: An error of `forebay.errors`, according to the server's status.
        """
        return [json.loads(result) for result in self._cluster.native.action(kind, to_json(body).encode())]

    def refresh(self, dataset: str) -> dict[str, Any]:
        """Makes the server list the files of a dataset and take a new snapshot if they have changed.

        Args:
            dataset: Name of the dataset.

        Returns:
            The fields of RefreshResult: `dataset`, `snapshot`, `changed`, `rows` and `files`.
        """
        return self.action("refresh", dataset=dataset)[-1]


def lookup_command(
    dataset: str,
    columns: str | Sequence[str] | None,
    tensors: Tensors | None,
    select: str | Sequence[str] | None,
    filter: str | None,
    max_age_seconds: float | None,
    key: str | Sequence[str] | None,
    joins: Mapping[str, Mapping[str, Any]] | None,
) -> str:
    """Returns the command of a lookup as JSON. For the arguments, see `Client.lookup`."""
    if max_age_seconds == 0:
        # The protocol has no field for it: 0 means no limit.
        raise RequestError("max_age_seconds is 0, expected seconds above 0, or None for no limit")
    if max_age_seconds == math.inf:
        max_age_seconds = None
    joined = None if joins is None else [_join(name, **what) for name, what in joins.items()]
    optional = _given(max_age_seconds=max_age_seconds, key=arguments.texts("key", key), joins=joined)
    return to_json({"lookup": {"dataset": dataset, **_projection(columns, tensors, select, filter), **optional}})


def is_low_priority(priority: str) -> bool:
    """Returns true for `"low"` and false for `"normal"`. Another value is a RequestError."""
    if priority not in ("normal", "low"):
        raise RequestError(f"priority is {priority!r}, expected 'normal' or 'low'")
    return priority == "low"


def _projection(
    columns: str | Sequence[str] | None,
    tensors: Tensors | None,
    select: str | Sequence[str] | None,
    filter: str | None,
    dedupe: Tensors | None = None,
) -> dict[str, Any]:
    """Returns the given fields of a request that select columns and rows.

    Raises:
        RequestError: `columns` is empty, and nothing else is selected. The protocol would return all columns.
    """
    plain = arguments.texts("columns", columns)
    if plain == [] and not (tensors or select or dedupe):
        raise RequestError("columns is empty, expected at least one column, or None for all of them")
    return _given(
        columns=plain,
        tensors=arguments.tensors("tensors", tensors, "name"),
        select=arguments.texts("select", select),
        filter=arguments.text("filter", filter),
    )


def _given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _shuffled(shuffle: Shuffle) -> dict[str, Any] | None:
    """Returns the shuffle mode as the protocol has it. True is a mode without a size, which a state does not replace by another mode.

    Raises:
        RequestError: `shuffle` is neither a truth value nor a number nor a mode.
    """
    if shuffle is None or isinstance(shuffle, (bool, np.bool_)):
        return None if shuffle is None else dict(ANY_WINDOWS) if shuffle else {"none": {}}
    if isinstance(shuffle, Mapping):
        return dict(shuffle)
    try:
        rows = operator.index(shuffle)  # type: ignore[arg-type]
    except TypeError:
        rows = 0
    if rows < 1:
        raise RequestError(
            f"shuffle is {shuffle!r}, expected True, False, a number of rows of at least 1, or a mode such as "
            "{'window_rows': 100000}, {'global': {}} or {'none': {}}"
        )
    if rows == 1:
        LOG.warning("shuffle is 1: each window has one block, so that rows stay close to their neighbors; True has windows of the default size")
    return {"window_rows": rows}


def _remainder(remainder: str | None) -> str | None:
    """Returns the treatment of an incomplete last step, or None for the default.

    Raises:
        RequestError: There is no such treatment.
    """
    if remainder is not None and remainder not in REMAINDERS:
        raise RequestError(f"remainder is {remainder!r}, expected 'SHORT', 'DROP' or 'PAD'")
    return remainder


def _join(
    dataset: str,
    *,
    key: str | Sequence[str],
    columns: str | Sequence[str] | None = None,
    tensors: Tensors | None = None,
    select: str | Sequence[str] | None = None,
    filter: str | None = None,
) -> dict[str, Any]:
    """Returns the lookup in a further dataset."""
    return {"dataset": dataset, "key": arguments.texts("key", key), **_projection(columns, tensors, select, filter)}


def _mixed(mix: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Returns the further datasets of a mixture as the protocol has them: a list of messages."""
    if mix is None:
        return None
    if isinstance(mix, Mapping):
        given = [{"dataset": name, **(what if isinstance(what, Mapping) else {"fraction": what})} for name, what in mix.items()]
    elif isinstance(mix, Sequence) and not isinstance(mix, str) and all(isinstance(mixed, Mapping) for mixed in mix):
        given = [dict(mixed) for mixed in mix]
    else:
        raise RequestError(
            f"mix is {mix!r}, expected a dict of fractions by the name of the dataset, such as {{'other': 0.25}}, or a list of dicts, "
            "each with a dataset and a fraction"
        )
    for mixed in given:
        name = mixed.get("dataset")
        if not isinstance(name, str):
            raise RequestError(f"mix has the dataset {name!r}, expected a name, such as that of the attribute name of an opened dataset")
        if "fraction" in mixed:
            arguments.number(f"fraction of '{name}' in mix", mixed["fraction"], "a number above 0 and below 1")
    return given


def _dataset_class() -> type[TrainingDataset[Any]]:
    """Returns the class that is also an IterableDataset, as a DataLoader requires, if PyTorch is imported."""
    import sys

    if "torch" not in sys.modules:
        return TrainingDataset
    from forebay.torch import TorchTrainingDataset

    return TorchTrainingDataset
