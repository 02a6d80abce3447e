"""Source text in place of the unknown tokens of finished hypotheses, by attention (Jean et al. 2015, section 3.3).

An unknown token is replaced by the source position that the last decoder layer attends to most when it predicts it,
the mean over the heads; positions that filters have closed are never taken. A source token that is itself unknown, or
stands in a line without spaces between words, gives its own text; any other one gives the whole word that it belongs
to, without punctuation at its ends. Where successive tokens inside a word point to the same text, it is copied once.

The attention is that of forced decoding along the hypotheses that have unknown tokens, so that the search stays fast.
Shapes: S source positions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.tokenizers.spans import Span
from sparsenmt.data.vocabulary import UNK, UNKNOWN_SURFACE
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.decoding.alignment import EQUAL, ReadTarget, attention_along
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.recipe.schema import Decoding


def copied_texts(
    bundle: Bundle, outputs: Sequence[tuple[SourceLine, Hypothesis]], options: Decoding
) -> list[tuple[str, ...]]:
    """Return the texts that replace the unknown tokens of every hypothesis; U+2047 where there is nothing to copy.

    Raises:
        UserError: a batch does not fit into memory.
    """
    found: list[tuple[str, ...]] = [()] * len(outputs)
    repeats = not bool(bundle.tokenizers.target.word_starts[UNK])  # an unknown token may be a part of a word
    targets = [ReadTarget(line, hypothesis.tokens) for line, hypothesis in outputs]
    for i, weights, closed in attention_along(bundle, targets, options):
        line, tokens = targets[i].source, targets[i].tokens
        places = [t for t, token in enumerate(tokens) if token == UNK]
        spans = copied_spans(bundle, line, (weights[places] * ~closed).tolist())
        texts = [UNKNOWN_SURFACE if span is None else line.text[slice(*span)] for span in spans]
        for n in range(1, len(texts) if repeats else 0):
            if places[n - 1] == places[n] - 1 and spans[n - 1] == spans[n] is not None:
                texts[n] = ""
        found[i] = tuple(texts)
    return found


def copied_spans(bundle: Bundle, line: SourceLine, weights: Sequence[Sequence[float]]) -> list[Span | None]:
    """Return what each row of attention (S,) copies from a line: a span of its text; None where it sees nothing."""
    spans = _copyable(bundle, line)
    places = [i for i, span in enumerate(spans) if span is not None]
    found: list[Span | None] = []
    for row in weights:
        most = max((row[i] for i in places), default=0.0)
        found.append(next(spans[i] for i in places if row[i] >= most - EQUAL) if most > 0 else None)
    return found


def _copyable(bundle: Bundle, line: SourceLine) -> list[Span | None]:
    """Return the span that each source token stands for; None for separators of sentences, lone spaces, frames."""
    text, unspaced, documents = line.text, is_unspaced([line.text]), bundle.recipe.data.documents
    found: list[Span | None] = [None] * len(line.frame.prefix)
    for id_, (begin, end) in zip(line.sentence[:-1], bundle.tokenizers.source.spans(text)[: line.kept], strict=True):
        while begin < end and text[begin].isspace():
            begin += 1
        first, last = (begin, end) if id_ == UNK or unspaced else _word(text, begin, end)
        separates = documents is not None and text[first:last] == documents.separator
        found.append(None if first == last or separates else (first, last))
    return found


def _word(text: str, begin: int, end: int) -> Span:
    """Return the word around a part of it, without the punctuation at its ends that is no part of the part.

    An empty part, as a lone space is, belongs to the word after it; punctuation stands alone.
    """
    empty = begin == end
    while empty and end < len(text) and text[end].isspace():
        begin = end = end + 1
    if not empty and all(map(_is_punctuation, text[begin:end])):
        return begin, end
    first, last = begin, end
    while first > 0 and not text[first - 1].isspace():
        first -= 1
    while last < len(text) and not text[last].isspace():
        last += 1
    inner = [i for i in range(first, last) if begin <= i < end or not _is_punctuation(text[i])]
    return (inner[0], inner[-1] + 1) if inner else (first, last)


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")
