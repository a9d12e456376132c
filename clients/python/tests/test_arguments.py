"""Arguments as people write them are accepted, and what cannot be accepted is an error that names the argument."""

from __future__ import annotations

import inspect
import json
import logging
import os
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.dataset import _absolute
from server import Pool, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("arguments")
    pq.write_table(pa.table({"n": range(10), "label": [row % 2 for row in range(10)], "text": list("abcdefghij")}), folder / "rows.parquet")
    pool = Pool(folder)
    yield pool.start({"rows": folder / "rows.parquet"})
    pool.close()


@pytest.fixture
def client(server: Server) -> forebay.Client:
    return forebay.connect(server.location)


def order(client: forebay.Client, **options: Any) -> list[int]:
    return [row for batch in client.train("rows", **{"batch_size": 4, "columns": ["n"], **options}) for row in batch["n"].to_list()]


@pytest.mark.parametrize(
    ("shuffle", "mode"),
    [(True, None), (False, {"none": {}}), (np.bool_(False), {"none": {}}), (4, {"window_rows": 4}), (np.int64(4), {"window_rows": np.int32(4)})],
)
def test_shuffle_is_a_truth_value_or_a_number_of_rows(client: forebay.Client, shuffle: Any, mode: Any) -> None:
    assert order(client, shuffle=shuffle, seed=3) == order(client, shuffle=mode, seed=3)
    if shuffle is False:
        assert order(client, shuffle=shuffle) == list(range(10))


@pytest.mark.parametrize("shuffle", ["none", "global", 0, -5, 1.5, [1]])
def test_another_shuffle_is_an_error_that_names_it(client: forebay.Client, shuffle: Any) -> None:
    with pytest.raises(forebay.errors.RequestError, match=r"shuffle is .*, expected True, False, a number of rows.*'global': {}"):
        client.train("rows", batch_size=1, shuffle=shuffle)


@pytest.mark.parametrize("remainder", ["drop", "keep", "", True, 2, ["DROP"]])
def test_another_remainder_is_an_error_that_names_the_values(client: forebay.Client, remainder: Any) -> None:
    with pytest.raises(forebay.errors.RequestError, match=r"remainder is .*, expected 'SHORT', 'DROP' or 'PAD'"):
        client.train("rows", batch_size=4, remainder=remainder)
    assert [len(order(client, remainder=each)) for each in (None, "SHORT", "DROP")] == [10, 10, 8]


def test_numbers_of_numpy_no_seed_and_a_single_column_are_accepted(client: forebay.Client) -> None:
    expected = order(client, seed=0)
    assert order(client, seed=None) == order(client, seed=np.int64(0), batch_size=np.int32(4), columns="n") == expected
    rows = client.train("rows", batch_size=2, tensors={"x": {"columns": ["n"], "dtype": "float32", "null_value": np.float32(0)}})
    assert next(iter(rows))["x"].to_numpy().dtype == np.float32
    assert list(next(iter(client.train("rows", batch_size=2, columns="label"))).keys()) == ["label"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 64.0}, "batch_size is 64.0, expected a whole number of at least 1"),
        ({"batch_size": -1}, "batch_size is -1, expected a whole number of at least 1"),
        ({"batch_size": True}, "batch_size is True, expected a whole number"),
        ({"seed": -1}, "seed is -1, expected a whole number of at least 0"),
        ({"epoch": -1}, "epoch is -1"),
        ({"lanes": "2"}, "lanes is '2', expected a whole number"),
        ({"partitions": 1.5}, "partitions is 1.5, expected a whole number"),
        ({"columns": [1]}, "columns has 1, expected strings"),
        ({"select": 3}, "select has 3, expected strings"),
        ({"filter": [("n", ">", 1)]}, r"filter is \[\('n', '>', 1\)\], expected a string"),
        ({"job_name": 3}, "job_name is 3, expected a string"),
        ({"tensors": ["n", "label"]}, r"tensors is \['n', 'label'\], expected a dict of columns by the name of the tensor"),
        ({"tensors": "n"}, "tensors is 'n', expected a dict of columns"),
        ({"tensors": {"x": [1]}}, r"tensors\['x'\] has 1, expected strings"),
    ],
)
def test_an_argument_of_another_type_is_an_error_that_names_it(client: forebay.Client, options: Any, message: str) -> None:
    with pytest.raises(forebay.errors.RequestError, match=message):
        client.train("rows", **{"batch_size": 4, **options})


