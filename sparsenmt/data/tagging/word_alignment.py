"""Words of a tagger <-> pieces of the tokenizer, by their characters.

The two split a line differently: a tagger cuts "don't." into "do", "n't", ".", a tokenizer into whatever pieces it has
learned. What both agree on are the line's characters, but for white space and for what normalisation makes of them, so
both sides are compared without white space and control characters, decomposed (NFKD) and without case. Where they
still differ (an unknown piece hides its characters) both go on at the next place where they agree.

Shapes: S pieces of a sentence, with or without EOS.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.vocabulary import SKIPPED_IDS, SPACE, UNK

if TYPE_CHECKING:
    from sparsenmt.data.tokenizers.tokenizer import Tokenizer

_HIDDEN = "\ufffc"  # the character of an unknown piece: it equals nothing
_SURE = 6  # characters that must agree before both sides go on;
_ENOUGH = 3  # before the next unknown piece
_FURTHEST = 400  # characters that may be skipped to get there
_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True)
class WordAlignment:
    """Which word of a tagger each piece of a sentence belongs to."""

    words: NDArray[np.int64]
    """(S,) index of the word; -1 for EOS, for a lone space symbol, and where there is no word with these characters.
    A piece that reaches over several words belongs to that of which it holds most."""
    later: NDArray[np.bool_]
    """(S,) whether this is the second or a later piece of a split word (the paper's BPEO)."""
    split: NDArray[np.bool_]
    """(S,) whether the piece's word has several pieces; ``split & ~later`` are first pieces of split words (BPEH)."""
    word_count: int
    """Words that the pieces reach: all of the sentence, unless its last pieces were cut off."""
    unaligned: int
    """How many of those have no piece of their own."""


def align_words(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer], words: Sequence[str]) -> WordAlignment:
    """Align the pieces of a line with the words that a tagger, or a person, has cut it into.

    Args:
        ids: (S,) pieces of the line, perhaps cut off at some length, with or without EOS.
        words: the words, in order; white space in or between them does not matter.
    """
    numbers = [int(id_) for id_ in ids]
    pieces = [
        "" if id_ in SKIPPED_IDS else _HIDDEN if id_ == UNK else _comparable_piece(piece)
        for id_, piece in zip(numbers, tokenizer.pieces(numbers), strict=True)
    ]
    cut = [comparable_text(word) for word in words]
    owners, reached = _owners("".join(pieces), cut)
    found = np.full(len(pieces), -1, dtype=np.int64)
    ends = list(accumulate(map(len, pieces)))
    for number, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
        if piece:
            found[number] = _majority(owners[end - len(piece) : end])
    return _alignment(found, len(cut), reached)


def comparable_text(text: str) -> str:
    """What both sides are compared by: NFKD, without case, white space and control characters.

    Decomposed, a text is what its parts are, one after the other: an accent may be a piece of its own.
    """
    if text.isascii():
        text = text.lower()
        return text if text.isprintable() and " " not in text else "".join(c for c in text if "!" <= c <= "~")
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in text if unicodedata.category(c) not in _INVISIBLE)


@lru_cache(maxsize=1 << 16)
def _comparable_piece(piece: str) -> str:
    return comparable_text(piece.replace(SPACE, " "))


def _alignment(found: NDArray[np.int64], count: int, reached: int) -> WordAlignment:
    """What follows from the pieces' words: words of one piece or several, words without any."""
    pieces_of = np.bincount(found[found >= 0], minlength=count)
    later = np.zeros(len(found), dtype=np.bool_)
    seen = -1
    for number, word in enumerate(found.tolist()):
        if word >= 0:
            later[number] = word <= seen
            seen = max(seen, word)
    split = (found >= 0) & (pieces_of[found] > 1) if count else np.zeros(len(found), dtype=np.bool_)
    return WordAlignment(found, later, split, reached, int((pieces_of[:reached] == 0).sum()))


def _majority(owners: Sequence[int]) -> int:
    """The word that owns most of a piece's characters, the first of equals; -1 if none has an owner."""
    if owners[0] == owners[-1]:  # they never fall, but for -1
        return owners[0]
    counts: dict[int, int] = {}
    for owner in owners:
        if owner >= 0:
            counts[owner] = counts.get(owner, 0) + 1
    return max(counts, key=lambda owner: counts[owner]) if counts else -1


def _owners(text: str, cut: Sequence[str]) -> tuple[list[int], int]:
    """For every character of the pieces the word it belongs to, or -1; and how many words they reach."""
    whole = "".join(cut)
    of_whole = [number for number, word in enumerate(cut) for _ in word]
    if whole.startswith(text):  # the usual case; the pieces may have been cut off
        return of_whole[: len(text)], of_whole[len(text) - 1] + 1 if text else 0
    owners: list[int] = []
    here, there = 0, 0
    while here < len(text):
        same = _common(text, here, whole, there)
        owners += of_whole[there : there + same]
        here, there = here + same, there + same
        if here == len(text):
            break
        mine, theirs = _distance(text, here, whole, there)
        owners += _shared_out(mine, of_whole[there : there + theirs])
        here, there = here + mine, there + theirs
    return owners, of_whole[there - 1] + 1 if there else 0


def _shared_out(count: int, owners: Sequence[int]) -> list[int]:
    """Owners of so many characters that stand for others with these owners, or for nothing.

    Characters go to characters if there are as many, else to whole words if there are enough: an unknown piece may be a
    character, or a word of some.
    """
    if not owners:
        return [-1] * count
    words = sorted(set(owners))
    source = words if count != len(owners) and count <= len(words) else owners
    return [source[number * len(source) // count] for number in range(count)]


def _common(text: str, here: int, whole: str, there: int) -> int:
    """How many characters agree from here on."""
    most = min(len(text) - here, len(whole) - there)
    if text[here : here + most] == whole[there : there + most]:
        return most
    return next(number for number in range(most) if text[here + number] != whole[there + number])


def _distance(text: str, here: int, whole: str, there: int) -> tuple[int, int]:
    """How many characters to skip on both sides, as few as possible, until they agree again for a while.

    Where they agree to the end of the pieces only, it is better if the words end there, too.
    """
    left, right = len(text) - here, len(whole) - there
    second_best = (left, min(left, right) if left <= _SURE else 0)
    found = False
    for both in range(1, min(_FURTHEST, left + right + 1)):
        for mine in range(max(0, both - right), min(both, left) + 1):
            theirs = both - mine
            ahead, hidden, _ = text[here + mine : here + mine + _SURE].partition(_HIDDEN)
            if not whole.startswith(ahead, there + theirs) or (hidden and not ahead):
                continue
            if len(ahead) == _SURE or (hidden and len(ahead) >= _ENOUGH) or theirs + len(ahead) == right:
                return mine, theirs
            if ahead and not found:
                second_best, found = (mine, theirs), True
    return second_best
