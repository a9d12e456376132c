#!/usr/bin/env python3
"""Builds the wheel for Linux with glibc 2.28 or later on a machine with a newer one, below target/python/manylinux.

The linker of zig has the symbols of glibc 2.28. It only links the server and the native part of the package again; the crates
are those of `cargo build`. A symbol that glibc 2.28 lacks fails the link. auditwheel verifies every binary of the wheel.

Requires Python 3.10 or later with pip, PyPI, and a release build of the workspace. The binary target/release/forebay is
replaced by the one in the wheel.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import sys
from pathlib import Path

from prepare import HERE, HOME, LOCKS, ROOT, Unavailable, environment, install_server, run, say

GLIBC = (2, 28)
POLICY = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"


def linker(tools: Path, folder: Path, machine: str) -> Path:
    """Writes the program that rustc runs as its linker.

    Args:
        tools: Folder with the programs of the environment.
        folder: Folder of the program.
        machine: Processor, such as `x86_64`.

    Returns:
        The program.
    """
    program = folder / "linker"
    path, zigbuild = shlex.quote(str(tools)), shlex.quote(str(tools / "cargo-zigbuild"))
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    # cargo-zigbuild replaces the options that zig does not know. It looks for zig on the PATH.
    program.write_text(f'#!/bin/sh\nPATH={path}:"$PATH" exec {zigbuild} zig cc -- -target {target} "$@"\n')
    program.chmod(0o755)
    return program


def verify(tools: Path, wheel: Path, machine: str) -> str:
    """Checks all binaries of a wheel.

    Returns:
        The highest version of glibc of which they use a symbol.

    Raises:
        Unavailable: A binary requires a newer glibc, or a library that not every Linux distribution has.
    """
    found = json.loads(run(tools / "auditwheel", "show", "--json", wheel))
    symbols = {symbol for library in found["versioned_symbols"].values() for symbol in library}
    newest = max(tuple(map(int, symbol[6:].split("."))) for symbol in symbols if symbol.startswith("GLIBC_"))
    # A tag is `manylinux_2_28_x86_64`, or `linux_x86_64` if the binaries need other libraries.
    tag = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", found["overall_tag"])
    if tag is None or (int(tag[1]), int(tag[2])) > GLIBC:
        raise Unavailable(f"{wheel.name} is {found['overall_tag']}, expected {POLICY}_{machine}; symbols: {sorted(symbols)}")
    return ".".join(map(str, newest))


def main() -> int:
    machine, folder = platform.machine(), HOME / "manylinux"
    try:
        if platform.system() != "Linux":
            raise Unavailable(f"this is {platform.system()}, expected Linux")
        tools = environment("manylinux-tools", LOCKS / "manylinux.txt").parent
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rustc = ["-C", f"linker={linker(tools, folder, machine)}"]
        if machine == "x86_64":
            # There, rustc passes options for its own linker by default.
            rustc += ["-C", "linker-features=-lld"]
        cargo = ["rustc", "--release", "--locked", "--package", "forebay", "--bin", "forebay"]
        run("cargo", *cargo, "--", *rustc, cwd=ROOT)
        install_server()
        run(tools / "maturin", "build", "--release", "--locked", "--compatibility", POLICY, "--out", folder, "--", *rustc, cwd=HERE)
        wheel = next(folder.glob("*.whl"))
        glibc = verify(tools, wheel, machine)
    except (Unavailable, OSError) as reason:
        say(str(reason))
        return 1
    say(f"{wheel.relative_to(ROOT)}: requires glibc {glibc}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
