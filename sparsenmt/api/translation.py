"""Translations as a model returns them to a Python program: texts, scores, kept words, alignments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from sparsenmt.analysis.kept_words import KeptWords, kept_words
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.decoding.alignment import Alignment
from sparsenmt.decoding.translate import TranslatedLine
from sparsenmt.report import html
from sparsenmt.report.plot_labels import shortened

_LONGEST = 60  # characters of a text in a line
_MOST_ROWS = 100  # of a table in a notebook


@dataclass(frozen=True)
class ScoredText:
    """One of the outputs for a text.

    Args:
        score: its log-probability over the length penalty; outputs are ranked by it.
        log_probability: the natural logarithm, summed over the tokens.
        ended: False if it was cut at the maximum length.
    """

    text: str
    score: float
    log_probability: float
    ended: bool = True


@dataclass(frozen=True, repr=False)
class Translation:
    """The output for one text.

    Args:
        source: the text that was given.
        n_best: the outputs, best first, as many as were asked for.
        kept: the words of the source with their gates; None: no filter decides in this model, or the text is empty.
        alignment: the word alignment of the best output; None: not asked for.
    """

    source: str
    n_best: tuple[ScoredText, ...]
    kept: KeptWords | None = None
    alignment: Alignment | None = None

    @property
    def text(self) -> str:
        """The text of the best output."""
        return self.n_best[0].text

    @property
    def score(self) -> float:
        """The score of the best output."""
        return self.n_best[0].score

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        kept = "" if self.kept is None else f", {len(self.kept.kept)} of {len(self.kept)} words kept"
        several = f", {len(self.n_best)} best" if len(self.n_best) > 1 else ""
        return f"Translation({shortened(self.text, _LONGEST)!r}, score {self.score:.4f}{several}{kept})"

    def _repr_html_(self) -> str:
        return Translations((self,))._repr_html_()


@dataclass(frozen=True, repr=False)
class Translations(Sequence[Translation]):
    """The outputs for several texts, in their order. A notebook shows a table, with kept words in colours."""

    items: tuple[Translation, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts of the best outputs."""
        return [each.text for each in self.items]

    @overload
    def __getitem__(self, index: int) -> Translation: ...
    @overload
    def __getitem__(self, index: slice) -> Translations: ...
    def __getitem__(self, index: int | slice) -> Translation | Translations:
        return Translations(self.items[index]) if isinstance(index, slice) else self.items[index]

    def __iter__(self) -> Iterator[Translation]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        first = f": {shortened(self.items[0].text, _LONGEST)!r}{', ...' if len(self) > 1 else ''}" if self.items else ""
        return f"Translations({len(self)}{first})"

    def _repr_html_(self) -> str:
        rows = []
        for each in self.items[:_MOST_ROWS]:
            source = html.text(each.source) if each.kept is None else each.kept._repr_html_()
            for number, one in enumerate(each.n_best):
                rows.append(["" if number else source, html.text(one.text), f"{one.score:.4f}"])
        more = len(self.items) - _MOST_ROWS
        if more > 0:
            rows.append([f"... {more:,} more", "", ""])
        return html.table(("source", "translation", "score"), rows)


def translation_of(text: str, found: TranslatedLine, count: int, tokenizer: Tokenizer) -> Translation:
    """Return the translation of a text with its ``count`` best outputs and its kept words.

    Args:
        text: as it was given, with the tag of a language if it has one.
        tokenizer: of the source.
    """
    pairs = zip(found.best_texts(count), found.hypotheses, strict=False)
    outputs = tuple(ScoredText(own, each.score, each.log_probability, each.ended) for own, each in pairs)
    gated = [(part.source, part.gates) for part in found.parts or (found,) if part.gates is not None]
    words = [word for source, gates in gated for word in kept_words(source, gates, tokenizer)]
    kept = KeptWords(tuple(words)) if words else None
    return Translation(text, outputs, kept)
