"""Migration from a PyTorch DataLoader with pyarrow: before and after, on the same file.

    python from_dataloader.py flights-3m.parquet grpc://127.0.0.1:8815
"""

import sys

import pyarrow.parquet as pq
import torch

import forebay


class Rows(torch.utils.data.IterableDataset):
    """Before: each worker reads, decodes and shuffles its own row groups. The order depends on the number of workers."""

    def __init__(self, path, columns, batch_size, seed):
        self.path, self.columns, self.batch_size, self.seed = path, columns, batch_size, seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        file = pq.ParquetFile(self.path)
        order = torch.Generator().manual_seed(self.seed)
        for group in range(number, file.num_row_groups, workers):
            table = file.read_row_group(group, columns=self.columns)
            rows = torch.stack([torch.tensor(column.to_numpy()).float() for column in table.columns], dim=1)
            rows = rows[torch.randperm(len(rows), generator=order)]
            yield from rows.split(self.batch_size)


def main() -> None:
    path, url = sys.argv[1:]
    before = torch.utils.data.DataLoader(Rows(path, ["delay", "distance"], 16_384, seed=7), batch_size=None)

    tensors = {"x": {"columns": ["delay", "distance"], "dtype": "float32"}}
    ds = forebay.connect(url).train("flights", batch_size=16_384, seed=7, tensors=tensors, output="torch")
    after = torch.utils.data.DataLoader(ds, batch_size=None)

    def sums(loader, of):
        return sum(of(batch).double().sum(dim=0) for batch in loader)

    old, new = sums(forebay.profile(before), lambda batch: batch), sums(forebay.profile(after), lambda batch: batch["x"])
    assert torch.equal(old, new), "each row once, before and after"
    print("the same rows, each once")


if __name__ == "__main__":
    main()
