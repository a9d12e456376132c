"""The servers of a cluster, with the options of their client."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Mapping, Sequence, TypeVar

import numpy as np

from forebay import _forebay
from forebay.errors import Error, NotFoundError, RequestError

Result = TypeVar("Result")

# Default of `retry_deadline` of the native client.
DEFAULT_RETRY_DEADLINE_S = 300


class Cluster:
    """URLs and options of a client, and its native part. It can be pickled, shared by threads, and used after a fork."""

    # True if `forebay.open` has opened the dataset.
    is_of_open = False

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        self.urls, self.options = list(urls), dict(options)
        self.native = self._connected()

    def _connected(self) -> _forebay.Cluster:
        """Returns a new native client, which connects on demand."""
        return _forebay.Cluster(self.urls, self.options)

    def __getstate__(self) -> dict[str, Any]:
        return {"urls": self.urls, "options": self.copied_options()}

    def copied_options(self) -> dict[str, Any]:
        """Returns the options for a copy in another process, which waits for a server that this process was connected to."""
        if not self.native.was_connected:
            return self.options
        return {**self.options, "wait_for_server": self.options.get("retry_deadline", DEFAULT_RETRY_DEADLINE_S)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["urls"], state["options"])  # type: ignore[misc]

    def plan(
        self,
        request: Mapping[str, Any],
        progress: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> _forebay.Plan:
        """Requests the plan of a training job from a server. Blocks until a server answers or the retry deadline expires.

        Args:
            request: The request.
            progress: Called with the fields of CountResult at most twice a second while a server counts the rows of a filter or of
                groups for more than three seconds. Its exceptions end the call.
        """
        report = None if progress is None else lambda counted: progress(json.loads(counted))
        command = to_json({"train": request})
        return self.with_datasets(lambda: self.native.plan(command, self.values(), report))

    def with_datasets(self, call: Callable[[], Result]) -> Result:
        """Returns the result of a call of the native client. Repeats the call after each dataset that the server lacks and `open_again` opens."""
        seen: set[str] = set()
        while True:
            try:
                return call()
            except NotFoundError as error:
                if str(error) in seen or not self.open_again(error):
                    raise
                seen.add(str(error))

    def open_again(self, error: Error) -> bool:
        """Opens the dataset again if an error says that the server lacks it, and if `forebay.open` has opened it. Returns true if it did."""
        return False

    def with_mixed(self, names: Sequence[str]) -> Cluster:
        """Returns a cluster for trainings that mix further datasets, which keeps these open."""
        return self

    def url_of(self, dataset: str) -> str | None:
        """Returns the path or URL of a dataset without credentials, or None if only the server knows it."""
        return None

    def values(self) -> list[_forebay.ValueSet]:
        """Returns the sets of values that requests refer to."""
        return []

    def datasets(self) -> list[dict[str, Any]]:
        """Returns the DatasetInfo of each dataset that the client may read. Blocks as `plan` does."""
        return [json.loads(described) for described in self.native.datasets()]

    def dataset(self, name: str) -> dict[str, Any]:
        """Returns the DatasetInfo of a dataset. Blocks as `plan` does."""
        return json.loads(self.with_datasets(lambda: self.native.dataset(name)))


class WrappedCluster(Cluster):
    """A cluster for some trainings of a client. It has the native client of another cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.options, self.is_of_open = cluster, cluster.options, cluster.is_of_open

    @property
    def native(self) -> Any:
        """The native client of the cluster."""
        return self._cluster.native

    @native.setter
    def native(self, native: Any) -> None:
        self._cluster.native = native

    def url_of(self, dataset: str) -> str | None:
        """Returns the path or URL of a dataset as the cluster does."""
        return self._cluster.url_of(dataset)

    def open_again(self, error: Error) -> bool:
        """Opens the dataset again as the cluster does."""
        return self._cluster.open_again(error)


def to_json(message: Any) -> str:
    """Returns a message as JSON.

    The protocol has strings for NaN and the infinities, because JSON has no such numbers. Scalars and arrays of NumPy are Python's.

    Raises:
        RequestError: A text has a lone surrogate, which no encoding of Unicode can represent.
    """
    return json.dumps(_plain(message), allow_nan=False)


def _plain(value: Any) -> Any:
    """Replaces NaN and the infinities by their strings, and values of NumPy by Python's."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"the text {value!r} has a character that UTF-8 cannot represent (a lone surrogate)") from None
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
