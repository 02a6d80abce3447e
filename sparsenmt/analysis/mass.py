"""Summed cross-attention of source words (Zhang, Titov and Sennrich 2021, Fig. 1 and 7).

Mean over heads and layers, summed over all positions of the model's own translation. The paper says words and counts
encodings: so here by default; ``unit="word"`` sums the retained pieces of a word. ``</s>`` counts on both sides unless
it is left out. A retained word has an open gate; the mass on closed positions, the stand-in's, is reported apart.
Shapes: S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsenmt.analysis.cross_attention import AttentionMap
from sparsenmt.analysis.gates import Rate
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value, rows_of

Unit = Literal["piece", "word"]
THRESHOLD = 0.6
BIN, LAST = 0.2, 5.0
"""Width of a bin of the histogram, and where the last one, which is open, begins."""
_EDGES = np.arange(round(LAST / BIN) + 1) / round(1 / BIN)


class MassCounter:
    """Gathers the masses of one model's sentences.

    Args:
        tokenizer: the source's; needed where the unit is the word.
        eos: whether ``</s>`` counts, as a source word and as a target position.
    """

    def __init__(self, tokenizer: Tokenizer, *, unit: Unit = "piece", eos: bool = True) -> None:
        self._tokenizer, self._unit, self._eos = tokenizer, unit, eos
        self._retained: list[NDArray[np.float64]] = []
        self._stand_ins: list[float] = []
        self._words = 0
        self._rate = Rate()

    def add(self, seen: AttentionMap) -> None:
        """Count one sentence."""
        ids, dropped = seen.source.line.ids, seen.source.dropped
        self._rate += Rate(len(ids), int(dropped.sum()))
        rows = slice(None) if self._eos else np.array(seen.target) != EOS
        columns = np.ones(len(ids), dtype=np.bool_) if self._eos else np.array(ids) != EOS
        mass = seen.weights[rows].sum(0)  # (S,)
        groups = np.arange(len(ids), dtype=np.int64) if self._unit == "piece" else word_ids(ids, self._tokenizer)
        kept = np.bincount(groups, weights=~dropped & columns)
        sums: NDArray[np.float64] = np.bincount(groups, weights=mass * (~dropped & columns)).astype(np.float64)
        self._words += int((np.bincount(groups, weights=columns) > 0).sum())
        self._retained.append(sums[kept > 0])
        if (dropped & columns).any():
            self._stand_ins.append(float(mass[dropped & columns].sum()))

    def found(self, model: str, threshold: float = THRESHOLD) -> AttentionMassResult:
        """What was gathered. A share is None where nothing was retained."""
        masses = np.concatenate(self._retained) if self._retained else np.zeros(0)
        bins = np.searchsorted(_EDGES, masses, side="right") - 1
        total = float(masses.sum()) + sum(self._stand_ins)
        return AttentionMassResult(
            model=model,
            sparsity=self._rate.sparsity,
            words=self._words,
            mean=total / self._words if self._words else None,
            retained=len(masses),
            retained_mean=float(masses.mean()) if len(masses) else None,
            under_threshold=float((masses < threshold).mean()) if len(masses) else None,
            stand_in_mean=float(np.mean(self._stand_ins)) if self._stand_ins else None,
            stand_in_share=sum(self._stand_ins) / total if total else None,
            histogram=np.bincount(bins, minlength=len(_EDGES)).tolist(),
        )


@dataclass(frozen=True)
class AttentionMassResult:
    """One model's masses."""

    model: str
    sparsity: float | None
    """Of all source positions, ``</s>`` included."""
    words: int
    mean: float | None
    """Mass on all words and the stand-in, a word."""
    retained: int
    retained_mean: float | None
    under_threshold: float | None
    """Share of retained words whose mass is under the threshold."""
    stand_in_mean: float | None
    """Mass on the stand-in, of a sentence that has one."""
    stand_in_share: float | None
    """Share of all mass that is on the stand-in."""
    histogram: list[int]
    """Retained words by mass, in bins of `BIN`; the last one is open."""


def report(found: Sequence[AttentionMassResult], *, unit: Unit, eos: bool, threshold: float = THRESHOLD) -> Report:
    """A summary, and the histograms."""
    columns = (
        *(Column("model"), Column("sparsity", "share"), Column("words", "count"), Column("mean", "number")),
        *(Column("retained", "count"), Column("retained_mean", "number"), Column("under_threshold", "share")),
        *(Column("stand_in_mean", "number"), Column("stand_in_share", "share")),
    )
    bins: list[tuple[Value, ...]] = [
        (each.model, _bin_name(i), float(_EDGES[i]), count, count / each.retained if each.retained else None)
        for each in found
        for i, count in enumerate(each.histogram)
    ]
    shapes = (
        *(Column("model"), Column("mass"), Column("from", "number", False)),
        *(Column("words", "count"), Column("share", "share")),
    )
    notes = (
        f"a word is a {unit}; </s> {'counts' if eos else 'does not count'}, on both sides; "
        f"under threshold: retained words with less than {threshold:g}",
        "mean: over words, of all mass; retained mean: of the mass on words whose gate is open; stand in: the mass on "
        "closed positions, a sentence and as a share of all mass",
    )
    title = "summed cross-attention of source words"
    return Report(
        "attention-mass",
        (
            Table("summary", title, columns, rows_of(found, columns)),
            Table("histogram", "retained words by mass", shapes, tuple(bins), across="model", shown="share"),
        ),
        notes,
    )


def _bin_name(i: int) -> str:
    return f"{_EDGES[i]:.1f} to {_EDGES[i + 1]:.1f}" if i + 1 < len(_EDGES) else f"{_EDGES[i]:.1f} and more"


def panels(found: Sequence[AttentionMassResult], threshold: float = THRESHOLD) -> list[Panel]:
    """The histograms, one a model, with mean and share in the title."""
    result = []
    for each in found:
        shares = [count / max(each.retained, 1) for count in each.histogram]
        points: list[tuple[float, float | None]] = list(zip(_EDGES.tolist(), shares, strict=True))
        points.append((float(_EDGES[-1]) + BIN, 0.0))
        mean = "-" if each.retained_mean is None else f"{each.retained_mean:.2f}"
        under = "-" if each.under_threshold is None else f"{each.under_threshold:.1%}"
        result.append(
            Panel(
                f"summed attention of a retained word ({LAST:g}: and more)",
                "share of retained words",
                {f"mean {mean}; under {threshold:g}: {under}": points},
                title=each.model,
                percent="y",
                style="steps",
            )
        )
    return result