@pytest.mark.parametrize(("rank", "world_size"), [("0", "2"), (0, 0), (0, 1.0)])
def test_a_rank_of_another_type_is_an_error_that_names_it(client: forebay.Client, rank: Any, world_size: Any) -> None:
    with pytest.raises(ValueError, match=r"(rank is '0'|world_size is (0|1\.0)), expected"):
        client.train("rows", batch_size=4, rank=rank, world_size=world_size)


def test_a_mesh_of_another_type_is_an_error_that_says_what_was_expected(client: forebay.Client) -> None:
    with pytest.raises(ValueError, match="mesh is 3, expected a torch.distributed.device_mesh.DeviceMesh"):
        client.train("rows", batch_size=4, mesh=3)


def test_types_of_numpy_and_pytorch_are_types_of_tensors(client: forebay.Client) -> None:
    types = [np.float32, np.dtype("float32")]
    try:
        import torch
    except ImportError:
        pass
    else:
        types.append(torch.float32)
    for dtype in types:
        batch = next(iter(client.train("rows", batch_size=4, tensors={"x": {"columns": ["n"], "dtype": dtype}})))
        assert batch["x"].to_numpy().dtype == np.float32, dtype


def test_urls_of_another_type_are_errors_that_say_what_is_expected() -> None:
    with pytest.raises(forebay.errors.RequestError, match="a URL is 8815, expected a string"):
        forebay.connect(8815)  # type: ignore[arg-type]
    for url, said in ((pa.table({"a": [1]}), "a Table"), (None, "None"), (["a.parquet"], "a list"), (b"s3://b", "a bytes")):
        with pytest.raises(TypeError, match=f"url is {said}, expected the path or URL of a Parquet file"):
            forebay.open(url)  # type: ignore[arg-type]
    for text in ("file://data", "file://other/data", "file:data"):
        with pytest.raises(forebay.errors.RequestError, match=f"url is '{text}', expected the absolute path of a file on this host"):
            forebay.open(text)
    with pytest.raises(forebay.errors.RequestError, match=r"url is 'file://\(not shown\)@host/x'"):
        forebay.open("file://user:secret@host/x")
    for threads in (0, 1_000_000):
        with pytest.raises(forebay.errors.RequestError, match=f"cpu_threads is {threads}, expected a whole number from 1 to 1024"):
            forebay.open("x.parquet", cpu_threads=threads)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forebay.connect("grpc://h", token=b"S3CR3T"), "token is of type bytes, expected a string"),
        (lambda: forebay.connect("grpc://h", token=["S3CR3T"]), "token is of type list, expected a string"),
        (lambda: forebay.connect("grpc://h", token=Path("S3CR3T")), "token is of type PosixPath, expected a string"),
        (lambda: forebay.connect("grpc://h", token_file=b"S3CR3T"), "token_file is of type bytes, expected a string"),
        (lambda: forebay.connect("grpc://h", key=b"S3CR3T"), "key is of type bytes, expected a string"),
        (lambda: forebay.connect("grpc://h", key="-----BEGIN PRIVATE KEY-----S3CR3T"), "key is the content of a PEM file, expected the path"),
        (lambda: forebay.connect("grpc://h", ca="\ufeff-----BEGIN CERTIFICATE-----S3CR3T"), "ca is the content of a PEM file, expected the path"),
        (lambda: forebay.connect("grpc://h", key="'-----BEGIN PRIVATE KEY-----S3CR3T"), "key is the content of a PEM file, expected the path"),
        (lambda: forebay.connect("grpc://h", key="MIIEvQS3CR3T/x"), "key names no file, and is not shown, .*; expected the path of a PEM file"),
        (lambda: forebay.connect("grpc://h", token_file="S3CR3T"), "token_file names no file, and is not shown, .* token is passed as token="),
        (lambda: forebay.connect("grpc://h:8815", "S3CR3T"), "the URL number 2 is invalid, expected .* grpc://HOST:PORT, .* passed as token="),
        (lambda: forebay.connect("grpc://h:8815", "Bearer S3CR3T"), "the URL number 2 is invalid"),
        (lambda: forebay.connect("h:8815", "user:S3CR3T"), "the URL number 2 is invalid"),
        (lambda: forebay.connect("eyJhbGciOi.J9.S3CR3T"), "the URL is invalid, expected HOST:PORT, .*; it is not shown, because it may be a token"),
        (lambda: forebay.connect(b"grpc://user:S3CR3T@h"), "a URL is of type bytes, expected a string"),
        (lambda: forebay.connect(["grpc://user:S3CR3T@h"]), r"a URL is of type list, expected a string; pass several URLs as connect\(\*urls\)"),
        (lambda: forebay.open(b"s3://user:S3CR3T@b"), "url is a bytes, expected the path or URL"),
        (lambda: forebay.open("x", state=b"s3://user:S3CR3T@b"), "state is a bytes, expected the path or URL"),
        (lambda: forebay.open("x", token=b"S3CR3T"), "token is of type bytes, expected a string"),
    ],
)
def test_an_error_does_not_repeat_what_may_be_secret(call: Any, message: str) -> None:
    with pytest.raises((forebay.errors.RequestError, TypeError), match=message) as raised:
        call()
    assert "S3CR3T" not in str(raised.value)


