"""Source sentences as what source features are computed of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tagging.tagged_text import TaggedSentence


@dataclass(frozen=True, eq=False)
class Sources:
    """Sentences, one after the other."""

    ids: NDArray[np.int64]
    """(N,) pieces; each sentence ends with EOS."""
    lines: Sequence[str]
    """The text of each sentence, uncut. May be empty strings where no feature needs text."""
    tags: Sequence[TaggedSentence] | None = None
    """The tags given beside each sentence; None: none are given."""
