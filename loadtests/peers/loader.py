"""The equivalent of a PyTorch DataLoader, without torch.

Two worker processes read row groups with pyarrow, fill a shuffle buffer, gather batches from it with NumPy, and deliver them in
shared memory. The consumer maps them, as torch does. `loader.py REQUEST`, then the protocol of lines.py.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from accelerator import Batch, consume
from lines import answer_all
from table import matrix, needed, plain

WORKERS = 2
BUFFER_ROWS = 262_144
# torch's prefetch_factor of 2, one batch in the consumer, and one in the worker.
SLOTS_PER_WORKER = 4
ALIGNMENT = 64


@dataclass
class Sent:
    """A batch in a slot: NumPy arrays by name, and an Arrow stream for columns without a NumPy type."""

    worker: int
    slot: int
    rows: int
    arrays: list[tuple[str, str, tuple[int, ...], int]]  # name, dtype, shape, offset
    arrow: tuple[int, int] | None  # offset, bytes


@dataclass
class Ended:
    error: str | None = None


def main() -> None:
    request = json.loads(sys.argv[1])
    context = mp.get_context("fork")
    loader = Loader(request, context)

    def run(ticket: str, compute_ms: float | None) -> dict:
        asked = json.loads(ticket)
        epochs = range(asked["epoch"], asked["epoch"] + asked["epochs"])
        # The workers prefetch by themselves.
        return consume(lambda: loader.batches(epochs), compute_ms, loader.is_waiting)

    try:
        answer_all(run)
    finally:
        loader.close()


class Loader:
    """The consumer side of the workers."""

    def __init__(self, request: dict, context: Any) -> None:
        slot_bytes = slot_size(request)
        self.slots = [
            [SharedMemory(create=True, size=slot_bytes) for _ in range(SLOTS_PER_WORKER)] for _ in range(WORKERS)
        ]
        self.asked = [context.SimpleQueue() for _ in range(WORKERS)]
        self.free = [context.SimpleQueue() for _ in range(WORKERS)]
        self.received, self.sent = zip(*(context.Pipe(duplex=False) for _ in range(WORKERS)))
        for worker in range(WORKERS):
            for slot in range(SLOTS_PER_WORKER):
                self.free[worker].put(slot)
        self.workers = [
            context.Process(target=work, args=(worker, request, self), daemon=True) for worker in range(WORKERS)
        ]
        for process in self.workers:
            process.start()

    def batches(self, epochs: range) -> Iterator[Batch]:
        for epoch in epochs:
            for asked in self.asked:
                asked.put(epoch)
            at_work = WORKERS
            while at_work:
                sent = self.next()
                if isinstance(sent, Ended):
                    if sent.error is not None:
                        raise RuntimeError(sent.error)
                    at_work -= 1
                    continue
                memory = self.slots[sent.worker][sent.slot]
                arrays = views(memory, sent)
                yield sent.rows, sum(array.nbytes for array in arrays.values()), arrays
                # The computation is complete: the worker may reuse the slot. The views must be released first.
                arrays.clear()
                self.free[sent.worker].put(sent.slot)

    def next(self) -> Sent | Ended:
        ends = [process.sentinel for process in self.workers]
        ready = wait([*self.received, *ends])
        for received in self.received:
            if received in ready:
                return received.recv()
        raise RuntimeError("a worker process died")

    def is_waiting(self) -> bool:
        return any(received.poll() for received in self.received)

    def close(self) -> None:
        for process in self.workers:
            process.terminate()
        for process in self.workers:
            process.join()
        for memory in (memory for slots in self.slots for memory in slots):
            memory.unlink()


def views(memory: SharedMemory, sent: Sent) -> dict[str, Any]:
    """Returns the arrays of a batch without a copy."""
    arrays: dict[str, Any] = {
        name: np.ndarray(shape, dtype, memory.buf, place) for name, dtype, shape, place in sent.arrays
    }
    if sent.arrow is not None:
        place, size = sent.arrow
        reader = pa.ipc.open_stream(pa.py_buffer(memory.buf)[place : place + size])
        arrays["arrow"] = reader.read_next_batch()
    return arrays


def slot_size(request: dict) -> int:
    """Returns twice the size of an average batch. Untouched memory costs nothing."""
    group = pq.ParquetFile(request["files"][0]).read_row_group(0, columns=needed(request))
    return 2 * request["batch_size"] * (group.nbytes // group.num_rows + 1) + (1 << 20)


def is_fixed(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def work(worker: int, request: dict, loader: Loader) -> None:
    """Runs a worker process, which delivers one epoch per requested number."""
    try:
        while True:
            epoch = loader.asked[worker].get()
            one_epoch(worker, request, loader, epoch)
            loader.sent[worker].send(Ended())
    except (EOFError, KeyboardInterrupt):
        return
    except Exception as error:
        loader.sent[worker].send(Ended(f"worker {worker}: {type(error).__name__}: {error}"))


def one_epoch(worker: int, request: dict, loader: Loader, epoch: int) -> None:
    groups = []
    for file in request["files"]:
        groups += [(file, group) for group in range(pq.ParquetFile(file).metadata.num_row_groups)]
    np.random.default_rng(epoch).shuffle(groups)
    rng = np.random.default_rng((epoch, worker))
    files: dict[str, pq.ParquetFile] = {}
    pending: list[pa.Table] = []
    for file, group in groups[worker::WORKERS]:
        opened = files.get(file) or files.setdefault(file, pq.ParquetFile(file))
        pending.append(plain(opened.read_row_group(group, columns=needed(request), use_threads=False)))
        if sum(table.num_rows for table in pending) >= BUFFER_ROWS:
            pending = flush(pending, worker, request, loader, rng, is_last=False)
    flush(pending, worker, request, loader, rng, is_last=True)


def flush(
    pending: list[pa.Table], worker: int, request: dict, loader: Loader, rng: np.random.Generator, is_last: bool
) -> list[pa.Table]:
    """Sends the rows of the buffer in random order. Returns the rows of an incomplete batch for the next buffer."""
    if not pending:
        return []
    table = pa.concat_tables(pending)
    order = rng.permutation(table.num_rows)
    size = request["batch_size"]
    end = len(order) if is_last else len(order) // size * size
    buffer = Buffer(table, request)
    for first in range(0, end, size):
        slot = loader.free[worker].get()
        rows = order[first : min(first + size, end)]
        loader.sent[worker].send(buffer.gather(rows, worker, slot, loader.slots[worker][slot]))
    return [table.take(pa.array(order[end:]))] if end < len(order) else []


class Buffer:
    """The rows of a shuffle buffer: NumPy arrays, or Arrow for types without a NumPy type."""

    def __init__(self, table: pa.Table, request: dict) -> None:
        self.fixed: dict[str, np.ndarray] = {}
        others = []
        for name in request["columns"]:
            column = table.column(name)
            if not is_fixed(column.type):
                others.append(name)
            elif column.null_count == 0 or pa.types.is_floating(column.type):
                self.fixed[name] = column.to_numpy()
            else:
                self.fixed[name] = column.fill_null(0).to_numpy()
        for tensor in request["tensors"]:
            self.fixed[tensor["name"]] = matrix(table, tensor)
        self.arrow = table.select(others).combine_chunks() if others else None

    def gather(self, rows: np.ndarray, worker: int, slot: int, memory: SharedMemory) -> Sent:
        arrays, place = [], 0
        for name, values in self.fixed.items():
            shape = (len(rows), *values.shape[1:])
            out = np.ndarray(shape, values.dtype, memory.buf, place)
            np.take(values, rows, axis=0, out=out, mode="clip")
            arrays.append((name, values.dtype.str, shape, place))
            place += -(-out.nbytes // ALIGNMENT) * ALIGNMENT
        arrow = None
        if self.arrow is not None:
            taken = self.arrow.take(pa.array(rows)).combine_chunks()
            out = pa.FixedSizeBufferWriter(pa.py_buffer(memory.buf[place:]))
            with pa.ipc.new_stream(out, taken.schema) as writer:
                writer.write_batch(taken.to_batches()[0])
                size = out.tell()
            arrow = (place, size)
        return Sent(worker, slot, len(rows), arrays, arrow)


if __name__ == "__main__":
    main()
