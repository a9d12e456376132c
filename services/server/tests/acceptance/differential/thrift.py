"""The compact protocol of Thrift, as far as the metadata of Parquet need it: a struct is a dict from field number to value.

`None` omits a field. A plain int is an i32, `I64` and `Byte` the other widths. A list holds values of one type.
"""

from __future__ import annotations

from typing import Any


class I64(int):
    """An i64."""


class Byte(int):
    """An i8."""


TRUE, FALSE, BYTE, I16, I32, LONG, FLOATING, BINARY, LIST, SET, _, STRUCT = range(1, 13)


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


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns a number and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def read_zigzag(data: bytes, place: int) -> tuple[int, int]:
    value, place = read_varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def decode(data: bytes, place: int, code: int = STRUCT) -> tuple[Any, int]:
    """Returns a value of the given type, by default a struct as a dict, and the place behind it."""
    if code in (TRUE, FALSE):
        return code == TRUE, place
    if code == BYTE:
        return data[place], place + 1
    if code in (I16, I32, LONG):
        return read_zigzag(data, place)
    if code == FLOATING:
        return data[place : place + 8], place + 8
    if code == BINARY:
        size, place = read_varint(data, place)
        return data[place : place + size], place + size
    if code in (LIST, SET):
        return decode_list(data, place)
    found: dict[int, Any] = {}
    number = 0
    while data[place]:
        step, kind = divmod(data[place], 16)
        if step:
            number, place = number + step, place + 1
        else:
            number, place = read_zigzag(data, place + 1)
        found[number], place = decode(data, place, kind)
    return found, place + 1


def decode_list(data: bytes, place: int) -> tuple[list, int]:
    (count, kind), place = divmod(data[place], 16), place + 1
    if count == 15:
        count, place = read_varint(data, place)
    items = []
    for _ in range(count):
        # A boolean has a byte only in a list.
        item, place = (data[place] == TRUE, place + 1) if kind in (TRUE, FALSE) else decode(data, place, kind)
        items.append(item)
    return items, place
