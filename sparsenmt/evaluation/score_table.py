"""Scores and comparisons as a text table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sparsenmt.evaluation.metrics import Score
from sparsenmt.evaluation.significance import Comparison
from sparsenmt.metric import METRICS
from sparsenmt.report.columns import aligned


def table(scores: Sequence[Score], comparisons: Sequence[Comparison] = (), *, note: str = "") -> str:
    """Make a table of metric, value and signature, then of the comparisons with the baseline; ``note`` ends it."""
    rows = [("metric", "score", "signature")]
    rows += [(METRICS[score.name].label, f"{score.value:.2f}", score.signature) for score in scores]
    text = "\n".join(aligned(rows, flush_right={1}))
    if comparisons:
        text += f"\n\n{_comparison_table(comparisons)}"
    return f"{text}\n{note}" if note else text


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    rows = [("metric", "baseline", "system", "difference", "95% interval", "p-value")]
    for one in comparisons:
        baseline, system = (f"{each.value:.2f} ± {each.half_width:.2f}" for each in (one.baseline, one.system))
        interval = f"[{one.difference.low:+.2f}, {one.difference.high:+.2f}]"
        change = f"{one.difference.value:+.2f}"
        rows.append((METRICS[one.name].label, baseline, system, change, interval, f"{one.p_value:.4f}"))
    return "\n".join(aligned(rows, flush_right={1, 2, 3, 4, 5}))


def as_json(scores: Sequence[Score], comparisons: Sequence[Comparison] = (), **more: Any) -> str:
    """Write ``{"scores": [...], "comparisons": [...], ...}`` with unrounded numbers; ``comparisons`` only if any."""
    content: dict[str, Any] = {"scores": [asdict(score) for score in scores]}
    if comparisons:
        content["comparisons"] = [asdict(one) for one in comparisons]
    return json.dumps({**content, **more}, ensure_ascii=False, indent=2)
