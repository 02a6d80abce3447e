"""Tags and tasks at the beginning of a source: they concern all of it, so that each part of a long line needs them.

A tag is a token of the vocabulary that is written ``<bt>`` or ``>>fra<<``; a task is an instruction before a colon, as
models of several tasks are trained with ("translate English to German: ", T5; Raffel et al. 2020).
"""

from __future__ import annotations

import re

from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import SPACE

_TAG = re.compile(r"\s*(<[^\s<>/]+>|>>[^\s<>]+<<)\s*")
_TASK = re.compile(r"\s*(?:translate\b[^.:!?]{,60}|summarize): *", re.IGNORECASE)


def tags_end(text: str, tokenizer: Tokenizer, *, tasks: bool = False) -> int:
    """Return the place after the tags at the beginning of a source, and the spaces behind them.

    Args:
        tasks: the model may have several tasks: one that is named belongs to the tags.
    """
    end = 0
    while (found := _TAG.match(text, end)) and _is_token(found[1], tokenizer):
        end = found.end()
    task = _TASK.match(text, end) if tasks else None
    return end if task is None else task.end()


def unknown_tag(text: str, tokenizer: Tokenizer) -> str | None:
    """Return the first tag at the beginning of a source that is no token of the vocabulary; None: there is none."""
    found = _TAG.match(text, tags_end(text, tokenizer))
    return None if found is None else found[1]


def _is_token(tag: str, tokenizer: Tokenizer) -> bool:
    names = [name.strip(SPACE) for name in tokenizer.pieces(tokenizer.encode(tag))]
    return [name for name in names if name] == [tag]
