"""The cluster of a dataset that `forebay.open` has opened: the server of this host and user."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Mapping, Sequence

from forebay import _forebay, no_parquet
from forebay.cluster import Cluster, WrappedCluster, to_json
from forebay.credentials import bearer_of, credentials_for
from forebay.errors import DataLossError, Error, RequestError
from forebay.local import LocalServer, local_server
from forebay.shown_url import shown_url

LOG = logging.getLogger("forebay")
# Parts of the messages of a server that was started for other arguments.
OTHER_SERVER = ("the running server has other settings", "lookups are by [")
# In place of the process id of a server that was not running.
NO_PROCESS = 0


class LocalCluster(Cluster):
    """The server of this host and user, with a dataset that it has open. Every call starts the server if it has ended."""

    is_of_open = True

    def __init__(self, server: LocalServer, options: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        self._server, self._request = server, dict(request)
        # Process of the server that has the dataset open. A process that received the cluster from another one may have another server.
        self._opened_by: int | None = None
        # Shows which credentials this process has.
        self._bearer = ""
        self._passing: threading.Thread | None = None
        # Name of the dataset at the server, after it was opened.
        self._name: str | None = None
        super().__init__([server.url], options)

    @property
    def native(self) -> Any:
        """The native client."""
        if self._server.is_removed():
            self.find_server()
        self._server.ensure(self)
        if self._opened_by is None:
            self.open()
        return self._native

    @native.setter
    def native(self, native: Any) -> None:
        self._native = native

    def find_server(self) -> None:
        """Uses the server of the current runtime folder, if that of the last one was removed. The next call opens the dataset there."""
        last, found = self._server, local_server()
        if found is last:
            return
        LOG.warning("%s was removed, as at a logout; its server is replaced by the one in %s when it has stopped", last.folder, found.folder)
        self._server, self.urls, self._opened_by = found, [found.url], None
        # The settings are those of the last server.
        self._request["settings"] = ""
        self._native = self._connected()
        found.replace(last, self)

    def open(self) -> str:
        """Makes the server open the dataset with the credentials of this process. Returns its name."""
        url = str(self._request["url"])
        credentials = credentials_for(url)
        bearer = bearer_of(url, credentials)
        if bearer != self._bearer:
            self._bearer = bearer
            self._native = self._connected()
        # If this is not the server that opens the dataset, `pass_again` repeats it.
        try:
            server = self._server.pid()
        except OSError:
            server = NO_PROCESS
        request = {**self._request, **({"credentials": credentials} if credentials else {})}
        try:
            opened = json.loads(self._native.action("open", to_json(request).encode())[-1])
        except RequestError as error:
            if not any(part in str(error) for part in OTHER_SERVER):
                raise
            raise RequestError(
                f"{error}; `forebay stop`, or `python -m forebay stop`, stops the server, and the next forebay.open starts it with its own "
                "key and settings"
            ) from error
        except DataLossError as error:
            hint = no_parquet.hint(str(error))
            if hint is None:
                raise
            raise DataLossError(f"{error}; {hint}") from error
        self._opened_by, self._name = server, opened["dataset"]
        return opened["dataset"]

    def url_of(self, dataset: str) -> str | None:
        """Returns the path or URL of the dataset. It has no part that may be secret."""
        url = str(self._request["url"])
        if dataset != self._name:
            return None
        return shown_url(url)

    def open_again(self, error: Error) -> bool:
        """Opens the dataset again if an error says that the server lacks it, as after a restart with another cache folder. Returns true if it did."""
        if self._name is None or f"no dataset '{self._name}'" not in str(error):
            return False
        if self._server.is_removed():
            self.find_server()
        self._server.ensure(self)
        self.open()
        return True

    def with_mixed(self, names: Sequence[str]) -> Cluster:
        """Returns a cluster that also keeps those of these datasets open that this process has open now."""
        found = {user._name: user for user in self._server.users() if user is not self and user._name in names}
        return ClusterWithMixed(self, list(found.values())) if found else self

    def pass_again(self, server: int) -> None:
        """Passes the credentials to a server that was started after it had opened the dataset. Does not block.

        Args:
            server: Id of the server's process.
        """
        is_passing = self._passing is not None and self._passing.is_alive()
        if self._opened_by in (None, server) or is_passing or not credentials_for(str(self._request["url"])):
            return
        self._passing = threading.Thread(target=self._pass, name="forebay-credentials", daemon=True)
        self._passing.start()

    def _pass(self) -> None:
        try:
            self.open()
        except Exception as error:
            LOG.warning("the server did not open %s again, trying again: %s", self._request["url"], error)

    def _connected(self) -> Any:
        # `options` are pickled, the token is not.
        return _forebay.Cluster(self.urls, {**self.options, **({"token": self._bearer} if self._bearer else {})})

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "request": self._request, "name": self._name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Settings of the server in another process are those with which it was started.
        self.__init__(local_server(), state["options"], {**state["request"], "settings": ""})  # type: ignore[misc]
        self._name = state.get("name")


class ClusterWithMixed(WrappedCluster):
    """A cluster for trainings that mix further datasets. While it exists, the credentials of all of them are passed to each later server."""

    def __init__(self, cluster: Cluster, mixed: Sequence[Cluster]) -> None:
        super().__init__(cluster)
        self._mixed = mixed

    def __getstate__(self) -> dict[str, Any]:
        return {"cluster": self._cluster, "mixed": self._mixed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["cluster"], state["mixed"])  # type: ignore[misc]

    def open_again(self, error: Error) -> bool:
        """Opens the one of the datasets again that the server lacks."""
        return any(each.open_again(error) for each in (self._cluster, *self._mixed))
