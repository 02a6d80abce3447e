"""The memory of texts without a source."""

from __future__ import annotations

import torch

from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source, TranslationModel


def no_source(model: TranslationModel, rows: int) -> Memory:
    """Make the empty memory with which a language model decodes this many rows."""
    return model.encode(Source.none(rows, torch.device("cpu"))).memory
