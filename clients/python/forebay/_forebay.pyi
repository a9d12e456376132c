"""The native part of the package. Its classes are wrapped by those of `forebay`."""

from typing import Any, Callable, Iterator

class Cluster:
    """The servers of a cluster. Opens connections on demand."""

    def __init__(self, urls: list[str], options: dict[str, Any]) -> None: ...
    @property
    def was_connected(self) -> bool:
        """True if a server has accepted a connection of this client."""

    def plan(self, request: str, values: list[ValueSet] = ..., progress: Callable[[str], None] | None = None) -> Plan:
        """Requests the plan of a training job. `request` is a command in JSON, whose filters refer to `values`.

        While the server counts rows, `progress` is called with the CountResult so far in JSON, on this thread and at most twice a
        second. Its exceptions end the call.
        """

    def datasets(self) -> list[str]:
        """Lists the datasets that the client may read, each as a DatasetInfo in JSON."""

    def dataset(self, name: str) -> str:
        """Describes a dataset by its DatasetInfo in JSON."""

    def lookup(self, request: str, keys: Any, timeout: float | None = None) -> tuple[Batch, str]:
        """Returns the rows of `keys`, and their LookupMetadata in JSON. `request` is a command in JSON."""

    def start_lookup(
        self, done: Callable[[Any, Any], None], request: str, keys: Any, timeout: float | None
    ) -> Request:
        """Starts a lookup. Calls `done` on the native thread, with the answer and None or with None and an exception."""

    def start_infer(
        self, done: Callable[[Any, Any], None], queue: str, keys: Any, timeout: float | None, is_low: bool
    ) -> Request:
        """Starts a request to a queue. Calls `done` in the same way."""

    def infer(self, queue: str, keys: Any, timeout: float | None = None, is_low: bool = False) -> tuple[Batch, str]:
        """Returns the rows that a worker computed for `keys`, and their InferResult in JSON. `timeout` is in seconds."""

    def worker(self, queue: str, credits: int) -> Worker:
        """Connects a worker to a queue, with at most `credits` batches in flight."""

    def action(self, kind: str, body: bytes) -> list[bytes]:
        """Runs a Flight action and returns the bodies of its results."""

class ValueSet:
    """A set of values that filters refer to by name."""

    def __init__(self, column: Any) -> None: ...
    @staticmethod
    def from_encoded(encoded: bytes) -> ValueSet:
        """Restores a set from `encoded`."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the encoded set, as 64 hexadecimal digits."""

    @property
    def encoded(self) -> bytes:
        """Bytes of the encoded set."""

    def __len__(self) -> int:
        """Number of values."""

class Request:
    """A request in flight."""

    def cancel(self) -> None:
        """Cancels the request: `done` is not called any more. Has no effect after the answer."""

class Worker:
    """Iterator over the batches of a queue, on a thread of its own."""

    def __iter__(self) -> Worker: ...
    def __next__(self) -> InferenceBatch:
        """Returns the next batch. Blocks without the GIL."""

    def close(self) -> None:
        """Sends the remaining replies, then closes the connection and stops the thread."""

class InferenceBatch:
    """A batch that a model has to compute. It fails if it is dropped without a reply."""

    @property
    def batch(self) -> Batch:
        """The features."""

    @property
    def metadata(self) -> str:
        """BatchRequest in JSON."""

    @property
    def is_open(self) -> bool:
        """True until the batch has a reply or has failed."""

    def reply(self, reply: Any) -> str | None:
        """Sends the rows of a reply. Returns the reason if the reply was discarded although the worker can continue."""

    def fail(self, message: str) -> bool:
        """Fails the batch unless it already has a reply. Returns True if it had none."""

