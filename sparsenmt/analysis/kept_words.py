"""The words of a source sentence with the gates of their tokens: which of them a model's filters keep.

Shapes: S source positions, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.labels import shown_tokens
from sparsenmt.analysis.text_words import find_words
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.report import html

_MOST_SHOWN = 8  # dropped words in a line of text


@dataclass(frozen=True)
class GatedWord:
    """A word and the gates of its tokens.

    Args:
        text: the word, or ``</s>``.
        tokens: those that it consists of.
        gates: one for each token, in evaluation: 0 drops it.
    """

    text: str
    tokens: tuple[str, ...]
    gates: tuple[float, ...]

    @property
    def kept(self) -> bool:
        """True if a token of the word is kept."""
        return any(self.gates)

    def __repr__(self) -> str:
        gates = ", ".join(f"{gate:.3g}" for gate in self.gates)
        return f"GatedWord({self.text!r}, {gates})"


@dataclass(frozen=True, repr=False)
class KeptWords(Sequence[GatedWord]):
    """The words of a source, ``</s>`` last, with their gates. A notebook shows them in colours.

    Words are what stands between spaces; of a text without spaces between words, every token is one.

    Args:
        words: all of them, dropped ones, too.
    """

    words: tuple[GatedWord, ...]

    @property
    def kept(self) -> list[str]:
        """The words that have a token with a gate other than 0."""
        return [word.text for word in self.words if word.kept]

    @property
    def dropped(self) -> list[str]:
        """The words of which every token has a gate of 0."""
        return [word.text for word in self.words if not word.kept]

    @property
    def gates(self) -> NDArray[np.float64]:
        """(S,) the gates of all tokens, ``</s>`` last."""
        return np.array([gate for word in self.words for gate in word.gates])

    @property
    def sparsity(self) -> float:
        """The share of tokens, ``</s>`` included, whose gate is exactly 0."""
        return float((self.gates == 0).mean())

    @overload
    def __getitem__(self, index: int) -> GatedWord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GatedWord, ...]: ...
    def __getitem__(self, index: int | slice) -> GatedWord | tuple[GatedWord, ...]:
        return self.words[index]

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        gone = self.dropped
        more = f", ... {len(gone) - _MOST_SHOWN} more" if len(gone) > _MOST_SHOWN else ""
        names = f": without {', '.join(map(repr, gone[:_MOST_SHOWN]))}{more}" if gone else ""
        return f"KeptWords({len(self.kept)} of {len(self)} words, sparsity {self.sparsity:.1%}{names})"

    def _repr_html_(self) -> str:
        return html.marked([list(zip(word.tokens, word.gates, strict=True)) for word in self.words])


def source_words(line: SourceLine, tokenizer: Tokenizer) -> list[tuple[str, tuple[str, ...]]]:
    """Return each word of a line, ``</s>`` last, with its tokens."""
    names = shown_tokens(line.token_names(tokenizer))
    known = find_words([InputLine(line.number, line.text)], None, "")
    indices = known.indices(line, tokenizer) if known.known else np.arange(len(names))
    starts = [*np.flatnonzero(np.diff(indices, prepend=-1)).tolist(), len(names)]
    first = len(line.frame.prefix)
    spans = tokenizer.spans(line.text)[: line.kept]  # of the tokens from the first one on
    words = []
    for begin, end in pairwise(starts):
        inside = first <= begin and end <= first + len(spans)
        text = line.text[spans[begin - first][0] : spans[end - first - 1][1]].strip() if inside else ""
        tokens = tuple(names[begin:end])
        words.append((text or "".join(tokens), tokens))
    return words


def kept_words(line: SourceLine, gates: NDArray[np.float64], tokenizer: Tokenizer) -> KeptWords:
    """Return the words of a line with their gates (S,)."""
    rest = iter(gates.tolist())
    words = source_words(line, tokenizer)
    return KeptWords(tuple(GatedWord(text, tokens, tuple(islice(rest, len(tokens)))) for text, tokens in words))
