"""Validations: the losses on the validation set, the best updates of a run, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from sparsenmt.data.batching import IndexBatch, collate, length_batches
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.engine.contract import Engine
from sparsenmt.metric import lower_is_better
from sparsenmt.model.protocol import Source
from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss
from sparsenmt.recipe.schema import Training
from sparsenmt.training.loss import negative_log_likelihood
from sparsenmt.training.schedules import final_value
from sparsenmt.training.state import Progress, ValidationResult


@torch.inference_mode()
def validation_losses(
    engine: Engine,
    dev: Dataset,
    *,
    device: torch.device,
    batch_tokens: int,
    depth: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    frames: FramePair = NO_FRAMES,
    most: int | None = None,
) -> dict[str, float]:
    """Compute the losses of a translation model on the validation set, in fp32; returns values by name.

    ``loss`` is the mean negative log-likelihood of a target token in nats, without label smoothing; ``NAME_closed``,
    for each loss of gates and each filter without a loss, the share of source positions that its filters close.

    Args:
        depth: exits of the encoder and of the decoder that are evaluated; None: the deepest.
        frames: the tokens around sources and targets, of the recipe's languages.
        most: sentences, from the first; None: all.
    """
    total, tokens, positions = 0.0, 0, 0
    closed: dict[str, float] = {}
    lengths = np.maximum(dev.source_lengths + frames.source.size, dev.target_lengths + frames.target.size)
    for chosen in length_batches(lengths[:most], batch_tokens):
        index = IndexBatch(np.zeros(len(chosen), dtype=np.int64), np.asarray(chosen, dtype=np.int64))
        batch = collate([dev], index, frames).to(device)
        source = Source(batch.source, batch.source_valid, batch.features)
        encoded = engine.encode(source, exits=depth[0], compact=True)
        cache = engine.new_cache(encoded.memory, exits=depth[1], at_once=True)
        hidden, real = engine.step(batch.target_input, cache), batch.target_valid
        nll = negative_log_likelihood(engine.project, hidden[real], batch.target_output[real])
        total += float(nll.sum())
        tokens += batch.target_tokens
        positions += batch.source_tokens
        source_lengths = batch.source_valid.sum(1)
        (decided,) = encoded.decided.values()
        for name, shares in decided.shares.items():
            closed[name] = closed.get(name, 0.0) + float((shares.closed * source_lengths).sum())
    means = {f"{name}_closed": value / max(positions, 1) for name, value in closed.items()}
    return {"loss": total / max(tokens, 1), **means}


def scheduled_validations(progress: Progress, options: Training) -> list[ValidationResult]:
    """The validations at multiples of ``validation.every``: all but an additional one at the end of the run."""
    return [each for each in progress.validated if each.update % options.validation.every == 0]


def best_updates(
    validations: Sequence[ValidationResult], metric: str, count: int, losses: Mapping[str, AuxiliaryLoss]
) -> list[int]:
    """Updates of the best validations, best first, by their `rank`; ties go to the earlier update."""
    ranked = sorted(validations, key=lambda each: (rank(each.values, metric, losses), each.update))
    return [each.update for each in ranked[:count]]


def rank(
    values: Mapping[str, float], metric: str, losses: Mapping[str, AuxiliaryLoss]
) -> tuple[bool, float, float, float]:
    """A key that sorts the values of validations, the best ones first; ties go to the lower loss.

    If losses have a target, validations within its tolerance come first, then those nearest to it: otherwise the
    best one would be an early one, whose gates are still open.
    """
    sign = 1.0 if lower_is_better(metric) else -1.0
    outside = sum(
        max(abs(values[f"{name}_closed"] - final_value(loss.target)) - loss.tolerance, 0.0)
        for name, loss in losses.items()
        if loss.target is not None
    )
    return math.isnan(values[metric]), outside, sign * values[metric], values["loss"]


def losses_without_target(losses: Mapping[str, AuxiliaryLoss]) -> list[str]:
    """Names of the auxiliary losses that have a weight, and no target by which validations could be compared."""
    return [
        name
        for name, loss in losses.items()
        if loss.target is None and (loss.weight is None or final_value(loss.weight) != 0)
    ]


def stale_validations(progress: Progress, metric: str, losses: Mapping[str, AuxiliaryLoss]) -> int:
    """The number of validations since the best one."""
    updates = [each.update for each in progress.validated]
    best = best_updates(progress.validated, metric, 1, losses)
    return len(updates) - 1 - updates.index(best[0]) if updates else 0


def limit_reached(progress: Progress, options: Training, losses: Mapping[str, AuxiliaryLoss]) -> str | None:
    """Return the key of the limit that the run has reached: updates, epochs, hours or patience; None: none."""
    patience = options.validation.patience
    if progress.update >= options.max_updates:
        return "max_updates"
    if options.max_epochs is not None and progress.epoch >= options.max_epochs:
        return "max_epochs"
    if options.max_hours is not None and progress.elapsed >= 3600 * options.max_hours:
        return "max_hours"
    if patience is not None and stale_validations(progress, options.validation.metric, losses) >= patience:
        return "validation.patience"
    return None
