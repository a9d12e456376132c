"""Errors of `forebay.open` for a wrong binary, a file that is not complete, and a server that does not answer."""

from __future__ import annotations

import gzip
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.local_cluster import LocalCluster
from test_open import Host, host  # noqa: F401

pytestmark = [pytest.mark.once, pytest.mark.skipif(sys.platform != "linux", reason="the tests find the server with SO_PEERCRED")]


@pytest.mark.parametrize(("content", "expected"), [(None, "does not exist"), ("", "is no program that this user can run")])
def test_a_wrong_path_of_the_binary_is_an_error_that_names_the_variable(host: Host, tmp_path: Path, content: str | None, expected: str) -> None:  # noqa: F811
    wrong = tmp_path / "forebay"
    if content is not None:
        wrong.write_text(content)
    program = """
try:
    forebay.open("rows.parquet")
except forebay.errors.ServerStartError as error:
    print(error)
"""
    message = host.run(program, FOREBAY_BIN=str(wrong))
    assert message.startswith(f"the server does not start: FOREBAY_BIN is '{wrong}', which {expected}; expected the path of the server's binary") and "Errno" not in message, message


def test_a_half_written_file_is_an_error_that_says_what_may_be_the_reason(host: Host, tmp_path: Path) -> None:  # noqa: F811
    program = """
try:
    forebay.open(sys.argv[1])
except forebay.errors.DataLossError as error:
    print(error)
"""
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "rows.parquet")
    written = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(written[: len(written) // 2])
    message = host.run(program, tmp_path)
    assert f"{tmp_path}/rows.parquet is corrupt" in message and "if a program is still writing the file, open the dataset again" in message, message


def test_a_file_that_is_no_parquet_file_is_an_error_that_says_what_it_is(host: Host, tmp_path: Path) -> None:  # noqa: F811
    contents = {
        "csv": (b"a,b\n" + b"1,2\n" * 100, "another file, such as CSV or JSON; convert it to Parquet"),
        "gz": (gzip.compress(b"PAR1" * 100), "a file that is compressed as a whole with gzip; decompress it"),
        "html": (b"<html>404 not found</html>", "a page or another text; download the file itself"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a pointer of Git LFS; run `git lfs pull`"),
        "arrow": (b"ARROW1\0\0" * 10 + b"ARROW1", "an Arrow file, also known as Feather; convert it to Parquet"),
    }
    for name, (content, _) in contents.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
    program = """
for path in sys.argv[1:]:
    try:
        forebay.open(path)
    except forebay.errors.DataLossError as error:
        print(error)
"""
    messages = host.run(program, *(tmp_path / f"{name}.parquet" for name in contents)).splitlines()
    for message, (_, expected) in zip(messages, contents.values(), strict=True):
        assert message.endswith(f"; it is no Parquet file, because it does not begin with PAR1 either: it is {expected}"), message


def test_the_binary_is_that_of_the_folder_in_which_the_dataset_was_opened(host: Host, tmp_path: Path) -> None:  # noqa: F811
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "rows.parquet")
    program = """
os.chdir(sys.argv[1])
os.symlink(os.environ.pop("FOREBAY_BIN"), "binary")
os.environ["FOREBAY_BIN"] = "./binary"
ds = forebay.open("rows.parquet", retry_deadline=20)
os.mkdir("outputs")
os.chdir("outputs")
kill_server()
print(ds.head(10).num_rows)
"""
    assert host.run(program, tmp_path) == "10"


def test_an_error_for_changed_files_says_to_open_the_dataset_again(host: Host, tmp_path: Path) -> None:  # noqa: F811
    program = """
import numpy as np, pyarrow as pa, pyarrow.parquet as pq

def write(rows):
    pq.write_table(pa.table({"n": range(rows)}), sys.argv[1])

write(100)
ds = forebay.open(sys.argv[1])
state = ds.train(batch_size=10).state_dict()
write(170)

def resumed():
    training = ds.train(batch_size=10)
    training.load_state_dict(state)
    return next(iter(training))

uses = {
    "head": lambda: ds.head(3),
    "train": lambda: next(iter(ds.train(batch_size=10))),
    "train again": lambda: next(iter(ds.train(batch_size=10))),
    "eval": lambda: next(iter(ds.eval(batch_size=10))),
    "filter": lambda: len(ds.train(batch_size=10, filter="n > 5")),
    "values": lambda: len(ds.train(batch_size=10, filter="n IN (:n)", values={"n": np.arange(5)})),
    "split": lambda: len(ds.split(0.5, by="n")[0]),
    "map": lambda: next(iter(ds.train(batch_size=10).map(len))),
    "resume": resumed,
}
for name, use in uses.items():
    try:
        print(name, use())
    except forebay.errors.SnapshotUnavailableError as error:
        print(f"{name}: {error}")
print(forebay.open(sys.argv[1]).head(170).num_rows)
"""
    *messages, rows = host.run(program, tmp_path / "rows.parquet").splitlines()
    assert len(messages) == 9 and rows == "170"
    for message in messages:
        assert message.count("has changed since the snapshot") == 1 and "refresh" not in message, message
        assert message.count("; call forebay.open again, and start the training again with the dataset that it returns, without a checkpoint; to continue") == 1, message


@pytest.mark.parametrize(
    ("error", "is_compared"),
    [(None, True), (forebay.errors.RequestError("invalid"), True), (forebay.errors.DeadlineError("no answer"), False)],
)
def test_the_version_is_compared_once_the_server_has_answered(monkeypatch: pytest.MonkeyPatch, error: Exception | None, is_compared: bool) -> None:
    calls = []

    class Server:
        url = "unix:/absent"

        def ensure(self, user: object, settings: object) -> None:
            calls.append("ensure")

        def compare_version(self) -> None:
            calls.append("compare")

    def opened(cluster: LocalCluster) -> str:
        calls.append("open")
        if error is not None:
            raise error
        return "rows"

    monkeypatch.setattr("forebay.dataset.local_server", Server)
    monkeypatch.setattr(LocalCluster, "open", opened)
    with pytest.raises(type(error)) if error is not None else nullcontext():
        forebay.open("/data")
    assert calls == ["ensure", "open", *(["compare"] if is_compared else [])]
