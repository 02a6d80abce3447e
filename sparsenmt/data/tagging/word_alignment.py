"""The alignment of a tagger's words with the tokenizer's subword tokens, by their characters.

The two split a line differently: a tagger splits "don't." into "do", "n't", ".", a tokenizer into its subword tokens.
They agree on the characters of the line, except for white space and normalisation. So both sides are compared without
white space and control characters, decomposed (NFKD) and case-folded; tokens of bytes are compared as the character
that they make. Where the sides still differ (an unknown token hides its characters), the comparison continues at the
next position where they agree.

Shapes: S tokens of a sentence, with or without EOS.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import SKIPPED_IDS, SPACE, UNK

_HIDDEN = "\ufffc"  # stands for an unknown token: it equals no character
_SURE = 6  # characters that must agree before the comparison continues;
_ENOUGH = 3  # the same before an unknown token
_FURTHEST = 400  # largest number of characters that are skipped
_BYTES = re.compile("(<0x[0-9A-F]{2}>)+")  # the name of a token that is a part of a character
_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True)
class WordAlignment:
    """The word of a tagger that each token of a sentence belongs to."""

    words: NDArray[np.int64]
    """(S,) index of the word; -1 for EOS, a lone space symbol, and characters that no word has. A token that spans
    several words belongs to the word with most of its characters."""
    later: NDArray[np.bool_]
    """(S,) True for the second and later tokens of a split word (the paper's BPEO)."""
    split: NDArray[np.bool_]
    """(S,) True if the token's word has several tokens; ``split & ~later`` are first tokens of split words (BPEH)."""
    word_count: int
    """Words that the tokens cover: all of the sentence, unless it was truncated."""
    unaligned: int
    """Those of them without a token of their own."""


def align_words(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer], words: Sequence[str]) -> WordAlignment:
    """Align the tokens of a line with the words that a tagger or an annotator has split it into.

    Args:
        ids: (S,) token ids of the line, possibly truncated, with or without EOS.
        words: the words, in order; white space in or between them does not matter.
    """
    numbers = [int(id_) for id_ in ids]
    texts = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = list(range(len(numbers)))  # of each token, the one that completes its character, if it is a byte of one
    first = 0  # of the bytes of an unfinished character
    for number, (id_, token) in enumerate(zip(numbers, tokenizer.pieces(numbers), strict=True)):
        if id_ > UNK and _BYTES.fullmatch(token):
            text = decoder.decode(bytes.fromhex(token.replace("<0x", "").replace(">", "")))
            texts.append(comparable_text(text))
            last[first : number + 1] = [number] * (number + 1 - first)
            first = number + 1 if text else first
            continue
        decoder.reset()
        texts.append("" if id_ in SKIPPED_IDS else _HIDDEN if id_ == UNK else _comparable_token(token))
        first = number + 1
    cut = [comparable_text(word) for word in words]
    owners, reached = _owners("".join(texts), cut)
    found = np.full(len(texts), -1, dtype=np.int64)
    ends = list(accumulate(map(len, texts)))
    for number, (text, end) in enumerate(zip(texts, ends, strict=True)):
        if text:
            found[number] = _majority(owners[end - len(text) : end])
    return _alignment(found[last], len(cut), reached)


def comparable_text(text: str) -> str:
    """The form in which both sides are compared: NFKD, case-folded, without white space and control characters.

    The decomposition of a text is the concatenation of its parts' decompositions: an accent may be a token of its own.
    """
    if text.isascii():
        text = text.lower()
        return text if text.isprintable() and " " not in text else "".join(c for c in text if "!" <= c <= "~")
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in text if unicodedata.category(c) not in _INVISIBLE)


@lru_cache(maxsize=1 << 16)
def _comparable_token(token: str) -> str:
    return comparable_text(token.replace(SPACE, " "))


def _alignment(found: NDArray[np.int64], count: int, reached: int) -> WordAlignment:
    """Build the alignment from the word index of each token."""
    tokens_of = np.bincount(found[found >= 0], minlength=count)
    later = np.zeros(len(found), dtype=np.bool_)
    seen = -1
    for number, word in enumerate(found.tolist()):
        if word >= 0:
            later[number] = word <= seen
            seen = max(seen, word)
    split = (found >= 0) & (tokens_of[found] > 1) if count else np.zeros(len(found), dtype=np.bool_)
    return WordAlignment(found, later, split, reached, int((tokens_of[:reached] == 0).sum()))


def _majority(owners: Sequence[int]) -> int:
    """The word that owns most of a token's characters, the first of equals; -1 if none has an owner."""
    if owners[0] == owners[-1]:  # word indices never decrease, apart from -1
        return owners[0]
    counts = Counter(owner for owner in owners if owner >= 0)
    return max(counts, key=counts.__getitem__, default=-1)


def _owners(text: str, cut: Sequence[str]) -> tuple[list[int], int]:
    """The word of every character of the tokens, or -1; and the number of words that they cover."""
    whole = "".join(cut)
    of_whole = [number for number, word in enumerate(cut) for _ in word]
    if whole.startswith(text):  # the usual case; the tokens may be truncated
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
        owners += _assign(mine, of_whole[there : there + theirs])
        here, there = here + mine, there + theirs
    return owners, of_whole[there - 1] + 1 if there else 0


def _assign(count: int, owners: Sequence[int]) -> list[int]:
    """The owners of ``count`` characters that replace other characters with these owners, or nothing.

    Assign characters to characters if there are equally many, otherwise to whole words if there are enough: an unknown
    token may stand for a character or for a word.
    """
    if not owners:
        return [-1] * count
    words = sorted(set(owners))
    source = words if count != len(owners) and count <= len(words) else owners
    return [source[number * len(source) // count] for number in range(count)]


def _common(text: str, here: int, whole: str, there: int) -> int:
    """The number of characters that agree from here on."""
    most = min(len(text) - here, len(whole) - there)
    same, block = 0, 64  # compared in growing blocks: the time depends on the number, not on the rest of the line
    while same < most and text[here + same : here + same + block] == whole[there + same : there + same + block]:
        same, block = same + block, 2 * block
    return next((number for number in range(same, most) if text[here + number] != whole[there + number]), most)


def _distance(text: str, here: int, whole: str, there: int) -> tuple[int, int]:
    """The smallest numbers of characters to skip on both sides until enough characters agree again.

    If they agree only up to the end of the tokens, a skip after which the words end there, too, is preferred.
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
