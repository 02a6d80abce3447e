"""The metrics of translation quality: one record each, from which all choices, labels and directions are derived.

A new metric is one record in `METRICS`, and, if no scorer fits, a scorer that the record names. Imports nothing heavy:
the command line offers these names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """The facts about a metric.

    Args:
        name: the name in recipes, on the command line and in JSON.
        label: the name in tables.
        scorer: ``module:attribute`` of the scorer below `sparsenmt.evaluation`, imported at first use.
        lower_is_better: True for error rates.
        needs_documents: True if document boundaries must be known.
        validates: True if validation may choose checkpoints by it.
        default: True if `score` reports it when no metric is named.
        by_sentence_group: True if reports on groups of sentences (by length, without a head) offer it.
    """

    name: str
    label: str
    scorer: str
    lower_is_better: bool = False
    needs_documents: bool = False
    validates: bool = True
    default: bool = False
    by_sentence_group: bool = False


_RECORDS = (
    Metric("bleu", "BLEU", "sacrebleu_scorer:BLEU", default=True, by_sentence_group=True),
    Metric("chrf", "chrF2", "sacrebleu_scorer:CHRF", default=True, by_sentence_group=True),
    Metric("ter", "TER", "sacrebleu_scorer:TER", lower_is_better=True, default=True, by_sentence_group=True),
    Metric("rouge1", "ROUGE-1", "rouge:ROUGE"),
    Metric("rouge2", "ROUGE-2", "rouge:ROUGE"),
    Metric("rougeL", "ROUGE-L", "rouge:ROUGE"),
    Metric("rougeLsum", "ROUGE-Lsum", "rouge:ROUGE"),
    Metric("dbleu", "d-BLEU", "sacrebleu_scorer:BLEU", needs_documents=True),
    # Words of the hypotheses over words of the references: no quality, but what BLEU's brevity penalty is made of.
    Metric("length", "length", "sacrebleu_scorer:LENGTH_RATIO", validates=False),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _RECORDS}
"""By name, in the order of tables."""
