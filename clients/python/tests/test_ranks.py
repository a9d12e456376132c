"""A process finds its rank, or the reason why it has none. It never reads the rows of another rank without a word."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import ranks
from forebay.cuda import cuda_number
from ports import free_port

LAUNCHER_VARIABLES = {
    *(name for pair in ranks.LAUNCHERS for name in pair),
    *ranks.INNER_LAUNCHERS,
    *ranks.LOCAL_RANKS,
    *ranks.HINTS,
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
# The variables that srun sets in addition to those of Slurm: with --mpi=pmi2 and with --mpi=pmix.
PMI2 = {"PMI_RANK": "1", "PMI_SIZE": "4"}
PMIX = {"PMIX_RANK": "1"}
# The first process of `torchrun --standalone --nproc-per-node=2`, which is independent of other hosts.
STANDALONE = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
# The variables that the launcher of Lightning sets for its processes.
LIGHTNING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
# mpirun with one process per container, which is one of several.
ALONE_IN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
# Variables of accelerate launch, which are those of torchrun and its own.
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}


def without(variables: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


def needs_torch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not in this environment; the other one has it")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        (TORCHRUN, (3, 8)),
        ({**ACCELERATE, "RANK": "1", "LOCAL_RANK": "1"}, (1, 2)),
        (SRUN, (1, 4)),
        ({**SRUN, "RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        (MPIRUN, (2, 4)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}, (1, 2)),
        # torchrun and mpirun that srun has started once per host.
        ({**SRUN, **TORCHRUN}, (3, 8)),
        ({**SRUN, **TORCHRUN, "WORLD_SIZE": "4"}, (3, 4)),
        ({**SRUN, **MPIRUN}, (2, 4)),
        # A launcher that is unknown, in an srun step of one task per host.
        ({**SRUN, "RANK": "7", "WORLD_SIZE": "32"}, (7, 32)),
        # The script of sbatch, and a shell, have the variables of all tasks.
        ({**SRUN, "SLURM_STEP_ID": "4294967291"}, (0, 1)),
        (without(SRUN, "SLURM_STEP_ID"), (0, 1)),
        # Versions of Slurm before 21.08.
        (without(SRUN, "SLURM_STEP_NUM_TASKS"), (1, 4)),
        # A number of ranks without a rank, equal to that of the rank of another source, or of one process.
        ({**MPIRUN, "WORLD_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_SIZE": "1", "HOROVOD_SIZE": "1", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, (0, 1)),
        ({**without(SRUN, "SLURM_PROCID"), "RANK": "7", "WORLD_SIZE": "32"}, (7, 32)),
        # The script of sbatch, and a shell of salloc, have no task.
        ({**without(SRUN, "SLURM_PROCID"), "SLURM_STEP_ID": "4294967291"}, (0, 1)),
        (without(SRUN, "SLURM_PROCID", "SLURM_STEP_ID"), (0, 1)),
        # torchrun and mpirun that srun has started once per host, with the variables of PMI-2 or PMIx for its tasks.
        ({**SRUN, **PMI2, **TORCHRUN, "RANK": "5", "WORLD_SIZE": "16"}, (5, 16)),
        ({**SRUN, **PMI2, **STANDALONE}, (0, 2)),
        ({**SRUN, **PMI2, **MPIRUN}, (2, 4)),
        ({**SRUN, "PMI_SIZE": "4", **STANDALONE}, (0, 2)),
        ({**SRUN, "PMIX_RANK": "3", **STANDALONE}, (0, 2)),
        # An unknown launcher in such a step, and a step without another launcher.
        ({**SRUN, **PMI2, "RANK": "7", "WORLD_SIZE": "32"}, (7, 32)),
        ({**SRUN, **PMI2}, (1, 4)),
        ({**SRUN, **PMIX}, (1, 4)),
        # MPICH that srun has started once per host.
        ({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"}, (5, 8)),
        # NODE_RANK of the platform: with a name, empty, or that of a host which trains independently.
        *(
            ({**variables, "NODE_RANK": text}, expected)
            for variables, expected in ((STANDALONE, (0, 2)), (MPIRUN, (2, 4)), (SRUN, (1, 4)))
            for text in ("", "worker-3", "3", "7")
        ),
        # Variables of a job template that have no number.
        ({**MPIRUN, "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "auto", "JAX_NUM_PROCESSES": "", "WORLD_SIZE": ""}, (2, 4)),
        # Launchers of one process each in the tasks of a step with PMIx.
        ({**SRUN, **PMIX, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_the_rank_is_that_of_the_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, int]
) -> None:
    set_all(monkeypatch, variables)
    assert ranks.find()[:2] == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (LIGHTNING, "WORLD_SIZE=2, LOCAL_RANK=1 but no RANK"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 but no RANK"),
        ({"LOCAL_RANK": "3"}, "LOCAL_RANK=3 but no RANK"),
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "LOCAL_WORLD_SIZE=4 but no RANK"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1 but no RANK"),
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_NUM_PROCESSES=2 but no RANK"),
        ({"NODE_RANK": "3"}, "NODE_RANK=3 but no RANK"),
        ({"NODE_RANK": "worker-3"}, "NODE_RANK is 'worker-3', expected a number"),
        ({"RANK": "1"}, "RANK is 1, but WORLD_SIZE is not set"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x', expected a number"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', expected a number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank is 2, expected 0 to 1, from RANK and WORLD_SIZE"),
        # A contradiction: every task of the step would read all rows, or the rows of another one.
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "1"}, "RANK and WORLD_SIZE say rank 0 of 1, but SLURM_PROCID and SLURM_STEP"),
        ({**SRUN, "RANK": "2", "WORLD_SIZE": "4"}, "say rank 2 of 4, but SLURM_PROCID and SLURM_STEP_NUM_TASKS say rank 1 of 4"),
        ({**SRUN, **PMI2, "RANK": "0", "WORLD_SIZE": "1"}, "RANK and WORLD_SIZE say rank 0 of 1, but PMI_RANK and PMI_SIZE"),
        ({**PMI2, "RANK": "7", "WORLD_SIZE": "32"}, "RANK and WORLD_SIZE say rank 7 of 32, but PMI_RANK and PMI_SIZE"),
        ({**MPIRUN, "RANK": "0", "WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE say rank 2 of 4"),
        # A number of ranks without its rank, as in a container that receives a part of the environment.
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4 but no RANK"),
        ({"PMI_SIZE": "4"}, "PMI_SIZE=4 but no RANK"),
        ({"MV2_COMM_WORLD_SIZE": "4"}, "MV2_COMM_WORLD_SIZE=4 but no RANK"),
        ({"HOROVOD_SIZE": "4"}, "HOROVOD_SIZE=4 but no RANK"),
        (without(SRUN, "SLURM_PROCID"), "SLURM_STEP_NUM_TASKS=4 but no RANK"),
        (without(SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS=4 but no RANK"),
        # A rank that is found, and a number of ranks or a rank on the host that it cannot have.
        ({**ALONE_IN_MPI, "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, "say rank 0 of 1, but the environment has WORLD_SIZE=8, LOCAL_RANK=3"),
        ({**ALONE_IN_MPI, "LOCAL_RANK": "3"}, "say rank 0 of 1, but the environment has LOCAL_RANK=3"),
        ({**ALONE_IN_MPI, "LOCAL_WORLD_SIZE": "4"}, "say rank 0 of 1, but the environment has LOCAL_WORLD_SIZE=4"),
        ({**STANDALONE, "LOCAL_RANK": "2"}, "say rank 0 of 2, but the environment has LOCAL_RANK=2"),
        ({**STANDALONE, "LOCAL_WORLD_SIZE": "4"}, "say rank 0 of 2, but the environment has LOCAL_WORLD_SIZE=4"),
        ({**MPIRUN, "WORLD_SIZE": "8"}, "say rank 2 of 4, but the environment has WORLD_SIZE=8"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "WORLD_SIZE": "2"}, "PMI_SIZE say rank 0 of 1, but the environment has WORLD_SIZE=2"),
        ({**without(SRUN, "SLURM_PROCID"), "RANK": "0", "WORLD_SIZE": "1"}, "say rank 0 of 1, but the environment has SLURM_STEP"),
        ({"RANK": "0", "WORLD_SIZE": "1", "PMIX_RANK": "1"}, "say rank 0 of 1, but the environment has PMIX_RANK=1"),
        # accelerate launch without a rank for its processes.
        ({**ACCELERATE, "LOCAL_RANK": "1"}, "WORLD_SIZE=2, LOCAL_RANK=1 but no RANK"),
    ],
)
def test_a_world_without_a_rank_and_contradictions_are_errors(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    set_all(monkeypatch, variables)
    ds = forebay.connect("grpc://127.0.0.1:1", retry_deadline=0).train("flights", batch_size=1)
    with pytest.raises(ValueError, match=message):
        next(iter(ds))
    # The arguments are the last word.
    assert forebay.connect("grpc://127.0.0.1:1").train("flights", batch_size=1, rank=1, world_size=3).rank == 1


def test_a_rank_that_changes_after_the_first_use_is_an_error(
    client: forebay.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = client.train("flights", batch_size=1000, columns=["delay"])
    assert len(ds) == 3000
    set_all(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"})
    with pytest.raises(RuntimeError, match="first used as rank 0 of 1, from no launcher, but this is rank 1 of 2"):
        next(iter(ds))


def test_a_dataset_of_a_process_alone_finds_its_rank_again_in_another_process(
    client: forebay.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused = client.train("flights", batch_size=1000, columns=["delay"])
    used = client.train("flights", batch_size=1000, columns=["delay"])
    assert used.rank == 0 and len(used) == 3000
    sent = [pickle.dumps(ds) for ds in (unused, used)]
    set_all(monkeypatch, {"RANK": "1", "WORLD_SIZE": "2"})
    assert pickle.loads(sent[0]).rank == 1
    for received in (pickle.loads(sent[1]), used):
        received._placed_in = -1  # As in the process of another rank, to which it was sent or forked.
        with pytest.raises(RuntimeError, match="first used as rank 0 of 1"):
            next(iter(received))


@pytest.mark.parametrize(
    ("device", "variables", "expected"),
    [
        ("cuda:2", {"LOCAL_RANK": "1"}, 2),
        ("cuda", {}, 0),
        ("cuda", {"LOCAL_RANK": "1"}, 1),
        ("cuda", {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5"}, 1),
        ("cuda", {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5"}, 0),
        ("cuda", SRUN, 1),
        ("cuda", {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
    ],
)
def test_a_gpu_without_a_number_is_that_of_the_local_rank(
    monkeypatch: pytest.MonkeyPatch, device: str, variables: dict[str, str], expected: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    set_all(monkeypatch, variables)
    assert cuda_number(device) == expected


PROCESS = """
import json, os, sys
import torch.distributed as dist
import forebay
from forebay import ranks

