"""Fields of Protocol Buffers' messages, left out."""

from __future__ import annotations

import pytest

from sparsenmt.data.tokenizers.wire_format import without_field

# 1: varint 300, 2: bytes "abc", 3: message {1: varint 1, 54: bytes "x"}, 4: eight bytes, 5: four bytes
INNER, NAMED = b"\x08\x01", b"\xb2\x03\x01x"
FIELDS = [b"\x08\xac\x02", b"\x12\x03abc", b"\x1a\x06" + INNER + NAMED, b"\x21" + b"8" * 8, b"\x2d" + b"4" * 4]
MESSAGE = b"".join(FIELDS)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_field_is_left_out(number: int) -> None:
    assert without_field(MESSAGE, [number]) == b"".join(FIELDS[: number - 1] + FIELDS[number:])


def test_a_field_of_a_message_in_it() -> None:
    assert without_field(MESSAGE, [3, 54]) == MESSAGE.replace(b"\x1a\x06" + INNER + NAMED, b"\x1a\x02" + INNER)
    long = b"\x1a\xc8\x01" + b"\x12\xc5\x01" + b"y" * 197
    assert without_field(long, [3, 54]) == long
    assert without_field(MESSAGE, [9]) == without_field(MESSAGE, [3, 9]) == MESSAGE
    assert without_field(b"", [1]) == b""


@pytest.mark.parametrize("message", [b"\x12\x05abc", b"\x08", b"\x08\x80", b"\x21123", b"\x0b"])
def test_what_is_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"ends inside|unknown"):
        without_field(message, [7])
