"""The worker processes of `TrainingDataset.map`, as their parent sees them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Mapping

from forebay.cluster import Cluster
from forebay.errors import WorkerError
from forebay.shared import SharedFile, read
from forebay.worker import Failed, Read, Ready, Result, Stop, Taken, Unusable, run

LOG = logging.getLogger("forebay")

# Number of times that a worker is restarted without having delivered a result.
MAX_RESTARTS = 3
POLL_SECONDS = 1.0
# Time in which idle workers end by themselves, and in which busy ones react to SIGTERM.
END_SECONDS = 1.0


class Workers:
    """Processes that each read one lane of a request and call a function. The results are merged into the order of steps.

    The processes end with `close`, when the object is dropped, and when this process ends.
    """

    def __init__(self, count: int, prefetch: int, function: bytes, cluster: Cluster) -> None:
        self._count, self._arguments, self._parent = count, (function, cluster), os.getpid()
        self._files = [[SharedFile() for _ in range(prefetch)] for _ in range(count)]
        self._generation, self._number = 0, 0
        self._run: _Run | None = None
        self._handles: list[_Handle] = []
        self.restarts = 0
        self._finalizer = weakref.finalize(self, _end, self._handles, self._parent)
        for worker in range(count):
            self._handles.append(self._spawn(worker))

    @property
    def is_of_this_process(self) -> bool:
        """True unless this process is a forked child of the one that started the workers."""
        return self._parent == os.getpid()

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return not self._finalizer.alive

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Epoch and step of the next result; None before `start` and after `stop`."""
        return None if self._run is None else self._run.cursor(self._number)

    def start(self, request: Mapping[str, Any], steps: int) -> None:
        """Starts to deliver the results of a request, and forgets the earlier one.

        Args:
            request: The resolved request, with `epoch`, `start_step` and `epochs`.
            steps: Number of steps per epoch.
        """
        self._generation += 1
        self._run, self._number = _Run(request, steps, self._count), 0
        for worker in range(min(self._count, self._run.batches)):
            self._read_from(self._run, worker, worker)

    def next(self) -> tuple[Result, Any]:
        """Waits for the next result. Returns its message and the result itself.

        Raises:
            WorkerError: A worker could not start, or ended repeatedly.
            Exception: The exception of the function, whose cause is a WorkerError.
        """
        worker = self._number % self._count
        assert self._run is not None, "start() was called"
        message = self._receive(self._run, worker)
        if isinstance(message, Failed):
            raise _raised(message, worker, self._count)
        handle = self._handles[worker]
        value = read(self._files[worker][handle.received % len(self._files[worker])], message.sizes)
        handle.received += 1
        handle.restarts = 0
        handle.send(Taken())
        self._number += 1
        return message, value

    def stop(self) -> None:
        """Ends the current request. The processes wait for the next one."""
        if self._run is not None:
            self._run = None
            self._generation += 1
            for handle in self._handles:
                handle.send(Stop())

    def close(self) -> None:
        """Ends the processes."""
        self._run = None
        self._finalizer()

    def _spawn(self, worker: int) -> _Handle:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        function, cluster = self._arguments
        process = context.Process(
            target=run,
            args=(theirs, self._files[worker], function, cluster, os.getpid()),
            name=f"forebay-map-{worker}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Handle(process, ours)

    def _read_from(self, run: _Run, worker: int, number: int) -> None:
        """Commands a worker to deliver every result of its lane from `number` of a request on."""
        handle = self._handles[worker]
        handle.received = 0
        handle.send(Read(self._generation, run.request(number)))

    def _receive(self, run: _Run, worker: int) -> Result | Failed:
        """Waits for the next message of a worker for a request. Restarts the worker if it has ended."""
        while True:
            handle = self._handles[worker]
            try:
                # A child of the worker could keep the channel open, so that it does not tell of the worker's end.
                if not handle.channel.poll(POLL_SECONDS):
                    if handle.process.is_alive() or handle.channel.poll(0):
                        continue
                    raise EOFError
                message = handle.channel.recv()
            except (EOFError, OSError):
                self._restart(run, worker)
                continue
            if isinstance(message, Unusable):
                self.close()
                raise WorkerError(
                    f"worker {worker} of {self._count} cannot load the function; define it in a module that a new "
                    f"process can import:\n\n{message.traceback}",
                    worker,
                )
            if isinstance(message, Ready):
                handle.is_ready = True
            elif message.generation == self._generation:
                return message

    def _restart(self, run: _Run, worker: int) -> None:
        """Replaces a worker that has ended. The new one continues with the next result of a request."""
        handle, number = self._handles[worker], self._number
        epoch, step = run.cursor(number)
        how = handle.reap()
        what = f"worker {worker} of {self._count} (process {handle.process.pid}) {how}"
        if not handle.is_ready and not how.startswith("was ended by"):
            self.close()
            raise WorkerError(
                f"{what} before it was ready. Its own error is above. A worker imports the main module, whose code must "
                f"therefore be below `if __name__ == '__main__':`",
                worker,
            )
        if handle.restarts == MAX_RESTARTS:
            self.close()
            raise WorkerError(
                f"{what} at epoch {epoch}, step {step}, and also after {MAX_RESTARTS} restarts", worker, epoch, step
            )
        LOG.warning("%s at epoch %d, step %d; restarting it", what, epoch, step)
        self.restarts += 1
        self._handles[worker] = self._spawn(worker)
        self._handles[worker].restarts = handle.restarts + 1
        self._read_from(run, worker, number)


class _Run:
    """The numbers of the results of a request: result 0 is that of its first batch."""

    def __init__(self, request: Mapping[str, Any], steps: int, lanes: int) -> None:
        self._request, self._steps, self._lanes = request, steps, lanes
        self.batches = int(request["epochs"]) * steps - int(request["start_step"])

    def cursor(self, number: int) -> tuple[int, int]:
        """Returns epoch and step of a result."""
        passed, step = divmod(int(self._request["start_step"]) + number, self._steps)
        return int(self._request["epoch"]) + passed, step

    def request(self, number: int) -> dict[str, Any]:
        """Returns the request for a result and every one that follows in its lane."""
        if number < self._lanes:
            # All workers have the same job, so that the server shares its windows.
            return {**self._request, "lanes": self._lanes, "lane": number}
        epoch, step = self.cursor(number)
        epochs = int(self._request["epochs"]) - (epoch - int(self._request["epoch"]))
        return {**self._request, "epoch": epoch, "start_step": step, "epochs": epochs, "lanes": self._lanes, "lane": 0}


class _Handle:
    """A process, and the parent's end of its channel."""

    def __init__(self, process: BaseProcess, channel: Connection) -> None:
        self.process, self.channel = process, channel
        self.is_ready = False
        # Number of results of the current request.
        self.received = 0
        # Number of restarts since the last result.
        self.restarts = 0

    def send(self, message: Any) -> None:
        """Sends a message. That the process has ended is noticed when the next one is received."""
        try:
            self.channel.send(message)
        except OSError:
            pass

    def reap(self) -> str:
        """Returns how the process ended."""
        self.channel.close()
        self.process.join(END_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return "closed its channel"
        if self.process.exitcode >= 0:
            return f"exited with code {self.process.exitcode}"
        return f"was ended by {signal.Signals(-self.process.exitcode).name}"


def _end(handles: list[_Handle], parent: int) -> None:
    """Ends processes: idle ones by closing their channels, busy ones by signals."""
    if os.getpid() != parent:
        return
    for handle in handles:
        handle.channel.close()
    for end in (lambda process: None, lambda process: process.terminate(), lambda process: process.kill()):
        until = time.monotonic() + END_SECONDS
        for handle in handles:
            end(handle.process)
        for handle in handles:
            handle.process.join(max(0.0, until - time.monotonic()))
        handles[:] = [handle for handle in handles if handle.process.exitcode is None]


def _raised(message: Failed, worker: int, count: int) -> BaseException:
    """Returns the exception of a worker, with a cause that has its traceback."""
    place = f"in worker {worker} of {count}, at epoch {message.epoch}, step {message.step}"
    cause = WorkerError(f"{place}:\n\n{message.traceback}", worker, message.epoch, message.step)
    if message.error is None:
        return cause
    error = pickle.loads(message.error)
    error.__cause__ = cause
    return error