location, mesh_shape, names = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
dist.init_process_group("gloo")
options = {}
if mesh_shape:
    from torch.distributed.device_mesh import init_device_mesh
    options["mesh"] = init_device_mesh("cpu", tuple(mesh_shape), mesh_dim_names=tuple(names))
ds = forebay.connect(location).train("flights", batch_size=1000, columns=["delay"], seed=1, **options)
first = next(iter(ds))
found = {"process": dist.get_rank(), "place": [ds.rank, ds.world_size], "position": first.position}
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, found)
if dist.get_rank() == 0:
    print(json.dumps(gathered), flush=True)
dist.destroy_process_group()
"""


def run_processes(location: str, count: int, shape: list[int], names: list[str], launcher: str) -> list[dict[str, Any]]:
    port, running = free_port(), []
    for rank in range(count):
        # Lightning passes the rank to `init_process_group` only, as this launcher does with a different name.
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        environment["LOCAL_RANK"] = str(rank)
        program = PROCESS
        if launcher == "torchrun":
            environment["RANK"] = str(rank)
        else:
            program = program.replace('"gloo")', f'"gloo", rank={rank}, world_size={count})')
        command = [sys.executable, "-c", program, location, json.dumps(shape), json.dumps(names)]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * count, outputs
    return json.loads(outputs[0][0])


@pytest.mark.parametrize("launcher", ["torchrun", "lightning"])
def test_the_rank_is_that_of_torch_distributed(flights_server: Any, launcher: str) -> None:
    needs_torch()
    found = run_processes(flights_server.location, 2, [], [], launcher)
    assert [each["place"] for each in found] == [[0, 2], [1, 2]]
    assert [each["position"] for each in found] == [0, 1000]


def test_processes_of_one_data_parallel_rank_get_equal_batches(flights_server: Any) -> None:
    needs_torch()
    found = run_processes(flights_server.location, 4, [2, 2], ["dp", "tp"], "torchrun")
    assert [each["place"] for each in found] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert [each["position"] for each in found] == [0, 0, 1000, 1000]


def test_a_rank_that_contradicts_torch_distributed_is_an_error(tmp_path: Path) -> None:
    needs_torch()
    program = f"""
