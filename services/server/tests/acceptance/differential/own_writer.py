"""A writer of Parquet files that decides every field itself: what the format allows and no library writes.

It writes flat columns only. `Layout` has the decisions; `draw_layout` draws them.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from differential import page_encodings as encodings, thrift
from differential.page_encodings import BOOLEAN, BYTE_ARRAY, DOUBLE, FIXED, FLOAT, INT32, INT64
from differential.grammar import Column
from differential.kinds import NANOSECONDS, Kind
from differential.thrift import I64, Byte

CODECS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4_raw": 7}
PLAIN, PLAIN_DICTIONARY, RLE, DELTA, DELTA_LENGTH, DELTA_TEXT, DICTIONARY, SPLIT = 0, 2, 3, 5, 6, 7, 8, 9
ENCODINGS = {
    BOOLEAN: [PLAIN, RLE],
    INT32: [PLAIN, DICTIONARY, DELTA, SPLIT],
    INT64: [PLAIN, DICTIONARY, DELTA, SPLIT],
    FLOAT: [PLAIN, DICTIONARY, SPLIT],
    DOUBLE: [PLAIN, DICTIONARY, SPLIT],
    BYTE_ARRAY: [PLAIN, DICTIONARY, DELTA_LENGTH, DELTA_TEXT],
    FIXED: [PLAIN, DICTIONARY, SPLIT, DELTA_TEXT],
}
UNITS = {"ms": 1, "us": 2, "ns": 3}


@dataclass(frozen=True)
class Layout:
    """Decisions of a file.

    Attributes:
        version: Version of the data pages, 1 or 2.
        codec: Name in `CODECS`.
        compressed: With version 2, the field `is_compressed` of every page: true, false, or None to omit it.
        statistics: `none`, `exact`, `short` (truncated bounds), `old` (the fields before column orders), `nan` (bounds of floats are
            NaN), or `unordered` (no column orders, and bounds in the order of signed bytes).
        orders: `typed`, `absent`, or `future` for a column order that no reader knows.
        index: Whether the file has a page index.
        page_rows: Rows of a page.
        fallback: Whether the dictionary ends with the first page, as in a writer whose dictionary is full.
    """

    version: int
    codec: str
    compressed: bool | None
    statistics: str
    orders: str
    index: bool
    page_rows: int
    fallback: bool


def draw_layout(rng: random.Random) -> Layout:
    statistics = rng.choice(["none", "exact", "exact", "short", "old", "nan", "unordered", "unordered"])
    orders = {"unordered": ["absent", "future"], "none": ["typed", "absent"], "old": ["typed", "absent"]}
    return Layout(
        version=rng.choice([1, 2]),
        codec=rng.choice(list(CODECS)),
        compressed=rng.choice([True, False, None]),
        statistics=statistics,
        orders=rng.choice(orders.get(statistics, ["typed"])),
        index=rng.random() < 0.5,
        page_rows=rng.choice([3, 16, 1000]),
        fallback=rng.random() < 0.5,
    )


class Physical:
    """The physical form of a column: type, length, annotations and values."""

    def __init__(self, kind: Kind, rng: random.Random) -> None:
        self.kind, arrow = kind, kind.arrow
        self.type, self.length, self.converted, self.logical = BYTE_ARRAY, 0, None, None
        self.unsigned = False
        if at.is_integer(arrow):
            signed = at.is_signed_integer(arrow)
            self.type, self.unsigned = INT64 if arrow.bit_width == 64 else INT32, not signed
            self.converted = {8: 11, 16: 12, 32: 13, 64: 14}[arrow.bit_width] + (4 if signed else 0)
            self.logical = {10: {1: Byte(arrow.bit_width), 2: signed}}
        elif at.is_float16(arrow):
            self.type, self.length, self.logical = FIXED, 2, {15: {}}
        elif at.is_floating(arrow):
            self.type = FLOAT if arrow.bit_width == 32 else DOUBLE
        elif at.is_decimal(arrow):
            least = next(size for size in range(1, 40) if 10**arrow.precision <= 1 << (8 * size - 1))
            fitting = [INT32] * (arrow.precision <= 9) + [INT64] * (9 < arrow.precision <= 18) + [FIXED, BYTE_ARRAY]
            self.type = rng.choice(fitting)
            self.length = least if self.type == FIXED else 0
            self.converted, self.logical = 5, {5: {1: arrow.scale, 2: arrow.precision}}
        elif kind.family == "text":
            self.converted, self.logical = 0, {1: {}}
        elif at.is_interval(arrow):
            self.type, self.length, self.converted = FIXED, 12, 21
        elif at.is_fixed_size_binary(arrow):
            self.type, self.length = FIXED, arrow.byte_width
        elif at.is_boolean(arrow):
            self.type = BOOLEAN
        elif kind.family == "date":
            self.type, self.converted, self.logical = INT32, 6, {6: {}}
        elif kind.family in ("time", "naive", "zoned"):
            self.unit = "ms" if arrow.unit == "s" else arrow.unit
            self.type = INT32 if kind.family == "time" and self.unit == "ms" else INT64
            self.logical = {7 if kind.family == "time" else 8: {1: kind.family == "zoned", 2: {UNITS[self.unit]: {}}}}

    @property
    def has_physical_order(self) -> bool:
        """Returns true if the type is ordered as its signed physical values, which every reader knows."""
        return self.type in (BOOLEAN, INT32, INT64, FLOAT, DOUBLE) and not self.unsigned

    def value(self, value: Any) -> Any:
        """Returns the physical value of a plain one."""
        arrow = self.kind.arrow
        if at.is_float16(arrow):
            return struct.pack("<e", value)
        if at.is_decimal(arrow):
            unscaled = int(Decimal(value).scaleb(arrow.scale))
            if self.type in (INT32, INT64):
                return unscaled
            size = self.length or max(1, (unscaled.bit_length() + 8) // 8)
            return unscaled.to_bytes(size, "big", signed=True)
        if self.kind.family == "text":
            return value.encode()
        if at.is_interval(arrow):
            return struct.pack("<3I", value.months, value.days, value.nanoseconds // 10**6)
        if self.kind.family in ("time", "naive", "zoned"):
            return value // NANOSECONDS[self.unit]
        if self.unsigned:
            bits = 64 if self.type == INT64 else 32
            return value - (1 << bits) if value >> bits - 1 else value
        return value


def bounds(form: Physical, values: list, layout: Layout) -> tuple[bytes, bytes] | None:
    """Returns the least and the greatest of plain values in the form of statistics."""
    known = [value for value in values if value == value]
    if layout.statistics == "nan" and form.kind.float_bits:
        nan = encodings.plain(form.type, [form.value(float("nan"))])
        return nan, nan
    if not known or layout.statistics == "none":
        return None
    signed_bytes = layout.statistics in ("old", "unordered") and not form.has_physical_order
    key = (lambda value: [byte - (byte > 127) * 256 for byte in raw(form, value)]) if signed_bytes else order_key
    least, most = min(known, key=key), max(known, key=key)
    if form.kind.float_bits and not signed_bytes:
        # Zeros of both signs are equal, therefore the bounds cover both.
        least, most = (-0.0 if least == 0 else least), (0.0 if most == 0 else most)
    first, last = raw(form, least), raw(form, most)
    if layout.statistics == "short" and form.kind.family in ("text", "bytes") and form.type == BYTE_ARRAY:
        first, last = first[:2], raised(last)
    return first, last


def raw(form: Physical, value: Any) -> bytes:
    physical = form.value(value)
    return physical if isinstance(physical, bytes) else encodings.plain(form.type, [physical])


def order_key(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def raised(value: bytes) -> bytes:
    """Returns a short upper bound."""
    if len(value) <= 2 or value[0] >= 0x7F:
        return value
    return bytes([value[0] + 1])


def write(path: Path, columns: list[Column], rows: range, group_rows: int, layout: Layout, rng: random.Random) -> None:
    """Writes the given rows of `columns`."""
    forms = [Physical(column.kind, rng) for column in columns]
    required = [None not in column.values and rng.random() < 0.5 for column in columns]
    out = bytearray(b"PAR1")
    groups, indexed = [], []
    for start in range(rows.start, rows.stop, group_rows):
        end = min(start + group_rows, rows.stop)
        chunks, begin = [], len(out)
        for column, form, needed in zip(columns, forms, required):
            chunk = Chunk(form, column.values[start:end], needed, layout, rng)
            metadata = chunk.append_to(out, column.name)
            chunks.append({2: I64(0), 3: metadata})
            indexed.append((chunk, chunks[-1]))
        groups.append({1: chunks, 2: I64(len(out) - begin), 3: I64(end - start)})
    if layout.index:
        append_page_index(out, indexed)
    schema: list[dict] = [{4: "schema", 5: len(columns)}]
    for column, form, needed in zip(columns, forms, required):
        decimal = form.kind.arrow if at.is_decimal(form.kind.arrow) else None
        scale, precision = (decimal.scale, decimal.precision) if decimal else (None, None)
        kind = {1: form.type, 2: form.length or None, 6: form.converted, 7: scale, 8: precision, 10: form.logical}
        schema.append({3: 0 if needed else 1, 4: column.name, **kind})
    order = {"typed": {1: {}}, "future": {9: {}}}.get(layout.orders)
    footer = thrift.struct(
        {1: 1, 2: schema, 3: I64(len(rows)), 4: groups, 6: "differential", 7: [order] * len(columns) if order else None}
    )
    path.write_bytes(bytes(out) + footer + struct.pack("<I", len(footer)) + b"PAR1")


class Chunk:
    """A column chunk. `append_to` writes its pages and returns its metadata."""

    def __init__(self, form: Physical, values: list, required: bool, layout: Layout, rng: random.Random) -> None:
        self.form, self.values, self.required, self.layout = form, values, required, layout
        self.encoding = rng.choice(ENCODINGS[form.type])
        self.pages = [values[start : start + layout.page_rows] for start in range(0, len(values), layout.page_rows)]
        # Offset, size and first row of each data page.
        self.places: list[tuple[int, int, int]] = []

    def append_to(self, out: bytearray, name: str) -> dict:
        begin, sizes = len(out), [0, 0]
        physical = [self.form.value(value) for value in self.values if value is not None]
        dictionary = list(dict.fromkeys(encodings.plain(self.form.type, [value]) for value in physical))
        data_encodings = {RLE}
        offset = None
        if self.encoding == DICTIONARY:
            offset = len(out)
            self.append_page(out, b"", b"".join(dictionary), {7: {1: len(dictionary), 2: PLAIN}}, 2, sizes)
            data_encodings |= {PLAIN, DICTIONARY}
        first_page, row = len(out), 0
        for number, page in enumerate(self.pages):
            encoding = PLAIN if self.encoding == DICTIONARY and self.layout.fallback and number else self.encoding
            data_encodings.add(encoding)
            place = len(out)
            self.append_data_page(out, page, encoding, dictionary, sizes)
            self.places.append((place, len(out) - place, row))
            row += len(page)
        metadata = {
            1: self.form.type,
            2: sorted(data_encodings),
            3: [name],
            4: CODECS[self.layout.codec],
            5: I64(len(self.values)),
            6: I64(sizes[0]),
            7: I64(sizes[1]),
            9: I64(first_page),
            11: None if offset is None else I64(offset),
            12: self.statistics(),
        }
        assert len(out) - begin == sizes[1]
        return metadata

    def append_data_page(self, out: bytearray, page: list, encoding: int, dictionary: list[bytes], sizes: list[int]) -> None:
        form = self.form
        there = [form.value(value) for value in page if value is not None]
        if encoding == DICTIONARY:
            places = {value: index for index, value in enumerate(dictionary)}
            data = encodings.indexes([places[encodings.plain(form.type, [value])] for value in there], len(dictionary))
        elif encoding == RLE:
            data = encodings.runs([int(value) for value in there], 1)
            data = struct.pack("<I", len(data)) + data
        elif encoding == DELTA:
            data = encodings.deltas(there, 64 if form.type == INT64 else 32)
        else:
            data = {
                PLAIN: lambda: encodings.plain(form.type, there),
                DELTA_LENGTH: lambda: encodings.delta_lengths(there),
                DELTA_TEXT: lambda: encodings.delta_texts(there),
                SPLIT: lambda: encodings.split(form.type, there),
            }[encoding]()
        levels = b"" if self.required else encodings.runs([int(value is not None) for value in page], 1)
        if self.layout.version == 1:
            prefix = b"" if self.required else struct.pack("<I", len(levels)) + levels
            self.append_page(out, b"", prefix + data, {5: {1: len(page), 2: encoding, 3: RLE, 4: RLE}}, 0, sizes)
        else:
            header = {1: len(page), 2: len(page) - len(there), 3: len(page), 4: encoding, 5: len(levels), 6: 0, 7: self.layout.compressed}
            self.append_page(out, levels, data, {8: header}, 3, sizes)

    def append_page(self, out: bytearray, levels: bytes, data: bytes, header: dict, kind: int, sizes: list[int]) -> None:
        """Appends a page. The levels of version 2 are never compressed; its data are unless the page says otherwise."""
        stored = data
        if self.layout.codec != "none" and not (kind == 3 and self.layout.compressed is False):
            stored = pa.compress(data, codec=self.layout.codec, asbytes=True)
        full = thrift.struct({1: kind, 2: len(levels) + len(data), 3: len(levels) + len(stored), **header})
        out += full + levels + stored
        sizes[0] += len(full) + len(levels) + len(data)
        sizes[1] += len(full) + len(levels) + len(stored)

    def statistics(self) -> dict | None:
        there = [value for value in self.values if value is not None]
        found = bounds(self.form, there, self.layout)
        nulls = None if self.layout.statistics == "none" else I64(len(self.values) - len(there))
        if found is None:
            return None if nulls is None else {3: nulls}
        if self.layout.statistics == "old":
            return {1: found[1], 2: found[0], 3: nulls}
        short = self.layout.statistics == "short"
        return {3: nulls, 5: found[1], 6: found[0], 7: False if short else None, 8: False if short else None}


def append_page_index(out: bytearray, chunks: list[tuple[Chunk, dict]]) -> None:
    """Appends the page index, and sets its place in the metadata of each chunk."""
    for chunk, entry in chunks:
        found = [bounds(chunk.form, [value for value in page if value is not None], chunk.layout) for page in chunk.pages]
        empty = [all(value is None for value in page) for page in chunk.pages]
        if chunk.layout.statistics == "old" or any(bound is None and not null for bound, null in zip(found, empty)):
            continue
        least = [bound[0] if bound and not null else b"" for bound, null in zip(found, empty)]
        most = [bound[1] if bound and not null else b"" for bound, null in zip(found, empty)]
        nulls = [I64(sum(value is None for value in page)) for page in chunk.pages]
        index = thrift.struct({1: empty, 2: least, 3: most, 4: 0, 5: nulls})
        entry |= {6: I64(len(out)), 7: len(index)}
        out += index
    for chunk, entry in chunks:
        places = [{1: I64(offset), 2: size, 3: I64(row)} for offset, size, row in chunk.places]
        index = thrift.struct({1: places})
        entry |= {4: I64(len(out)), 5: len(index)}
        out += index
