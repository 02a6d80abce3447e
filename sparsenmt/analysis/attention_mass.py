"""Summed cross-attention of source words (Zhang, Titov and Sennrich 2021, Fig. 1 and 7).

Weights are averaged over heads and layers, and summed over all positions of the model's own translation. The paper says
words and counts encodings, as is done here by default; ``unit="word"`` sums the retained tokens of a word. ``</s>``
counts on both sides unless it is left out. A retained word has an open gate. The mass on closed positions, which all
hold the same zero vector, is that of one counted stand-in vector, and is reported apart.
Shapes: B sentences, H heads, S source positions, T target positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.gates import GatedLine, LineBatches, SparsityRate, gated_batch
from sparsenmt.analysis.observe import TargetLine
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.analysis.text_words import TextWords
from sparsenmt.data.batching import pad
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.inputs import not_finite
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns, rows_of

Unit = Literal["piece", "word"]
THRESHOLD = 0.6
BIN, LAST = 0.2, 5.0
"""The width of a bin of the histogram, and the left edge of the last bin, which is open."""
_EDGES = np.arange(round(LAST / BIN) + 1) / round(1 / BIN)


def measure_attention_mass(
    session: AnalysisSession, *, unit: Unit = "piece", eos: bool = True, threshold: float = THRESHOLD
) -> AnalysisResult:
    """Make the report ``attention-mass``.

    Args:
        unit: the unit that counts as a source word: a subword token, or all retained tokens of a word together.
        eos: True if ``</s>`` counts, as a source word and as a target position.
        threshold: the share of words with less mass is reported.
    """
    notes = session.notes_on_filters(needed=False)
    settings: dict[str, object] = {"unit": unit, "eos": eos, "threshold": threshold, "beam_size": session.beam_size}
    words = TextWords()
    if unit == "word":
        words = session.words
        notes += words.notes("a word is all that stands between spaces, mostly a whole sentence")
        settings["words"] = words.origin
    found = []
    for model in session.opened():
        targets = model.targets
        counter = MassCounter(model.bundle.tokenizers.source, unit=unit, eos=eos, words=words)
        with model.batches("attention") as text:
            for _, seen in cross_attention_maps(text, targets):
                counter.add(seen)
        found.append(counter.result(model.label, threshold))
    return session.result(
        report(found, unit=unit, eos=eos, threshold=threshold),
        lambda: curves(panels(found, threshold), share_y=True),
        settings=settings,
        notes=notes + session.notes_on_weights("their masses are sums of what there is"),
    )


@dataclass(frozen=True)
class CrossAttentionMap:
    """Cross-attention of one sentence."""

    source: GatedLine
    target: list[int]
    """(T,) ids of the predicted tokens, EOS included if there was one."""
    weights: NDArray[np.float64]
    """(T, S) mean over heads and layers; a row sums to 1 unless the transform says otherwise."""


@torch.inference_mode()
def cross_attention_maps(text: LineBatches, targets: Sequence[TargetLine]) -> Iterator[tuple[int, CrossAttentionMap]]:
    """Run the decoder along the targets; yields the index of the line and the map of every sentence, by batch.

    Raises:
        UserError: a batch needs more memory than there is, or the model's scores are not numbers.
    """
    bundle = text.bundle
    layers: list[Tensor] = []  # (B, T, S) mean over heads, of one batch

    def keep(seen: AttentionSeen) -> None:
        """Keep the weights of a layer of the decoder."""
        if seen.site == "cross":
            layers.append(seen.weights.mean(1).double())

    for chosen, memory in text.encoded():
        inputs, _ = pad([targets[i].inputs for i in chosen])
        layers.clear()
        with bundle.model.listen(keep):
            bundle.model.decode(inputs.to(bundle.device), memory)
        weights = (sum(layers, torch.zeros(())) / len(layers)).cpu().numpy()
        gated = gated_batch(memory, [text.lines[i] for i in chosen])
        for i, source, whole in zip(chosen, gated, weights, strict=True):
            target = targets[i].ids
            own = whole[: len(target), : len(source.line.ids)]
            if not np.isfinite(own).all():
                raise not_finite(source.line)
            yield i, CrossAttentionMap(source, target, own)


class MassCounter:
    """The masses of one model's sentences, which are added one by one.

    Args:
        eos: True if ``</s>`` counts, as a source word and as a target position.
        words: those of the text, for the unit "word"; None: between spaces.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, unit: Unit = "piece", eos: bool = True, words: TextWords | None = None
    ) -> None:
        self._tokenizer, self._unit, self._eos, self._text_words = tokenizer, unit, eos, words or TextWords()
        self._retained: list[NDArray[np.float64]] = []  # masses of the retained words of each sentence
        self._stand_ins: list[float] = []  # of each sentence that has one
        self._words = 0
        self._rate = SparsityRate()

    def add(self, seen: CrossAttentionMap) -> None:
        """Count one sentence."""
        ids, dropped = seen.source.line.plain_ids, seen.source.dropped
        self._rate += SparsityRate(len(ids), int(dropped.sum()))
        rows = slice(None) if self._eos else np.array(seen.target) != EOS
        columns = np.ones(len(ids), dtype=np.bool_) if self._eos else np.array(ids) != EOS
        mass = seen.weights[rows].sum(0)  # (S,)
        if self._unit == "piece":
            groups = np.arange(len(ids), dtype=np.int64)
        else:
            groups = self._text_words.indices(seen.source.line, self._tokenizer)
        kept = np.bincount(groups, weights=~dropped & columns)
        sums: NDArray[np.float64] = np.bincount(groups, weights=mass * (~dropped & columns)).astype(np.float64)
        self._words += int((np.bincount(groups, weights=columns) > 0).sum())
        self._retained.append(sums[kept > 0])
        if (dropped & columns).any():
            self._stand_ins.append(float(mass[dropped & columns].sum()))

    def result(self, model: str, threshold: float = THRESHOLD) -> AttentionMassResult:
        """Return the masses of one model; means and shares are None where there is nothing to measure them on."""
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
    """The masses of one model; the mass of a word is a sum of weights over target positions.

    Args:
        sparsity: share of source positions whose gate is 0; None: there are no positions.
        words: their number, retained or not.
        retained: number of retained words, ``retained_mean`` their mean mass.
    """

    model: str
    sparsity: float | None
    words: int
    mean: float | None
    """Mass on all words and the stand-in, per word."""
    retained: int
    retained_mean: float | None
    under_threshold: float | None
    """Share of retained words whose mass is under the threshold."""
    stand_in_mean: float | None
    """Mass on the stand-in, per sentence that has one."""
    stand_in_share: float | None
    """Share of all mass that is on the stand-in."""
    histogram: list[int]
    """Retained words by mass, in bins of `BIN`; the last one is open."""


