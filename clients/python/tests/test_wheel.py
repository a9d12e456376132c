"""The tag of the installed wheel is true for all binaries in it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != "linux", reason="the tags of other systems have no version of glibc"),
]


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("forebay")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed from a wheel")


def binaries(distribution: importlib.metadata.Distribution) -> list[Path]:
    paths = [Path(distribution.locate_file(file)).resolve() for file in distribution.files or []]
    return [path for path in paths if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def test_the_tag_of_the_wheel_holds_for_the_native_part_and_the_server(distribution: importlib.metadata.Distribution) -> None:
    tags = re.findall(r"^Tag: \S+manylinux_(\d+)_(\d+)_\w+$", distribution.read_text("WHEEL") or "", re.M)
    assert tags, distribution.read_text("WHEEL")
    promised = min((int(major), int(minor)) for major, minor in tags)
    required = {path.name: tuple(map(int, platform.libc_ver(str(path))[1].split("."))) for path in binaries(distribution)}
    assert required.keys() == {"_forebay.abi3.so", "forebay"}
    assert max(required.values()) <= promised, (required, promised)


def test_the_version_of_glibc_that_the_build_finds_is_that_which_readelf_shows(distribution: importlib.metadata.Distribution) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not on this machine")
    for path in binaries(distribution):
        shown = subprocess.run(["readelf", "--wide", "--version-info", path], capture_output=True, text=True, check=True).stdout
        needs = shown.partition(".gnu.version_r")[2]
        versions = [(int(major), int(minor)) for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", needs)]
        # A linker requires a glibc that reads relative relocations by this name.
        assert "GLIBC_ABI_DT_RELR" not in needs, "requires glibc 2.36"
        assert tuple(map(int, platform.libc_ver(str(path))[1].split("."))) == max(versions), path
