"""Text by documents, for d-BLEU: BLEU with n-grams across sentence boundaries (Liu et al. 2020).

The sentences of a document are concatenated, in hypotheses and references, before n-grams are matched. Therefore only
the document boundaries of an output must agree with those of the references, not its lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby


def by_document(lines: Iterable[str], documents: Sequence[Hashable]) -> list[str]:
    """Concatenate the lines of each document, with spaces between them.

    Args:
        documents: document id of every line; a document ends where the id changes.
    """
    beside = zip(documents, lines, strict=True)
    return [" ".join(line for _, line in group if line) for _, group in groupby(beside, key=lambda pair: pair[0])]