def report(found: Sequence[AttentionMassResult], *, unit: Unit, eos: bool, threshold: float = THRESHOLD) -> Report:
    """Make two tables: a summary and the histograms."""
    retained = ("count retained", "number retained_mean", "share under_threshold")
    stand_in = ("number stand_in_mean", "share stand_in_share")
    summary = columns("text model", "share sparsity", "count words", "number mean", *retained, *stand_in)
    names = [*(f"{low:.1f} to {high:.1f}" for low, high in pairwise(_EDGES)), f"{_EDGES[-1]:.1f} and more"]
    bins = [
        (each.model, name, float(edge), count, count / each.retained if each.retained else None)
        for each in found
        for name, edge, count in zip(names, _EDGES, each.histogram, strict=True)
    ]
    histogram = columns("text model mass", "hidden number from", "count words", "share share")
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
            Table("summary", title, summary, rows_of(found, summary)),
            Table("histogram", "retained words by mass", histogram, bins, across="model", shown="share"),
        ),
        notes,
    )


def panels(found: Sequence[AttentionMassResult], threshold: float = THRESHOLD) -> list[Panel]:
    """Draw the histogram of each model, with mean and share in the legend."""
    result = []
    for each in found:
        shares = [count / max(each.retained, 1) for count in each.histogram]
        points = [*zip(_EDGES.tolist(), shares, strict=True), (float(_EDGES[-1]) + BIN, 0.0)]
        mean = "-" if each.retained_mean is None else f"{each.retained_mean:.2f}"
        under = "-" if each.under_threshold is None else f"{each.under_threshold:.1%}"
        title = f"{each.model}\nmean {mean}; under {threshold:g}: {under}"
        label = f"summed attention of a retained word ({LAST:g}: and more)"
        ends = (0.0, float(_EDGES[-1]) + BIN)
        share, series = "share of retained words", {each.model: points}
        result.append(Panel(label, share, series, title=title, percent="y", style="steps", x_range=ends))
    return result
