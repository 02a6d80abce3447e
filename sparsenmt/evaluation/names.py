"""Names of the metrics: what the command line and recipes call them, and what reports print."""

from __future__ import annotations

LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF2",
    "ter": "TER",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "dbleu": "d-BLEU",
    "length": "length",
}
METRICS = tuple(LABELS)
ROUGE = tuple(name for name in METRICS if name.startswith("rouge"))
DEFAULT_METRICS = ("bleu", "chrf", "ter")
OF_DOCUMENTS = ("dbleu",)
"""Metrics that need to know where documents end."""
LENGTH = "length"
"""Words of the hypotheses over words of the references: no quality, but what BLEU's brevity penalty is made of."""
