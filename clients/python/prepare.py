#!/usr/bin/env python3
"""Builds the wheel and installs it into environments of its own, below target/python.

    wheels/      the wheel, with the server's binary in it
    venv/        the wheel and requirements/test.txt: NumPy, pyarrow, JAX, polars, pandas, DuckDB, mypy, pyright
    torch/       the wheel and requirements/torch.txt: NumPy, pyarrow, PyTorch
    frameworks/  the wheel and requirements/bridges.txt: Lightning, Accelerate, transformers, Ray, XGBoost, Keras
    migration/   the wheel and requirements/migration.txt: datasets, tf.data, Ray Data
    petastorm/   the wheel and requirements/petastorm.txt: Petastorm, whose pyarrow is older; PyTorch is that of migration/

With `--frameworks` or `--migration`, it only installs the wheel that was built last into these environments, which require Python 3.10.

Requires Python 3.9 or later with pip, PyPI, npm's registry, and the release binaries of the workspace. PyTorch is optional: if it
cannot be installed, the file `torch.missing` holds the reason, and the tests that need PyTorch are skipped with it.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / ".ci"))

from environment import Unavailable, install, is_current, run, uv  # noqa: E402

HOME = ROOT / "target" / "python"
LOCKS = HERE / "requirements"
# PyTorch on Linux includes CUDA's libraries: 5.2 GB on disk.
TORCH_BYTES = 7_000_000_000
# Minor versions of glibc 2 for which maturin has a tag of wheels, from the oldest one that Rust's standard library supports.
TAGGED_MINORS = (17, 24, 26, 27, 28, 31, *range(34, 42))


def say(line: str) -> None:
    print(f"python: {line}", flush=True)


def environment(name: str, lock: Path) -> Path:
    """Returns the interpreter of an environment below target/python, which is installed unless it is current."""
    if not is_current(HOME / name, lock):
        say(f"{name}: installing")
    return install(HOME / name, lock)


def install_server() -> None:
    """Copies the server's binary to the place where the wheel gets it from."""
    scripts = HERE / "forebay.data" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / "target" / "release" / "forebay", scripts / "forebay")


def compatibility() -> list[str]:
    """Returns the options of maturin for the tag of a wheel for Linux: the glibc that the server and the native part require.

    maturin by itself considers only the native part.
    """
    release = ROOT / "target" / "release"
    versions = [platform.libc_ver(str(path)) for path in (release / "forebay", release / "lib_forebay.so") if path.exists()]
    required = [tuple(map(int, version.split("."))) for library, version in versions if library == "glibc"]
    if not required:
        return []
    # The next version for which maturin has a tag.
    tag = next((f"manylinux_2_{minor}" for minor in TAGGED_MINORS if (2, minor) >= max(required)), "linux")
    return ["--compatibility", tag]


def build_wheel() -> Path:
    """Builds the wheel, including the server's binary."""
    maturin = environment("build", LOCKS / "build.txt").parent / "maturin"
    install_server()
    shutil.rmtree(HOME / "wheels", ignore_errors=True)
    options = ["--release", "--locked", *compatibility(), "--out", HOME / "wheels"]
    # .ci/maturin-cargo builds the whole workspace instead of the package alone. On other systems, linking the library may need options
    # that maturin passes to `cargo rustc`.
    env = {"CARGO": str(ROOT / ".ci" / "maturin-cargo")} if platform.system() == "Linux" else None
    run(maturin, "build", *options, cwd=HERE, env=env)
    return next((HOME / "wheels").glob("*.whl"))


def install_wheel(python: Path, wheel: Path) -> None:
    """Installs a wheel without its dependencies, which the lock files contain."""
    uv("pip", "install", "--quiet", "--offline", "--no-deps", "--reinstall", "--python", python, wheel)


def packages(python: Path) -> str:
    """Returns the folder in which an environment has its packages."""
    return run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()


def install_migration(wheel: Path) -> None:
    """Prepares the environments of the loaders that users come from. That of Petastorm finds PyTorch in the other one."""
    migration = environment("migration", LOCKS / "migration.txt")
    petastorm = environment("petastorm", LOCKS / "petastorm.txt")
    for python in (migration, petastorm):
        install_wheel(python, wheel)
    (Path(packages(petastorm)) / "migration.pth").write_text(f"{packages(migration)}\n")


def install_torch(wheel: Path) -> None:
    """Prepares the environment with PyTorch, or writes the reason why it is missing."""
    folder, lock, note = HOME / "torch", LOCKS / "torch.txt", HOME / "torch.missing"
    try:
        free = shutil.disk_usage(HOME).free
        if not is_current(folder, lock) and free < TORCH_BYTES:
            raise Unavailable(f"PyTorch requires {TORCH_BYTES / 1e9:.0f} GB of disk space, {free / 1e9:.1f} GB are free")
        install_wheel(environment("torch", lock), wheel)
        note.unlink(missing_ok=True)
    except Unavailable as reason:
        shutil.rmtree(folder, ignore_errors=True)
        note.write_text(f"{reason}\n")
        say(f"torch: unavailable, its tests will be skipped: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", action="store_true", help="prepare the environment with the frameworks only")
    parser.add_argument("--migration", action="store_true", help="prepare the environments with the loaders that users come from only")
    options = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    try:
        if options.frameworks:
            install_wheel(environment("frameworks", LOCKS / "bridges.txt"), next((HOME / "wheels").glob("*.whl")))
            return 0
        if options.migration:
            install_migration(next((HOME / "wheels").glob("*.whl")))
            return 0
        wheel = build_wheel()
        python = environment("venv", LOCKS / "test.txt")
        # Downloads the program from npm.
        run(python, "-m", "pyright", "--version", env={"PYRIGHT_PYTHON_CACHE_DIR": str(HOME / "venv" / "pyright")})
        install_wheel(python, wheel)
    except (Unavailable, OSError) as reason:
        say(str(reason))
        return 1
    say(f"{wheel.name}: installed")
    install_torch(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
