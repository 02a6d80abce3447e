"""Forced decoding: the probability of given outputs.

Shapes: B sentences, T target pieces, </s> included, N real target pieces of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, make_source, naming_shape, not_numbers, read_sources
from sparsenmt.model.interfaces import Memory, TranslationModel

_ROWS = 1024  # rows of logits alive at a time


@dataclass(frozen=True)
class PairScore:
    """The model's view of one target: natural logarithms, `</s>` included as the last piece."""

    log_probability: float
    token_log_probabilities: list[float]
    pieces: list[str]
    source: SourceLine
    cut: int = 0
    """Target pieces that were too many for the model; of the source, `SourceLine.cut`."""


def score_pairs(
    bundle: ModelBundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    tags: Sequence[TaggedSentence] | None = None,
    numbers: Sequence[int] | None = None,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
) -> Iterator[PairScore]:
    """Score line-aligned pairs, in order. Texts longer than the model reads are cut, and say so.

    Args:
        tags: those given beside the sources; without them the model's tagger makes them, where methods read tags.
        numbers: of every pair, for messages, where they do not follow each other from 0 on.
        batch_tokens: sentences times the longest source or target of a batch, at most.
        advance: told the number of pairs that each batch finished.
        compact: False leaves zeros in place of what filters drop: the same scores, later.

    Raises:
        UserError: a batch needs more memory than there is; tags are needed and cannot be had.
    """
    lines = read_sources(bundle, sources, tags=tags, numbers=numbers)
    most = bundle.max_positions - 1
    pieces = bundle.tokenizers.target.encode_batch(list(targets))
    wanted = [[*ids[:most], EOS] for ids in pieces]
    results: dict[int, PairScore] = {}
    lengths = [max(len(line.ids), len(ids)) for line, ids in zip(lines, wanted, strict=True)]

    def naming(chosen: Sequence[int]) -> AbstractContextManager[None]:
        shape = f"{max(len(wanted[i]) for i in chosen):,} target pieces"
        return naming_shape([lines[i] for i in chosen], shape, batch_tokens=batch_tokens, alone=_ALONE)

    for chosen, memory in encode_ahead(
        bundle.model,
        length_batches(lengths, batch_tokens),
        lengths,
        batch_tokens,
        read=lambda chosen: make_source(bundle, [lines[i] for i in chosen]),
        naming=naming,
        compact=compact,
    ):
        with naming(chosen):
            found = _score_batch(bundle, memory, [wanted[i] for i in chosen])
        for i, values in zip(chosen, found, strict=True):
            if not bool(values.isfinite().all()):
                raise not_numbers(lines[i])
            names = bundle.tokenizers.target.pieces(wanted[i])
            cut = max(len(pieces[i]) - most, 0)
            results[i] = PairScore(float(values.sum()), values.tolist(), names, lines[i], cut)
        if advance:
            advance(len(chosen))
    yield from (results[i] for i in range(len(lines)))


_ALONE = "Split the pair, or use a machine with more memory."


@torch.inference_mode()
def _score_batch(bundle: ModelBundle, memory: Memory, targets: list[list[int]]) -> tuple[Tensor, ...]:
    """Of every pair the natural logarithms (T) of its target's pieces."""
    outputs, valid = pad(targets)
    inputs, _ = pad([[BOS, *row[:-1]] for row in targets])
    outputs, valid, inputs = (x.to(bundle.device) for x in (outputs, valid, inputs))
    (hidden,) = bundle.model.decode(inputs, memory).values()
    flat = token_log_probabilities(bundle.model, hidden[valid], outputs[valid])
    found: tuple[Tensor, ...] = flat.split(valid.sum(1).tolist())
    return found


def token_log_probabilities(model: TranslationModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """hidden (N, D), targets (N) -> (N), natural logarithms, projected chunk by chunk."""
    parts = []
    for rows, wanted in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
        logits = model.project(rows)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(logits.gather(1, wanted[:, None]).squeeze(1) - logits.logsumexp(-1))
    return torch.cat(parts)
