"""The rank of this process among those that train together, as the launcher or the framework says it."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Iterator, Mapping, NamedTuple

LOG = logging.getLogger("forebay")

# Environment variables of the rank and of the number of ranks, from the innermost launcher to the outermost one.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Variables of launchers that srun may have started once per host. Their ranks are unrelated to those of the srun step.
INNER_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
# Further variables that say that there are several processes, with the largest value of a process that is alone. They give the
# least number of processes, and no rank.
HINTS = {"LOCAL_WORLD_SIZE": 1, "JAX_NUM_PROCESSES": 1, "LOCAL_RANK": 0, "NODE_RANK": 0, "PMIX_RANK": 0}
# Dimensions of a device mesh whose processes read different rows, and those whose processes read equal ones.
DATA_DIMENSIONS = ("data", "dp", "ddp", "fsdp", "hsdp", "replicate", "shard")
MODEL_DIMENSIONS = ("tp", "pp", "cp", "sp", "mp", "model", "tensor", "pipe", "pipeline", "context", "sequence")
# The source of the place of a process that is alone.
ALONE = "no launcher"
# The source of a place that the arguments give.
ARGUMENTS = "the arguments"
# Rank of this process on its host, in the order of preference.
LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
# Steps of Slurm that run a script or a shell: -5, -6 and their names.
SLURM_SHELLS = ("4294967291", "4294967290", "batch", "interactive")

_announced: set[str] = set()


class Place(NamedTuple):
    """A rank among a number of ranks."""

    rank: int
    world_size: int
    # Where it was found, for messages.
    source: str
    # Number of this process among all processes of the training, and their number. They differ from rank and number of ranks
    # if several processes read the same rows.
    member: int
    members: int
    # Prefix of the names of agreements among these processes, if they are a part of all processes.
    group: str = ""


def place(rank: int | None, world_size: int | None, mesh: Any = None) -> Place | None:
    """Returns the place that the arguments of `train` give.

    Args:
        rank: Rank of this process, or None.
        world_size: Number of ranks, or None.
        mesh: A `torch.distributed.device_mesh.DeviceMesh`, or None.

    Returns:
        The place, or None if no argument is given.

    Raises:
        ValueError: The arguments do not go together, or the rank is not in the range.
    """
    if (rank is None) != (world_size is None):
        missing = "rank" if rank is None else "world_size"
        raise ValueError(f"{missing} is missing: rank and world_size go together")
    if mesh is not None:
        if rank is not None:
            raise ValueError("mesh is given together with rank and world_size, expected one of them")
        return _of_mesh(mesh)
    if rank is None or world_size is None:
        return None
    return _checked(rank, world_size, ARGUMENTS)


def find() -> Place:
    """Returns the place of this process as the first of these has it: torch.distributed, jax.distributed, the environment
    variables of `torchrun`, of an MPI, or of an srun step. Without any of them, this process is the only rank.

    Raises:
        ValueError: Two of them disagree, or the environment has a number of ranks above 1 without a rank, or another number
            than that of the rank that is found.
    """
    found = [*_initialized(), *_launched()]
    for other in found[1:]:
        if other[:2] != found[0][:2] and not _is_outer(other.source, other.world_size, found[0]):
            raise ValueError(
                f"rank and world_size are ambiguous: {_said(found[0])}, but {_said(other)}; pass rank and world_size"
            )
    if not found:
        _check_alone()
        return _checked(0, 1, ALONE)
    _check_numbers(found[0])
    announce(found[0])
    return found[0]


def announce(found: Place) -> None:
    """Logs a place once per process, because it determines which rows the process reads."""
    text = f"RANK={found.rank} of {found.world_size}, from {found.source}"
    if text not in _announced:
        _announced.add(text)
        share = "all rows" if found.world_size == 1 else f"1/{found.world_size} of the rows"
        LOG.warning("%s: this process reads %s", text, share)


def local_rank() -> int | None:
    """Returns the rank of this process on its host, or None if no launcher says it."""
    for name in LOCAL_RANKS:
        if name in os.environ and (name != "SLURM_LOCALID" or _is_srun_step(os.environ)):
            return _number(name, os.environ)
    return None


def _initialized() -> Iterator[Place]:
    """Yields the places of the frameworks that are initialized for several processes."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield _checked(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    jax = sys.modules.get("jax")
    if jax is not None and _is_initialized(jax):
        yield _checked(jax.process_index(), jax.process_count(), "jax.distributed")


def _is_initialized(jax: Any) -> bool:
    if hasattr(jax.distributed, "is_initialized"):
        return jax.distributed.is_initialized()
    # Versions before 0.5 have no public function for it.
    return sys.modules["jax._src.distributed"].global_state.client is not None


def _launchers() -> Iterator[tuple[str, str]]:
    """Yields the variables of the rank and of the number of ranks, of the launchers that may have started this process."""
    for rank, world_size in LAUNCHERS:
        if rank == "SLURM_PROCID":
            if not _is_srun_step(os.environ) or any(name in os.environ for name in INNER_LAUNCHERS):
                continue
            if world_size not in os.environ:
                world_size = "SLURM_NTASKS"
        yield rank, world_size


