"""Word alignments, read off the cross-attention of a model along given translations.

Each target token is aligned to the source token that it attends to most: in the mean over the chosen heads and layers,
without closed positions, ``</s>`` and the tokens of languages. Two words are aligned if two of their tokens are, as
Garg et al. (2019, "Jointly Learning to Align and Translate with Transformer Models") merge subword alignments. A target
token that attends to none of these positions stays without a link.

Shapes: T target positions, S source positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.attention_maps import ChosenAttention, MapChoice
from sparsenmt.analysis.session import AnalyzedModel
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.word_spaces import is_unspaced
from sparsenmt.report import html

_EQUAL = 1e-6  # differences in attention that are rounding: the first of equal positions is taken


@dataclass(frozen=True, repr=False)
class Alignment(Sequence[tuple[int, int]]):
    """The aligned words of a sentence pair. Its text is that of Pharaoh files: ``0-0 1-2``.

    Words are what stands between spaces; of a text without spaces between words, its tokens.

    Args:
        source, target: the words.
        pairs: places of a source and a target word, from 0, rising.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def words(self) -> list[tuple[str, str]]:
        """The aligned words themselves."""
        return [(self.source[i], self.target[j]) for i, j in self.pairs]

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[int, int], ...]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | tuple[tuple[int, int], ...]:
        return self.pairs[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        return " ".join(f"{i}-{j}" for i, j in self.pairs)

    def __repr__(self) -> str:
        sizes = f"{len(self.source)} source and {len(self.target)} target words"
        return f"Alignment({sizes}, {len(self)} link{'' if len(self) == 1 else 's'})"

    def _repr_html_(self) -> str:
        links = np.zeros((len(self.target), len(self.source)))
        for i, j in self.pairs:
            links[j, i] = 1.0
        return html.colour_table(links, self.target, self.source, caption="word alignment", numbers=False)


def align(model: AnalyzedModel, choice: MapChoice) -> dict[int, Alignment]:
    """Align the words of a session's sources with those of its given translations.

    Args:
        choice: heads and layers of cross-attention; the mean over them decides.

    Returns:
        number of a line -> its alignment, for the lines that are not empty.
    """
    seen, tokenizers = model.attend(ChosenAttention(choice), ["cross"]), model.bundle.tokenizers
    gated = {each.line.number: each.dropped for each in model.gates()} if model.bundle.recipe.model.memory else {}
    texts = model.session.given_targets or []
    found = {}
    for place, (line, target) in enumerate(zip(model.sources, model.targets, strict=True)):
        weights = seen.weights(place, None, len(target.ids), len(line.ids))  # (T, S)
        if line.number in gated:
            weights = weights * ~gated[line.number]
        first, before = len(line.frame.prefix), len(target.frame.prefix)
        inner = weights[before : before + len(target.tokens), first : first + line.kept]
        source, source_places = _words(tokenizers.source, line.text, line.kept)
        words, target_places = _words(tokenizers.target, texts[line.number], len(target.tokens))
        found[line.number] = Alignment(source, words, _links(inner, source_places, target_places))
    return found


def _links(
    weights: NDArray[np.float64], source: Sequence[int | None], target: Sequence[int | None]
) -> tuple[tuple[int, int], ...]:
    """Return the pairs of words whose tokens are aligned by weights (T, S); the words of tokens are given."""
    columns = [s for s, word in enumerate(source) if word is not None]
    links = set()
    for row, word in zip(weights[:, columns], target, strict=True):
        most = row.max(initial=0.0)
        if word is not None and most > 0:
            own = source[columns[int(np.argmax(row >= most - _EQUAL))]]
            assert own is not None
            links.add((own, word))
    return tuple(sorted(links))


def _words(tokenizer: Tokenizer, text: str, count: int) -> tuple[tuple[str, ...], list[int | None]]:
    """Return the words of a text, and the word of each of its first tokens; None for a space alone."""
    spans = tokenizer.spans(text)[:count]
    if is_unspaced([text]):
        return tuple(text[begin:end] for begin, end in spans), list(range(len(spans)))
    starts = np.array([i for i, sign in enumerate(text) if not sign.isspace() and (i == 0 or text[i - 1].isspace())])
    places: list[int | None] = []
    for begin, end in spans:
        own = next((i for i in range(begin, end) if not text[i].isspace()), None)
        places.append(None if own is None else int(np.searchsorted(starts, own, side="right")) - 1)
    return tuple(text.split()), places
