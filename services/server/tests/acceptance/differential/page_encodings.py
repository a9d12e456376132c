"""Encodings of Parquet, by hand: levels, dictionary indexes, plain values, deltas and split streams."""

from __future__ import annotations

import os.path
import struct

from differential.thrift import varint, zigzag

BOOLEAN, INT32, INT64, _, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
FORMATS = {INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}


def plain(physical: int, values: list) -> bytes:
    """Encodes physical values: ints, floats, or bytes."""
    if physical == BOOLEAN:
        return packed([int(value) for value in values], 1)
    if physical in FORMATS:
        return b"".join(struct.pack(FORMATS[physical], value) for value in values)
    if physical == BYTE_ARRAY:
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return b"".join(values)


def packed(values: list[int], width: int) -> bytes:
    bits = sum(value << index * width for index, value in enumerate(values))
    return bits.to_bytes((len(values) * width + 7) // 8, "little")


def runs(values: list[int], width: int) -> bytes:
    """Encodes as runs of equal values."""
    out, start = bytearray(), 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[start]:
            out += varint((index - start) << 1) + values[start].to_bytes((width + 7) // 8, "little")
            start = index
    return bytes(out)


def groups(values: list[int], width: int) -> bytes:
    """Encodes as bit-packed groups of eight values."""
    count = -(-len(values) // 8)
    return varint(count << 1 | 1) + packed([*values, *[0] * (count * 8 - len(values))], width)


def indexes(values: list[int], size: int) -> bytes:
    """Encodes indexes of a dictionary with `size` values."""
    width = max(size - 1, 0).bit_length()
    return bytes([width]) + (groups(values, width) if values else b"")


def deltas(values: list[int], bits: int) -> bytes:
    """DELTA_BINARY_PACKED with blocks of 128 values in four miniblocks."""
    mask = (1 << bits) - 1

    def signed(value: int) -> int:
        value &= mask
        return value - (1 << bits) if value >> bits - 1 else value

    out = bytearray(varint(128) + varint(4) + varint(len(values)) + zigzag(values[0] if values else 0))
    steps = [signed(b - a) for a, b in zip(values, values[1:])]
    for start in range(0, len(steps), 128):
        block = steps[start : start + 128]
        least = min(block)
        rest = [(step - least) & mask for step in block]
        minis = [rest[at : at + 32] for at in range(0, 128, 32)]
        widths = [max((value.bit_length() for value in mini), default=0) for mini in minis]
        out += zigzag(least) + bytes(widths)
        for mini, width in zip(minis, widths):
            if mini:
                out += packed([*mini, *[0] * (32 - len(mini))], width)
    return bytes(out)


def delta_lengths(values: list[bytes]) -> bytes:
    """DELTA_LENGTH_BYTE_ARRAY."""
    return deltas([len(value) for value in values], 32) + b"".join(values)


def delta_texts(values: list[bytes]) -> bytes:
    """DELTA_BYTE_ARRAY: the length of the prefix shared with the preceding value, and the rest."""
    shared = [len(os.path.commonprefix([a, b])) for a, b in zip([b"", *values], values)]
    return deltas(shared, 32) + delta_lengths([value[length:] for value, length in zip(values, shared)])


def split(physical: int, values: list) -> bytes:
    """BYTE_STREAM_SPLIT."""
    each = [plain(physical, [value]) for value in values]
    return b"".join(bytes(value[at] for value in each) for at in range(len(each[0]) if each else 0))
