"""Entropy of the last encoder self-attention, of kept and dropped positions (Zhang, Titov and Sennrich 2021, Fig. 8).

The heads are averaged first; then the entropy of each position's weights is taken, in nats; then the mean over
positions, ``</s>`` included. The positions of a dense baseline are split by the gates of the gated model.
Shapes: B sentences, H heads, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sparsenmt.analysis.gates import GatedLine, LineBatches, gated_batch, overall_rate
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession, AnalyzedModel
from sparsenmt.errors import UserError
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns, rows_of


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
    return session.result(
        report(found),
        lambda: curves(panels(found, name), share_y=True),
        settings={"baseline": name},
        notes=notes + session.notes_on_weights(),
    )


def _entropies(model: AnalyzedModel) -> list[LineEntropy]:
    """Compute the entropies of a model's sources, in their order."""
    with model.batches("entropy") as text:
        return line_entropies(text)


@dataclass(frozen=True)
class LineEntropy:
    """The gates and entropies of one sentence."""

    source: GatedLine
    entropy: NDArray[np.float64]
    """(S,) in nats"""


def line_entropies(text: LineBatches) -> list[LineEntropy]:
    """Compute the entropies of lines; returns them in the same order."""
    found: dict[int, LineEntropy] = {}
    last = torch.empty(0)  # (B, S) entropies of the last batch

    def keep(seen: AttentionSeen) -> None:
        """Keep the entropies of the last encoder layer."""
        nonlocal last
        if seen.site == "encoder_self" and seen.step == text.bundle.depth[0] - 1:
            mean = seen.shares.mean(1).double()  # (B, S, S)
            last = -torch.special.xlogy(mean, mean).sum(-1)

    with text.bundle.model.listen(keep):
        for chosen, memory in text.encoded():
            gated = gated_batch(memory, [text.lines[i] for i in chosen])
            for i, each, own in zip(chosen, gated, last.cpu().numpy(), strict=True):
                found[i] = LineEntropy(each, own[: len(each.line.ids)].copy())
    return [found[i] for i in range(len(text.lines))]


@dataclass(frozen=True)
class EntropyResult:
    """The mean entropies of a model's kept and dropped positions, in nats; None: there are none, or no baseline."""

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
    rate = overall_rate(each.source for each in own)
    means = [
        None if each is None or not chosen.any() else float(each[chosen].mean())
        for each in (values, base)
        for chosen in (~dropped, dropped)
    ]
    return EntropyResult(model, rate.sparsity, rate.positions - rate.dropped, rate.dropped, *means)


def report(found: Sequence[EntropyResult]) -> Report:
    """Make the table: one row for each model."""
    entropies = "number kept_entropy kept_baseline dropped_entropy dropped_baseline"
    heads = columns("text model", "share sparsity", "count kept dropped", entropies)
    title = "entropy of the last encoder self-attention (nats, heads averaged first)"
    return Report("entropy", (Table("entropy", title, heads, rows_of(found, heads)),))


def panels(found: Sequence[EntropyResult], baseline: str | None) -> list[Panel]:
    """Draw the entropy of kept and of dropped positions against the sparsity of the models."""
    ordered = sorted(found, key=lambda each: each.sparsity or 0.0)
    result = []
    for kind in ("kept", "dropped"):
        curves = {"with gates": f"{kind}_entropy"}
        if baseline is not None:
            curves[f"{baseline}, same positions"] = f"{kind}_baseline"
        series = {
            label: [(each.sparsity or 0.0, getattr(each, name)) for each in ordered] for label, name in curves.items()
        }
        result.append(Panel("sparsity rate", "entropy (nats)", series, title=f"{kind} positions", percent="x"))
    return result
