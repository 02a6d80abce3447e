"""The word that each subword token belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS


def word_ids(ids: Sequence[int] | NDArray[np.integer], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The word index of each token, from 0 in every sentence.

    The first token starts a word even if it looks like the middle of one; EOS is a word of its own.

    Args:
        ids: (S,) token ids of one sentence, with or without EOS at the end, or of several that each end with EOS.

    Returns:
        (S,) word indices; in a sentence they never decrease and increase by at most one.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    starts = word_start_mask(tokens, tokenizer.word_starts)
    starts[:1] = True
    indices = np.cumsum(starts, dtype=np.int64) - 1
    begins = np.r_[0, np.flatnonzero(tokens == EOS) + 1]
    begins = begins[begins < len(tokens)]
    return indices - np.repeat(indices[begins], np.diff(begins, append=len(tokens)))


def word_start_mask(ids: NDArray[np.integer], word_starts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask of tokens that start a word, each judged alone; EOS and the token after it start one as well.

    Args:
        ids: (N,) token ids of one sentence or several concatenated ones, each ended by EOS.
        word_starts: (V,) of the tokenizer.

    Returns:
        (N,) a new array.
    """
    is_end = ids == EOS
    starts: NDArray[np.bool_] = word_starts[ids] | is_end
    starts[1:] |= is_end[:-1]
    return starts
