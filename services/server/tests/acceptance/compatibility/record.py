"""Records the artefacts of a server of an earlier commit: its cache directory, tickets, states and the hashes of batches.

    record.py BINARY PROTO_DIR PACKAGE_DIR OUT

Run once with the binary, the protocol definition and the Python package of that commit. `test_compatibility.py` replays
the result against the current server. Field names in this file are those of the recorded commit.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

binary, protos, package, out = (Path(argument).resolve() for argument in sys.argv[1:])
ROWS, GROUP_ROWS, FILES = 600, 150, 3
# A fixed modification time, because snapshots contain it.
MTIME_NS = 1_750_000_000_123_456_789


def write_data(folder: Path) -> None:
    rng = np.random.default_rng(7)
    for dataset, files in (("events", FILES), ("other", 1)):
        (folder / dataset).mkdir(parents=True)
        for number in range(files):
            first = number * ROWS
            ids = np.arange(first, first + ROWS, dtype=np.int64)
            values = rng.normal(size=ROWS).round(3)
            table = pa.table(
                {
                    "id": ids,
                    "k": (ids // 7).astype(np.int32),
                    'odd "k"\\\n\u00e9\u0301': (ids // 35).astype(np.int32),
                    "v": pa.array(values, mask=rng.random(ROWS) < 0.1),
                    "w": rng.integers(0, 100, ROWS).astype(np.float32),
                    "s": pa.array([f"text {value % 13} 'quoted' \u00e9" for value in ids]),
                    "l": pa.array([list(range(value % 5)) for value in ids.tolist()], pa.list_(pa.int32())),
                }
            )
            path = folder / dataset / f"part-{number}.parquet"
            pq.write_table(table, path, row_group_size=GROUP_ROWS, compression="zstd")
            os.utime(path, ns=(MTIME_NS, MTIME_NS))


DENSE = [{"name": "x", "columns": ["w", "v"], "dtype": "float32", "fill": -1.5}]
REQUESTS = {
    "default": {},
    "window": {"columns": ["id", "v", "s"], "shuffle": {"window_rows": 400}, "seed": 3},
    "window in order": {"columns": ["id"], "tensors": DENSE, "shuffle": {"window_rows": 400, "in_order": True}, "seed": 4},
    "global": {"columns": ["id"], "shuffle": {"global": {}}, "seed": 18446744073709551615, "world_size": 2},
    "file order": {"columns": ["id", "l"], "shuffle": {"none": {}}, "lanes": 2},
    "filter": {"columns": ["id"], "filter": "w > 40 AND s <> 'text 3'", "shuffle": {"window_rows": 500}},
    "filter of folders": {"columns": ["id"], "filter": "id >= 1200"},
    "odd filter": {
        "columns": ["id"],
        "filter": "w > 10 AND s <> 'it''s \"odd\" \\ \t\n\r \u0000 e\u0301 \u200b \u2028 \U0001f600 \ue000 \u00ad'",
    },
    "groups": {"columns": ["id", "k"], "group_by": ["k"], "batch_size": 5, "shuffle": {"window_rows": 500}},
    "groups of an odd name": {"columns": ["id"], "group_by": ['odd "k"\\\n\u00e9\u0301', "k"], "batch_size": 5, "filter": "w < 90"},
    "packs": {
        "columns": ["id"], "tensors": DENSE, "group_by": ["k"], "batch_rows": 60, "batch_size": 2, "world_size": 2,
        "remainder": "PAD", "shuffle": {"window_rows": 500},
    },
    "computed": {"select": ["log1p(w) AS y", "id", "coalesce(v, 0.5) * 2 AS z"], "filter": "log1p(w) > 1", "seed": 9},
    "lists": {
        "columns": ["id"],
        "tensors": [
            {"name": "padded", "columns": ["l"], "dtype": "int32", "max_len": 3, "fill": -1},
            {"name": "ragged", "columns": ["l"], "dtype": "int32", "ragged": True},
        ],
    },
    "dedupe": {"columns": ["id"], "dedupe": [{"key": ["k"], "tensor": "t", "columns": ["w", "v"], "dtype": "float32", "fill": 0}]},
    "mixture": {"columns": ["id"], "mix": [{"dataset": "other", "share": 0.25, "filter": "w > 20"}], "batch_size": 40, "seed": 5},
    "drop": {"columns": ["id"], "world_size": 3, "remainder": "DROP", "hash": True, "label": "w", "epochs": 2},
}


class Server:
    def __init__(self, folder: Path, data: Path) -> None:
        config = folder / "forebay.toml"
        config.write_text('[loader]\ndisk_writes = "always"\n')
        self.ready = (folder / "ready").open("w+")
        command = [binary, "serve", "--config", config, "--cache-dir", folder / "cache", "--cache-disk", "64MiB", "--cache-memory", "64MiB"]
        command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--online", "other=id"]
        command += [word for name in ("events", "other") for word in ("--dataset", f"{name}={data / name}")]
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.ready)
        while not (text := Path(self.ready.name).read_text()).endswith("\n"):
            time.sleep(0.05)
        self.address = "grpc://" + json.loads(text)["grpc"]
        http = json.loads(text)["http"]
        while True:
            try:
                if urllib.request.urlopen(f"http://{http.removeprefix('http://')}/readyz").status == 200:
                    break
            except OSError:
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main() -> None:
    shutil.rmtree(out, ignore_errors=True)
    write_data(out / "data")
    with tempfile.TemporaryDirectory() as folder:
        files = ["forebay/v1/command.proto", "forebay/v1/metadata.proto"]
        sys.path.insert(0, str(package))
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

        described = Path(folder) / "described"
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--descriptor_set_out={described}", *files], check=True)
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file:
            pool.Add(file)
        Command = message_factory.GetMessageClass(pool.FindMessageTypeByName("forebay.v1.Command"))
        import forebay

        server = Server(Path(folder), out / "data")
        atexit.register(server.process.kill)
        client = flight.connect(server.address)
        recorded = {}
        for name, more in REQUESTS.items():
            print(name, flush=True)
            request = {"dataset": "events", "batch_size": 64, "job": f"job {name}", **more}
            info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"train": request})))
            summary = json.loads(info.app_metadata)
            binary_command = json_format.ParseDict({"train": request}, Command()).SerializeToString()
            same = client.get_flight_info(flight.FlightDescriptor.for_command(binary_command))
            streams = []
            for in_json, in_protobuf in zip(info.endpoints, same.endpoints):
                hashes = [str(json.loads(chunk.app_metadata.to_pybytes())["hash"]) for chunk in client.do_get(in_json.ticket)]
                streams.append(
                    {"json": in_json.ticket.ticket.decode(), "protobuf": in_protobuf.ticket.ticket.hex(), "hashes": hashes}
                )
            training = {key: value for key, value in request.items() if key not in ("dataset", "hash")}
            training["tensors"] = {tensor.pop("name"): tensor for tensor in json.loads(json.dumps(request.get("tensors", [])))}
            training["mix"] = {mixed.pop("dataset"): mixed for mixed in json.loads(json.dumps(request.get("mix", [])))}
            training.setdefault("world_size", 1)
            training = {key: value for key, value in training.items() if value not in ([], {})}
            dataset = forebay.connect(server.address, report=False).train("events", rank=0, **training)
            iterator = iter(dataset)
            for _ in range(2):
                next(iterator)
            state = dataset.state_dict()
            iterator.close()
            recorded[name] = {"request": request, "training": training, "summary": summary, "streams": streams, "state": state}
        answer = client.do_action(flight.Action("count", json.dumps({"train": {"dataset": "events", "batch_size": 64, **REQUESTS["filter"]}}).encode()))
        recorded["filter"]["count"] = json.loads([part.body.to_pybytes() for part in answer][-1])
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"lookup": {"dataset": "other", "columns": ["s"]}}))
        writer, reader = client.do_exchange(descriptor)
        keys = pa.record_batch({"id": pa.array([5, 1, 10_000], pa.int64())})
        writer.begin(keys.schema)
        writer.write_batch(keys)
        writer.done_writing()
        rows = reader.read_all()
        server.stop()
        (out / "recorded.json").write_text(
            json.dumps({"mtime_ns": MTIME_NS, "requests": recorded, "lookup": rows.to_pydict()}, indent=1, ensure_ascii=True) + "\n"
        )
        shutil.copytree(Path(folder) / "cache", out / "cache")


main()