import forebay, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
try:
    forebay.connect("grpc://127.0.0.1:1", retry_deadline=0).train("flights", batch_size=1).rank
except ValueError as error:
    print(error, flush=True)
dist.destroy_process_group()
"""
    for variables, expected in (
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torch.distributed say rank 0 of 1, but RANK and WORLD_SIZE say rank 1 of 2"),
        ({"WORLD_SIZE": "2"}, "torch.distributed say rank 0 of 1, but the environment has WORLD_SIZE=2"),
    ):
        (tmp_path / "store").unlink(missing_ok=True)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
        assert expected in done.stdout, done.stdout + done.stderr


JAX_PROCESS = """
import sys
import jax
import forebay

location, port, rank, count = sys.argv[1], *map(int, sys.argv[2:])
jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
ds = forebay.connect(location).train("flights", batch_size=1000, columns=["delay"], seed=1)
print(ds.rank, ds.world_size, next(iter(ds)).position, flush=True)
ds.close()
jax.distributed.shutdown()
"""


def test_the_rank_is_that_of_jax_distributed(flights_server: Any) -> None:
    pytest.importorskip("jax", reason="jax is not in this environment; the other one has it")
    port, environment = free_port(), {**os.environ, "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", JAX_PROCESS, flights_server.location, str(port), str(rank), "2"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert [output.split() for output, _ in outputs] == [["0", "2", "0"], ["1", "2", "1000"]]


class Mesh:
    """The attributes of a `DeviceMesh` that are used, for shapes that need more processes."""

    def __init__(self, **sizes: int) -> None:
        self.mesh_dim_names, self.sizes, self.ndim = tuple(sizes), list(sizes.values()), len(sizes)

    def size(self, dimension: int) -> int:
        return self.sizes[dimension]

    def get_local_rank(self, dimension: int) -> int:
        return self.sizes[dimension] - 1


def test_a_mesh_without_a_data_parallel_dimension_is_an_error() -> None:
    client = forebay.connect("grpc://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"mesh has the dimensions tp, pp; pass the data-parallel one, such as mesh\['dp'\]"):
        client.train("flights", batch_size=1, mesh=Mesh(tp=2, pp=2))
    with pytest.raises(ValueError, match="unknown dimension 'ep' among dp, ep"):
        client.train("flights", batch_size=1, mesh=Mesh(dp=2, ep=2))
    with pytest.raises(ValueError, match="has the dimensions tp; pass the data-parallel one"):
        client.train("flights", batch_size=1, mesh=Mesh(tp=2))
    with pytest.raises(ValueError, match="mesh is given together with rank"):
        client.train("flights", batch_size=1, mesh=Mesh(dp=2), rank=0, world_size=2)


def test_the_first_import_of_the_package_imports_no_framework(tmp_path: Path) -> None:
    program = "import sys, forebay; print([name for name in ('torch', 'jax', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done.stderr
