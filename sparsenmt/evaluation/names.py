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
}
METRICS = tuple(LABELS)
ROUGE = tuple(name for name in METRICS if name.startswith("rouge"))
DEFAULT_METRICS = ("bleu", "chrf", "ter")
