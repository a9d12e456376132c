"""A worker process of `TrainingDataset.map`: it reads one lane, calls the function, and shares the results."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from forebay.batch import Batch
from forebay.cluster import Cluster
from forebay.shared import SharedFile, write

PARENT_POLL_SECONDS = 0.5


class Read(NamedTuple):
    """The command to deliver the results of all batches of a request. It ends what the worker has delivered before."""

    generation: int
    request: Mapping[str, Any]


class Taken(NamedTuple):
    """The message that one more result was read, so that its file may be written again."""


class Stop(NamedTuple):
    """The command to deliver no more results."""


class Ready(NamedTuple):
    """The message that the worker accepts commands."""


class Unusable(NamedTuple):
    """The last message of a worker that cannot load the function."""

    traceback: str


class Result(NamedTuple):
    """A result, in the file whose turn it is."""

    generation: int
    epoch: int
    step: int
    sizes: Sequence[int]
    rows: int
    bytes: int
    retries: int


class Failed(NamedTuple):
    """An exception instead of a result. `error` is its pickle, or None if it has none."""

    generation: int
    epoch: int
    step: int
    error: bytes | None
    traceback: str


class Worker:
    """The process: commands arrive and messages leave on `channel`, and results are in `files`, which alternate."""

    def __init__(
        self, channel: Connection, files: Sequence[SharedFile], function: Callable[[Batch], Any], cluster: Cluster
    ) -> None:
        self._channel, self._files, self._function, self._cluster = channel, files, function, cluster

    def run(self) -> None:
        """Executes commands until the channel is closed."""
        self._channel.send(Ready())
        command: Any = None
        while True:
            if isinstance(command, Read):
                command = self._read(command)
            else:
                command = self._channel.recv()

    def _read(self, command: Read) -> Any:
        """Delivers results. Returns the command that ended this early, or None."""
        epoch, step = int(command.request["epoch"]), int(command.request["start_step"])
        stream = None
        try:
            stream = self._cluster.plan(command.request).stream(None)
            delivered, taken, retries = 0, 0, 0.0
            epoch, step = stream.cursor
            for received in stream:
                batch = Batch(received)
                epoch, step = batch.epoch, batch.step
                while delivered - taken == len(self._files) or self._channel.poll(0):
                    message = self._channel.recv()
                    if not isinstance(message, Taken):
                        return message
                    taken += 1
                result = self._function(batch)
                sizes = write(self._files[delivered % len(self._files)], result)
                before, retries = retries, stream.stats()["retries"]
                new = int(retries - before)
                self._channel.send(Result(command.generation, epoch, step, sizes, len(batch), batch.nbytes, new))
                delivered += 1
                epoch, step = stream.cursor
                del received, batch, result
        except Exception:
            # If the channel is closed, sending raises another exception, which ends the process.
            self._fail(command.generation, epoch, step)
        finally:
            if stream is not None:
                stream.close()
        return None

    def _fail(self, generation: int, epoch: int, step: int) -> None:
        """Sends the current exception."""
        error = sys.exc_info()[1]
        try:
            attempt = pickle.dumps(error)
            pickle.loads(attempt)
            pickled: bytes | None = attempt
        except Exception:  # Any error of the methods of the exception, which may be the user's.
            pickled = None
        self._channel.send(Failed(generation, epoch, step, pickled, traceback.format_exc()))


def run(channel: Connection, files: Sequence[SharedFile], function: bytes, cluster: Cluster, parent: int) -> None:
    """Main function of the process.

    Args:
        channel: Connection to the parent.
        files: Files for results, as many as results may be ahead of the loop.
        function: Pickle of a function of a batch.
        cluster: Servers from which to read.
        parent: Process id of the parent.
    """
    # Ctrl-C reaches all processes of the terminal. The parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), name="forebay-parent", daemon=True).start()
    # As in the workers of a DataLoader, because the workers share the cores. The function may import PyTorch later.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        try:
            loaded = pickle.loads(function)
        except Exception:
            channel.send(Unusable(traceback.format_exc()))
            return
        Worker(channel, files, loaded, cluster).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, also while the function runs."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)
