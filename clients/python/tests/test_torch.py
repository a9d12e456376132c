"""Training datasets with PyTorch, on real data."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch", reason="torch is not in this environment; the other one has it")

import forebay  # noqa: E402
from server import Pool  # noqa: E402

FEATURES = {"x": {"columns": ["distance", "delay"], "dtype": "float32"}}


def dataset(client: forebay.Client, **options) -> forebay.TrainingDataset:
    return client.train("flights", **{"batch_size": 30_000, "tensors": FEATURES, "seed": 1, **options})


def test_a_data_loader_accepts_a_dataset(client: forebay.Client) -> None:
    loader = torch.utils.data.DataLoader(dataset(client, output="torch"), batch_size=None, num_workers=0)
    assert len(loader) == 100
    rows = 0
    for batch in loader:
        assert batch["x"].dtype == torch.float32
        rows += len(batch["x"])
    assert rows == 3_000_000


def test_a_column_of_lists_is_a_jagged_nested_tensor(pool: Pool, tmp_path: Path) -> None:
    rows = [list(range(row % 5)) for row in range(100)]
    pq.write_table(pa.table({"items": rows, "n": range(100)}), tmp_path / "lists.parquet")
    client = forebay.connect(pool.start({"lists": tmp_path / "lists.parquet"}).location)
    ds = client.train("lists", batch_size=100, seed=3, output="torch")
    if not hasattr(torch.nested, "nested_tensor_from_jagged"):
        with pytest.raises(forebay.errors.RequestError, match=r"items of 100 .* jagged tensors require PyTorch 2.4.*ragged\(\)"):
            next(iter(ds))
        pytest.skip(f"PyTorch {torch.__version__} has no jagged tensors")
    batch = next(iter(ds))
    assert [row.tolist() for row in batch["items"].unbind()] == [rows[n] for n in batch["n"].tolist()]
    assert batch["items"].is_nested and batch["items"].layout == torch.jagged


@pytest.mark.timeout(900)
def test_ranks_agree_through_the_store_of_torch_distributed(flights_server) -> None:
    context = multiprocessing.get_context("spawn")
    for seeds, expected in (((1, 1), ["read", "read"]), ((1, 2), ["disagreed", "disagreed"])):
        # The store chooses a free port itself. It is ready before the ranks start.
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        queue = context.Queue()
        ranks = [
            context.Process(target=one_rank, args=(flights_server.location, rank, seeds, store.port, queue)) for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        # However long the processes take, each of them ends. One that fails ends the other one.
        multiprocessing.connection.wait([rank.sentinel for rank in ranks])
        for rank in ranks:
            if any(other.exitcode for other in ranks):
                rank.terminate()
            rank.join()
        assert [rank.exitcode for rank in ranks] == [0, 0]
        assert [queue.get() for _ in ranks] == expected


def one_rank(url: str, rank: int, seeds: tuple[int, int], port: int, queue: multiprocessing.Queue) -> None:
    import torch.distributed

    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    ds = dataset(forebay.connect(url), seed=seeds[rank])
    try:
        next(iter(ds))
        what = "read"
    except forebay.errors.RankMismatchError:
        what = "disagreed"
    queue.put(what)
    # The process ends after the queue has sent this.
    torch.distributed.barrier()


def test_tensors_are_copied_to_the_given_device(client: forebay.Client) -> None:
    batch = next(iter(dataset(client)))
    assert batch.to_torch("cpu")["x"].device.type == "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    assert batch.to_torch("cuda")["x"].device.type == "cuda"
