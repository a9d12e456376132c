"""Writes files and folders that a data service must reject, each with one known defect."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption

from differential.thrift import read_varint

MAGIC = b"PAR1"
GOOD_ROWS = 2000


def table(rows: int = GOOD_ROWS, start: int = 0) -> pa.Table:
    chance = np.random.default_rng(start)
    return pa.table({"id": np.arange(start, start + rows), "value": chance.normal(size=rows)})


def write_good(path: Path, rows: int = GOOD_ROWS, start: int = 0, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(rows, start), path, **{"compression": "zstd", **options})
    return path


def among_good(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Returns a function that writes a folder with two good files and one bad one, `bad.parquet`, between them."""

    def make_folder(folder: Path) -> None:
        write_good(folder / "a.parquet")
        make(folder / "bad.parquet")
        write_good(folder / "c.parquet", start=GOOD_ROWS)

    return make_folder


def footer_of(thrift: bytes) -> bytes:
    """Returns a complete file with the given Thrift footer."""
    return MAGIC + thrift + struct.pack("<I", len(thrift)) + MAGIC


def truncated(path: Path) -> None:
    content = write_good(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def without_data(path: Path) -> None:
    """Writes a file with an intact magic number and footer and without the pages."""
    content = write_good(path).read_bytes()
    footer_bytes = struct.unpack("<I", content[-8:-4])[0] + 8
    path.write_bytes(MAGIC + content[-footer_bytes:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("id,value\n1,2\n" * 100)


def footer_length_past_the_file(path: Path) -> None:
    path.write_bytes(MAGIC + struct.pack("<I", 0xFFFF_FFF0) + MAGIC)


def garbage_footer(path: Path) -> None:
    path.write_bytes(footer_of(np.random.default_rng(0).bytes(200)))


def two_billion_row_groups(path: Path) -> None:
    """Writes 32 bytes whose row-group list claims 2,147,483,647 entries."""
    path.write_bytes(footer_of(bytes.fromhex("1502 191c 4801 6d15 0000 1600 19fc ffff ffff 0700")))


def two_billion_schema_elements(path: Path) -> None:
    """Writes 22 bytes whose schema list claims 2,147,483,647 elements."""
    path.write_bytes(footer_of(bytes.fromhex("1502 19fc ffff ffff 0700")))


def long_name_in_footer(path: Path) -> None:
    """Writes a schema element whose name claims 2 GiB."""
    path.write_bytes(footer_of(bytes.fromhex("1502 191c 48ff ffff ff07 6d15 0000 1600 00")))


def deep_schema(path: Path) -> None:
    """Writes 10,000 nested groups, too deep for the stack of a recursive reader."""
    depth = 10_000
    group = bytes.fromhex("3500 1801 67 1502 00")  # required group "g" with one child
    leaf = bytes.fromhex("1502 2500 1801 78 00")  # required int32 "x"
    elements = group * depth + leaf
    count = depth + 1
    varint = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F]) if count < 1 << 14 else b""
    path.write_bytes(footer_of(bytes.fromhex("1502 19fc") + varint + elements + bytes.fromhex("1600 190c 00")))


class _NoKeyManagement(encryption.KmsClient):
    def __init__(self, _config: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master_key: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _master_key: str) -> bytes:
        return base64.b64decode(wrapped_key)


def encrypted(path: Path, plaintext_footer: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["value"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(_NoKeyManagement)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(path, table().schema, encryption_properties=properties) as writer:
        writer.write_table(table())


def encrypted_columns(path: Path) -> None:
    encrypted(path, plaintext_footer=True)


def delta_table(folder: Path) -> None:
    write_good(folder / "part-0.parquet")
    log = folder / "_delta_log" / f"{0:020d}.json"
    log.parent.mkdir()
    log.write_text(json.dumps({"add": {"path": "part-0.parquet", "dataChange": True}}) + "\n")


def iceberg_table(folder: Path) -> None:
    write_good(folder / "data" / "part-0.parquet")
    (folder / "metadata").mkdir()
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps({"format-version": 2, "table-uuid": "0"}))
    (folder / "metadata" / "version-hint.text").write_text("1")


def no_files(folder: Path) -> None:
    """Writes only files whose names are ignored."""
    write_good(folder / "_temporary" / "part-0.parquet")
    write_good(folder / ".hidden.parquet")
    (folder / "README.txt").write_text("nothing here")


def other_type(folder: Path) -> None:
    write_good(folder / "a.parquet")
    pq.write_table(pa.table({"id": [1], "value": ["text"]}), folder / "bad.parquet")


def other_names(folder: Path) -> None:
    write_good(folder / "a.parquet")
    pq.write_table(pa.table({"id": [1], "valeu": [1.0]}), folder / "bad.parquet")


def partition_clash(folder: Path) -> None:
    write_good(folder / "value=3" / "bad.parquet")


def overwrite_pages(path: Path, row_group: int, column: str = "value") -> None:
    """Overwrites the page bodies of a column chunk. The footer stays intact."""
    metadata = pq.ParquetFile(path).metadata.row_group(row_group)
    chunk = next(each for each in map(metadata.column, range(metadata.num_columns)) if each.path_in_schema == column)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    content = bytearray(path.read_bytes())
    skipped = chunk.total_compressed_size // 4
    content[start + skipped : start + chunk.total_compressed_size] = b"\xff" * (chunk.total_compressed_size - skipped)
    path.write_bytes(content)


def overwrite_page_header(path: Path, row_group: int) -> None:
    """Overwrites the first page header of a column chunk."""
    chunk = pq.ParquetFile(path).metadata.row_group(row_group).column(1)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 16] = b"\xff" * 16
    path.write_bytes(content)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def _zigzag(content: bytes, start: int) -> tuple[int, int]:
    """Returns a zigzag varint and the offset after it."""
    value, end = read_varint(content, start)
    return value >> 1 ^ -(value & 1), end


def understate_size(path: Path, decoded_bytes: int, claimed_bytes: int) -> None:
    """Changes the size of decoded values in a footer of one column chunk of strings. The file keeps its size."""
    content, true, claimed = path.read_bytes(), _varint(2 * decoded_bytes), bytearray(_varint(2 * claimed_bytes))
    assert content.count(true) == 1 and len(claimed) <= len(true)
    # A number may have superfluous zeros.
    while len(claimed) < len(true):
        claimed[-1] |= 0x80
        claimed.append(0)
    path.write_bytes(content.replace(true, bytes(claimed)))


def inflate_page_header(path: Path, claimed_bytes: int = 2**31 - 1) -> None:
    """Writes one page whose header claims a decompressed size of 2 GiB. Page and file keep their sizes."""
    values = np.arange(200_000, dtype=np.int64) % 1000
    pq.write_table(
        pa.table({"id": values}),
        path,
        compression="zstd",
        use_dictionary=False,
        data_page_size=1 << 24,
        write_statistics=False,
    )
    content = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start, end = chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size
    # PageHeader: field 1 (page type), 2 (uncompressed size), 3 (compressed size), all zigzag i32.
    assert content[start : start + 3] == bytes.fromhex("1500 15")
    _, after_uncompressed = _zigzag(content, start + 3)
    assert content[after_uncompressed] == 0x15
    compressed, after_compressed = _zigzag(content, after_uncompressed + 1)
    claimed = _varint(claimed_bytes * 2)
    longer = start + 3 + len(claimed) - after_uncompressed
    header = bytes(content[start : start + 3]) + claimed + b"\x15" + _varint((compressed - longer) * 2)
    rest = bytes(content[after_compressed : end - longer])
    patched = header + rest
    assert len(patched) == end - start
    content[start:end] = patched
    path.write_bytes(content)


def repeat_one_value(path: Path, value_bytes: int = 1 << 20, rows: int = 100_000) -> None:
    """Writes a small file with one row group, whose repeated dictionary value decodes to 100 GB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    value = pa.array(["x" * value_bytes])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), value)
    pq.write_table(
        pa.table({"id": np.arange(rows), "text": column}),
        path,
        dictionary_pagesize_limit=4 << 20,
        write_statistics=False,
    )
    assert path.stat().st_size < 4 << 20