def test_urls_and_paths_of_files_reach_the_native_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("grpc://h", "grpc+tls://h:1", "unix:/run/x.sock", "grpc+unix:///run/x.sock", "localhost:8815", "[::1]:8815", "10.0.0.1:8815", "a-b.example:8815"):
        assert repr(forebay.connect(url)) == f"<forebay.Client of {url}>"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret")
    for path in ("token", "./absent", "/etc/absent", Path("absent")):
        assert forebay.connect("grpc://h", token_file=path) is not None


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("s3://b/Rows", "s3://b/Rows"),
        (" \t\n S3://B/my rows \n", "s3://B/my rows"),
        ("\x1f\u00a0Https://h/a%20b", "https://h/a%20b"),
        ("AZ:/c/x ", "az:/c/x"),
        (" FILE:///data/a ", "/data/a "),
        ("file:///data/a\tb", "/data/a\tb"),
        ("/data/ a ", "/data/ a "),
        (" /data", os.path.join(os.getcwd(), " /data")),
    ],
)
def test_a_url_has_one_form(url: str, normal: str) -> None:
    assert _absolute("url", url) == normal


def test_a_url_with_a_control_character_is_an_error_that_does_not_repeat_it() -> None:
    for url in ("s3\t://b/S3CR3T", "s3:\n//b/S3CR3T", "s3://b/S3CR3T\tx", "https://h/\x00S3CR3T"):
        with pytest.raises(forebay.errors.RequestError) as raised:
            _absolute("url", url)
        assert "url has a control character" in str(raised.value) and "S3CR3T" not in str(raised.value)


