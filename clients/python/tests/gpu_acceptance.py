"""Checks on an NVIDIA GPU that batches are safe to use, and measures their copies.

    python gpu_acceptance.py                   # all checks, about ten minutes
    python gpu_acceptance.py --only values     # one check

Starts a server over generated data. Prints a table, and exits with status 1 if a check fails. A check whose library is not
installed is skipped. Requires the installed package, pyarrow, and PyTorch, JAX or CuPy.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np

import forebay
from forebay.binary import binary

ROWS, COLUMNS, BATCH = 2_000_000, 16, 65_536
# Rows of the dataset with columns of all kinds, and of its batches.
TYPED_ROWS, TYPED_BATCH = 200_000, 20_000
TENSOR = {"x": {"columns": ["c*"], "dtype": "float32"}}
# Cycles of a kernel that delays the work behind it, about 50 ms.
DELAY = 80_000_000
# Free memory may vary by this much, because libraries allocate their own.
SLACK_BYTES = 64 << 20


class Skipped(Exception):
    """A check needs something that this machine lacks."""


class Machine:
    """A server, and the batches of an epoch on the host and on the device."""

    def __init__(self, client: forebay.Client) -> None:
        self.client = client
        self.expected = [batch["x"].to_numpy().copy() for batch in self.train()]

    def train(self, **options: Any) -> forebay.TrainingDataset:
        return self.client.train("data", **{"batch_size": BATCH, "tensors": TENSOR, "seed": 1, **options})

    def on_device(self, **options: Any) -> forebay.TrainingDataset:
        return self.train(device="cuda:0", **options)

    def typed(self, **options: Any) -> forebay.TrainingDataset:
        """Returns batches with text, lists, nulls, booleans and times."""
        columns = ["n", "text", "holes", "flag", "time", "items", "gaps"]
        return self.client.train("types", batch_size=TYPED_BATCH, columns=columns, seed=1, **options)

    def assert_equal(self, found: list[Any], steps: int | None = None) -> str:
        expected = self.expected[:steps]
        assert len(found) == len(expected), f"{len(found)} batches, expected {len(expected)}"
        different = [step for step, pair in enumerate(zip(found, expected)) if not np.array_equal(*pair)]
        assert not different, f"other values in steps {different}"
        return f"{len(found)} batches"


def needs(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise Skipped(f"{name} is not installed")
    return importlib.import_module(name)


def values(machine: Machine) -> str:
    """The values on the device are those on the host."""
    needs("torch")
    return machine.assert_equal([batch["x"].to_torch().cpu().numpy() for batch in machine.on_device()])


def late_consumer(machine: Machine) -> str:
    """Work that the device starts long after the batch was dropped reads the values of its batch."""
    torch = needs("torch")
    copies = []
    for batch in machine.on_device():
        torch.cuda._sleep(DELAY)
        copies.append(batch["x"].to_torch().clone())
        del batch
    return machine.assert_equal([copy.cpu().numpy() for copy in copies])


def second_stream(machine: Machine) -> str:
    """A tensor that was taken on one stream is used on another one that was recorded."""
    torch = needs("torch")
    side, copies = torch.cuda.Stream(), []
    for batch in machine.on_device():
        x = batch["x"].to_torch()
        batch.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(DELAY)
            copies.append(x.clone())
        del x, batch
    torch.cuda.synchronize()
    return machine.assert_equal([copy.cpu().numpy() for copy in copies])


def prefetch_depth(machine: Machine) -> str:
    """With any number of batches copied ahead, the values are those on the host, and device memory is bounded."""
    torch = needs("torch")
    used = []
    for depth in (1, 4, 16):
        torch.cuda.synchronize()
        before, ds, copies = torch.cuda.mem_get_info()[0], machine.on_device(device_prefetch=depth), []
        for batch in ds:
            copies.append(batch["x"].to_torch().cpu().numpy())
            lowest = torch.cuda.mem_get_info()[0]
            # The batches ahead, the one in use and the one that the loop variable keeps; and buffers are rounded up.
            bound = (depth + 3) * (batch.nbytes + (2 << 20)) + SLACK_BYTES
            assert before - lowest < bound, f"{before - lowest} bytes with {depth} batches ahead, expected less than {bound}"
        machine.assert_equal(copies)
        ds.close()
        used.append(f"{(before - lowest) / 1e6:.0f} MB for {depth}")
    return ", ".join(used)


def pinned_host(machine: Machine) -> str:
    """Batches with `pin_memory` are page-locked, and copies from them that do not block are right."""
    torch = needs("torch")
    copies = []
    for batch in machine.train(pin_memory=True):
        x = batch["x"].to_torch()
        assert x.is_pinned(), "the memory of the batch is not page-locked"
        torch.cuda._sleep(DELAY // 10)
        copies.append(x.to("cuda", non_blocking=True))
        # The memory is reused after the release of the batch.
        torch.cuda.current_stream().synchronize()
    return machine.assert_equal([copy.cpu().numpy() for copy in copies])


def columns_of_all_types(machine: Machine) -> str:
    """Text, nulls, booleans, times and lists of a batch on the device are those of the host."""
    torch = needs("torch")
    for missing in ("nan", "mask", -1):
        options: dict[str, Any] = {"output": "torch", "missing": missing}
        for host, device in zip(machine.typed(**options), machine.typed(**options, device="cuda:0")):
            assert host.keys() == device.keys(), (host.keys(), device.keys())
            for name, expected in host.items():
                found = device[name]
                if not torch.is_tensor(expected):
                    assert found == expected, f"{name} with missing={missing!r}"
                    continue
                assert found.device == torch.device("cuda:0"), f"{name} is on {found.device}"
                if expected.is_nested:
                    pairs = [(found.values(), expected.values()), (found.offsets(), expected.offsets())]
                else:
                    pairs = [(found, expected)]
                for one, other in pairs:
                    assert torch.equal(one.cpu().nan_to_num(-7), other.nan_to_num(-7)), f"{name} with missing={missing!r}"
    return f"{TYPED_ROWS} rows"


def ragged_lists(machine: Machine) -> str:
    """Items and offsets of lists are views on the device, also for work that starts long after the batch was dropped."""
    torch = needs("torch")
    copies, expected = [], []
    for batch in machine.typed(device="cuda:0"):
        torch.cuda._sleep(DELAY)
        items, offsets = batch["items"].ragged()
        copies.append((items.to_torch().clone(), offsets.to_torch().clone()))
        del batch, items, offsets
    for batch in machine.typed():
        expected.append([part.to_numpy() for part in batch["items"].ragged()])
    for found, parts in zip(copies, expected):
        for one, other in zip(found, parts):
            assert np.array_equal(one.cpu().numpy(), other)
    return f"{len(copies)} batches"


def jax_types(machine: Machine) -> str:
    """JAX has the columns of all types, and its arrays are on the device."""
    jax = needs("jax")
    if jax.default_backend() != "gpu":
        raise Skipped("this JAX has no GPU support")
    for host, device in zip(machine.typed(), machine.typed(device="cuda:0")):
        for name in host.keys():
            found, expected = device[name].to_jax(missing=0), host[name].to_numpy(missing=0)
            if isinstance(found, jax.Array):
                assert {each.platform for each in found.devices()} == {"gpu"}, name
            if isinstance(expected, list):
                same = all(np.array_equal(one, other) for one, other in zip(found, expected))
                assert same and len(found) == len(expected), name
            else:
                # Without 64-bit types, JAX truncates.
                assert np.array_equal(np.asarray(found), expected.astype(np.asarray(found).dtype)), name
    return f"{TYPED_ROWS} rows"


def many_released(machine: Machine) -> str:
    """Device memory stays bounded if the memory of every batch has to be freed, because its streams are unknown."""
    torch = needs("torch")
    torch.cuda.synchronize()
    before, lowest, size = torch.cuda.mem_get_info()[0], None, 0
    for batch in machine.on_device().epochs(3):
        # -1: the consumer names no stream, so that the memory is not used again.
        batch["x"].__dlpack__(stream=-1)
        size = batch.nbytes
        free = torch.cuda.mem_get_info()[0]
        lowest = free if lowest is None else min(lowest, free)
    bound = (32 + 4) * (size + (2 << 20)) + SLACK_BYTES
    assert lowest is not None and before - lowest < bound, f"{before - lowest} bytes, expected less than {bound}"
    return f"{(before - lowest) / 1e6:.0f} MB"


def graph_capture(machine: Machine) -> str:
    """A graph is captured while batches are received and dropped, and a batch in a capture is refused."""
    torch = needs("torch")
    weight, static = torch.ones(COLUMNS, 1, device="cuda"), torch.zeros(BATCH, COLUMNS, device="cuda")
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            # Held batches need new memory, and dropping them frees it.
            held = [batch for _, batch in zip(range(6), machine.on_device())]
            del held

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(50):
                    result = static @ weight
            graph.replay()
        batch = next(iter(machine.on_device()))
        refused = None
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                batch["x"].to_torch()
        except forebay.errors.DeviceError as error:
            refused = error
        assert refused is not None and "captures a graph" in str(refused), refused
    finally:
        done.set()
        reader.join()
    torch.cuda.synchronize()
    assert not result.any()
    return "20 captures"


def held_batches(machine: Machine) -> str:
    """Batches that the loop keeps stay unchanged, and dropping them does not wait for the device."""
    torch = needs("torch")
    held = [batch for _, batch in zip(range(10), machine.on_device())]
    found = [batch["x"].to_torch().cpu().numpy() for batch in held]
    torch.cuda._sleep(20 * DELAY)
    started_at = time.perf_counter()
    held.clear()
    seconds = time.perf_counter() - started_at
    machine.assert_equal(found, 10)
    assert seconds < 0.2, f"dropping 10 batches took {seconds:.3f} s"
    torch.cuda.synchronize()
    return f"dropped in {seconds * 1e3:.1f} ms"


def jax_in_a_busy_queue(machine: Machine) -> str:
    """JAX reads the values of its batch behind long work, although it releases the batch at once."""
    jax = needs("jax")
    if jax.default_backend() != "gpu":
        raise Skipped("this JAX has no GPU support")
    big = jax.numpy.ones((8192, 8192))
    busy, copy, copies = jax.jit(lambda big: big @ big), jax.jit(lambda x: x + 0), []
    for batch in machine.on_device():
        busy(big)
        copies.append(copy(batch["x"].to_jax()))
        del batch
    return machine.assert_equal([np.asarray(each) for each in copies])


def cupy_stream_destroyed(machine: Machine) -> str:
    """The stream of a consumer may be destroyed once the tensor and the batch are released, also before its work has ended."""
    cupy = needs("cupy")
    work, copies = cupy.ones((4096, 4096), cupy.float32), []
    for batch in machine.on_device():
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.from_dlpack(batch["x"])
            for _ in range(10):
                work @ work
            copies.append(x.copy())
        del x, batch
        gc.collect()
        del stream
    cupy.cuda.Device().synchronize()
    return machine.assert_equal([copy.get() for copy in copies])


def memory(machine: Machine) -> str:
    """Fifty epochs take no more device memory than five."""
    torch = needs("torch")

    def free_after(epochs: int) -> int:
        for batch in machine.on_device().epochs(epochs):
            batch["x"].to_torch()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    few, many = free_after(5), free_after(45)
    assert many > few - SLACK_BYTES, f"{few - many} bytes were lost in 45 epochs"
    return f"{(few - many) / 1e6:.0f} MB"


def copy_rate(machine: Machine) -> str:
    """The rate of batches on the device, compared to copies from pinned memory. A measurement."""
    torch = needs("torch")
    pinned = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(pinned, device="cuda")

    def plain() -> float:
        torch.cuda.synchronize()
        started_at = time.perf_counter()
        for _ in range(8):
            target.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        return 8 * pinned.nbytes / (time.perf_counter() - started_at) / 1e9

    def streamed() -> float:
        ds, read, started_at = machine.on_device(), 0, 0.0
        for batch in ds.epochs(6):
            if batch.epoch == 1 and not started_at:
                torch.cuda.synchronize()
                started_at = time.perf_counter()
            if started_at:
                read += batch.nbytes
            batch["x"].to_torch()
        torch.cuda.synchronize()
        return read / (time.perf_counter() - started_at) / 1e9

    turns = [(plain(), streamed()) for _ in range(5)]
    copies, batches = (float(np.median(rates)) for rates in zip(*turns))
    return f"{batches:.1f} GB/s, a plain copy {copies:.1f} GB/s"


def sanitizer(machine: Machine) -> str:
    """compute-sanitizer finds no invalid access."""
    found = shutil.which("compute-sanitizer")
    if found is None:
        raise Skipped("compute-sanitizer is not installed")
    command = [found, "--error-exitcode", "9", sys.executable, __file__, "--only", "values", "held_batches"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return "0 errors"


CHECKS: list[Callable[[Machine], str]] = [
    values,
    late_consumer,
    second_stream,
    prefetch_depth,
    pinned_host,
    columns_of_all_types,
    ragged_lists,
    jax_types,
    many_released,
    graph_capture,
    held_batches,
    jax_in_a_busy_queue,
    cupy_stream_destroyed,
    memory,
    copy_rate,
    sanitizer,
]


@contextmanager
def server() -> Iterator[forebay.Client]:
    """Yields a client of a server over generated data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        columns = {f"c{number}": random.random(ROWS, np.float32) for number in range(COLUMNS)}
        pq.write_table(pa.table(columns), Path(folder, "data.parquet"))
        rows = range(TYPED_ROWS)
        types = {
            "n": rows,
            "text": [None if row % 7 == 0 else f"row {row}" for row in rows],
            "holes": [None if row % 3 == 0 else row for row in rows],
            "flag": [row % 2 == 0 for row in rows],
            "time": pa.array(rows, pa.timestamp("ms")),
            "items": pa.array([[float(row)] * (row % 5) for row in rows], pa.list_(pa.float32())),
            "gaps": pa.array([None if row % 4 == 0 else [row] * (row % 3) for row in rows], pa.list_(pa.int64())),
        }
        pq.write_table(pa.table(types), Path(folder, "types.parquet"))
        command = [binary(), "serve", "--cache-dir", f"{folder}/cache"]
        command += ["--dataset", f"data={folder}/data.parquet", "--dataset", f"types={folder}/types.parquet"]
        command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            yield forebay.connect(f"grpc://{json.loads(process.stdout.readline())['grpc']}")
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [check.__name__ for check in CHECKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="names of checks (default: all)")
    options = parser.parse_args()
    failed = 0
    with server() as client:
        try:
            next(iter(client.train("data", batch_size=1, tensors=TENSOR, device="cuda:0")))
        except forebay.errors.DeviceError as error:
            print(f"skipped: {error}")
            return 0
        machine = Machine(client)
        for check in CHECKS:
            if check.__name__ not in options.only:
                continue
            started_at = time.perf_counter()
            try:
                outcome = f"passed   {check(machine)}"
            except Skipped as reason:
                outcome = f"skipped  {reason}"
            except Exception as error:
                failed += 1
                traceback.print_exc()
                outcome = f"FAILED   {error}"
            print(f"{check.__name__:<22} {time.perf_counter() - started_at:6.1f} s  {outcome}", flush=True)
    print(f"{failed} checks failed" if failed else "no check failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
