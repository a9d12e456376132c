"""Callers that look up features by key: `lookups.py forebay|package|redis|feast URL`, then the protocol of lines.py.

`lookups.py fill URL PATH` writes the features to Redis, and `lookups.py fill-feast FOLDER PATH` to Feast.

A run has the number of keys per request, a duration, and optionally a rate of requests per second. Without a rate, a request is
sent after the previous answer. The result of each request is a float32 matrix of `[keys, 39]`.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Callable

import numpy as np

from lines import answer_all, say

WIDTH = 39
# Number of users in Feast. Writing two thousand takes a second.
FEAST_USERS = 20_000
TENSOR = {"name": "x", "columns": ["f*"], "dtype": "float32"}


def through_pyarrow(url: str) -> Callable[[np.ndarray], np.ndarray]:
    import pyarrow as pa
    import pyarrow.flight as flight

    request = {"lookup": {"dataset": "users", "tensors": [TENSOR]}}
    client = flight.connect(url.replace("http:", "grpc:"))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(json.dumps(request).encode()))
    writer.begin(pa.schema([("id", pa.int64())]))
    kept = client, writer

    def ask(keys: np.ndarray) -> np.ndarray:
        kept[1].write_batch(pa.record_batch({"id": keys}))
        rows = reader.read_chunk().data
        return rows["x"].flatten().to_numpy().reshape(-1, WIDTH)

    return ask


def through_package(url: str) -> Callable[[np.ndarray], np.ndarray]:
    import forebay

    client = forebay.connect(url.replace("http:", "grpc:"))
    return lambda keys: client.lookup("users", {"id": keys}, tensors=[TENSOR])["x"].to_numpy()


def through_redis(url: str) -> Callable[[np.ndarray], np.ndarray]:
    import redis

    client = redis.Redis.from_url(url)
    return lambda keys: np.frombuffer(b"".join(client.mget(keys.tolist())), np.float32).reshape(-1, WIDTH)


def through_feast(folder: str) -> Callable[[np.ndarray], np.ndarray]:
    from feast import FeatureStore

    store = FeatureStore(repo_path=folder)
    names = [f"f{number:03}" for number in range(WIDTH)]

    def ask(keys: np.ndarray) -> np.ndarray:
        entities = [{"id": int(key) % FEAST_USERS} for key in keys]
        answer = store.get_online_features(features=[f"users:{name}" for name in names], entity_rows=entities).to_dict()
        return np.stack([np.asarray(answer[name], np.float32) for name in names], 1)

    return ask


def fill_feast(folder: str, path: str) -> None:
    """Creates a feature store with SQLite as online store, like `feast init`, with a part of the users."""
    import pandas as pd
    import pyarrow.parquet as pq
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
    from feast.types import Float32

    config = "project: users\nprovider: local\nregistry: registry.db\nonline_store:\n  type: sqlite\n  path: online.db\n"
    (Path(folder) / "feature_store.yaml").write_text(config + "entity_key_serialization_version: 3\n")
    files = (pq.read_table(file).to_pandas() for file in sorted(Path(path).glob("*.parquet")))
    users = pd.concat([table[table["id"] < FEAST_USERS] for table in files])
    users["at"] = pd.Timestamp.now(tz="UTC")
    users.to_parquet(Path(folder) / "users.parquet")
    store = FeatureStore(repo_path=folder)
    user = Entity(name="user", join_keys=["id"], value_type=ValueType.INT64)
    source = FileSource(path=str(Path(folder) / "users.parquet"), timestamp_field="at")
    schema = [Field(name=f"f{number:03}", dtype=Float32) for number in range(WIDTH)]
    store.apply([user, FeatureView(name="users", entities=[user], schema=schema, source=source)])
    store.write_to_online_store("users", users)
    say({"ready": True})


def fill(url: str, path: str) -> None:
    """Writes the packed features of all users to Redis."""
    import pyarrow.parquet as pq
    import redis

    client = redis.Redis.from_url(url)
    for file in sorted(Path(path).glob("*.parquet")):
        table = pq.read_table(file)
        columns = [name for name in table.column_names if name.startswith("f")]
        packed = np.stack([table[name].to_numpy() for name in columns], 1)
        assert packed.shape[1] == WIDTH and packed.dtype == np.float32
        ids = table["id"].to_numpy()
        for start in range(0, len(ids), 20_000):
            rows = packed[start : start + 20_000]
            client.mset({int(id): row.tobytes() for id, row in zip(ids[start : start + 20_000], rows)})
    say({"ready": True})


def run(ask: Callable[[np.ndarray], np.ndarray], count: int, seconds: float, rate: float | None, users: int, seed: int) -> dict:
    """Performs one run. Latencies are measured from the due time of a request."""
    rng = np.random.default_rng(seed)
    batches = rng.integers(0, users, (512, count))
    latencies, began, due, sum = [], time.perf_counter(), time.perf_counter(), 0.0
    while time.perf_counter() - began < seconds:
        if rate:
            due += rng.exponential(1 / rate)
            time.sleep(max(0, due - time.perf_counter()))
        else:
            due = time.perf_counter()
        rows = ask(batches[len(latencies) % 512])
        assert rows.shape == (count, WIDTH)
        sum += float(rows[0, 0])  # Reads the data, so that they have been received.
        latencies.append(time.perf_counter() - due)
    took = time.perf_counter() - began
    return {"requests": len(latencies), "seconds": took, "latencies": latencies}


def main() -> None:
    method, url = sys.argv[1:3]
    if method in ("fill", "fill-feast"):
        return {"fill": fill, "fill-feast": fill_feast}[method](url, sys.argv[3])
    methods = {"forebay": through_pyarrow, "package": through_package, "redis": through_redis, "feast": through_feast}
    ask = methods[method](url)
    ask(np.zeros(1, np.int64))
    answer_all(partial(run, ask))


if __name__ == "__main__":
    main()
