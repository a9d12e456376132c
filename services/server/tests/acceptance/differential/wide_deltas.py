"""Columns that DuckDB writes with deltas of more than 32 bits, as their pages show.

Values of 32 bits in DELTA_BINARY_PACKED have deltas of 32 bits, which wrap around. With `PARQUET_VERSION v2`, DuckDB computes them with 64
bits: between both ends of the type they take 33 bits. Its own reader reads them; those of Arrow do not. docs/reference/protocol.md states
that they are not supported. A refusal of any other column is a difference.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from differential import thrift
from differential.datasets import Dataset
from differential.dialect import WIDE_DELTAS, Dialect
from differential.duck import Refused
from differential.grammar import Column
from differential.served import Served

MESSAGE = "integers of 32 bits whose encoding DELTA_BINARY_PACKED has differences of more than 32 bits"
DATA_PAGE, DATA_PAGE_V2 = 0, 3
DELTA_BINARY_PACKED = 5


def columns(dataset: Dataset, folder: Path) -> list[Column]:
    """Returns the columns with such deltas in a file of `folder` that DuckDB wrote."""
    names = {name for path in folder.glob("*-duckdb.parquet") for name in names_in(path)}
    return [column for column in dataset.columns if column.name in names]


def names_in(path: Path) -> set[str]:
    """Returns the names of the columns of a file with such deltas."""
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    found = set()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk, column = metadata.row_group(group).column(number), metadata.schema.column(number)
            if chunk.physical_type == "INT32" and any(map(are_wide, delta_pages(data, chunk, column))):
                found.add(chunk.path_in_schema.partition(".")[0])
    return found


def delta_pages(data: bytes, chunk: pq.ColumnChunkMetaData, column: pq.ColumnSchema) -> Iterator[bytes]:
    """Yields the encoded values of the pages of a column chunk in DELTA_BINARY_PACKED."""
    place = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    end = place + chunk.total_compressed_size
    while place < end:
        header, body = thrift.decode(data, place)
        place = body + header[3]
        page, size = data[body:place], header[2]
        if header[1] == DATA_PAGE and header[5][2] == DELTA_BINARY_PACKED:
            page = decompressed(page, size, chunk.compression)
            for _ in range((column.max_repetition_level > 0) + (column.max_definition_level > 0)):
                page = page[4 + struct.unpack_from("<I", page)[0] :]
            yield page
        elif header[1] == DATA_PAGE_V2 and header[8][4] == DELTA_BINARY_PACKED:
            levels = header[8][5] + header[8][6]
            is_compressed = header[8].get(7, True)
            yield decompressed(page[levels:], size - levels, chunk.compression if is_compressed else "UNCOMPRESSED")


def decompressed(page: bytes, size: int, codec: str) -> bytes:
    """Returns `size` bytes."""
    if codec == "UNCOMPRESSED":
        return page
    return pa.decompress(page, decompressed_size=size, codec={"LZ4": "lz4_raw"}.get(codec, codec.lower()), asbytes=True)


def are_wide(page: bytes) -> bool:
    """Returns true if encoded values of 32 bits have a first value or a delta of more than 32 bits."""
    size, place = thrift.read_varint(page, 0)
    miniblocks, place = thrift.read_varint(page, place)
    count, place = thrift.read_varint(page, place)
    first, place = thrift.read_zigzag(page, place)
    if not fits(first):
        return True
    count -= 1
    each = size // miniblocks
    while count > 0:
        least, place = thrift.read_zigzag(page, place)
        # Miniblocks after the last value have a width, but no data.
        widths = page[place : place + miniblocks][: -(-count // each)]
        if not fits(least) or max(widths) > 32:
            return True
        place += miniblocks + sum(width * each // 8 for width in widths)
        count -= size
    return False


def fits(value: int) -> bool:
    return -(2**31) <= value < 2**31


def without_refused(dataset: Dataset, served: Served, folder: Path, dialect: Dialect) -> Dataset:
    """Returns a dataset without those of its columns that the server refuses because of such deltas, and counts them."""
    refused = [column for column in columns(dataset, folder) if is_refused(column, served)]
    for _ in refused:
        dialect.hit(WIDE_DELTAS)
    others = [column for column in dataset.columns if column not in refused]
    return Dataset(dataset.seed, others, dataset.ends, dataset.group_rows)


def is_refused(column: Column, served: Served) -> bool:
    try:
        served.read(columns=[column.name])
    except Refused as error:
        # Another error is a difference, which the comparison of all rows finds.
        return MESSAGE in str(error)
    return False
