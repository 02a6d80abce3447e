"""Entropy of the last encoder self-attention, of kept and dropped positions (Zhang, Titov and Sennrich 2021, Fig. 8).

The heads are averaged first; then the entropy, in nats, of what each position looks at; then the mean over positions,
``</s>`` included. A dense baseline is split by the gates of the same gated model.
Shapes: B sentences, H heads, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.analysis.gates import GatedLine, encoded_batches, overall_rate, row_gates
from sparsenmt.decoding.inputs import ModelBundle, SourceLine
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, rows_of


class SelfAttentionEntropy:
    """An observer (`TranslationModel.listen`) of one encoder step.

    Args:
        step: the step, from 0.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self.entropy: torch.Tensor | None = None
        """(B, S) of the last batch, in nats."""

    def __call__(self, seen: AttentionSeen) -> None:
        if seen.site == "encoder_self" and seen.step == self._step:
            mean = seen.weights.mean(1).double()  # (B, S, S)
            self.entropy = -torch.special.xlogy(mean, mean).sum(-1)


@dataclass(frozen=True)
class LineEntropy:
    """One sentence: its gates, and the entropy of every position. (S,)"""

    source: GatedLine
    entropy: NDArray[np.float64]


def line_entropies(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    *,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> list[LineEntropy]:
    """Of every line, in their order."""
    found: list[LineEntropy | None] = [None] * len(lines)
    observer = SelfAttentionEntropy(bundle.depth[0] - 1)
    with bundle.model.listen(observer):
        for chosen, _, memory in encoded_batches(bundle, lines, batch_tokens=batch_tokens, advance=advance):
            assert observer.entropy is not None
            values = observer.entropy.cpu().numpy()
            for row, i in enumerate(chosen):
                length = len(lines[i].ids)
                gated = GatedLine(lines[i], row_gates(memory, row, length))
                found[i] = LineEntropy(gated, values[row, :length].copy())
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class EntropyResult:
    """One gated model; None: no position of that kind, or no baseline."""

    model: str
    sparsity: float | None
    kept: int
    dropped: int
    kept_entropy: float | None
    dropped_entropy: float | None
    kept_baseline: float | None = None
    dropped_baseline: float | None = None


def measure(model: str, own: Sequence[LineEntropy], baseline: Sequence[LineEntropy] | None) -> EntropyResult:
    """Split the entropies of a gated model, and those of a baseline on the same pieces, by the model's gates."""
    dropped = np.concatenate([each.source.dropped for each in own])
    values = np.concatenate([each.entropy for each in own])
    base = None if baseline is None else np.concatenate([each.entropy for each in baseline])
    return EntropyResult(
        model,
        overall_rate(each.source for each in own).sparsity,
        int((~dropped).sum()),
        int(dropped.sum()),
        _mean(values[~dropped]),
        _mean(values[dropped]),
        None if base is None else _mean(base[~dropped]),
        None if base is None else _mean(base[dropped]),
    )


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def report(found: Sequence[EntropyResult]) -> Report:
    """A row a model."""
    columns = (
        *(Column("model"), Column("sparsity", "share"), Column("kept", "count"), Column("dropped", "count")),
        *(Column("kept_entropy", "number"), Column("kept_baseline", "number")),
        *(Column("dropped_entropy", "number"), Column("dropped_baseline", "number")),
    )
    title = "entropy of the last encoder self-attention (nats, heads averaged first)"
    return Report("entropy", (Table("entropy", title, columns, rows_of(found, columns)),))


def panels(found: Sequence[EntropyResult], baseline: str | None) -> list[Panel]:
    """Two diagrams against sparsity: kept positions, dropped positions."""
    ordered = sorted(found, key=lambda each: each.sparsity or 0.0)
    x = [each.sparsity or 0.0 for each in ordered]

    def panel(title: str, own: list[float | None], base: list[float | None]) -> Panel:
        series = {"with gates": list(zip(x, own, strict=True))}
        if baseline is not None:
            series[f"{baseline}, same positions"] = list(zip(x, base, strict=True))
        return Panel("sparsity rate", "entropy (nats)", series, title=title, percent="x")

    kept, base = [each.kept_entropy for each in ordered], [each.kept_baseline for each in ordered]
    other, other_base = [each.dropped_entropy for each in ordered], [each.dropped_baseline for each in ordered]
    return [panel("kept positions", kept, base), panel("dropped positions", other, other_base)]
