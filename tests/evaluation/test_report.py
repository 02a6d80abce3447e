"""Tables are aligned, JSON holds unrounded numbers."""

from __future__ import annotations

import json

from sparsenmt.evaluation.metrics import Score
from sparsenmt.evaluation.score_table import as_json, table
from sparsenmt.evaluation.significance import Comparison, Estimate
from sparsenmt.report.columns import aligned

SCORES = [Score("bleu", 37.123456, "tok:13a"), Score("rougeLsum", 5.0, "stem:no")]
COMPARISON = Comparison(
    "bleu",
    Estimate(37.1, 37.0, 36.0, 38.0),
    Estimate(36.0, 36.0, 35.5, 36.5),
    Estimate(1.1, 1.0, -0.25, 2.0),
    0.0421,
    90,
)


def test_table() -> None:
    assert table(SCORES) == (
        "metric      score  signature\n"
        "BLEU        37.12  tok:13a\n"
        "ROUGE-Lsum   5.00  stem:no"
    )  # fmt: skip


def test_table_with_comparison() -> None:
    *_, heads, row, note = table(SCORES, [COMPARISON], note="bootstrap").split("\n")
    assert heads.split("  ")[0] == "metric"
    assert " ".join(row.split()) == "BLEU 36.00 ± 0.50 37.10 ± 1.00 +1.10 [-0.25, +2.00] 0.0421"
    assert heads.index("p-value") + len("p-value") == len(row)
    assert note == "bootstrap"


def test_columns() -> None:
    assert aligned([("a", "b"), ("ccc", "10")], flush_right={1}) == ["a     b", "ccc  10"]


def test_json() -> None:
    content = json.loads(as_json(SCORES, [COMPARISON], sentences=3))
    assert content["scores"][0] == {"name": "bleu", "value": 37.123456, "signature": "tok:13a"}
    assert content["comparisons"][0]["p_value"] == 0.0421
    assert content["comparisons"][0]["system"] == {"value": 37.1, "mean": 37.0, "low": 36.0, "high": 38.0}
    assert content["sentences"] == 3
    assert "comparisons" not in json.loads(as_json(SCORES))
