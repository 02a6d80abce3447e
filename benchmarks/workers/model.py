"""The model of a benchmark's work, with random weights."""

from __future__ import annotations

from typing import Any

from sparsenmt.assemble.model import build_model
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import Attention, MemoryChoice, MethodChoice

SIZES = ("dimension", "feed_forward", "heads", "encoder_layers", "decoder_layers", "max_positions")


def random_model(work: dict[str, Any]) -> Transformer:
    """A Transformer of the work's sizes, attention methods and filters, one table for source, target and output."""
    dropout = schema.Dropout(residual=work.get("dropout", 0.0))
    memory = [MemoryChoice(**each) for each in work.get("memory", ())]
    attention = Attention.model_validate(work.get("attention", {}))
    depth = MethodChoice.model_validate(work.get("depth", {"name": "plain"}))
    sizes = {key: work[key] for key in SIZES}
    section = schema.ModelSection(
        **sizes, dropout=dropout, tie_embeddings="all", attention=attention, memory=memory, depth=depth
    )
    return build_model(section, source_size=work["vocabulary"], target_size=work["vocabulary"], seed=0)
