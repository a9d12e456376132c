"""Deterministic, resumable training batches from Parquet, served by Forebay.

    import forebay

    flights = forebay.open("flights.parquet")    # starts a server, shared by the processes of this host
    ds = flights.train(batch_size=4096, tensors={"x": ["delay", "distance"]})
    for batch in ds:                 # one epoch; the next iteration is the next epoch
        x = batch["x"].to_torch()    # [rows, 2], a view of the received memory

    rows = forebay.connect("grpc://127.0.0.1:8815").lookup("users", {"user_id": [7, 42]})

`open` returns a `Dataset`, and `connect` the `Client` of a cluster. `Client.train` returns a `TrainingDataset`, an iterable
of `Batch` with one `Column` per column or tensor. `TrainingDataset.state_dict` returns the state for a checkpoint. `Client.lookup` returns rows by key, `Client.infer`
requests predictions from a batch queue, and `Client.worker` iterates over the batches that a model has to compute.
"""

from __future__ import annotations

from forebay import errors
from forebay.batch import Batch
from forebay.batch_dict import BatchDict
from forebay.client import Client, connect
from forebay.column import Column
from forebay.dataset import Dataset, open
from forebay.dataset_info import DatasetInfo
from forebay.errors import Error, RequestRejectedError
from forebay.mapped import MappedDataset
from forebay.online import InferenceBatch, Rows
from forebay.profiling import profile
from forebay.splitting import split
from forebay.training import TrainingDataset
from forebay.version import __version__

__all__ = [
    "Batch",
    "BatchDict",
    "Client",
    "Column",
    "Dataset",
    "DatasetInfo",
    "Error",
    "InferenceBatch",
    "MappedDataset",
    "RequestRejectedError",
    "Rows",
    "TrainingDataset",
    "connect",
    "errors",
    "open",
    "profile",
    "split",
]
