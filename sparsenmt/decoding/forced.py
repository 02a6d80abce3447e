"""Forced decoding: the probability of given outputs.

Shapes: B sentences, T target pieces, </s> included, N real target pieces of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.inputs import ModelBundle, make_source, read_sources
from sparsenmt.model.interfaces import TranslationModel

_ROWS = 1024  # rows of logits alive at a time


@dataclass(frozen=True)
class PairScore:
    """The model's view of one target: natural logarithms, `</s>` included as the last piece."""

    log_probability: float
    token_log_probabilities: list[float]
    pieces: list[str]


def score_pairs(
    bundle: ModelBundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
) -> Iterator[PairScore]:
    """Score line-aligned pairs, in order. Texts longer than the model's positions are cut."""
    lines = read_sources(bundle, sources)
    most = bundle.max_positions - 1
    wanted = [[*ids[:most], EOS] for ids in bundle.tokenizers.target.encode_batch(list(targets))]
    results: dict[int, PairScore] = {}
    lengths = [max(len(line.ids), len(ids)) for line, ids in zip(lines, wanted, strict=True)]
    for chosen in length_batches(lengths, batch_tokens):
        outputs, valid = pad([wanted[i] for i in chosen])
        inputs, _ = pad([[BOS, *wanted[i][:-1]] for i in chosen])
        outputs, valid, inputs = (x.to(bundle.device) for x in (outputs, valid, inputs))
        with torch.inference_mode():
            encoded = bundle.model.encode(make_source(bundle, [lines[i] for i in chosen]), compact=True)
            (memory,) = encoded.memories.values()
            (hidden,) = bundle.model.decode(inputs, memory).values()
            flat = token_log_probabilities(bundle.model, hidden[valid], outputs[valid])
        for i, values in zip(chosen, flat.split(valid.sum(1).tolist()), strict=True):
            pieces = bundle.tokenizers.target.pieces(wanted[i])
            results[i] = PairScore(float(values.sum()), values.tolist(), pieces)
        if advance:
            advance(len(chosen))
    yield from (results[i] for i in range(len(lines)))


def token_log_probabilities(model: TranslationModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """hidden (N, D), targets (N) -> (N), natural logarithms, projected chunk by chunk."""
    parts = []
    for rows, wanted in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
        logits = model.project(rows)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(logits.gather(1, wanted[:, None]).squeeze(1) - logits.logsumexp(-1))
    return torch.cat(parts)
