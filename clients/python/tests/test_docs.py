"""The blocks of the pages run as written. Those that need special servers run where these servers are tested."""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
import migrations
import server
from server import Pool, Server

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGE = DOCS / "how-to" / "python.md"


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_in_order(
    page: Path, location: str, names: dict[str, object] | None = None, language: str = "python"
) -> dict[str, object]:
    """The names that all blocks of a page leave behind."""
    names = {} if names is None else names
    for block in blocks(page, language):
        exec(compile(block.replace("grpc://127.0.0.1:8815", location), str(page), "exec"), names)
    return names


def test_every_block_runs_as_written(flights_server: Server, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    assert len(blocks(PAGE)) >= 6
    names: dict[str, object] = {}
    for block in blocks(PAGE):
        code = block.replace("grpc://127.0.0.1:8815", flights_server.location)
        code = compile(code, str(PAGE), "exec")
        needs_gpu = 'device="cuda"' in block or "pin_memory=True" in block
        if needs_gpu and ctypes.util.find_library("cuda") is None:
            with pytest.raises(forebay.errors.DeviceError, match="has no\\s+NVIDIA driver"):
                exec(code, names)
        else:
            exec(code, names)
    out = capsys.readouterr()
    assert "3000000 rows of ['origin', 'delay']" in out.out and "step 0 starts at row 0 with ['date', 'date_mask'" in out.out
    assert "184 steps per epoch" in out.out and "183 steps for each of 4 ranks" in out.out
    assert "did you mean 'flights'" in out.out and "forebay.profile: 46 steps" in out.err


def test_the_pytorch_block_runs_as_written(flights_server: Server) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")
    names = run_in_order(PAGE, flights_server.location, {"client": forebay.connect(flights_server.location)}, "py")
    assert names["late"].shape == torch.Size([4096]) and names["late"].dtype == torch.float32
    assert len(names["origin"]) == 4096 and all(isinstance(each, str) for each in names["origin"])
    assert names["batch"].step == 0 and names["batch"]["date"].dtype == torch.int64


@pytest.mark.parametrize(("module", "printed"), [("torchdata", "35 more batches"), ("numpy", "46 results, the next step is 46")])
def test_a_program_of_the_page_runs_as_written(flights_server: Server, tmp_path: Path, module: str, printed: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not in this environment; the other one has it")
    (program,) = (block for block in blocks(PAGE, "python3") if module in block)
    (tmp_path / "program.py").write_text(program.replace("grpc://127.0.0.1:8815", flights_server.location))
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed


def test_the_page_on_resuming_runs_as_written(
    flights_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    run_in_order(DOCS / "how-to" / "resume.md", flights_server.location)
    out = capsys.readouterr().out
    assert "resumes at epoch 0 step 200" in out and "rank 0 of 2 resumes at step 200" in out


def test_the_page_on_several_ranks_runs_as_written(flights_server: Server, capsys: pytest.CaptureFixture) -> None:
    run_in_order(DOCS / "how-to" / "distributed.md", flights_server.location)
    assert "183 steps on each of 4 ranks" in capsys.readouterr().out


def test_the_page_on_shuffling_runs_as_written(flights_server: Server, capsys: pytest.CaptureFixture) -> None:
    names = run_in_order(DOCS / "how-to" / "shuffle.md", flights_server.location)
    assert capsys.readouterr().out.count("733 steps, mean delay") == 2
    # The file is sorted by time: its first rows differ from random ones.
    assert (names["first"] != names["shuffled"]).any()


def test_the_numbers_of_the_page_on_shuffling_are_those_of_inspect(flights: Path) -> None:
    page = (DOCS / "how-to" / "shuffle.md").read_text()
    rows = re.findall(r"^\| (\d+)[^|]* \| (\d+) \| (\d+)[^|]* \| ([\d.]+ [KMG]iB) \|$", page, re.MULTILINE)
    assert len(rows) == 3

    def inspect(*options: str) -> str:
        command = [str(server.binary()), "inspect", str(flights), "--batch-size", "4096", *options]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout

    for window_rows, windows, blocks_mixed, memory in rows:
        text = inspect("--window-rows", window_rows)
        assert f"a window     {window_rows} rows, mixing {blocks_mixed} or more of 11 blocks; {memory} of memory" in text
        assert windows == "1" or f"{windows} windows:" in text
    assert "a window     1048576 rows" in inspect(), "the default"
    (kept, of, blocks_mixed, filtered) = "152194", "3000000", "11", "7.9 MiB"
    text = inspect("--filter", "delay > 60")
    assert f"kept         {kept} of {of} rows" in text and f"mixing {blocks_mixed} or more of 11 blocks; {filtered} of memory" in text
    assert "152,194" in page and filtered in page


def test_the_migration_from_a_dataloader_reads_the_same_rows(flights_server: Server, flights: Path, tmp_path: Path) -> None:
    for module in ("torch", "pyarrow"):
        pytest.importorskip(module, reason=f"{module} is not in this environment; the other one has it")
    migrations.check("PyTorch DataLoader over pyarrow", flights_server.location, flights, tmp_path)


def test_the_blocks_of_the_views_run_as_written(
    pool: Pool, flights: Path, rankings: Path, capsys: pytest.CaptureFixture
) -> None:
    first, chosen, packs, distinct, mixture, late, model = blocks(DOCS / "how-to" / "views.md")
    location = pool.start({"flights": flights, "rankings": rankings, "old-flights": flights}).location
    names: dict[str, object] = {}
    exec(first.replace("grpc://127.0.0.1:8815", location), names)
    rows = int(capsys.readouterr().out.split()[0])
    assert 0.85 * 3_000_000 < rows < 0.95 * 3_000_000
    exec(chosen, names)
    printed = capsys.readouterr().out
    assert 0 < int(printed.split()[0]) < 3_000_000 and "of 100000 distances" in printed
    distances = next(iter(names["ds"]))["distance"].to_numpy()
    assert distances.min() >= 500
    exec(mixture, names)
    assert (names["ds"].columns, len(names["ds"])) == ({"distance": "Int64"}, 3750)
    exec(late, names)
    assert (next(iter(names["ds"]))["delay"].to_numpy() > 60).sum() == 250
    exec(packs, names)
    # 400,000 rows in queries of 20 rows: each pack has at least 4,077 rows.
    assert (len(names["ds"]), max(batch.num_rows for batch in names["ds"]) <= 4096) == (99, True)
    pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")
    exec(distinct, names)
    exec(model.replace("grpc://127.0.0.1:8815", location), names)
    losses = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < losses[0]


def test_the_block_of_the_readme_runs_as_written(flights_server: Server) -> None:
    (block,) = (block for block in blocks(ROOT / "README.md") if "forebay.connect" in block)
    names: dict[str, object] = {}
    exec(block.replace("grpc://127.0.0.1:8815", flights_server.location), names)
    assert names["state"]["step"] == 733


def test_the_first_block_of_the_readme_is_its_two_commands() -> None:
    first = re.search(r"^```[^\n]*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert first and first[1].splitlines() == ["cargo run --release -- demo", "make test"]


def test_tensorboard_receives_wait_fraction_and_throughput(client: forebay.Client) -> None:
    from forebay.tensorboard import TensorBoard

    class Writer:
        written: list[tuple[str, float, int]] = []

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.written.append((tag, value, step))

    ds = client.train("flights", batch_size=10_000, columns=["delay"], callbacks=[TensorBoard(Writer(), every=50)])
    for _ in range(2):
        for batch in ds:
            pass
    steps = sorted({step for _, _, step in Writer.written})
    assert steps == list(range(50, 601, 50))
    values = {tag: value for tag, value, _ in Writer.written}
    assert 0 <= values["forebay/stall"] <= 1 and values["forebay/rows_per_second"] > 10_000


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_the_block_on_the_cache_runs_as_written(flights_server: Server, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    run_in_order(DOCS / "how-to" / "operate.md", flights_server.location)
    assert "disk_bytes" in capsys.readouterr().out


def test_the_block_on_unix_sockets_runs_as_written(pool: Pool, flights: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    socket_path = tmp_path / "forebay.sock"
    pool.start({"flights": flights}, grpc=f"unix:{socket_path}")
    (block,) = blocks(DOCS / "how-to" / "size.md")
    names: dict[str, object] = {}
    exec(block.replace("/run/forebay.sock", str(socket_path)), names)
    assert len(list(names["client"].list_flights())) == 1


def test_the_block_on_traces_runs_as_written(flights_server: Server) -> None:
    flight = pytest.importorskip("pyarrow.flight")
    train = {"train": {"dataset": "flights", "columns": ["delay"], "batch_size": 4096, "steps": 1}}
    client = flight.connect(flights_server.location)
    names = {"fl": flight, "json": json, "train": train, "client": client, "trace_id": b"a" * 32, "span_id": b"b" * 16}
    run_in_order(DOCS / "how-to" / "traces.md", flights_server.location, names)
    assert names["reader"].read_all().num_rows == 4096


@pytest.mark.parametrize(("page", "least"), [("frameworks", 7), ("distributed", 2)])
def test_every_block_for_a_framework_is_a_part_of_an_example(page: str, least: int) -> None:
    """Lines with dots stand for lines that the page omits. The examples have tests of their own."""
    examples = [path.read_text() for path in (ROOT / "clients" / "python" / "examples").glob("train_*.py")]
    stripped = ["\n".join(line.strip() for line in text.splitlines()) for text in examples]
    found = blocks(DOCS / "how-to" / f"{page}.md", "py")
    assert len(found) >= least
    for block in found:
        parts = "\n".join(line.strip() for line in block.strip().splitlines()).split("\n...\n")
        assert any(all(part in text for part in parts) for text in stripped), block


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_json_block_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        json.loads(block)


def test_every_command_that_serves_is_accepted(tmp_path: Path) -> None:
    """All `forebay serve` commands of all pages, with `--print-config` so that they end."""
    written = "\n".join(block for page in pages() for language in ("sh", "console") for block in blocks(page, language))
    commands = re.findall(r"^(?:\$ )?forebay (serve .*)$", written.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        program = [str(server.binary()), *shlex.split(command), "--print-config"]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"forebay {command}\n{done.stderr}"
        assert "[datasets]" in done.stdout


def test_the_settings_on_fault_injection_are_accepted(tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "how-to" / "diagnose-slow-job.md", "toml")
    (tmp_path / "forebay.toml").write_text(block)
    command = [str(server.binary()), "serve", "--config", str(tmp_path / "forebay.toml"), "--print-config"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
