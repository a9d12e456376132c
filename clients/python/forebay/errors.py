"""What can go wrong, by what a caller would do about it. Every message is the server's own where it has one."""

from __future__ import annotations


class Error(Exception):
    """The base of all of them."""


class RequestError(Error, ValueError):
    """The request, or a file that an option names, makes no sense: mend it."""


class NotFoundError(Error, LookupError):
    """There is no such dataset."""


class UnauthenticatedError(Error, PermissionError):
    """The server wants a token, and this is none that it knows, or it has expired."""


class PermissionDeniedError(Error, PermissionError):
    """The token may not read this dataset."""


class ChangedError(Error):
    """A file was changed, or the snapshot is not known here: take the current one."""


class LimitError(Error):
    """Something exceeds a limit, which the message names."""


class DataLossError(Error):
    """A file is damaged."""


class UnavailableError(Error, ConnectionError):
    """The server can't be reached. Iterating tries again by itself, on every server, until the deadline."""


class DeadlineError(Error, TimeoutError):
    """Every server was tried until the deadline was over; the message tells how the last attempt failed."""


class ForeignBatchError(Error):
    """A batch came that is not the one that is due, or not as it was sent. Nothing of it was handed over."""


class ProtocolError(Error):
    """What answers is no Flight server, or sends more than the limits of this client allow."""


class DeviceError(Error, RuntimeError):
    """There is no such device, or its driver failed; in the driver's words."""


class Refused(Error):
    """A queue has no answer for this request; others go on."""

    def __init__(self, message: str, code: str = "UNKNOWN", retry_after: float | None = None) -> None:
        super().__init__(message, code, retry_after)
        self.code = code
        """gRPC's name of the reason: RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED and so on."""
        self.retry_after = retry_after
        """Seconds after which it is worth another try, if it is."""

    def __str__(self) -> str:
        return str(self.args[0])


class StateError(Error, ValueError):
    """A checkpoint's state is of other data, another order or another global batch than this training."""


class DisagreementError(Error):
    """The ranks of a job don't see the same data in the same order."""
