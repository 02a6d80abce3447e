"""Estimates of a model: the memory of its parameters, and the sparsity that saves no time."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparsenmt.assemble.methods import attention_sites
from sparsenmt.errors import UserError
from sparsenmt.model.bands import first_keys
from sparsenmt.model.sites import SITES
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.progress import byte_text
from sparsenmt.recipe import schema
from sparsenmt.sparsity.registry import Socket


def least_parameters(model: schema.ModelSection, *, source_size: int, target_size: int) -> int:
    """Return at least the number of a model's parameters, without building it on "meta", which takes a second."""
    blocks = model.encoder_layers + model.decoder_layers
    wide = max(model.feed_forward, model.decoder_feed_forward or 0)
    counts = [model.heads, *(getattr(model.attention, site).heads.count or 0 for site in SITES)]
    inner = max(model.dimension, max(counts) * (model.head_size or 0))
    matrices = blocks * (12 * model.dimension * inner + 3 * model.dimension * wide)
    return matrices + model.dimension * (2 * source_size + 2 * target_size + 2 * model.max_positions)


def check_fits(use: str, needed: int, memory: int, device: torch.device, lower: str = "Lower") -> None:
    """Refuse what needs more bytes than there are.

    Args:
        use: the sentence, with {} for the bytes.
        lower: first words of the hint.
    """
    if needed >= memory:
        owner = "GPU" if device.type == "cuda" else "machine"
        raise UserError(
            f"{use.format(byte_text(needed))}; this {owner} has {byte_text(memory)}",
            where="model",
            hint=f"{lower} `dimension`, `feed_forward`, the numbers of layers or the vocabulary, or use a larger one.",
        )


def filters_without_gain(section: schema.ModelSection, model: Transformer) -> list[str]:
    """Notes on filters that save no time because compaction would not be exact: the key and the reason."""
    places = {"output": model.memory.at_exit(model.plan.deepest[0]), "between": model.memory.after_step(0)}
    notes = []
    for i, choice in enumerate(section.memory):
        number = sum(other.at == choice.at for other in section.memory[:i])
        later = places[choice.at][number + 1 :]
        reason = model.obstacle(choice.at)
        if reason is None and any(f.position_dependent for f in later):
            reason = "a filter after it decides by position or feature"
        if reason is not None:
            kept = "masked" if choice.options.get("closed") == "mask" else "as zeros"
            notes.append(f"model.memory.{i} ({choice.name}): dropped outputs stay {kept}, no time is saved: {reason}")
    return notes


def patterns_without_gain(section: schema.ModelSection, model: Transformer) -> list[str]:
    """Notes on patterns that save no time because the engine cannot gather bands for them."""
    notes = []
    for name in attention_sites(section):
        stack = model.encoder if name == "encoder_self" else model.decoder
        if not stack.steps or (name == "cross" and not section.encoder_layers):
            continue
        step = stack.steps.at(0, "cross" if name == "cross" else "self")
        pattern = step.pattern
        far = pattern is not None and (pattern.reach is None or (first_keys(pattern) > 0 and step.by_distance))
        if step.content is not None or far or (pattern is not None and name == "cross"):
            chosen = getattr(section.attention, name).pattern.name
            notes.append(f"model.attention.{name}.pattern ({chosen}): it only masks, no time is saved")
    return notes


def without_gain(section: schema.ModelSection, model: Transformer) -> list[str]:
    """Notes on all sparsity of a model that saves no time, with the reason (design rule 4)."""
    return patterns_without_gain(section, model) + filters_without_gain(section, model)


SKIPS_NOTHING: Mapping[Socket, str] = {
    "pattern": "sequences are too short for bands: all scores are computed, and masked",
    "transform": "the scores of all keys are computed before it decides",
    "position": "its term is added to all scores",
    "span": "no key lies beyond the longest span",
    "memory": "it drops hardly any encoder output of this text",
    "depth": "all layers run: name fewer as `decoding.encoder_layers` and `decoding.decoder_layers`",
}
"""Socket -> why a method of it skips no matrix product of a text, where neither a pattern nor a filter says so."""


def reasons_without_gain(section: schema.ModelSection, model: Transformer) -> dict[str, str]:
    """Return key of a method -> the reason why it saves no time, as in `without_gain`."""
    notes = (note.partition(": ") for note in without_gain(section, model))
    return {place.partition(" (")[0]: reason for place, _, reason in notes}
