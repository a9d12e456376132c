"""The rank of this process among those that train together, as the launcher or the framework says it.

The world size is the number of ranks. The place of a process is its rank and the world size, see `Place`.
"""

from __future__ import annotations

import logging
import numbers
import os
import sys
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

LOG = logging.getLogger("forebay")

# Environment variables of the rank and of the world size, from the innermost launcher to the outermost one.
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
# Ranks that srun sets for its tasks. It sets PMI_RANK with `--mpi=pmi2`, which is the default of many sites.
SRUN_RANKS = ("PMI_RANK", "SLURM_PROCID")
# Variables that give no rank, but can say that there are several processes. Each has the largest value that it can have if the
# process is alone.
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
    """The rank of this process and the world size, with their source."""

    rank: int
    world_size: int
    # Where both were found, for messages: the arguments, a framework, or the names of the variables.
    source: str
    # Number of this process among all processes of the training, and their number. They differ from the rank and the
    # world size if several processes read the same rows.
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
        ValueError: Two of them disagree. Or none has a rank, but a variable such as `WORLD_SIZE` says that there are several
            processes. Or one has a rank, but such a variable disagrees with its world size.
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
    _check_world_size(found[0])
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
    """Yields the variables of the rank and of the world size, of each launcher that may have started this process."""
    is_step = _is_srun_step(os.environ)
    is_inner = is_step and any(name in os.environ for name in INNER_LAUNCHERS)
    for rank, world_size in LAUNCHERS:
        if is_inner and rank in SRUN_RANKS:
            continue
        if rank == "SLURM_PROCID":
            if not is_step:
                continue
            if world_size not in os.environ:
                world_size = "SLURM_NTASKS"
        yield rank, world_size


def _launched() -> Iterator[Place]:
    """Yields a place for each launcher whose rank is set in the environment."""
    for rank, world_size in _launchers():
        if rank not in os.environ:
            continue
        if world_size not in os.environ:
            raise ValueError(f"{rank} is {os.environ[rank]}, but {world_size} is not set; pass rank and world_size")
        numbers = _number(rank, os.environ), _number(world_size, os.environ)
        yield _checked(*numbers, f"{rank} and {world_size}")


def _world_sizes_without_rank(is_strict: bool) -> dict[str, int]:
    """Returns the world sizes of launchers that set no rank, by variable name."""
    return _numbers((world_size for rank, world_size in _launchers() if rank not in os.environ), is_strict)


def _smallest_world_sizes(is_strict: bool) -> dict[str, int]:
    """Returns the smallest world sizes that are consistent with `LOCAL_RANK` and the other `HINTS`, by variable name."""
    return {name: number + 1 - HINTS[name] for name, number in _numbers(HINTS, is_strict).items()}


def _numbers(names: Iterable[str], is_strict: bool) -> dict[str, int]:
    """Returns the values of the variables that are set. A value that is not a number is an error if `is_strict`, and is
    otherwise left out."""
    numbers = {}
    for name in names:
        if name not in os.environ:
            continue
        try:
            numbers[name] = _number(name, os.environ)
        except ValueError:
            if is_strict:
                raise
    return numbers


def _check_alone() -> None:
    """Checks that no variable says that there are several processes. Called if no source has a rank.

    Raises:
        ValueError: A variable such as `WORLD_SIZE` or `LOCAL_RANK` says so, or it is not a number.
    """
    sizes = {**_world_sizes_without_rank(is_strict=True), **_smallest_world_sizes(is_strict=True)}
    several = ", ".join(f"{name}={os.environ[name]}" for name, size in sizes.items() if size > 1)
    if several:
        raise ValueError(
            f"the environment has {several} but no RANK, so every process would read all rows; pass rank and world_size, or "
            "initialize torch.distributed before the dataset is first used"
        )


def _check_world_size(found: Place) -> None:
    """Checks that the variables without a rank agree with the world size that was found.

    A value that is not a number is ignored. Job templates set such values, and the rank is known without them.

    Raises:
        ValueError: A launcher that sets no rank has another world size, or `LOCAL_RANK` or a similar variable needs a larger one.
    """
    sizes = _world_sizes_without_rank(is_strict=False)
    wrong = [name for name, size in sizes.items() if size != found.world_size and not _is_outer(name, size, found)]
    for name, smallest in _smallest_world_sizes(is_strict=False).items():
        if smallest > found.world_size and not _is_unrelated(name):
            wrong.append(name)
    if wrong:
        values = ", ".join(f"{name}={os.environ[name]}" for name in wrong)
        raise ValueError(
            f"rank and world_size are ambiguous: {_said(found)}, but the environment has {values}; pass rank and world_size"
        )


def _is_unrelated(name: str) -> bool:
    """True for a variable of `HINTS` that may describe other processes than those of the rank that was found."""
    # A platform may set NODE_RANK for each host, also if the hosts train independently.
    # In an srun step, PMIX_RANK may be that of the task, which has started another launcher.
    return name == "NODE_RANK" or (name == "PMIX_RANK" and _is_srun_step(os.environ))


def _is_outer(source: str, world_size: int, inner: Place) -> bool:
    """True for the world size of an srun step whose tasks have started another launcher. That one has more processes.

    Args:
        source: Source of the world size: that of a place, or the name of a variable.
        world_size: World size of the launcher that may be the outer one.
        inner: The place that was found.
    """
    is_of_srun = source.startswith("SLURM_") or (source.startswith("PMI_") and _is_srun_step(os.environ))
    return is_of_srun and inner.world_size > world_size


def _of_mesh(mesh: Any) -> Place:
    """Returns the place of this process in the data-parallel dimensions of a device mesh."""
    if not hasattr(mesh, "mesh_dim_names"):
        raise ValueError(f"mesh is {mesh!r}, expected a torch.distributed.device_mesh.DeviceMesh")
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
    for name, number in (("rank", rank), ("world_size", world_size)):
        if not isinstance(number, numbers.Integral) or isinstance(number, bool):
            raise ValueError(f"{name} is {number!r}, expected an integer, from {source}")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, expected at least 1, from {source}")
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
