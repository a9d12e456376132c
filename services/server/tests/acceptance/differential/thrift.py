"""The compact protocol of Thrift, as far as the metadata of Parquet need it: a struct is a dict from field number to value.

`None` omits a field. A plain int is an i32, `I64` and `Byte` the other widths. A list holds values of one type.
"""

from __future__ import annotations

from typing import Any


class I64(int):
    """An i64."""


class Byte(int):
    """An i8."""


TRUE, FALSE, BYTE, I32, LONG, BINARY, LIST, STRUCT = 1, 2, 3, 5, 6, 8, 9, 12


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63) if value >= 0 else ((-value) << 1) - 1)


def type_of(value: Any) -> int:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    kinds = ((Byte, BYTE), (I64, LONG), (int, I32), ((bytes, str), BINARY), (list, LIST), (dict, STRUCT))
    return next(code for kind, code in kinds if isinstance(value, kind))


def encode(value: Any) -> bytes:
    """Returns the bytes of a value. The type of a field precedes them, so booleans have bytes only as items of a list."""
    if isinstance(value, bool):
        return bytes([TRUE if value else FALSE])
    if isinstance(value, Byte):
        return bytes([value & 0xFF])
    if isinstance(value, int):
        return zigzag(value)
    if isinstance(value, (bytes, str)):
        data = value.encode() if isinstance(value, str) else value
        return varint(len(data)) + data
    if isinstance(value, list):
        code = type_of(value[0]) if value else STRUCT
        size = bytes([len(value) << 4 | code]) if len(value) < 15 else bytes([0xF0 | code]) + varint(len(value))
        return size + b"".join(map(encode, value))
    return struct(value)


def struct(fields: dict[int, Any]) -> bytes:
    out, last = bytearray(), 0
    for number in sorted(fields):
        value = fields[number]
        if value is None:
            continue
        code, step = type_of(value), number - last
        out += bytes([step << 4 | code]) if step < 16 else bytes([code]) + zigzag(number)
        last = number
        if not isinstance(value, bool):
            out += encode(value)
    return bytes(out + b"\0")
