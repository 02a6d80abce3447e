"""A model of another program, converted to the parts of a model directory, and the weights that it must have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.importers.foreign_files import BEYOND, unfit
from sparsenmt.recipe import schema


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


def expected_weights(
    section: dict[str, Any], path: Path, source_size: int, target_size: int
) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights of a model with this `model` section, by their names.

    Args:
        path: the original configuration, for messages.

    Raises:
        UserError: its sizes do not belong together.
    """
    try:
        with torch.device("meta"):
            model = schema.ModelSection.model_validate(section)
            built = build_model(model, source_size=source_size, target_size=target_size, seed=0)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise unfit(path, f"its sizes do not belong together: {reason}", BEYOND) from None
    return {name: tuple(weight.shape) for name, weight in built.state_dict().items()}
