"""What every vocabulary of the toolkit has in common: the ids and names of its special pieces."""

from __future__ import annotations

from typing import Final

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3

SPECIAL_TOKENS: Final[tuple[str, ...]] = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special pieces; the index is the id."""

SKIPPED_IDS: Final[frozenset[int]] = frozenset({PAD, BOS, EOS})
"""Ids that leave no trace in decoded text."""

SPACE: Final = "\u2581"
"""The visible stand-in for a space inside pieces, as SentencePiece writes it."""

UNKNOWN_SURFACE: Final = "\u2047"
"""What an unknown piece looks like in decoded text."""
