"""The file of sentence pairs that the package ships; `sparsenmt.data.demo_corpus` describes its format and reads it."""

from __future__ import annotations

import gzip
import io
from itertools import islice

from sparsenmt.data.demo_corpus import NO_SPACE
from tools.demo_corpus.grammar import DemoSentence, distinct_sentences


def packed_line(sentence: DemoSentence) -> str:
    """Return the line of a sentence pair.

    Raises:
        ValueError: a token contains one of the separators.
    """
    line = ""
    for token in sentence.tokens:
        if any(separator in token.text for separator in (NO_SPACE, " ", "\t")):
            raise ValueError(f"a separator in the token {token.text!r}")
        separator = "" if not line else NO_SPACE if token.attached else " "
        line += f"{separator}{token.text}_{token.tag}"
    return f"{line}\t{sentence.target}"


def packed_sentences(size: int, seed: int) -> bytes:
    """Return the content of the file: the first ``size`` different sentences of a seed."""
    lines = (f"{packed_line(sentence)}\n" for sentence in islice(distinct_sentences(seed), size))
    return "".join(lines).encode("utf-8")


def compressed(content: bytes) -> bytes:
    """Compress without name and time: equal content gives equal bytes, as long as zlib is the same."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(content)
    return buffer.getvalue()
