"""The wire format of Protocol Buffers: reads and removes fields of a message such as a SentencePiece model.

A message is a sequence of fields: field number and type in one varint, then the value, whose length the type defines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def without_field(message: bytes, path: Sequence[int]) -> bytes:
    """Remove a field from a message.

    Args:
        path: the field number, after those of the messages that contain the field.

    Raises:
        ValueError: it is not a message.
    """
    kept = []
    for number, start, value, end in _fields(message):
        if number != path[0]:
            kept.append(message[start:end])
        elif len(path) > 1:
            inner = without_field(message[value:end], path[1:])
            kept.append(bytes_field(path[0], inner))
    return b"".join(kept)


def without_items(message: bytes, number: int, dropped: Collection[int]) -> bytes:
    """Remove the items of a repeated field whose places, from 0, are ``dropped``.

    Raises:
        ValueError: it is not a message.
    """
    kept, place = [], 0
    for found, start, _, end in _fields(message):
        if found != number or place not in dropped:
            kept.append(message[start:end])
        place += found == number
    return b"".join(kept)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes, as a message has it."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def number_field(number: int, value: int) -> bytes:
    """A field of a number, as a message has it."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def field_values(message: bytes, number: int) -> Iterator[bytes]:
    """The bytes of every value of a field; those of a number are as `read_number` reads them.

    Raises:
        ValueError: it is not a message.
    """
    return (message[value:end] for found, _, value, end in _fields(message) if found == number)


def read_number(value: bytes) -> int:
    """The number of a varint."""
    return _read_varint(value, 0)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Every field as (number, start, start of its value, end); the value of a bytes field starts after its length."""
    start = 0
    while start < len(message):
        key, value = _read_varint(message, start)
        kind = key & 7
        if kind == _VARINT:
            end = _read_varint(message, value)[1]
        elif kind == _BYTES:
            length, value = _read_varint(message, value)
            end = value + length
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            end = value + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise ValueError(f"type {kind} of a field is unknown")
        if end > len(message):
            raise ValueError("the message ends inside a field")
        yield key >> 3, start, value, end
        start = end


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Read a varint, seven bits a byte, low bits first; returns it and its end."""
    value, shift = 0, 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("the message ends inside a number")


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
