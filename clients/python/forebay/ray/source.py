"""A datasource of Ray Data: the rows of a dataset, each once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Iterator

from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from forebay.client import Client

if TYPE_CHECKING:
    import pyarrow
    from ray.data import DataContext

# Arguments of `Client.train` that the datasource sets.
FIXED = (
    "shuffle",
    "partitions",
    "remainder",
    "rank",
    "world_size",
    "mesh",
    "output",
    "epoch",
    "epochs",
    "device",
    "rendezvous_store",
)


class Source(Datasource):
    """A datasource for `ray.data.read_datasource` with the rows of a dataset, each once.

        flights = ray.data.read_datasource(forebay.ray.Source(client, "flights", columns=["delay", "distance"]))

    Each read task receives its part of every batch from the server. All tasks, also repeated ones, read the same snapshot. Pass the
    id of a `snapshot` to read the rows of an earlier source again.
    """

    def __init__(self, client: Client, dataset: str, *, batch_size: int = 65_536, **options: Any) -> None:
        """Creates a datasource. Blocks until a server has planned the request.

        Args:
            client: Client, which is sent to the read tasks, including its token.
            dataset: Name of the dataset.
            batch_size: Rows per block. There are at most as many read tasks as blocks.
            **options: Further arguments of `Client.train` that select columns, rows and the snapshot.

        Raises:
            TypeError: An option would change order or number of the rows.
            Error: An error of `forebay.errors`, according to the server's status.
        """
        super().__init__()
        if taken := sorted(options.keys() & set(FIXED)):
            raise TypeError(f"Source() reads each row once and does not take {', '.join(taken)}")
        fixed = {"batch_size": batch_size, "shuffle": {"none": {}}, "remainder": "SHORT"}
        self._client, self._dataset, self._options = client, dataset, {**options, **fixed}
        planned = client.train(dataset, rank=0, world_size=1, **self._options)
        self._options["snapshot"] = planned.summary["snapshot"]
        self._blocks = planned.steps_per_epoch

    @property
    def snapshot(self) -> str:
        """Id of the snapshot that all tasks read."""
        return self._options["snapshot"]

    def get_name(self) -> str:
        """Returns the name of the read tasks."""
        return f"Forebay({self._dataset})"

    def estimate_inmemory_data_size(self) -> int | None:
        """Returns None: the size is not known before the rows are read."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """Returns the read tasks.

        Args:
            parallelism: Desired number of tasks.
            per_task_row_limit: Most rows that a task returns, or None.
            data_context: Not used.
        """
        number = max(1, min(parallelism, self._blocks))
        # The number of rows of a task is known after it has read them.
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        reads = (
            functools.partial(_read, self._client, self._dataset, rank=rank, world_size=number, **self._options)
            for rank in range(number)
        )
        return [ReadTask(read, unknown, per_task_row_limit=per_task_row_limit) for read in reads]


def _read(client: Client, dataset: str, **options: Any) -> Iterator[pyarrow.Table]:
    """Yields the blocks of one read task."""
    import pyarrow

    for batch in client.train(dataset, output="arrow", **options):
        yield pyarrow.Table.from_batches([batch])
