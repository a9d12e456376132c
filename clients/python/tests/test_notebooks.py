"""Representations of datasets and batches in notebooks, and loops in the event loop of a kernel that Ctrl-C interrupts."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import forebay
import functions
from test_open import Host, host  # noqa: F401

pytestmark = pytest.mark.once


EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "first_training.ipynb"
EXECUTE = """
import nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
assert not any(cell.get("outputs") for cell in notebook.cells), "the committed notebook has outputs"
nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": sys.argv[2]}}).execute()
printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
print(printed.replace("\\n", "; "))
"""


def test_the_notebook_runs_from_its_first_cell_to_its_last(host: Host, flights: Path, tmp_path: Path) -> None:  # noqa: F811
    if importlib.util.find_spec("nbclient") is None:
        pytest.skip("nbclient is not in this environment; the other one has it")
    (tmp_path / "my-data").mkdir()
    (tmp_path / "my-data" / "flights.parquet").symlink_to(flights)
    printed = host.run(EXECUTE, EXAMPLE, tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 3 and losses[1] < losses[0], printed
    rows = re.search(r"(\d+) rows", printed)
    assert rows and 0 < int(rows[1]) < 3_000_000, printed


def test_a_dataset_describes_itself_without_a_server() -> None:
    client = forebay.connect("grpc://127.0.0.1:1", retry_deadline=0)
    ds = client.train("flights", batch_size=4096, output="numpy")
    assert repr(ds) == "<forebay.TrainingDataset of flights: batch_size 4096, epoch 0, step 0, output 'numpy'>"
    assert ds._repr_html_() == f"<p><code>{repr(ds).replace('<', '&lt;').replace('>', '&gt;').replace(chr(39), '&#x27;')}</code></p>"
    ranked = client.train("flights", batch_size=8, rank=1, world_size=4, epoch=3)
    assert "batch_size 8, rank 1 of 4, epoch 3, step 0" in repr(ranked)
    mapped = ranked.map(functions.place, workers=2)
    assert repr(mapped) == f"<forebay.MappedDataset of {ranked!r} by place: 2 workers>"
    killed = ranked.map(functions.KilledAt({1}))
    assert repr(killed).startswith(f"<forebay.MappedDataset of {ranked!r} by <functions.KilledAt object at ")


def test_a_notebook_shows_the_columns_and_types_of_batches_and_datasets(client: forebay.Client) -> None:
    ds = client.train("flights", batch_size=1000, columns=["origin"], tensors={"a<b": {"columns": ["delay"], "dtype": "float32"}})
    batch = next(iter(ds))
    assert "rank 0 of 1, epoch 0, step 1" in repr(ds)
    types = {**ds.columns}
    for shown in (ds._repr_html_(), batch._repr_html_()):
        assert "<td>origin</td><td>Utf8</td>" in shown.replace("LargeUtf8", "Utf8")
        assert f"<td>a&lt;b</td><td>{types['a<b']}</td>" in shown and "a<b" not in shown
    assert "epoch 0 step 0: 1000 rows" in batch._repr_html_()


def test_a_dataset_from_open_shows_its_schema_or_why_it_has_none(host: Host, flights: Path, tmp_path: Path) -> None:  # noqa: F811
    program = """
import shutil
ds = forebay.open(sys.argv[1])
shown = ds._repr_html_()
assert f"forebay.Dataset of {sys.argv[1]}" in shown and "<td>delay</td><td>Int64</td>" in shown, shown
wrong, _ = ds.split(by="nothing", at=1)
assert "nothing" in wrong._repr_html_() and "<table>" not in wrong._repr_html_()
print("shown")
"""
    assert host.run(program, flights) == "shown"


def test_ctrl_c_ends_a_loop_in_a_running_event_loop_and_the_next_loop_continues(host: Host, flights: Path) -> None:  # noqa: F811
    program = """
import asyncio, threading

def interrupt(loop, found):
    # The signal must arrive while the loop waits for the stopped server. In that time, `cursor` raises RuntimeError.
    looks, before = 0, 0
    while looks < 100:
        try:
            loop._stream.cursor
            looks = 0
        except RuntimeError:
            looks = looks + 1 if len(found) == before else 0
        before = len(found)
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

# As in a cell of a notebook: the kernel runs it as a coroutine of its event loop, and Ctrl-C raises KeyboardInterrupt in it.
async def cell(ds, found):
    pid, was_interrupted = server_pid(), False
    loop = training(ds)
    try:
        for batch in loop:
            found.append(digest([batch]))
            if batch.step == 5:
                os.kill(pid, signal.SIGSTOP)
                threading.Thread(target=interrupt, args=(loop, found)).start()
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        os.kill(pid, signal.SIGCONT)
    assert was_interrupted and 5 < len(found) < 60, len(found)
    # The kernel lives on, and the same objects work.
    await asyncio.sleep(0)
    found += [digest([batch]) for batch in loop]

signal.signal(signal.SIGINT, signal.default_int_handler)
ds = forebay.open(sys.argv[1], prefetch_batches=2)
expected, found = epoch(ds), []
asyncio.new_event_loop().run_until_complete(cell(ds, found))
assert found == expected
print("same digest")
"""
    assert host.run(program, flights) == "same digest"
