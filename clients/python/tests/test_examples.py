"""Every example runs as written. Training examples compute the same parameters when they are killed and resumed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from launching import Launched, check_resumed, killed_before
from ports import free_port
from server import Pool, Server

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def start(name: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(name: str, *arguments: object) -> str:
    out, err = (running := start(name, *arguments)).communicate(timeout=200)
    assert running.returncode == 0, err
    return out


def needs(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not in this environment; the other one has it")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_killed_and_resumed_training_computes_the_same_parameters(
    flights_server: Server, tmp_path: Path, name: str
) -> None:
    needs(name)
    arguments = "--url", flights_server.location, "--checkpoint"
    whole, again = (run(f"train_{name}.py", *arguments, tmp_path / file).splitlines() for file in ("a", "b"))
    assert whole == again
    losses = [float(found) for line in whole if (found := line.rpartition("loss ")[2].split(",")[0])]
    assert losses[-1] < losses[0] - 0.01, losses

    killed = start(f"train_{name}.py", *arguments, tmp_path / "c")
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("epoch 0 step 119"):
            break
    time.sleep(0.05)
    killed.kill()
    killed.wait()
    resumed = run(f"train_{name}.py", *arguments, tmp_path / "c").splitlines()
    assert re.fullmatch(r"resuming at epoch [01], step \d+", resumed[0]), resumed
    assert resumed[-1] == whole[-1]
    assert all(line in whole for line in resumed[1:])


def ddp(processes: int, *arguments: object) -> Launched:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return Launched([*command, str(EXAMPLES / "train_ddp.py"), *map(str, arguments)])


def jax_sharded(processes: int, *arguments: object) -> Launched:
    command = [sys.executable, str(EXAMPLES / "train_jax_sharded.py"), *map(str, arguments)]
    command += ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(processes), "--process"]
    return Launched(*([*command, str(process)] for process in range(processes)), JAX_PLATFORMS="cpu")


@pytest.mark.parametrize(("launch", "framework"), [(ddp, "torch"), (jax_sharded, "jax")], ids=["ddp", "jax"])
def test_a_training_killed_and_resumed_with_another_number_of_processes_reads_the_same_sequence_of_rows(
    flights_server: Server, tmp_path: Path, launch: Callable[..., Launched], framework: str
) -> None:
    needs(framework)
    arguments = "--url", flights_server.location, "--checkpoint"
    whole = launch(4, *arguments, tmp_path / "a").all_lines()
    assert len(whole) == 50
    at = whole[28].partition("rows")[0]
    killed, folder = killed_before(whole[-2], at, lambda path: launch(4, *arguments, path / "b"), tmp_path)
    resumed = launch(2, *arguments, folder / "b").all_lines()
    check_resumed(whole, killed.steps(), resumed, 0)


def sums(lines: str) -> dict[int, str]:
    found = {}
    for line in lines.splitlines():
        step, total = line.removeprefix("step ").split(" sum ")
        assert found.setdefault(int(step), total) == total
    return found


def killed_ranks(*arguments: object) -> tuple[str, bool]:
    """Starts a job of ranks. Kills one rank after step 1, and then the others.

    Returns:
        What the ranks printed, and whether one was killed before the job ended.
    """
    job = start("ranks.py", *arguments)
    assert job.stdout is not None
    lines, children, is_killed = "", list[str](), False
    for line in job.stdout:
        lines += line
        if line.startswith("step 1 "):
            break
    try:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        rank = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()][-1]
        os.kill(int(rank), signal.SIGKILL)
        is_killed = True
        time.sleep(0.2)
    except (IndexError, FileNotFoundError, ProcessLookupError):
        pass
    job.kill()
    subprocess.run(["pkill", "-9", "-P", str(job.pid)], check=False)
    for child in children:
        subprocess.run(["kill", "-9", child], check=False, capture_output=True)
    lines += job.stdout.read()
    job.wait()
    return lines, is_killed


def test_sums_are_unchanged_when_ranks_and_servers_are_killed_files_added_and_ranks_removed(
    pool: Pool, flights: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    folder = tmp_path / "flights"
    folder.mkdir()
    shutil.copy(flights, folder / "a.parquet")
    place = {"grpc": f"127.0.0.1:{free_port()}", "cache_dir": tmp_path / "cache"}
    server = pool.start({"flights": folder}, **place)
    at = "--url", server.location, "--checkpoint"
    undisturbed = sums(run("ranks.py", *at, tmp_path / "a.json"))
    assert list(undisturbed) == list(range(25))

    for attempt in range(5):
        state = tmp_path / f"b-{attempt}.json"
        lines, is_killed = killed_ranks(*at, state)
        # On a busy machine, the job may be past step 10, at which the server is killed below.
        if is_killed and json.loads(state.read_text())["data"]["step"] <= 10:
            break
    else:
        raise AssertionError("each job was past step 10 before it was killed")

    # The job failed with its rank. It resumes from its checkpoint, while the server is killed and restarted with a new
    # file in the folder of the dataset.
    second = start("ranks.py", *at, state, "--steps", 15)
    assert second.stdout is not None
    for line in second.stdout:
        lines += line
        if line.startswith("step 10 "):
            server.kill()
            pq.write_table(pq.read_table(flights).slice(0, 1000), folder / "b.parquet")
            server = pool.start({"flights": folder}, **place)
    assert second.wait() == 0, second.stderr.read() if second.stderr else ""
    lines += run("ranks.py", *at, state, "--world-size", 2)
    assert sums(lines) == undisturbed


@pytest.mark.parametrize(
    ("name", "modules", "expected"),
    [
        ("plain_pyarrow.py", ["pyarrow"], "3000000 rows"),
        ("summary_polars.py", ["polars"], "3000000 rows; most delayed: "),
        ("from_petastorm.py", [], "182 steps"),
    ],
)
def test_an_example_runs_as_written(flights_server: Server, name: str, modules: list[str], expected: str) -> None:
    needs(*modules)
    assert expected in run(name, flights_server.location)


def test_the_migration_from_a_data_loader_reads_the_same_rows(flights_server: Server, flights: Path) -> None:
    needs("torch", "pyarrow")
    assert "the same rows, each once" in run("from_dataloader.py", flights, flights_server.location)
