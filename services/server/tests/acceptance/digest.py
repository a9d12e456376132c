"""Compares streams of rows, whole or as a multiset, without keeping them.

`Digest` depends only on the values. It does not depend on how the stream is divided into batches, on offsets,
on bytes under a null, or on the name and layout (view, dictionary) of a type. `row_hashes`
returns one number per row, so that sorted arrays of these numbers compare multisets of rows.
"""

from __future__ import annotations

from typing import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

NULL_HASH = np.uint64(0x9E3779B97F4A7C15)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type that is delivered for `kind`: the value type for dictionaries, utf8 for views."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        return plain(array.dictionary_decode())
    wanted = plain_type(array.type)
    return array if wanted == array.type else array.cast(wanted)


def plain_table(table: pa.Table) -> pa.Table:
    columns = [
        pa.chunked_array([plain(chunk) for chunk in column.chunks], plain_type(column.type)) for column in table.columns
    ]
    return pa.table(columns, table.column_names)


class Node:
    """A column or nested field: a stream of validity bytes, one of lengths, and one of values."""

    def __init__(self) -> None:
        self.validity, self.lengths, self.values = xxhash.xxh3_64(), xxhash.xxh3_64(), xxhash.xxh3_64()
        self.children: list[Node] = []

    def update(self, array: pa.Array) -> None:
        feed(self.validity, valid_mask(array))
        kind = array.type
        if pa.types.is_null(kind):
            return
        if pa.types.is_struct(kind):
            for index, child in enumerate(array.flatten()):
                self.child(index).update(plain(child))
        elif is_list(kind):
            lengths = pc.fill_null(pc.list_value_length(as_list(array)), 0)
            feed(self.lengths, lengths.to_numpy(zero_copy_only=False).astype("<u8"))
            self.child(0).update(plain(as_list(array).flatten()))
        elif is_variable_width(kind):
            lengths = pc.fill_null(pc.binary_length(array), 0)
            feed(self.lengths, lengths.to_numpy(zero_copy_only=False).astype("<u8"))
            feed(self.values, joined_bytes(array.drop_null()))
        else:
            feed(self.values, fixed_width_values(array))

    def child(self, index: int) -> Node:
        while len(self.children) <= index:
            self.children.append(Node())
        return self.children[index]

    def hashes(self) -> Iterator[bytes]:
        for stream in (self.validity, self.lengths, self.values):
            yield stream.intdigest().to_bytes(8, "little")
        for child in self.children:
            yield from child.hashes()


class Digest:
    """The digest of a stream, as docs/reference/protocol.md defines it."""

    def __init__(self) -> None:
        self.columns: list[Node] = []

    def update(self, batch: pa.RecordBatch) -> None:
        while len(self.columns) < batch.num_columns:
            self.columns.append(Node())
        for node, column in zip(self.columns, batch.columns):
            node.update(plain(column))

    def hexdigest(self) -> str:
        return xxhash.xxh3_64(b"".join(hashed for node in self.columns for hashed in node.hashes())).hexdigest()


def feed(hashed: xxhash.xxh3_64, values: np.ndarray) -> None:
    hashed.update(np.ascontiguousarray(values).view(np.uint8).data)


def digest_of(batches: Iterable[pa.RecordBatch]) -> str:
    digest = Digest()
    for batch in batches:
        digest.update(batch)
    return digest.hexdigest()


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_map(kind)
    )


def is_variable_width(kind: pa.DataType) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def as_list(array: pa.Array) -> pa.Array:
    """Returns a map as a list of key-value pairs, and other arrays unchanged."""
    if not pa.types.is_map(array.type):
        return array
    entries = pa.struct([array.type.key_field, array.type.item_field])
    return array.cast(pa.list_(pa.field("entries", entries, nullable=False)))


def valid_mask(array: pa.Array) -> np.ndarray:
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    return array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)


def joined_bytes(array: pa.Array) -> np.ndarray:
    """Returns the concatenated values of a variable-width array without nulls."""
    if len(array) == 0:
        return np.empty(0, np.uint8)
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64 if is_large else np.int32)[array.offset : array.offset + len(array) + 1]
    values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return values[bounds[0] : bounds[-1]]


def fixed_width_values(array: pa.Array) -> np.ndarray:
    """Returns little-endian values as `[rows, width]` bytes, zero under nulls. A bool is one byte."""
    if pa.types.is_boolean(array.type):
        return pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.uint8).reshape(-1, 1)
    width = array.type.bit_width // 8
    if len(array) == 0 or width == 0:
        return np.empty((len(array), width), np.uint8)
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    values = raw[array.offset * width : (array.offset + len(array)) * width].reshape(len(array), width)
    if array.null_count == 0:
        return values
    return values * valid_mask(array)[:, None]


def row_hashes(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """Returns one 64-bit hash per row, over all columns in order."""
    rows = np.zeros(table.num_rows, np.uint64)
    for name in table.column_names:
        column = table.column(name)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        hashed = [_value_hashes(plain(chunk)) for chunk in chunks if len(chunk)]
        values = np.concatenate(hashed) if hashed else np.empty(0, np.uint64)
        rows = _mix(rows * np.uint64(0x100000001B3) + values)
    return rows


def sorted_row_hashes(batches: Iterable[pa.RecordBatch]) -> np.ndarray:
    hashes = [row_hashes(batch) for batch in batches]
    return np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)


def _value_hashes(array: pa.Array) -> np.ndarray:
    if pa.types.is_primitive(array.type):
        values = fixed_width_values(array)
        words = np.zeros(len(array), np.uint64)
        for place in range(values.shape[1]):
            words |= values[:, place].astype(np.uint64) << np.uint64(8 * place)
        hashes = _mix(words)
    elif is_variable_width(array.type):
        encoded = array.dictionary_encode()
        texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
        of_text = np.fromiter((xxhash.xxh3_64_intdigest(text) for text in texts), np.uint64, len(texts))
        indices = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
        hashes = of_text[indices] if len(texts) else np.zeros(len(array), np.uint64)
    else:
        return np.fromiter(_hashes_by_text(array), np.uint64, len(array))
    hashes[valid_mask(array) == 0] = NULL_HASH
    return hashes


def _hashes_by_text(array: pa.Array) -> Iterator[int]:
    """Hashes the text of each value. Slow, for decimals and nested types."""
    for value in array:
        yield xxhash.xxh3_64_intdigest(repr(value.as_py()).encode())


def _mix(words: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
