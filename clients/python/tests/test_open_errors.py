"""Errors of `forebay.open` for a wrong binary, a file that is not complete, and a server that does not answer."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.dataset import LocalCluster
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
