"""Entropy of the last encoder self-attention, of kept and dropped positions (Zhang, Titov and Sennrich 2021, Fig. 8).

The heads are averaged first; then the entropy of each position's weights is taken, in nats; then the mean over
positions, ``</s>`` included. The positions of a dense baseline are split by the gates of the gated model.
Shapes: B sentences, H heads, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.analysis.gates import GatedLine, encoded_batches, gated_line, overall_rate
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession, AnalyzedModel
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns, rows_of
from sparsenmt.store import Bundle


def measure_entropy(session: AnalysisSession, *, baseline: Path | None = None) -> AnalysisResult:
    """Make the report ``entropy``.

    Args:
        baseline: directory of a dense model with the same source vocabulary.

    Raises:
        UserError: no model has a filter, or the baseline reads other tokens.
    """
    notes = session.notes_on_filters(needed=True)
    name, dense = None, None
    if baseline is not None:
        name = baseline.resolve().name
        dense = _entropies(session.open(name, baseline))
    found = []
    for model in session.opened():
        own = _entropies(model)
        if dense is not None and [each.source.line.ids for each in dense] != [each.source.line.ids for each in own]:
            raise UserError(
                f"its tokens of the text are not those of {model.label}",
                where=str(baseline),
                hint="Name the dense model that the gated one was made from, or one with its tokenizer.",
            )
        found.append(measure(model.label, own, dense))
    return session.result(report(found), lambda: curves(panels(found, name)), settings={"baseline": name}, notes=notes)


def _entropies(model: AnalyzedModel) -> list[LineEntropy]:
    with model.progress("entropy") as advance:
        return line_entropies(model.bundle, model.sources, batch_tokens=model.batch_tokens, advance=advance)


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
    """The gates and entropies of one sentence."""

    source: GatedLine
    entropy: NDArray[np.float64]
    """(S,)"""


def line_entropies(
    bundle: Bundle,
    lines: Sequence[SourceLine],
    *,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> list[LineEntropy]:
    """Compute the entropies of lines; returns them in the same order."""
    found: dict[int, LineEntropy] = {}
    observer = SelfAttentionEntropy(bundle.depth[0] - 1)
    with bundle.model.listen(observer):
        for chosen, _, memory in encoded_batches(bundle, lines, batch_tokens=batch_tokens, advance=advance):
            assert observer.entropy is not None
            values = observer.entropy.cpu().numpy()
            for row, i in enumerate(chosen):
                found[i] = LineEntropy(gated_line(memory, row, lines[i]), values[row, : len(lines[i].ids)].copy())
    return [found[i] for i in range(len(lines))]


@dataclass(frozen=True)
class EntropyResult:
    """The mean entropies of one gated model; None: no position of that kind, or no baseline."""

    model: str
    sparsity: float | None
    kept: int
    dropped: int
    kept_entropy: float | None
    dropped_entropy: float | None
    kept_baseline: float | None = None
    dropped_baseline: float | None = None


def measure(model: str, own: Sequence[LineEntropy], baseline: Sequence[LineEntropy] | None) -> EntropyResult:
    """Split the entropies of a gated model, and those of a baseline on the same tokens, by the model's gates."""
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
    """Make the table: one row for each model."""
    heads = (
        *columns("text", "model"),
        *columns("share", "sparsity"),
        *columns("count", "kept", "dropped"),
        *columns("number", "kept_entropy", "kept_baseline", "dropped_entropy", "dropped_baseline"),
    )
    title = "entropy of the last encoder self-attention (nats, heads averaged first)"
    return Report("entropy", (Table("entropy", title, heads, rows_of(found, heads)),))


def panels(found: Sequence[EntropyResult], baseline: str | None) -> list[Panel]:
    """Draw the entropy of kept and of dropped positions against the sparsity of the models."""
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
