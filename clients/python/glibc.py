"""The version of glibc that a binary requires."""

from __future__ import annotations

import struct
from pathlib import Path

# Of elf.h.
SHT_GNU_VERNEED = 0x6FFFFFFE
ELF_64_LITTLE = b"\x7fELF\x02\x01"


def is_elf(path: Path) -> bool:
    """Returns true for a binary of Linux with 64 bits."""
    with open(path, "rb") as file:
        return file.read(len(ELF_64_LITTLE)) == ELF_64_LITTLE


def required_glibc(path: Path) -> tuple[int, int]:
    """Returns the highest version of glibc whose symbols a binary uses, such as `(2, 35)`; `(0, 0)` if it uses none.

    Reads the section of required versions, as the dynamic linker does.

    Raises:
        ValueError: The file is not a 64-bit ELF file.
    """
    data = path.read_bytes()
    if not data.startswith(ELF_64_LITTLE):
        raise ValueError(f"{path} is not an ELF file with 64 bits in little-endian order")
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    section_size, section_count = struct.unpack_from("<HH", data, 0x3A)
    # Of each section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + index * section_size) for index in range(section_count)]
    newest = (0, 0)
    for _, kind, _, _, offset, _, link, count, _, _ in sections:
        if kind != SHT_GNU_VERNEED:
            continue
        names_at, library_at = sections[link][4], offset
        for _ in range(count):
            _, versions, _, first, next_library = struct.unpack_from("<HHIII", data, library_at)
            version_at = library_at + first
            for _ in range(versions):
                _, _, _, name, next_version = struct.unpack_from("<IHHII", data, version_at)
                newest = max(newest, _glibc_version(data, names_at + name))
                version_at += next_version
            library_at += next_library
    return newest


def _glibc_version(data: bytes, at: int) -> tuple[int, int]:
    """Returns the version in a name such as `GLIBC_2.35`, which ends with a zero byte; `(0, 0)` for other names."""
    library, _, version = data[at : data.index(b"\0", at)].decode("ascii").partition("_")
    if version == "ABI_DT_RELR":
        # The name by which a linker requires a glibc that reads relative relocations.
        return (2, 36)
    parts = version.split(".")
    if library != "GLIBC" or not all(part.isdecimal() for part in parts):
        return (0, 0)
    return (int(parts[0]), int(parts[1]))