def test_a_window_of_one_row_is_logged(client: forebay.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forebay"):
        client.train("rows", batch_size=4, shuffle=True)
        client.train("rows", batch_size=4, shuffle=2)
        assert not caplog.records
        client.train("rows", batch_size=4, shuffle=1)
    assert "shuffle is 1: each window has one block" in caplog.text


def test_a_state_may_have_numbers_of_numpy_and_a_batch_completes_its_columns(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4)
    ds.load_state_dict({**ds.state_dict(), "epoch": np.int64(1), "step": np.int32(2)})
    assert (ds.epoch, ds.step) == (1, 2) and type(ds.step) is int
    batch = next(iter(ds))
    assert batch._ipython_key_completions_() == batch.keys()


def test_a_dataset_says_how_to_iterate_and_which_argument_is_meant() -> None:
    ds = forebay.Dataset(object(), "name", "/data", [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"iterate over its batches with \.train\(batch_size="):
        list(ds)
    for options, hint in (
        ({"drop_last": True}, r"'drop_last'; use remainder='DROP'"),
        ({"num_workers": 4}, r"'num_workers'; .*\.map"),
        ({"collate_fn": list}, r"'collate_fn'; .*tensors="),
        ({"persistent_workers": True}, r"'persistent_workers'; .*\.map"),
        ({"prefetch_factor": 2}, r"'prefetch_factor'; .*prefetch_batches="),
        ({"cur_shard": 0}, r"'cur_shard'; use rank= and world_size="),
        ({"schema_fields": ["n"]}, r"'schema_fields'; use columns="),
        ({"predicate": "n > 1"}, r"'predicate'; use filter="),
        ({"batchsize": 4}, r"'batchsize', did you mean 'batch_size'\?"),
        ({"qqq": 4}, r"'qqq'$"),
    ):
        with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument " + hint):
            ds.train(**options)
        with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument " + hint):
            forebay.connect("grpc://h").train("rows", **options)
    for call in (ds.train, ds.eval, lambda size: forebay.connect("grpc://h").train("rows", size)):
        with pytest.raises(TypeError, match=r"\(\) got 64 without a name, expected a keyword argument, such as batch_size=64"):
            call(64)
    with pytest.raises(TypeError, match=r"a Dataset has no rows by position; use \.train\(batch_size=.*in a DataLoader with batch_size=None"):
        ds[0]
    with pytest.raises(TypeError, match=r"eval\(\) got an unexpected keyword argument 'drop_last'"):
        forebay.connect("grpc://h").eval("rows", batch_size=4, drop_last=True)
    with pytest.raises(TypeError, match=r"eval\(\) got an unexpected keyword argument 'drop_last'"):
        ds.eval(batch_size=4, drop_last=True)
    with pytest.raises(forebay.errors.RequestError, match=r"by is \['g'\], expected"):
        ds.split(0.5, by=["g"])  # type: ignore[arg-type]


def test_what_is_no_state_is_an_error_that_says_so(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4)
    for state, message in ((None, "of type NoneType"), ("x", "of type str"), ({}, "has no keys"), ({"model": {}, "data": {}}, "has the keys 'model', 'data'")):
        with pytest.raises(TypeError, match=f"the state (is|has).*{message[3:]}.*state_dict"):
            ds.load_state_dict(state)  # type: ignore[arg-type]
    for part, message in (
        ({"step": 4}, "step of the state is 4, but an epoch has 3 steps; expected an epoch, and a step within this epoch"),
        ({"step": 2.5}, "step of the state is 2.5, expected a whole number of at least 0"),
        ({"epoch": -1}, "epoch of the state is -1, expected a whole number of at least 0"),
        ({"epoch": 2**64}, f"epoch of the state is {2**64}, expected a whole number of at least 0 and below 2"),
        ({"step": 2**70}, f"step of the state is {2**70}, expected a whole number"),
        ({"snapshot": None}, "snapshot of the state is None, expected a string"),
        ({"version": "1"}, "the state has version '1', expected 1"),
        ({"request": []}, r"request of the state is \[\], expected a dict"),
    ):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=message):
            ds.load_state_dict({**ds.state_dict(), **part})
    for name, value, expected in (
        ("shuffle", 3, "a dict"),
        ("select", None, "a list of strings"),
        ("snapshot", None, "a string"),
        ("mix", [3], "a list of dicts"),
        ("tensors", {"x": {}}, "a list of dicts"),
        ("filter", ["n > 1"], "a string"),
    ):
        saved = ds.state_dict()
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"{name} in the request of the state is .*, expected {expected}"):
            ds.load_state_dict({**saved, "request": {**saved["request"], name: value}})
    for name in ("snapshot", "plan_hash", "global_batch", "epoch", "step"):
        with pytest.raises(forebay.errors.CheckpointMismatchError, match=f"the state has no {name}, expected the dict"):
            ds.load_state_dict({key: value for key, value in ds.state_dict().items() if key != name})
    ds.load_state_dict({**ds.state_dict(), "step": 3})
    assert (ds.epoch, ds.step) == (0, 3), "the end of an epoch"
    other = {**ds.state_dict(), "request": {**ds.state_dict()["request"], "dataset": "others"}, "snapshot": "0" * 32}
    with pytest.raises(forebay.errors.CheckpointMismatchError, match="saved with dataset 'others', but dataset is 'rows'"):
        ds.load_state_dict(other)


def test_a_loop_after_the_last_epoch_says_that_the_training_has_ended(client: forebay.Client, caplog: pytest.LogCaptureFixture) -> None:
    ds = client.train("rows", batch_size=4, epochs=1)
    with caplog.at_level(logging.WARNING, "forebay"):
        assert len(list(ds)) == 3 and caplog.records == []
        assert list(ds) == [] and list(ds) == []
    message = "the training of 'rows' has ended: all epochs up to 0 were delivered, and further loops deliver nothing"
    assert [record.getMessage() for record in caplog.records] == [message]


