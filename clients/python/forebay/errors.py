"""Exceptions of the package, by what a caller can do about them. Messages of a server are included unchanged."""

from __future__ import annotations


class Error(Exception):
    """Base class of all exceptions of the package."""


class RequestError(Error, ValueError):
    """The request, or a file that an option names, is invalid. The message names the field. Correct the request."""


class NotFoundError(Error, LookupError):
    """The dataset or queue does not exist on this server."""


class UnauthenticatedError(Error, PermissionError):
    """The server requires a token, and the client sent none, an unknown one, or one that has expired."""


class PermissionDeniedError(Error, PermissionError):
    """The token does not grant access to this dataset or queue."""


class NullValueError(Error, ValueError):
    """An integer or boolean is null, and the requested array has no representation of a null. The message names the column."""


class SnapshotUnavailableError(Error):
    """A file of the snapshot has changed, the server has no such snapshot, or a lookup's snapshot exceeds its maximum age.

    Use the current snapshot.
    """


class UnsupportedError(Error):
    """The server does not support the files of the dataset, or does not offer the dataset for this use. The message says what to do.

    The files have different columns, are encrypted, or belong to a Delta or Iceberg table, for example, or the dataset does not serve
    lookups.
    """


class LimitError(Error):
    """The request exceeds a limit of the server. The message names the limit."""


class DataLossError(Error):
    """A file is damaged. The message names the file."""


class ServerStartError(Error, RuntimeError):
    """The server of this host and user does not start. The message contains that of the server."""


class UnavailableError(Error, ConnectionError):
    """The server cannot be reached. Iteration and lookups do not raise this, because they retry until the deadline."""


class DeadlineError(Error, TimeoutError):
    """All attempts on all servers failed until the retry deadline expired. The message has the error of the last attempt."""


class BatchMismatchError(Error):
    """A received batch is not the requested one, or its content hash is wrong. The batch was not delivered."""


class ProtocolError(Error):
    """The peer is not a Flight server, such as the dashboard or a server with TLS for a URL without, or it sent a message that exceeds a limit of this client."""


class DeviceError(Error, RuntimeError):
    """The device does not exist, or its driver failed. The message is that of the driver."""


class RequestRejectedError(Error):
    """A batch queue has no answer for this request: the queue is full, the timeout expired, or the worker failed.

    Other requests of the same client are not affected.
    """

    code: str
    """Name of the gRPC status code, such as `"RESOURCE_EXHAUSTED"` or `"DEADLINE_EXCEEDED"`."""

    retry_after: float | None
    """Recommended wait before a retry, in seconds. None if a retry is not expected to help."""

    def __init__(self, message: str, code: str = "UNKNOWN", retry_after: float | None = None) -> None:
        super().__init__(message, code, retry_after)
        self.code = code
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class CheckpointMismatchError(Error, ValueError):
    """A state was saved with other data, another order or another global batch than this training dataset has."""


class RankMismatchError(Error):
    """The ranks of a job would read different data or a different order, or not all of them started."""


class WorkerError(Error, RuntimeError):
    """The function of `TrainingDataset.map` failed, or a worker process of it could not start or ended repeatedly.

    It is the cause (`__cause__`) of an exception of the function. If that cannot be pickled, this is raised instead of it.
    """

    worker: int | None
    """Number of the worker process, from 0. None without worker processes."""

    epoch: int | None
    """Epoch of the batch. None if no batch was being processed."""

    step: int | None
    """Step of the batch."""

    def __init__(
        self, message: str, worker: int | None = None, epoch: int | None = None, step: int | None = None
    ) -> None:
        super().__init__(message, worker, epoch, step)
        self.worker, self.epoch, self.step = worker, epoch, step

    def __str__(self) -> str:
        return str(self.args[0])
