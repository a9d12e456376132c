"""Batches without this package: any Arrow Flight client, here pyarrow, receives the same batches.

    python plain_pyarrow.py grpc://127.0.0.1:8815
"""

import json
import sys

import pyarrow.flight as flight

client = flight.connect(sys.argv[1])
request = {"train": {"dataset": "flights", "columns": ["delay", "distance"], "batch_size": 65536, "seed": 7}}
rows = 0
for chunk in client.do_get(flight.Ticket(json.dumps(request))):
    meta = json.loads(chunk.app_metadata.to_pybytes())
    assert int(meta["rows"]) == chunk.data.num_rows
    rows += chunk.data.num_rows
print(f"{rows} rows")
