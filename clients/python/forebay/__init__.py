"""Deterministic, resumable training batches from Parquet, served by Forebay.

    import forebay

    ds = forebay.connect("grpc://127.0.0.1:8815").train("flights", batch_size=4096, tensors={"x": ["delay", "distance"]})
    for batch in ds:                 # one epoch; the next loop is the next epoch
        x = batch["x"].to_torch()    # [rows, 2], the memory that was received, no copy

    rows = forebay.connect("grpc://127.0.0.1:8815").lookup("users", {"user_id": [7, 42]})

`connect` names the servers, `Client.train` what is wanted, `Training` is the iterable that comes of it, `Batch` and
`Column` are what it yields. `Training.state_dict()` is all that a checkpoint needs.
`Client.lookup` gives rows by their keys, `Client.infer` asks a model, and `Client.serve` is the loop of one.
"""

from __future__ import annotations

from forebay import errors
from forebay.batch import Batch, Column
from forebay.client import Client, connect
from forebay.errors import Error, Refused
from forebay.online import Rows, Work
from forebay.profiling import profile
from forebay.training import Training

__all__ = [
    "Batch",
    "Client",
    "Column",
    "Error",
    "Refused",
    "Rows",
    "Training",
    "Work",
    "connect",
    "errors",
    "profile",
]
__version__ = "0.1.0"
