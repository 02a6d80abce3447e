"""The places of tokens in their line, and the texts of unknown tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparsenmt.data.vocabulary import UNK

Span = tuple[int, int]
"""The first character of a token in its line, and the one after its last."""


def spans_before_lowercase(line: str, spans: Sequence[Span]) -> list[Span]:
    """The spans in a line of spans in its lowercase, which may be longer: that of U+0130 has two characters."""
    if len(line.lower()) == len(line):
        return list(spans)
    origins = [*(place for place, character in enumerate(line) for _ in character.lower()), len(line)]
    return [(origins[begin], origins[end - 1] + 1 if begin < end else origins[begin]) for begin, end in spans]


def fill_unknown(ids: Sequence[int], names: Sequence[str], unknown: Sequence[str]) -> Iterator[str]:
    """The names of tokens, with these texts, in order, in place of those of unknown ones, as far as they go."""
    texts = iter(unknown)
    return (next(texts, name) if id_ == UNK else name for id_, name in zip(ids, names, strict=True))