def test_an_empty_list_of_columns_is_an_error_unless_something_else_is_selected(client: forebay.Client) -> None:
    for call in (lambda: client.train("rows", batch_size=1, columns=[]), lambda: client.lookup("rows", {"n": [1]}, columns=())):
        with pytest.raises(forebay.errors.RequestError, match="columns is empty, expected at least one column, or None for all of them"):
            call()
    for options in ({"tensors": {"x": ["n"]}}, {"select": "n AS x"}):
        assert list(next(iter(client.train("rows", batch_size=1, columns=[], **options))).keys()) == ["x"]


def test_a_batch_that_is_unpacked_says_that_its_columns_have_names(client: forebay.Client) -> None:
    batch = next(iter(client.train("rows", batch_size=4)))
    for use in (lambda: batch[0], lambda: [*batch], lambda: batch[:2]):
        with pytest.raises(TypeError, match=r"a batch has columns by name, not by .*: use batch\[NAME\] with one of n, label, text"):
            use()


def test_text_that_utf_8_cannot_represent_is_refused_in_a_request(client: forebay.Client) -> None:
    for options in ({"filter": "text = '\ud800'"}, {"columns": ["\udfff"]}, {"tensors": {"\ud800": ["n"]}}):
        with pytest.raises(forebay.errors.RequestError, match="cannot represent .a lone surrogate"):
            len(client.train("rows", batch_size=1, **options))


@pytest.mark.parametrize("tensor", [["text"], ["n", "text"], {"columns": ["n", "text"], "dtype": "float32"}])
def test_text_in_a_tensor_is_an_error_that_says_what_to_do(client: forebay.Client, tensor: Any) -> None:
    with pytest.raises(forebay.errors.RequestError, match=r"which a tensor cannot hold; leave it out, or select .*hash_bucket\("):
        len(client.train("rows", batch_size=1, tensors={"x": tensor}))


def test_text_in_double_quotes_is_an_error_that_names_single_quotes(client: forebay.Client) -> None:
    with pytest.raises(forebay.errors.RequestError, match="no column 'zzz'.*text is written in single quotes"):
        len(client.train("rows", batch_size=1, filter='text = "zzz"'))


def test_loops_over_epochs_and_steps_have_a_length(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4)
    loop = ds.epochs(2)
    assert len(loop) == 6 and [len(loop) for _ in loop] == [6] * 6
    assert len(ds.epochs(2)) == 0 and len(ds.epochs(3)) == 3 and len(ds.steps(8)) == 2
    assert ds.num_rows == 10


def test_statistics_have_all_keys_before_the_first_batch(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4)
    before = ds.stats()
    assert not any(before.values())
    for _ in ds:
        pass
    assert ds.stats().keys() == before.keys() and ds.stats()["batches"] == 3


def test_a_training_without_steps_says_so(client: forebay.Client, caplog: pytest.LogCaptureFixture) -> None:
    for options, reason in (({"filter": "n > 100"}, "filter"), ({"batch_size": 64, "remainder": "DROP"}, "fewer than the 64")):
        ds = client.train("rows", **{"batch_size": 4, **options})
        caplog.clear()
        with caplog.at_level(logging.WARNING, "forebay"):
            assert list(ds) == []
        (record,) = caplog.records
        assert record.getMessage().startswith("the training of 'rows' has no steps: ") and reason in record.getMessage()
        for loop in (ds.steps(5), ds.epochs(2)):
            with pytest.raises(forebay.errors.RequestError, match=rf"has no steps: .*{reason}.*would deliver nothing"):
                next(loop)
        assert list(ds.steps(0)) == list(ds.epochs(0)) == []