def _launched() -> Iterator[Place]:
    """Yields the places that the environment of a launcher gives."""
    for rank, world_size in _launchers():
        if rank not in os.environ:
            continue
        if world_size not in os.environ:
            raise ValueError(f"{rank} is {os.environ[rank]}, but {world_size} is not set; pass rank and world_size")
        numbers = _number(rank, os.environ), _number(world_size, os.environ)
        yield _checked(*numbers, f"{rank} and {world_size}")


def _numbers_alone() -> dict[str, int]:
    """Returns the numbers of ranks of the launchers whose rank is not set, by variable."""
    names = [world_size for rank, world_size in _launchers() if rank not in os.environ and world_size in os.environ]
    return {name: _number(name, os.environ) for name in names}


def _least_numbers() -> dict[str, int]:
    """Returns the least numbers of processes that the hints give, by variable."""
    return {name: _number(name, os.environ) + 1 - most for name, most in HINTS.items() if name in os.environ}


def _check_alone() -> None:
    """Checks that nothing says that there are other ranks.

    Raises:
        ValueError: The number of ranks, or the rank on this host, is known and the rank is not.
    """
    numbers = {**_numbers_alone(), **_least_numbers()}
    hints = ", ".join(f"{name}={os.environ[name]}" for name, number in numbers.items() if number > 1)
    if hints:
        raise ValueError(
            f"the environment has {hints} but no RANK, so every process would read all rows; pass rank and world_size, or "
            "initialize torch.distributed before the dataset is first used"
        )


def _check_numbers(found: Place) -> None:
    """Checks that the variables without a rank go together with the place that was found.

    Raises:
        ValueError: One has another number of ranks, or says that there are more processes.
    """
    numbers = _numbers_alone()
    wrong = [name for name, number in numbers.items() if number != found.world_size and not _is_outer(name, number, found)]
    for name, least in _least_numbers().items():
        # The processes of PMIx may be those of srun, each of which has started a launcher.
        is_unrelated = name == "PMIX_RANK" and _is_srun_step(os.environ)
        if least > found.world_size and not is_unrelated:
            wrong.append(name)
    if wrong:
        hints = ", ".join(f"{name}={os.environ[name]}" for name in wrong)
        raise ValueError(
            f"rank and world_size are ambiguous: {_said(found)}, but the environment has {hints}; pass rank and world_size"
        )


def _is_outer(source: str, world_size: int, inner: Place) -> bool:
    """True for the numbers of an srun step that has started another launcher once per host, which has more processes."""
    return source.startswith("SLURM") and inner.world_size > world_size


def _of_mesh(mesh: Any) -> Place:
    """Returns the place of this process in the data-parallel dimensions of a device mesh."""
    names = tuple(mesh.mesh_dim_names or ())
    if not names and mesh.ndim > 1:
        raise ValueError(f"mesh has {mesh.ndim} dimensions without names, expected names, or the data-parallel one alone")
    unknown = [name for name in names if not _is_data_parallel(name) and name not in MODEL_DIMENSIONS]
    if unknown and mesh.ndim > 1:
        raise ValueError(
            f"mesh has the unknown dimension {unknown[0]!r} among {', '.join(names)}; pass the data-parallel dimensions alone, "
            "such as mesh['dp']"
        )
    dimensions = [index for index in range(mesh.ndim) if not names or names[index] not in MODEL_DIMENSIONS]
    if not dimensions:
        raise ValueError(f"mesh has the dimensions {', '.join(names)}; pass the data-parallel one, such as mesh['dp']")
    rank, world_size = 0, 1
    for dimension in dimensions:
        size = mesh.size(dimension)
        rank, world_size = rank * size + mesh.get_local_rank(dimension), world_size * size
    import torch.distributed

    # Processes of other ranks and of equal ones agree on the data. A part of a mesh does not say which these are.
    whole = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    processes = whole.mesh.flatten().tolist()
    found = _checked(rank, world_size, "the mesh")
    announce(found)
    is_part = len(processes) < torch.distributed.get_world_size()
    group = f"{min(processes)}-{max(processes)}/" if is_part else ""
    return found._replace(member=processes.index(torch.distributed.get_rank()), members=len(processes), group=group)


def _is_data_parallel(dimension: str) -> bool:
    return dimension in DATA_DIMENSIONS or dimension.startswith(("dp_", "data_"))


def _checked(rank: int, world_size: int, source: str) -> Place:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, expected 0 to {world_size - 1}, from {source}")
    return Place(rank, world_size, source, rank, world_size)


def _said(found: Place) -> str:
    return f"{found.source} say rank {found.rank} of {found.world_size}"


def _is_srun_step(environment: Mapping[str, str]) -> bool:
    """True for a task that srun started. The script of sbatch and an interactive shell have the variables of all tasks."""
    return "SLURM_STEP_ID" in environment and environment["SLURM_STEP_ID"] not in SLURM_SHELLS


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, expected a number") from None
