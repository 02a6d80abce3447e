"""Forced decoding: the probability of given outputs.

Shapes: B sentences, R targets a sentence, T pieces of one, </s> included, N real pieces of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, make_source, naming_shape, not_numbers, read_sources
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import TranslationModel

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
    sources: Sequence[InputLine],
    targets: Sequence[str],
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
    depth: tuple[int, int] | None = None,
) -> Iterator[PairScore]:
    """Score line-aligned pairs, in order. Texts longer than the model reads are cut, and say so.

    Args:
        batch_tokens: sentences times the longest source or target of a batch, at most.
        advance: told the number of pairs that each batch finished.
        compact: False leaves zeros in place of what filters drop: the same scores, later.
        depth: encoder and decoder layers that run; None: those of the deepest trained exits.

    Raises:
        UserError: a batch needs more memory than there is; tags are needed and cannot be had.
    """
    lines = read_sources(bundle, sources)
    most = bundle.max_positions - 1
    pieces = bundle.tokenizers.target.encode_batch(list(targets))
    wanted = [(*ids[:most], EOS) for ids in pieces]
    results: dict[int, PairScore] = {}

    def naming(chosen: Sequence[int]) -> AbstractContextManager[None]:
        shape = f"{max(len(wanted[i]) for i in chosen):,} target pieces"
        return naming_shape([lines[i] for i in chosen], shape, batch_tokens=batch_tokens, alone=_ALONE)

    rows = [[ids] for ids in wanted]
    for found in score_batches(bundle, lines, rows, naming, batch_tokens=batch_tokens, compact=compact, depth=depth):
        for i, (values,) in found.items():
            names = bundle.tokenizers.target.pieces(list(wanted[i]))
            cut = max(len(pieces[i]) - most, 0)
            results[i] = PairScore(float(values.sum()), values.tolist(), names, lines[i], cut)
        if advance:
            advance(len(found))
    yield from (results[i] for i in range(len(lines)))


_ALONE = "Split the pair, or use a machine with more memory."


def score_batches(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    rows: Sequence[Sequence[Sequence[int]]],
    naming: Callable[[Sequence[int]], AbstractContextManager[None]],
    *,
    batch_tokens: int,
    compact: bool,
    depth: tuple[int, int] | None = None,
) -> Iterator[dict[int, Sequence[Tensor]]]:
    """Batch by batch, by the number of a source, the natural logarithms (T) of each of its R targets' pieces.

    Every source is encoded once, and its keys and values projected once.

    Args:
        rows: R targets of each source, as many for all, `</s>` included.
        naming: what says, if memory ends while these sources are worked on, how large they were.
        batch_tokens: sentences times the longest source, or times all targets of one, at most.
        depth: as for `score_pairs`.

    Raises:
        UserError: a batch needs more memory than there is; a probability is no number.
    """
    lengths = [max(len(line.ids), len(own) * max(map(len, own))) for line, own in zip(lines, rows, strict=True)]

    for chosen, memory in encode_ahead(
        bundle.model,
        length_batches(lengths, batch_tokens),
        lengths,
        batch_tokens,
        read=lambda chosen: make_source(bundle, [lines[i] for i in chosen]),
        naming=naming,
        exits=None if depth is None else depth[:1],
        compact=compact,
    ):
        with naming(chosen):
            found = _score_batch(bundle, memory, [rows[i] for i in chosen], None if depth is None else depth[1:])
        for i, values in zip(chosen, found, strict=True):
            if not all(bool(each.isfinite().all()) for each in values):
                raise not_numbers(lines[i])
        yield dict(zip(chosen, found, strict=True))


@torch.inference_mode()
def _score_batch(
    bundle: ModelBundle, memory: Memory, targets: Sequence[Sequence[Sequence[int]]], exits: Sequence[int] | None
) -> list[Sequence[Tensor]]:
    """Of every sentence, for each of its R targets, the natural logarithms (T) of its pieces."""
    flat = [list(row) for own in targets for row in own]  # B * R, those of a sentence side by side
    outputs, valid = pad(flat)
    inputs, _ = pad([[BOS, *row[:-1]] for row in flat])
    outputs, valid, inputs = (x.to(bundle.device) for x in (outputs, valid, inputs))
    (hidden,) = bundle.model.decode(inputs, memory, exits=exits).values()  # (B * R, T, D)
    values = token_log_probabilities(bundle.model, hidden[valid], outputs[valid])  # (N,)
    parts, count = values.split(valid.sum(1).tolist()), len(targets[0])
    return [parts[first : first + count] for first in range(0, len(parts), count)]


def token_log_probabilities(model: TranslationModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """hidden (N, D), targets (N) -> (N), natural logarithms, projected chunk by chunk."""
    parts = []
    for rows, wanted in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
        logits = model.project(rows)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(logits.gather(1, wanted[:, None]).squeeze(1) - logits.logsumexp(-1))
    return torch.cat(parts)