@pytest.mark.parametrize("options", [{}, {"batch_size": 4}])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_would_combine_batches_is_rejected(client: forebay.Client, options: dict[str, int], workers: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")
    ds = client.train("rows", batch_size=4, columns=["n"], output="torch")
    with pytest.raises(RuntimeError, match="expected DataLoader\\(ds, batch_size=None\\)"):
        next(iter(torch.utils.data.DataLoader(ds, num_workers=workers, **options)))
    assert len(list(torch.utils.data.DataLoader(ds, batch_size=None, num_workers=workers))) == 3


def test_a_list_of_urls_is_an_error_that_says_how_to_pass_them() -> None:
    with pytest.raises(forebay.errors.RequestError, match=r"a URL is of type list, expected a string; pass several URLs as connect\(\*urls\)"):
        forebay.connect(["grpc://a"])  # type: ignore[arg-type]


def test_open_names_itself_for_a_wrong_option_and_rejects_an_empty_path() -> None:
    with pytest.raises(TypeError, match=r"open\(\) got an unexpected keyword argument 'cache_dsk', did you mean 'cache_disk'\?"):
        forebay.open("x.parquet", cache_dsk="1GiB")
    with pytest.raises(forebay.errors.RequestError, match="url is empty"):
        forebay.open("")


def test_the_signature_of_a_dataset_has_all_arguments() -> None:
    found, expected = inspect.signature(forebay.Dataset.train), inspect.signature(forebay.Client.train)
    assert list(found.parameters) == [name for name in expected.parameters if name != "dataset"]


def test_a_number_of_epochs_of_numpy_is_that_of_python(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4, epochs=np.int64(1))  # type: ignore[arg-type]
    list(ds)
    assert json.loads(json.dumps(ds.state_dict())) == ds.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": "3"}, "epochs is '3', expected a whole number of at least 1"),
        ({"epochs": 2.0}, "epochs is 2.0, expected a whole number of at least 1"),
        ({"callbacks": [1]}, "callbacks has 1, expected functions of the dataset"),
        ({"tensors": {1: ["n"]}}, "tensors has the key 1, expected the name of a tensor"),
        ({"tensors": {"x": {"columns": ["n"], "dtype": float}}}, "dtype is float, which has no width; expected the name of a type"),
        ({"device_prefetch": "1"}, "device_prefetch is '1', expected a whole number from 1 to 64"),
        ({"rendezvous_store": 3}, "rendezvous_store is 3, expected a store such as torch.distributed.TCPStore, or a dict"),
    ],
)
def test_arguments_of_loops_are_checked_by_name(client: forebay.Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.errors.RequestError, match=message):
        client.train("rows", batch_size=4, **options)


def test_numbers_of_epochs_and_steps_are_whole(client: forebay.Client) -> None:
    ds = client.train("rows", batch_size=4)
    for call, message in ((lambda: ds.epochs(2.0), "epochs"), (lambda: ds.steps("2"), "steps"), (lambda: ds.epochs(10**30), "epochs")):
        with pytest.raises(forebay.errors.RequestError, match=rf"{message}\(\) is .*, expected a whole number"):
            call()


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (forebay.open, {"key": None}, "key is None, expected the name of a column"),
        (forebay.open, {"key": 5}, "key has 5, expected strings"),
        (forebay.open, {"cache_dir": ""}, "cache_dir is empty, expected a path"),
        (forebay.open, {"state": ""}, "state is empty, expected a path"),
        (forebay.open, {"cache_memory": 1.5}, "cache_memory is 1.5, expected a number of bytes, or a string such as '8GiB'"),
        (forebay.open, {"refresh_interval": 60}, "refresh_interval is 60, expected a string such as '5m'"),
        (forebay.open, {"http": 8816}, "http is 8816, expected a string such as '127.0.0.1:8816'"),
        (forebay.connect, {"retry_deadline": "60"}, "retry_deadline is '60', expected a number of seconds"),
        (forebay.connect, {"attempt_timeout": True}, "attempt_timeout is True, expected a number of seconds"),
        (forebay.connect, {"wait_for_server": "yes"}, "wait_for_server is 'yes', expected True, False or a number of seconds"),
        (forebay.connect, {"prefetch_bytes": 1e6}, "prefetch_bytes is 1000000.0, expected a whole number of at least 0"),
        (forebay.connect, {"report": "no"}, "report is 'no', expected True or False"),
        (forebay.connect, {"token": 5}, "token is of type int, expected a string"),
        (forebay.connect, {"key": 5}, "key is of type int, expected a string"),
    ],
)
def test_options_of_open_and_connect_are_checked_by_name(call: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(forebay.errors.RequestError, match=message):
        call("127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("a", "mix is 'a', expected a dict of fractions"),
        ([("a", 0.5)], "mix is .*, expected a dict of fractions"),
        ({1: 0.5}, "mix has the dataset 1, expected a name"),
        ([{"fraction": 0.5}], "mix has the dataset None, expected a name"),
        ({"a": "half"}, "fraction of 'a' in mix is 'half', expected a number above 0 and below 1"),
    ],
)
def test_mixtures_are_checked_by_name(client: forebay.Client, mix: Any, message: str) -> None:
    with pytest.raises(forebay.errors.RequestError, match=message):
        client.train("rows", batch_size=4, mix=mix)
