"""Forced decoding of several targets a source: the source is encoded once, its keys and values projected once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

from sparsenmt.data.input_line import InputLine
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.forced import score_batches
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, naming_shape, read_sources


@dataclass(frozen=True)
class TargetScore:
    """The model's view of one target."""

    log_probability: float
    """Sum over the pieces and `</s>`, natural logarithm."""
    pieces: int
    """How many were summed, `</s>` included."""
    cut: int = 0
    """Pieces that were too many for the model."""


@dataclass(frozen=True)
class ScoredTargets:
    """A source and its targets, in the order given."""

    source: SourceLine
    targets: tuple[TargetScore, ...]


def score_choices(
    bundle: ModelBundle,
    sources: Sequence[InputLine],
    targets: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], object] | None = None,
    compact: bool = True,
    depth: tuple[int, int] | None = None,
) -> list[ScoredTargets]:
    """Score the targets of every source. Targets of the same pieces get the same score, to the last bit.

    Args:
        targets: those of each source, at least one.
        batch_tokens: sentences times the longest source, or times all targets of one, at most.
        advance: told the number of sources that each batch finished.
        compact: as for `forced.score_pairs`.
        depth: as for `forced.score_pairs`.

    Raises:
        UserError: a batch needs more memory than there is; tags are needed and cannot be had.
    """
    lines = read_sources(bundle, sources)
    most = bundle.max_positions - 1
    encoded = iter(bundle.tokenizers.target.encode_batch(list(chain.from_iterable(targets))))
    pieces = [[next(encoded) for _ in own] for own in targets]
    rows = [list(dict.fromkeys((*ids[:most], EOS) for ids in own)) for own in pieces]
    found: dict[int, dict[tuple[int, ...], float]] = {}
    for count in sorted({len(own) for own in rows}):
        members = [i for i, own in enumerate(rows) if len(own) == count]
        part = [rows[i] for i in members]

        own_lines = [lines[i] for i in members]

        def naming(
            chosen: Sequence[int],
            own_lines: Sequence[SourceLine] = own_lines,
            part: Sequence[Sequence[tuple[int, ...]]] = part,
        ) -> AbstractContextManager[None]:
            longest = max(len(row) for i in chosen for row in part[i])
            shape = f"{len(part[0])} targets each of up to {longest:,} pieces"
            return naming_shape([own_lines[i] for i in chosen], shape, batch_tokens=batch_tokens, alone=_ALONE)

        for scored in score_batches(
            bundle, own_lines, part, naming, batch_tokens=batch_tokens, compact=compact, depth=depth
        ):
            for i, values in scored.items():
                sums = [float(each.double().sum()) for each in values]
                found[members[i]] = dict(zip(part[i], sums, strict=True))
            if advance:
                advance(len(scored))
    return [
        ScoredTargets(
            line, tuple(TargetScore(found[i][(*ids[:most], EOS)], *_sizes(len(ids), most)) for ids in pieces[i])
        )
        for i, line in enumerate(lines)
    ]


def _sizes(length: int, most: int) -> tuple[int, int]:
    """Pieces that are summed, and pieces that are cut."""
    return min(length, most) + 1, max(length - most, 0)


_ALONE = "Leave the sentence out, or use a machine with more memory."