class Plan:
    """A request with all defaults resolved, and the server's answer."""

    @property
    def resolved(self) -> str:
        """The resolved request as a command in JSON."""

    @property
    def summary(self) -> str:
        """PlanSummary in JSON."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Names and Arrow types of the columns, in order."""

    @property
    def batches(self) -> int:
        """Number of batches of the rank over all requested epochs."""

    def arrow_stream(self, batches: Iterator[Batch]) -> Any:
        """Exports the batches of an iterator by `__arrow_c_stream__`. It is first used when the consumer reads."""

    def stream(self, cuda: int | None = None, prefetch: int = 1, pin_memory: bool = False) -> Stream:
        """Starts to receive the batches, into the memory of this CUDA device or, for None, of the host.

        `prefetch` is the number of batches that are copied to the device ahead. With `pin_memory`, batches are in memory of the
        host that is page-locked for the device.
        """

class Stream:
    """Iterator over the batches of one rank, received on threads of its own."""

    def __iter__(self) -> Stream: ...
    def __next__(self) -> Batch:
        """Returns the next batch. Blocks without the GIL."""

    @property
    def cursor(self) -> tuple[int, int]:
        """Epoch and step of the next batch."""

    def loading(self) -> dict[str, Any] | None:
        """Progress of the shuffle windows that the server loads: a WindowLoad, or None if the stream waits for none. Any thread may call it."""

    def stats(self) -> dict[str, float]:
        """Counters and durations since the start, as in `TrainingDataset.stats`, without `stall`."""

    def record_copy(self, seconds: float) -> None:
        """Adds the duration of a copy to a device, in seconds."""

    def utilization(self) -> Utilization:
        """Returns the handle that reports the GPU utilization of this stream."""

    def close(self) -> None:
        """Closes the connections and stops the threads."""

class Utilization:
    """Handle that reports the GPU utilization of a stream, also while the stream waits."""

    def set(self, share: float) -> bool:
        """Sets the utilization, 0 to 1; NaN if it is unknown. Returns False once the stream is closed."""

class Batch:
    """A batch in the memory of the host or of a device."""

    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def group_offsets(self) -> Column | None: ...
    @property
    def mixed_positions(self) -> list[int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def device(self) -> tuple[int, int]:
        """DLPack's device type and device id."""

    def record_stream(self, stream: int) -> None:
        """Orders the work of a CUDA stream after the copy of the batch, and the reuse of its memory after that work."""

    def __len__(self) -> int: ...
    def __contains__(self, name: str) -> bool: ...
    def column(self, name: str) -> Column | DeviceColumn | DeviceLists: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

class DeviceColumn:
    """A column or tensor of numbers in the memory of a device."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def nullable(self) -> bool:
        """True if the column may have nulls in some batch of the stream. It has none in this one."""

    @property
    def shape(self) -> list[int]:
        """Number of rows and, for a tensor, of values per row."""

    def to_host(self) -> Column:
        """Returns a copy of the column in host memory. Waits for the copy without the GIL."""

    def __len__(self) -> int: ...
    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class DeviceLists:
    """A column of lists of numbers in the memory of a device."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def nullable(self) -> bool:
        """True if the column may have nulls in some batch of the stream. It has none in this one."""

    def ragged(self) -> tuple[DeviceColumn, DeviceColumn]:
        """Returns the items of all rows and the offsets, as views."""

    def __len__(self) -> int: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Column:
    """A column or tensor in the memory of the host."""

    @property
    def name(self) -> str: ...
    @property
    def nullable(self) -> bool:
        """True if this column of any batch of the stream may have nulls."""

    @property
    def is_text(self) -> bool:
        """True for strings and binary values."""

    def numbers(self) -> tuple[Column, str, Column | None, bool] | None:
        """Values without nulls, the NumPy type to view them as or "", a byte per value that is 0 for a null, and true if the schema
        allows nulls.

        None if the values are not numbers, booleans, times or decimals.
        """

    def lists(self) -> tuple[tuple[Column, str, Column | None, bool], Column, Column | None] | None:
        """Items as in `numbers`, offsets, and a byte per row that is 0 for a null list. None for other types."""

    def objects(self) -> list[Any]:
        """One Python object per row."""

    def ragged(self) -> tuple[Column, Column]: ...
    @property
    def type(self) -> str: ...
    def __len__(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
