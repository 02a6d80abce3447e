"""Scores and comparisons as a text table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sparsenmt.evaluation.metrics import Score
from sparsenmt.evaluation.significance import Comparison, Estimate
from sparsenmt.metric import METRICS
from sparsenmt.report.columns import aligned


def table(
    scores: Sequence[Score], comparisons: Sequence[Comparison] = (), *, note: str = "", sacrebleu_p: bool = False
) -> str:
    """Make a table of metric, value and signature, then of the comparisons with the baseline; ``note`` ends it.

    Args:
        sacrebleu_p: True to show sacrebleu's own p-value, too.
    """
    rows = [("metric", "score", "signature")]
    rows += [(METRICS[score.name].label, f"{score.value:.2f}", score.signature) for score in scores]
    text = "\n".join(aligned(rows, flush_right={1}))
    if comparisons:
        text += f"\n\n{_comparison_table(comparisons, sacrebleu_p=sacrebleu_p)}"
    return f"{text}\n{note}" if note else text


def _comparison_table(comparisons: Sequence[Comparison], *, sacrebleu_p: bool) -> str:
    heads = ("metric", "baseline", "system", "difference", "95% interval", "p-value")
    rows = [(*heads, *(["sacrebleu p"] if sacrebleu_p else []))]
    for one in comparisons:
        baseline, system = map(_with_half_width, (one.baseline, one.system))
        ends = one.difference.interval
        interval = "-" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"
        p_values = ["-" if p is None else f"{p:.4f}" for p in (one.p_value, one.sacrebleu_p)]
        cells = (METRICS[one.name].label, baseline, system, f"{one.difference.value:+.2f}", interval)
        rows.append((*cells, *p_values[: 1 + sacrebleu_p]))
    return "\n".join(aligned(rows, flush_right={1, 2, 3, 4, 5, 6}))


def _with_half_width(estimate: Estimate) -> str:
    half = estimate.half_width
    return f"{estimate.value:.2f}" if half is None else f"{estimate.value:.2f} ± {half:.2f}"


def as_json(scores: Sequence[Score], comparisons: Sequence[Comparison] = (), **more: Any) -> str:
    """Write ``{"scores": [...], "comparisons": [...], ...}`` with unrounded numbers; ``comparisons`` only if any."""
    content: dict[str, Any] = {"scores": [asdict(score) for score in scores]}
    if comparisons:
        content["comparisons"] = [asdict(one) for one in comparisons]
    return json.dumps({**content, **more}, ensure_ascii=False, indent=2)
