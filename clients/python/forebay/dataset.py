"""Datasets without a server to start: `forebay.open`."""

from __future__ import annotations

import inspect
import os
import re
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence, overload
from urllib.parse import unquote

from forebay import arguments
from forebay.batch import Batch
from forebay.client import Client, connect
from forebay.cluster import to_json
from forebay.errors import DeadlineError, Error, RequestError, UnavailableError
from forebay.hints import HINTS, check_known, checked, keywords
from forebay.html import described
from forebay.local import local_server
from forebay.local_cluster import LocalCluster
from forebay.online import Rows
from forebay.shown_url import check_url
from forebay.splitting import Border, split
from forebay.training import TrainingDataset

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from forebay.batch_dict import BatchDict
    from forebay.train_options import TrainOptions

# More than any host has cores. A mistyped number would start as many threads.
MAX_CPU_THREADS = 1024

# Begin of a URL of an object store or HTTP server. A URL with too few slashes is a mistake that the server refuses, not a path. It may contain a
# password, which must not be in a name or an error.
URL_START = re.compile(r"[\s\x00-\x1f]*(file|https?|s3a?|gs|az|azure|adl|abfss?):", re.IGNORECASE)
# White space and control characters around a URL, which have no meaning, and characters that it must not have within.
BLANKS = "".join(chr(code) for code in range(0x3001) if chr(code).isspace() or code < 0x20)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def open(
    url: str | os.PathLike[str],
    *,
    key: str | Sequence[str] = (),
    cache_memory: str | int | None = None,
    cache_disk: str | int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    lookup_memory: str | int | None = None,
    state: str | os.PathLike[str] | None = None,
    refresh_interval: str | None = None,
    cpu_threads: int | None = None,
    http: str | None = None,
    **options: Any,
) -> Dataset:
    """Returns a dataset, served by the Forebay server of this host and user. Starts the server if it is not running.

    All processes of the user on the host share one server and its cache. It stops a minute after the last of them has ended.
    The server reads an object store with the credentials of this process (`AWS_*`, the AWS profile, `GOOGLE_*`, `AZURE_*`), which it
    keeps only in memory. A process with other credentials opens another dataset, and cannot read the cache of this one.
    The arguments from `cache_memory` to `http` are settings of the server. If the running server has other values for the given
    settings, an error names them.

    Args:
        url: Path or URL of a Parquet file or of a folder of Parquet files: a path, `file://`, `s3://`, `gs://`, `az://`,
            or, of a file only, `http://` and `https://`. Its files are listed by every call.
        key: Column or columns by which `Dataset.lookup` finds rows. Their index and the rows are kept in memory.
        cache_memory: Memory for decoded data, in bytes or such as `"8GiB"`. Default: half of the memory of the machine or
            container.
        cache_disk: Disk space for decoded columns, in bytes or such as `"200GiB"`. Default: half of the free space.
        cache_dir: Folder of the disk cache. Default: a folder in `~/.cache/forebay-local`, or in the temporary directory if
            that can't be written.
        lookup_memory: Part of `cache_memory` for lookups. Default: half of it, from the first dataset with a `key` on.
        state: Path or URL of the state: snapshots, row counts and job records. Jobs on several hosts share one. Default: a
            folder in the cache folder.
        refresh_interval: Interval at which the files are listed again, such as `"5m"`. Default: never.
        cpu_threads: Number of threads that decode data and assemble batches, up to 1,024. Default: one per core.
        http: Listen address of the dashboard, such as `"127.0.0.1:8816"`, which every user of the host can read. Default: a
            socket in the runtime folder.
        **options: Options of `connect`, such as `retry_deadline`.

    Returns:
        The dataset. It can be pickled, forked and shared by threads.

    Raises:
        NotFoundError: There is no such file.
        RequestError: The URL is empty or invalid, or the running server has other settings.
        TypeError: There is no such option.
        ServerStartError: The server does not start.
        PermissionError: The runtime folder is not private to this user.
        Error: Any other error of `forebay.errors`, according to the server's status.
    """
    settings = {
        "cache_memory": arguments.size("cache_memory", cache_memory),
        "cache_disk": arguments.size("cache_disk", cache_disk),
        "cache_dir": None if cache_dir is None else _folder("cache_dir", cache_dir, is_local=True),
        "lookup_memory": arguments.size("lookup_memory", lookup_memory),
        "state": None if state is None else _folder("state", state),
        "refresh_interval": arguments.text("refresh_interval", refresh_interval, "such as '5m'"),
        "cpu_threads": None if cpu_threads is None else arguments.whole_number("cpu_threads", cpu_threads, least=1, most=MAX_CPU_THREADS),
        "http": arguments.text("http", http, "such as '127.0.0.1:8816'"),
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    _check_options(options)
    keys = arguments.texts("key", key)
    if keys is None:
        raise RequestError("key is None, expected the name of a column or a list of names; leave it out if there is no key")
    if not arguments.path_or_url("url", url):
        raise RequestError("url is empty, expected the path or URL of a Parquet file or of a folder of Parquet files")
    server = local_server()
    # The server exists, because this process starts it. It may be about to be started again.
    client = connect(server.url, **{"wait_for_server": True, **options})
    request = {"url": _absolute("url", url), "key": keys, "settings": to_json(settings) if settings else ""}
    cluster = LocalCluster(server, client._cluster.options, request)
    client._cluster = cluster
    server.ensure(cluster, settings)
    try:
        name = cluster.open()
    except (DeadlineError, UnavailableError):
        # The server does not answer.
        raise
    except Error:
        server.compare_version()
        raise
    server.compare_version()
    return Dataset(client, name, str(request["url"]), keys)


class Dataset:
    """A dataset, as `open` returns it, or a part of one, as `split` returns it."""

    def __init__(
        self,
        client: Client,
        name: str,
        url: str,
        key: Sequence[str],
        filter: str | None = None,
        divisions: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        """Args:
            client: Client of the server.
            name: Name of the dataset at the server.
            url: Absolute path or URL.
            key: Columns of the key for lookups.
            filter: Row condition of a part.
            divisions: Column and number of each division by hash that has led to this part.
        """
        self._client, self._name, self._url, self._key, self._filter = client, name, url, list(key), filter
        self._divisions = divisions

    def __repr__(self) -> str:
        part = "" if self._filter is None else f" where {self._filter}"
        return f"<forebay.Dataset of {self._url}{part}>"

    def _repr_html_(self) -> str:
        try:
            return described(repr(self), self.schema)
        except Error as error:
            # A notebook shows what is known without the server.
            return described(f"{self!r}: {error}")

    @property
    def name(self) -> str:
        """Name of the dataset at the server, as for `mix` of `train`: the last part of its URL, and a hash of the URL."""
        return self._name

    @property
    def url(self) -> str:
        """Absolute path or URL."""
        return self._url

    @property
    def client(self) -> Client:
        """Client of the server."""
        return self._client

    @property
    def schema(self) -> dict[str, str]:
        """Arrow types of the columns, by name."""
        return self._train_alone(1).columns

    @property
    def num_rows(self) -> int:
        """Number of rows. The server counts the rows of a part that `split` returned. Blocks."""
        return int(self._train_alone(1).summary.get("rows", 0))

    def __len__(self) -> int:
        """Number of rows, as `num_rows`."""
        return self.num_rows

    def __bool__(self) -> bool:
        # Python would call `__len__`, which blocks.
        return True

    @overload
    def train(
        self, *, output: Literal["batch"] = "batch", **options: Unpack[TrainOptions]
    ) -> TrainingDataset[Batch]: ...
    @overload
    def train(
        self, *, output: Literal["numpy", "torch", "jax"], **options: Unpack[TrainOptions]
    ) -> TrainingDataset[BatchDict]: ...
    @overload
    def train(
        self, *, output: Literal["arrow"], **options: Unpack[TrainOptions]
    ) -> TrainingDataset[pa.RecordBatch]: ...
    @overload
    def train(self, *, output: str, **options: Unpack[TrainOptions]) -> TrainingDataset[Any]: ...
    @checked
    def train(self, **options: Any) -> TrainingDataset[Any]:
        """Returns the batches of one rank as an iterable. Each iteration is one epoch.

        Args:
            **options: Arguments of `Client.train`, without the dataset.

        Returns:
            A training dataset.
        """
        check_known("train", list(options), keywords(Client.train), HINTS)
        return self._client.train(self._name, **self._in_part(options))

    def __iter__(self) -> Any:
        """Raises TypeError, which says how to iterate over batches."""
        raise TypeError("a Dataset is not iterable; iterate over its batches with .train(batch_size=...) or, in stored order, .eval(batch_size=...)")

    def __getitem__(self, position: Any) -> Any:
        """Raises TypeError, which says how to read rows."""
        raise TypeError(
            "a Dataset has no rows by position; use .train(batch_size=...) for batches, also in a DataLoader with batch_size=None, .split(...) "
            "for parts, .head(n) for the first rows, or .lookup(...) for rows by key"
        )

    @checked
    def eval(self, *, batch_size: int, **request: Any) -> TrainingDataset:
        """Returns the rows in their stored order, each once over all ranks, for an evaluation.

        Args:
            batch_size: Rows per rank and step.
            **request: Further arguments of `Client.eval`.

        Returns:
            A training dataset. Each iteration has the same batches.
        """
        check_known("eval", list(request), keywords(Client.train), HINTS)
        return self._client.eval(self._name, batch_size=batch_size, **self._in_part(request))

    def split(
        self, fraction: float | None = None, *, by: str, at: Border | None = None, seed: int = 0
    ) -> tuple[Dataset, Dataset]:
        """Returns two parts of the dataset. Each row is in exactly one of them.

        Args:
            fraction: Fraction of the values of `by` whose rows are in the first part. See `forebay.split`.
            by: Column that divides the rows.
            at: Instead of a fraction: the first part has the rows whose value of `by` is smaller.
            seed: With a fraction: number of the division. If this is a part of a division by the same column and number, the next
                free number is used, so that the parts have the fraction of this part's values.

        Returns:
            The parts.

        Raises:
            ValueError: Neither or both of `fraction` and `at` are given, or the fraction is not between 0 and 1.
        """
        arguments.text("by", by)
        divisions = self._divisions
        if fraction is not None:
            while (by, seed) in divisions:
                seed += 1
            divisions = divisions | {(by, seed)}
        conditions = split(fraction, by=by, at=at, seed=seed)
        first, second = (self._in_part({"filter": condition})["filter"] for condition in conditions)
        parts = (Dataset(self._client, self._name, self._url, self._key, filter, divisions) for filter in (first, second))
        return next(parts), next(parts)

    def lookup(self, keys: Any, **request: Any) -> Rows:
        """Returns one row per key, in the order of the keys.

        Args:
            keys: Dict of lists or arrays, such as `{"user_id": [7, 42]}`, or an Arrow batch or table of any library.
            **request: Arguments of `Client.lookup`, such as `columns`.

        Returns:
            The rows, with the snapshot that they are from.

        Raises:
            RequestError: The dataset was opened without a `key`, or the request is invalid.
        """
        if not self._key:
            raise RequestError(f"{self._url} was opened without a key, expected forebay.open(..., key=[COLUMN, ...])")
        return self._client.lookup(self._name, keys, **self._in_part(request))

    def head(self, n: int = 5) -> Batch:
        """Returns the first rows in the order of the files.

        Args:
            n: Number of rows. If the dataset has fewer, all are returned.

        Raises:
            RequestError: The dataset has no rows, or `n` is invalid.
        """
        training = self._train_alone(arguments.whole_number("n", n, least=1))
        try:
            first: Batch | None = next(iter(training), None)
            if first is None:
                raise RequestError(f"{self!r} has no rows")
            return first
        except RequestError as error:
            # The rows are requested as a batch.
            if not str(error).startswith("batch_size:"):
                raise
            raise RequestError(str(error).replace("batch_size:", "n:", 1)) from error
        finally:
            training.close()

    def _in_part(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns a request that is limited to the rows of this part."""
        if self._filter is None:
            return request
        given = arguments.text("filter", request.get("filter"))
        if given is None:
            return {**request, "filter": self._filter}
        # A comment at the end of a condition ends with the line.
        end = "\n" if "--" in given else ""
        return {**request, "filter": f"({self._filter}) AND ({given}{end})"}

    def _train_alone(self, batch_size: int) -> TrainingDataset:
        """Returns the rows in file order, for this process alone."""
        return self.train(batch_size=batch_size, shuffle={"none": {}}, rank=0, world_size=1)


def _absolute(name: str, url: str | os.PathLike[str]) -> str:
    """Returns a path or a `file://` URL as an absolute path, and another URL in the form of `_normal`. The server refuses a URL with a secret.

    Args:
        name: Name of the argument.
        url: The path or URL.

    Raises:
        RequestError: The URL of a file has a host, or no absolute path, or a URL has a control character.
        TypeError: It is neither a string nor a path.
    """
    text = arguments.path_or_url(name, url)
    if "://" in text or URL_START.match(text):
        text = _normal(name, text)
    if text.lower().startswith("file:"):
        rest = text[len("file:") :]
        # Characters that end the path of other URLs, such as # and ?, are part of the names of files.
        host, _, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest[1:] if rest.startswith("/") else None)
        if host not in ("", "localhost") or path is None:
            shown = re.sub(r"(?<=:)(/*)(.*)@", r"\1(not shown)@", text, count=1, flags=re.DOTALL)
            raise RequestError(f"{name} is {shown!r}, expected the absolute path of a file on this host, as in file:///data/train")
        text = "/" + unquote(path)
    return text if "://" in text or URL_START.match(text) else os.path.abspath(os.path.expanduser(text))


def _normal(name: str, url: str) -> str:
    """Returns a URL with its scheme in lower case and without white space around it. That after a `file:` URL is kept, as a part of a name.

    Otherwise, other spellings would be other datasets, and would be read without the credentials of this process.

    Raises:
        RequestError: The URL has a control character, such as a tab, which parsers of URLs leave out.
    """
    scheme, colon, rest = url.lstrip(BLANKS).partition(":")
    if not SCHEME.fullmatch(CONTROL.sub("", scheme)):
        return url
    if scheme.lower() != "file":
        # These characters can be part of the name of a file.
        rest = rest.rstrip(BLANKS)
        if CONTROL.search(scheme + rest):
            raise RequestError(f"{name} has a control character, such as a tab or the end of a line, expected a URL without one")
    return f"{scheme.lower()}{colon}{rest}"


def _folder(name: str, path: str | os.PathLike[str], is_local: bool = False) -> str:
    """Returns a path or URL of a folder as `_absolute` does, for the command line of the server, which others can read.

    Args:
        name: Name of the argument.
        path: The path or URL.
        is_local: True if it has to be a path.

    Raises:
        RequestError: As `_absolute`, and if it is empty, which would be the current folder, or a URL with a secret.
    """
    if not arguments.path_or_url(name, path):
        raise RequestError(f"{name} is empty, expected a path")
    absolute = _absolute(name, path)
    check_url(name, absolute)
    if is_local and not os.path.isabs(absolute):
        raise RequestError(f"{name} is {absolute!r}, expected the path of a folder on this host")
    return absolute


def _check_options(options: Mapping[str, Any]) -> None:
    """Checks the names of the options of `open`.

    Raises:
        TypeError: `connect` has no such option.
    """
    check_known("open", list(options), [*keywords(open), *keywords(connect)], {})


def _without_dataset(method: Any) -> inspect.Signature:
    """Returns the signature of a method of `Client` without the name of the dataset."""
    signature = inspect.signature(method)
    return signature.replace(parameters=[each for name, each in signature.parameters.items() if name != "dataset"])


# What notebooks and `help` show. Type checkers read the overloads.
Dataset.train.__signature__ = _without_dataset(Client.train)  # type: ignore[attr-defined]
