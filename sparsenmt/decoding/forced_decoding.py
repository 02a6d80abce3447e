"""Forced decoding: the log-probabilities that a model gives to targets, one or several a source.

Shapes: B sentences, R targets a sentence, T tokens of a target, </s> included, N real tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.input_line import InputLine
from sparsenmt.data.tokenizers.tokenizer import unknown_texts
from sparsenmt.data.vocabulary import EOS, UNK
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, make_source, not_finite, read_sources
from sparsenmt.engine.contract import Engine
from sparsenmt.model.depth_plan import Depth
from sparsenmt.model.memory import Memory

_ROWS = 1024  # rows of logits that exist at a time
_PAIR_HINT = "Split the pair, or use a machine with more memory."
_SOURCE_HINT = "Leave the sentence out, or use a machine with more memory."


@dataclass(frozen=True)
class PairScore:
    """The natural log-probabilities of one target.

    Args:
        log_probability: the sum over the tokens and `</s>`.
        token_log_probabilities: of the tokens and `</s>`.
        tokens: the strings of the tokens, `</s>` included; an unknown one is its text.
        cut: target tokens beyond the model's positions, which are left out; of the source: `SourceLine.cut`.
        ids: the tokens themselves.
    """

    log_probability: float
    token_log_probabilities: list[float]
    tokens: list[str]
    source: SourceLine
    cut: int = 0
    ids: Sequence[int] = ()


@dataclass(frozen=True)
class TargetScore:
    """The log-probability of one of several targets.

    Args:
        log_probability: the sum over the tokens and `</s>`, natural logarithm.
        length: number of tokens in the sum, `</s>` included.
        cut: tokens beyond the model's positions, which are left out.
    """

    log_probability: float
    length: int
    cut: int = 0


@dataclass(frozen=True)
class ScoredTargets:
    """A source and the scores of its targets, in the order given."""

    source: SourceLine
    targets: tuple[TargetScore, ...]


def score_pairs(
    bundle: Bundle,
    sources: Sequence[InputLine],
    targets: Sequence[str],
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
    depth: Depth | None = None,
) -> Iterator[PairScore]:
    """Score line-aligned pairs, in order. Texts longer than the model's positions are cut; the scores record it.

    Args:
        batch_tokens: largest product of the sentences of a batch and its longest source or target.
        advance: is told the number of pairs that each batch finished.
        compact: False leaves zeros in place of the encoder outputs that filters drop: the same scores, slower.
        depth: encoder and decoder layers that run; None: those of the deepest trained exits.

    Raises:
        UserError: a batch does not fit into memory, or tags are needed and there are none.
    """
    lines = read_sources(bundle, sources)
    most = bundle.max_target_length
    encoded = bundle.tokenizers.target.encode_batch(list(targets))
    rows = [[(*ids[:most], EOS)] for ids in encoded]
    results: dict[int, PairScore] = {}
    for found in score_batches(bundle, lines, rows, batch_tokens=batch_tokens, compact=compact, depth=depth):
        for i, (values,) in found.items():
            (ids,), target = rows[i], bundle.tokenizers.target
            names = target.pieces(ids, unknown_texts(target, targets[i]) if UNK in ids else ())
            cut = max(len(encoded[i]) - most, 0)
            results[i] = PairScore(float(values.sum()), values.tolist(), names, lines[i], cut, ids)
        if advance:
            advance(len(found))
    yield from (results[i] for i in range(len(lines)))


def score_alternatives(
    bundle: Bundle,
    sources: Sequence[InputLine],
    targets: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
    depth: Depth | None = None,
) -> list[ScoredTargets]:
    """Score several targets of every source. Targets of the same tokens get the same score, to the last bit.

    Every source is encoded once, and its cross-attention keys and values are projected once.

    Args:
        targets: those of each source, at least one.
        batch_tokens: largest product of the sentences of a batch and its longest source, or the tokens of all targets
            of one.
        advance: is told the number of sources that each batch finished.
        compact, depth: as for `score_pairs`.

    Raises:
        UserError: a batch does not fit into memory, or tags are needed and there are none.
    """
    lines = read_sources(bundle, sources)
    most = bundle.max_target_length
    encoded = iter(bundle.tokenizers.target.encode_batch(list(chain.from_iterable(targets))))
    tokens = [[next(encoded) for _ in own] for own in targets]
    rows = [list(dict.fromkeys((*ids[:most], EOS) for ids in own)) for own in tokens]
    found: dict[int, dict[tuple[int, ...], float]] = {}
    for scored in score_batches(bundle, lines, rows, batch_tokens=batch_tokens, compact=compact, depth=depth):
        for i, values in scored.items():
            sums = [float(each.double().sum()) for each in values]
            found[i] = dict(zip(rows[i], sums, strict=True))
        if advance:
            advance(len(scored))

    def score(i: int, ids: Sequence[int]) -> TargetScore:
        kept = (*ids[:most], EOS)
        return TargetScore(found[i][kept], len(kept), max(len(ids) - most, 0))

    return [ScoredTargets(line, tuple(score(i, ids) for ids in tokens[i])) for i, line in enumerate(lines)]


def score_batches(
    bundle: Bundle,
    lines: Sequence[SourceLine],
    rows: Sequence[Sequence[Sequence[int]]],
    *,
    batch_tokens: int,
    compact: bool,
    depth: Depth | None = None,
) -> Iterator[dict[int, Sequence[Tensor]]]:
    """Yield, batch by batch, the natural log-probabilities (T) of the tokens of the R targets of each source.

    Further arguments are those of `score_alternatives`.

    Args:
        rows: R targets of each source, `</s>` included; sources with the same R share batches.

    Yields:
        index of a source -> R tensors (T).

    Raises:
        UserError: a batch does not fit into memory; a log-probability is not finite.
    """
    lengths = [max(len(line.ids), len(own) * max(map(len, own))) for line, own in zip(lines, rows, strict=True)]
    encoder_exits, decoder_exits = (None, None) if depth is None else (depth[:1], depth[1:])

    def guard(chosen: Sequence[int]) -> AbstractContextManager[None]:
        count, longest = len(rows[chosen[0]]), max(len(row) for i in chosen for row in rows[i])
        shape = f"{longest:,} target tokens" if count == 1 else f"{count} targets each of up to {longest:,} tokens"
        hint = _PAIR_HINT if count == 1 else _SOURCE_HINT
        return describe_out_of_memory([lines[i] for i in chosen], shape, batch_tokens=batch_tokens, single_hint=hint)

    for count in sorted({len(own) for own in rows}):
        members = [i for i, own in enumerate(rows) if len(own) == count]
        for chosen, memory in encode_ahead(
            bundle.engine,
            [[members[i] for i in batch] for batch in length_batches([lengths[i] for i in members], batch_tokens)],
            lengths,
            batch_tokens,
            read=lambda chosen: make_source(bundle, [lines[i] for i in chosen]),
            naming=guard,
            exits=encoder_exits,
            compact=compact and bundle.model.compacts,
        ):
            with guard(chosen):
                found = _score_batch(bundle, memory, [rows[i] for i in chosen], decoder_exits)
            for i, values in zip(chosen, found, strict=True):
                if not all(bool(each.isfinite().all()) for each in values):
                    raise not_finite(lines[i], bundle)
            yield dict(zip(chosen, found, strict=True))


@torch.inference_mode()
def _score_batch(
    bundle: Bundle, memory: Memory, targets: Sequence[Sequence[Sequence[int]]], exits: Sequence[int] | None
) -> list[Sequence[Tensor]]:
    """Return the natural log-probabilities (T) of the tokens of each of the R targets of every sentence."""
    flat = [list(row) for own in targets for row in own]  # B * R, those of a sentence side by side
    outputs, valid = pad(flat)
    frame = bundle.frames.target
    inputs, _ = pad([frame.before(row) for row in flat])
    outputs, valid, inputs = (x.to(bundle.device) for x in (outputs, valid, inputs))
    hidden = bundle.engine.step(inputs, bundle.engine.new_cache(memory, exits=exits, at_once=True))  # (B * R, T, D)
    hidden = hidden[:, len(frame.prefix) :]  # what is given has no log-probability
    values = token_log_probabilities(bundle.engine, hidden[valid], outputs[valid])  # (N,)
    parts, count = values.split(valid.sum(1).tolist()), len(targets[0])
    return [parts[first : first + count] for first in range(0, len(parts), count)]


def token_log_probabilities(engine: Engine, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the natural log-probabilities (N) of targets (N) after states (N, D), projected chunk by chunk."""
    parts = []
    for rows, wanted in zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True):
        logits = engine.project(rows)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(logits.gather(1, wanted[:, None]).squeeze(1) - logits.logsumexp(-1))
    return torch.cat(parts)
