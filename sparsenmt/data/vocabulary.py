"""The ids and names of the special tokens, which are the same in every vocabulary."""

from __future__ import annotations

from typing import Final

PAD: Final = 0
UNK: Final = 1
BOS: Final = 2
EOS: Final = 3

SPECIAL_TOKENS: Final[tuple[str, ...]] = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special tokens; the index is the id."""

SKIPPED_IDS: Final[frozenset[int]] = frozenset({PAD, BOS, EOS})
"""Ids that decoded text skips."""

SPACE: Final = "\u2581"
"""The visible replacement of a space in tokens, as in SentencePiece."""

UNKNOWN_SURFACE: Final = "\u2047"
"""The unknown token in decoded text."""
