"""Text files of any kind, line-aligned or not, plain or gzipped: hypothesis strategies."""

from __future__ import annotations

import gzip

from hypothesis import strategies as st

# What ends lines elsewhere, what is invisible, what is no letter, what vocabularies use themselves.
_PIECES = [
    *(
        "a",
        "b",
        "B",
        "cd",
        "ef",
        " ",
        " ",
        "  ",
        "a b",
        "0",
        "7.",
        ",",
        "ä",
        "ß",
        "İ",
        "ſ",
        "ﬁ",
        "e\u0301",
        "\u0301",
        "日本",
    ),
    *(
        "\r",
        "\t",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1d",
        "\x1e",
        "\x85",
        "\u2028",
        "\u2029",
        "\x00",
        "\x01",
        "\x1b[0m",
        "\x7f",
    ),
    *(
        "\xa0",
        "\u2003",
        "\u3000",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u202e",
        "\ufffd",
        "\uffff",
        "\U0001f600",
        "\U0010ffff",
    ),
    *(
        "▁",
        "▁a",
        "⁇",
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<0x0A>",
        "|||",
        "\\n",
        "&#10;",
        "\ue000",
        "👩\u200d👧",
        "كتاب",
        "\u05d0",
    ),
]
lines = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=8).map("".join),
    st.lists(st.sampled_from(["one", "two", "three", "four", "a", "of"]), max_size=9).map(" ".join),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6),
    st.builds(lambda piece, count: piece * count, st.sampled_from(_PIECES), st.sampled_from([2, 30, 300, 5000])),
)
_BAD_BYTES = [
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
    b"\xfe\xff",
    b"\x80",
    b"\xf0\x9f\x98",
]


def joined(texts: list[str], ended: bool) -> bytes:
    """Lines as a file; ``ended``: the last one too."""
    data = "\n".join(texts).encode()
    return data + b"\n" if ended and texts else data


@st.composite
def raw(draw: st.DrawFn, max_size: int = 10) -> bytes:
    """Any text file, as bytes."""
    match draw(st.sampled_from(["text", "text", "text", "text", "text", "bad", "bytes"])):
        case "text":
            return joined(draw(st.lists(lines, max_size=max_size)), draw(st.booleans()))
        case "bad":
            data = joined(draw(st.lists(lines, max_size=max_size)), True)
            here = draw(st.integers(0, len(data)))
            return data[:here] + draw(st.sampled_from(_BAD_BYTES)) + data[here:]
    return draw(st.binary(max_size=30))


def lines_of(data: bytes) -> list[str] | None:
    """What the lines of a file are; None: it is not UTF-8."""
    try:
        texts = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    return texts if texts[-1] else texts[:-1]


SOUND = ("plain", "plain", "plain", "plain", "gz", "named gz", "members", "empty member", "zeros")
BROKEN = ("cut", "cut", "garbage", "flipped", "plain named gz", "empty gz", "directory", "missing")


def contained(data: bytes, container: str, number: int) -> tuple[str, bytes, bytes | None]:
    """A file that holds a text in some way.

    Args:
        number: picks where the file is cut or changed.

    Returns:
        the end of its name, its bytes, and the text that it holds: None if it cannot be read. A flip may do no harm.
    """
    packed = gzip.compress(data, mtime=0)
    here = number % len(packed)
    match container:
        case "gz":
            return ".gz", packed, data
        case "named gz":  # recognised by its first bytes
            return "", packed, data
        case "members":
            middle = number % (len(data) + 1)
            return ".gz", gzip.compress(data[:middle], mtime=0) + gzip.compress(data[middle:], mtime=0), data
        case "empty member":
            return ".gz", packed + gzip.compress(b"", mtime=0), data
        case "zeros":  # padding, which the format allows
            return ".gz", packed + b"\0" * (number % 40), data
        case "cut":
            return ".gz", packed[:here], None
        case "garbage":
            return ".gz", packed + b"garbage", None
        case "flipped":
            return ".gz", packed[:here] + bytes([packed[here] ^ 1 << number % 8]) + packed[here + 1 :], None
        case "plain named gz":
            return ".gz", data, None if data else b""
        case "empty gz":
            return ".gz", b"", b""
    return "", data, data
