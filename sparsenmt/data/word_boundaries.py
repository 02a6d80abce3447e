"""Which word each piece belongs to: the one place that knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.vocabulary import EOS

if TYPE_CHECKING:
    from sparsenmt.data.tokenizers.tokenizer import Tokenizer


def word_ids(ids: Sequence[int] | NDArray[np.integer], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """The word index of each piece, from 0 in every sentence.

    The first piece starts a word even if it looks like the middle of one; EOS is a word of its own.

    Args:
        ids: (S,) piece ids of one sentence, with or without EOS at the end, or of several that each end with EOS.

    Returns:
        (S,) word indices that, in a sentence, never fall and rise by at most one.
    """
    pieces = np.asarray(ids, dtype=np.int64)
    starts = word_start_mask(pieces, tokenizer.word_starts)
    starts[:1] = True
    indices = np.cumsum(starts, dtype=np.int64) - 1
    begins = np.r_[0, np.flatnonzero(pieces == EOS) + 1]
    begins = begins[begins < len(pieces)]
    return indices - np.repeat(indices[begins], np.diff(begins, append=len(pieces)))


def word_start_mask(ids: NDArray[np.integer], word_starts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each piece starts a word, judged by the piece alone. A piece after EOS starts one as well.

    Args:
        ids: (N,) piece ids, of one sentence or of several one after the other, each ended by EOS.
        word_starts: (V,) of the tokenizer.

    Returns:
        (N,) a new array.
    """
    is_end = ids == EOS
    starts: NDArray[np.bool_] = word_starts[ids] | is_end
    starts[1:] |= is_end[:-1]
    return starts
