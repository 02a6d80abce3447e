"""Text by documents, for d-BLEU: BLEU whose n-grams reach over the ends of sentences (Liu et al. 2020).

The sentences of a document are put together, hypothesis and references alike, before n-grams are matched. So it does
not matter how an output is cut into lines, as long as its documents are those of the references.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby


def by_document(lines: Iterable[str], documents: Sequence[Hashable]) -> list[str]:
    """The lines of each document as one, with spaces between them.

    Args:
        documents: of every line, the id of its document; where it changes, a document ends.
    """
    beside = zip(documents, lines, strict=True)
    return [" ".join(line for _, line in group if line) for _, group in groupby(beside, key=lambda pair: pair[0])]
