"""The metrics of translations and language models: one record each, from which all choices and labels are derived.

A new metric is one record in `METRICS` and, if no scorer fits, a scorer that the record names; a plugin registers its
own with `register_metric`. Imports nothing heavy: the command line offers these names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Literal, TypeVar

from sparsenmt.plugins.table import EntryTable, calling_module

S = TypeVar("S", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """The facts about a metric.

    Args:
        name: the name in recipes, on the command line and in JSON.
        label: the name in tables.
        scorer: ``module:attribute`` of a function or class that makes an `evaluation.scorer.Scorer`, imported at first
            use. A module without a dot is one of `sparsenmt.evaluation`. Of a plugin, the function or class itself.
        lower_is_better: True for error rates.
        needs_documents: True if whole documents are compared.
        quadratic: True if every word of a line is compared with every word of its reference, which limits their length.
        validates: True if validation may choose checkpoints by it.
        default: True if `score` reports it when no metric is named.
        tokenized: True if sacrebleu's tokenizer (``--tokenize``) finds its words.
        spaced: True if its words stand between spaces; of text without them it compares the tokens that BLEU does.
        by_language: True if its words depend on the language of the text.
        reads_source: True if it compares with the source, too.
        model_variable: environment variable that names its model; empty: it has none.
    """

    name: str
    label: str
    scorer: str | Callable[..., Any]
    lower_is_better: bool = False
    needs_documents: bool = False
    quadratic: bool = False
    validates: bool = True
    default: bool = False
    tokenized: bool = False
    spaced: bool = False
    by_language: bool = False
    reads_source: bool = False
    model_variable: str = ""

    @property
    def is_utility(self) -> bool:
        """True if it judges the quality of single sentences."""
        return not self.needs_documents and (self.validates or bool(self.model_variable))

    def uses_tokenizer(self, unspaced: bool | None) -> bool:
        """Return True if the tokenizer changes its values; ``unspaced``: of the text; None: not known yet."""
        return self.tokenized or (self.spaced and unspaced is not False)


_RECORDS = (
    Metric("bleu", "BLEU", "sacrebleu_scorer:bleu", default=True, tokenized=True),
    Metric("chrf", "chrF2", "sacrebleu_scorer:chrf", default=True),
    Metric("ter", "TER", "sacrebleu_scorer:ter", lower_is_better=True, quadratic=True, default=True, spaced=True),
    Metric("rouge1", "ROUGE-1", "rouge:RougeF1", by_language=True),
    Metric("rouge2", "ROUGE-2", "rouge:RougeF1", by_language=True),
    Metric("rougeL", "ROUGE-L", "rouge:RougeF1", quadratic=True, by_language=True),
    Metric("rougeLsum", "ROUGE-Lsum", "rouge:RougeF1", quadratic=True, by_language=True),
    Metric("dbleu", "d-BLEU", "sacrebleu_scorer:bleu", needs_documents=True, tokenized=True),
    Metric("bertscore", "BERTScore", "neural_scorer:BertScore", validates=False, model_variable="SPARSENMT_BERTSCORE"),
    Metric(
        *("comet", "COMET", "neural_scorer:Comet"), validates=False, reads_source=True, model_variable="SPARSENMT_COMET"
    ),
    # Words of the hypotheses over words of the references: no quality, but what BLEU's brevity penalty is made of.
    Metric("length", "length", "sacrebleu_scorer:length_ratio", validates=False, tokenized=True),
)
METRICS: EntryTable[Metric] = EntryTable(
    "metric", {each.name: each for each in _RECORDS}, __name__, "the metric '{}'".format
)
"""By name, in the order of tables."""


def register_metric(name: str, label: str | None = None, **facts: Any) -> Callable[[S], S]:
    """Decorate a function or class that makes a ``sparsenmt.evaluation.scorer.Scorer`` to register it as a metric.

    It is called with the name and the ``sparsenmt.evaluation.scorer.ScoringSettings``.

    Args:
        label: the name in tables. [default: the name]
        facts: as those of ``Metric``: ``lower_is_better`` and so on.

    Raises:
        ValueError: another module has registered the name, or it is that of a metric of the package.
        TypeError: a fact is none of ``Metric``.
    """
    origin = calling_module()

    def add(scorer: S) -> S:
        if name in TEXT_METRICS or name == "loss":
            raise ValueError(f"the metric '{name}' is registered already, by this program: choose another name")
        METRICS.register(name, Metric(name, label or name, scorer, **facts), scorer, origin)
        return scorer

    return add


@dataclass(frozen=True)
class TextCounts:
    """The sizes of a text. The end of a line is a character, a byte, a token and a word of its own."""

    tokens: int = 0
    characters: int = 0
    words: int = 0
    bytes: int = 0
    """Bytes of UTF-8; 0 in prepared data of a version that did not count them."""

    def __add__(self, other: TextCounts) -> TextCounts:
        return TextCounts(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class TextMetric:
    """The facts about a metric of language models, all of which are better the lower they are.

    Args:
        name, label: as those of `Metric`.
        per: unit of the text by whose number, in `TextCounts`, the negative log-likelihood is divided.
        bits: True for the mean in bits, False for its exponential.
    """

    name: str
    label: str
    per: Literal["token", "character", "byte", "word"]
    bits: bool = False

    def value(self, nats: float, counts: TextCounts) -> float:
        """The metric of a text with this negative log-likelihood in nats."""
        units: int = getattr(counts, f"{self.per}s")
        mean = nats / max(units, 1)
        if self.bits:
            return mean / math.log(2)
        return math.exp(mean) if mean < _MOST_NATS else math.inf


_MOST_NATS = 700  # larger exponents overflow
TEXT_METRICS: dict[str, TextMetric] = {
    metric.name: metric
    for metric in (
        TextMetric("bpc", "BPC", "character", bits=True),
        TextMetric("bpb", "BPB", "byte", bits=True),
        TextMetric("perplexity", "perplexity", "token"),
        TextMetric("word_perplexity", "word perplexity", "word"),
    )
}
"""By name, in the order of tables."""


def lower_is_better(name: str) -> bool:
    """Return True for error rates, the loss, and the metrics of language models."""
    return name == "loss" or name in TEXT_METRICS or METRICS[name].lower_is_better


def metric_label(name: str) -> str:
    """Return the name of a metric in tables, of translations or of language models."""
    return (METRICS[name] if name in METRICS else TEXT_METRICS[name]).label
