"""Outputs of `decode` with their word alignments, which forced decoding makes of finished translations."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.markup import MarkedText, transfer, units_of
from sparsenmt.data.tokenizers.tokenizer import Tokenizer, Tokenizers
from sparsenmt.decoding.alignment import (
    AlignedPair,
    AttentionHeads,
    ReadTarget,
    align_targets,
    guided_heads,
    source_places,
    target_places,
)
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.model.depth_plan import Depth
from sparsenmt.recipe.schema import Decoding

AlignmentKind = Literal["hard", "soft"]
_LINES = 128  # whose attention exists at a time
_DIGITS = 6  # of a weight in JSON


@dataclass(frozen=True)
class AlignedLine:
    """A translated line with the texts of its best hypotheses, each aligned with the source."""

    translation: TranslatedLine
    texts: list[str]
    pairs: list[AlignedPair]

    def with_markup(self, marked: MarkedText, tokenizers: Tokenizers) -> list[str]:
        """Return the texts with the elements of their source."""
        source = self.translation.source
        own = marked.without_start(len(marked.text) - len(source.text))  # the token of a language stands before it
        units, written = units_of(own.text), []
        before, of_source = source_places(tokenizers.source, source, units), _whole_tokens(tokenizers.source, own.text)
        for text, hypothesis, pair in zip(self.texts, self.translation.hypotheses, self.pairs, strict=False):
            target = ReadTarget(source, hypothesis.tokens, text)
            after = target_places(tokenizers.target, target, units_of(text))
            links = replace(pair, source=before, target=after).alignment.pairs
            of_target = _whole_tokens(tokenizers.target, text)
            every = {(i, j) for a, b in links for i in of_source.get(a, [a]) for j in of_target.get(b, [b])}
            written.append(transfer(own, text, every, units))
        return written


def _whole_tokens(tokenizer: Tokenizer, text: str) -> dict[int, range]:
    """Return the units that a token touches, by its first one: in a text without spaces they are characters."""
    starts, ends = zip(*units_of(text), strict=True) if text.strip() else ((), ())
    found = {bisect_right(ends, begin): bisect_left(starts, end) for begin, end in tokenizer.spans(text)}
    return {first: range(first, last) for first, last in found.items() if last > first + 1}


@dataclass(frozen=True)
class OutputAligner:
    """The alignment of translations with their sources.

    Args:
        options: those of the search.
        heads: of cross-attention, whose mean decides.
        window: lines that the search reads ahead: the lines that are aligned together never lie in two windows, so
            that a resumed run forms the same batches.
    """

    bundle: Bundle
    options: Decoding
    heads: AttentionHeads
    window: int

    @classmethod
    def of(
        cls, bundle: Bundle, options: Decoding, head: str | None, window: int, depths: Sequence[Depth] = ()
    ) -> OutputAligner:
        """Make the aligner of a model by the head that is named: None: the guided one, or the last layer's mean.

        Args:
            depths: those that lines may have, where each has its own.

        Raises:
            UserError: the model has no such head, or it does not run at one of the depths.
        """
        where = "--alignment-head"
        heads = guided_heads(bundle) if head is None else AttentionHeads.parse(head, where)
        for run in [options.at(depth) for depth in depths] or [options]:
            heads.check(bundle, run, where)
        return cls(bundle, options, heads, window)

    def lines(self, translations: Iterable[TranslatedLine], n_best: int) -> Iterator[AlignedLine]:
        """Align the best hypotheses of each line, in order."""

        def part(each: TranslatedLine) -> tuple[int, int]:
            window, place = divmod(each.source.number, self.window)
            return window, place // _LINES

        for _, group in groupby(translations, part):
            found = [(each, each.best_texts(n_best)) for each in group]
            targets = [
                ReadTarget(each.source, hypothesis.tokens, text, each.depth)
                for each, texts in found
                for text, hypothesis in zip(texts, each.hypotheses, strict=False)
            ]
            pairs = iter(align_targets(self.bundle, targets, self.options, self.heads))
            for each, texts in found:
                yield AlignedLine(each, texts, [next(pairs) for _ in texts])


def alignment_as_json(pair: AlignedPair, kind: AlignmentKind) -> dict[str, Any]:
    """Return a hypothesis' words with its links, or with the weights of the words of the source, for JSON."""
    found: dict[str, Any] = {"target_words": list(pair.target.words)}
    if kind == "hard":
        return {**found, "alignment": [list(link) for link in pair.alignment]}
    merged = pair.word_weights()
    values = {"alignment": merged.weights, "dropped": merged.dropped, "outside": merged.outside}
    return {**found, **{name: each.round(_DIGITS).tolist() for name, each in values.items()}}
