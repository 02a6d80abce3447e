"""A model of another program, converted to the parts of a model directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.tokenizer import Tokenizers


@dataclass(frozen=True)
class ForeignModel:
    """A model of another program, converted: the parts of a model directory.

    Args:
        recipe: plain values of the sections ``model``, ``data`` (languages, tokenizer) and ``decoding``; the writer
            of the directory fills in what every recipe must have.
        weights: in fp32, by this program's names; the rows of tables in the order of this program's ids.
        notes: what differs from the original program; printed, and written to the directory.
        text: what is known of its training text.
        shortlist: the target tokens that may come out of each source token, if the model has one.
        files: of the original weights.
    """

    recipe: dict[str, Any]
    weights: dict[str, Tensor]
    tokenizers: Tokenizers
    notes: tuple[str, ...] = ()
    shortlist: Shortlist | None = None
    text: TextSides | None = None
    files: tuple[Path, ...] = ()
