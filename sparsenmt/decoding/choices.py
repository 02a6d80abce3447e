"""Forced decoding of several targets a source: the source is encoded once, and its keys and values projected once.

Shapes: B sentences, R targets a sentence, T target pieces, </s> included, N real target pieces of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

import torch

from sparsenmt.data.batching import length_batches, pad
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.ahead import encode_ahead
from sparsenmt.decoding.forced import token_log_probabilities
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, make_source, naming_shape, not_numbers, read_sources
from sparsenmt.model.interfaces import Memory


@dataclass(frozen=True)
class Choice:
    """The model's view of one target."""

    log_probability: float
    """Sum over the pieces and `</s>`, natural logarithm."""
    pieces: int
    """How many were summed, `</s>` included."""
    cut: int = 0
    """Pieces that were too many for the model."""


@dataclass(frozen=True)
class Choices:
    """A source and its targets, in the order given."""

    source: SourceLine
    targets: tuple[Choice, ...]


def score_choices(
    bundle: ModelBundle,
    sources: Sequence[str],
    targets: Sequence[Sequence[str]],
    *,
    tags: Sequence[TaggedSentence] | None = None,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
) -> list[Choices]:
    """Score the targets of every source. Targets of the same pieces get the same score, to the last bit.

    Args:
        targets: those of each source, at least one.
        tags: as for `forced.score_pairs`.
        batch_tokens: sentences times the longest source, or times all targets of one, at most.
        advance: told the number of sources that each batch finished.
        compact: as for `forced.score_pairs`.

    Raises:
        UserError: a batch needs more memory than there is; tags are needed and cannot be had.
    """
    lines = read_sources(bundle, sources, tags=tags)
    most = bundle.max_positions - 1
    encoded = iter(bundle.tokenizers.target.encode_batch(list(chain.from_iterable(targets))))
    pieces = [[next(encoded) for _ in own] for own in targets]
    rows = [list(dict.fromkeys((*ids[:most], EOS) for ids in own)) for own in pieces]
    found: dict[int, dict[tuple[int, ...], float]] = {}
    for count in sorted({len(own) for own in rows}):
        members = [i for i, own in enumerate(rows) if len(own) == count]
        part = [lines[i] for i in members], [rows[i] for i in members]
        for chosen, scores in _score(bundle, *part, batch_tokens, compact):
            for i, values in zip(chosen, scores, strict=True):
                found[members[i]] = dict(zip(rows[members[i]], values, strict=True))
            if advance:
                advance(len(chosen))
    return [
        Choices(line, tuple(Choice(found[i][(*ids[:most], EOS)], *_sizes(len(ids), most)) for ids in pieces[i]))
        for i, line in enumerate(lines)
    ]


def _sizes(length: int, most: int) -> tuple[int, int]:
    """Pieces that are summed, and pieces that are cut."""
    return min(length, most) + 1, max(length - most, 0)


_ALONE = "Leave the sentence out, or use a machine with more memory."


def _score(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    rows: Sequence[Sequence[tuple[int, ...]]],
    batch_tokens: int,
    compact: bool,
) -> Iterator[tuple[list[int], list[list[float]]]]:
    """Batches of sources with the same number R of targets: their numbers, and for each R log-probabilities."""
    lengths = [max(len(line.ids), len(own) * max(map(len, own))) for line, own in zip(lines, rows, strict=True)]

    def naming(chosen: Sequence[int]) -> AbstractContextManager[None]:
        longest = max(len(row) for i in chosen for row in rows[i])
        shape = f"{len(rows[0])} targets each of up to {longest:,} pieces"
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
            scores = _score_batch(bundle, memory, [rows[i] for i in chosen])
        for i, values in zip(chosen, scores, strict=True):
            if not bool(torch.tensor(values).isfinite().all()):
                raise not_numbers(lines[i])
        yield chosen, scores


@torch.inference_mode()
def _score_batch(
    bundle: ModelBundle, memory: Memory, targets: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[float]]:
    """B sentences with R targets each -> B lists of R log-probabilities."""
    flat = [row for own in targets for row in own]  # B * R, those of a sentence side by side
    outputs, valid = pad(flat)
    inputs, _ = pad([[BOS, *row[:-1]] for row in flat])
    outputs, valid, inputs = (x.to(bundle.device) for x in (outputs, valid, inputs))
    (hidden,) = bundle.model.decode(inputs, memory).values()  # (B * R, T, D)
    values = token_log_probabilities(bundle.model, hidden[valid], outputs[valid]).double()  # (N,)
    sums = [float(part.sum()) for part in values.split(valid.sum(1).tolist())]
    count = len(targets[0])
    return [sums[first : first + count] for first in range(0, len(sums), count)]
