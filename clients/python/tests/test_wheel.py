"""The tag of the installed wheel is true for all binaries in it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform != "linux", reason="the tags of other systems have no version of glibc"),
]

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def glibc() -> ModuleType:
    """The module that the build of the wheel uses. Its folder, which has the package without the native part, is not on the path."""
    spec = importlib.util.spec_from_file_location("glibc", PACKAGE / "glibc.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def distribution() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("forebay")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed from a wheel")


def test_the_tag_of_the_wheel_holds_for_the_native_part_and_the_server(
    glibc: ModuleType, distribution: importlib.metadata.Distribution
) -> None:
    tags = re.findall(r"^Tag: \S+manylinux_(\d+)_(\d+)_\w+$", distribution.read_text("WHEEL") or "", re.M)
    assert tags, distribution.read_text("WHEEL")
    promised = min((int(major), int(minor)) for major, minor in tags)
    paths = [Path(distribution.locate_file(file)).resolve() for file in distribution.files or []]
    required = {path.name: glibc.required_glibc(path) for path in paths if path.is_file() and glibc.is_elf(path)}
    assert required.keys() == {"_forebay.abi3.so", "forebay"}
    assert max(required.values()) <= promised, (required, promised)


def test_the_required_version_of_glibc_is_that_which_readelf_shows(glibc: ModuleType) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not on this machine")
    for path in {Path(shutil.which(name) or sys.executable).resolve() for name in ("sh", "ls", "cc", "python3")}:
        if not glibc.is_elf(path):
            continue
        shown = subprocess.run(["readelf", "--wide", "--version-info", path], capture_output=True, text=True, check=True).stdout
        needs = shown.partition(".gnu.version_r")[2]
        versions = [(int(major), int(minor)) for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", needs)]
        if "GLIBC_ABI_DT_RELR" in needs:
            versions.append((2, 36))
        assert glibc.required_glibc(path) == max(versions, default=(0, 0)), path


def test_a_file_that_is_no_binary_is_an_error(glibc: ModuleType) -> None:
    assert not glibc.is_elf(Path(__file__))
    with pytest.raises(ValueError, match="test_wheel.py is not an ELF file"):
        glibc.required_glibc(Path(__file__))
