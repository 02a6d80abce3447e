"""Sentences on which a sparse head is unusually dense for their length (Correia, Niculae and Martins 2019, 5.2,
Fig. 10).

The paper shows that a sparse head becomes denser where the text is ambiguous, and compares sentences of similar length.
Here: a head is sparse if its mean density (`density`) is under a limit. What is usual for a sentence is the mean and
the standard deviation of the head's density on the other sentences whose lengths differ by at most a tenth, or by 1;
with fewer than `LEAST` of them nothing is said. How unusual it is: the density less that mean, over that deviation,
which counts as at least `FLOOR` (a head may be equally dense on all of them).
Shapes: N sentences, B sentences of a batch, H heads, L lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.density import sentence_densities
from sparsenmt.analysis.observe import SITE_NAMES, Attended, Head, head_name
from sparsenmt.model.sites import SiteName
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Column, Report, Table, Value

LEAST = 10
"""Sentences of similar length that it takes to call one of them unusual."""
FLOOR = 0.01
SPARSE = 0.5
"""Mean density under which a head is sparse."""
_REACH = 0.1  # lengths that differ by this share are similar
_PANELS, _IN_LINE = 6, 3


class DensityRecorder:
    """An observer (`observe.observe`) that keeps the density of every head on every sentence.

    Args:
        sentences: N.
    """

    def __init__(self, sentences: int) -> None:
        self._sentences = sentences
        self._layers: dict[tuple[SiteName, int], NDArray[np.float32]] = {}  # (N, H), NaN: nothing was seen

    def __call__(self, seen: Attended) -> None:
        density, _, _, queries = sentence_densities(seen)
        values: Tensor = torch.where(queries > 0, density, torch.nan).float()
        key = seen.site, seen.layer
        if key not in self._layers:
            self._layers[key] = np.full((self._sentences, density.shape[1]), np.nan, dtype=np.float32)
        self._layers[key][seen.places] = values.cpu().numpy()

    def heads(self) -> dict[Head, NDArray[np.float32]]:
        """(N,) of every head."""
        return {
            (site, layer, number): values[:, number - 1]
            for (site, layer), values in self._layers.items()
            for number in range(1, values.shape[1] + 1)
        }


@dataclass(frozen=True)
class Usual:
    """What is usual of one head on sentences like each one; NaN: there are too few of them. (N,)"""

    mean: NDArray[np.float64]
    excess: NDArray[np.float64]
    """The density less the mean, over the deviation."""


def usual(densities: NDArray[np.float32], lengths: NDArray[np.int64]) -> Usual:
    """Compare every sentence with the others of similar length.

    Args:
        densities: (N,) of one head; NaN: not measured.
        lengths: (N,) of the sentences.
    """
    measured = ~np.isnan(densities)
    values = np.where(measured, densities, 0.0).astype(np.float64)
    most = int(lengths.max(initial=0))
    # Sums over all lengths up to each one, so that those of a range are differences. (3, L + 2)
    sums = np.zeros((3, most + 2))
    for row, each in enumerate((measured.astype(np.float64), values, values**2)):
        sums[row, 1:] = np.cumsum(np.bincount(lengths, weights=each, minlength=most + 1))
    reach = np.maximum(1, np.rint(lengths * _REACH)).astype(np.int64)
    low, high = np.maximum(lengths - reach, 0), np.minimum(lengths + reach, most)
    count, total, squares = sums[:, high + 1] - sums[:, low] - np.stack([measured, values, values**2])
    enough = measured & (count >= LEAST)
    mean = np.where(enough, total / np.maximum(count, 1), np.nan)
    deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0.0))
    return Usual(mean, (values - mean) / np.maximum(deviation, FLOOR))


@dataclass(frozen=True)
class HeadOnSentence:
    """A sentence as a head sees it."""

    place: int
    """Among those that were read."""
    head: Head
    length: int
    density: float
    expected: float
    excess: float


@dataclass(frozen=True)
class DenseSentencesResult:
    """One model's unusual sentences, the most unusual first."""

    model: str
    sentences: list[HeadOnSentence]
    sparse: dict[Head, float]
    """Mean density of the heads that were looked at."""
    densities: dict[Head, NDArray[np.float32]]
    lengths: NDArray[np.int64]
    alphas: Mapping[Head, float]


def find(
    model: str,
    heads: Mapping[Head, NDArray[np.float32]],
    lengths: NDArray[np.int64],
    *,
    limit: float = SPARSE,
    top: int = 20,
    alphas: Mapping[Head, float] | None = None,
) -> DenseSentencesResult:
    """The sentences on which sparse heads are densest for their length.

    Args:
        lengths: (N,).
        limit: mean density under which a head is sparse.
        top: sentences that are listed, a head each.
    """
    sparse, sentences = {}, []
    for head, densities in heads.items():
        mean = float(np.nanmean(densities)) if not np.isnan(densities).all() else 1.0
        if mean >= limit:
            continue
        sparse[head] = mean
        found = usual(densities, lengths)
        order = np.argsort(-np.nan_to_num(found.excess, nan=-np.inf), kind="stable")[:top]
        for place in order.tolist():
            excess = float(found.excess[place])
            if excess > 0:
                row = (int(lengths[place]), float(densities[place]), float(found.mean[place]), excess)
                sentences.append(HeadOnSentence(place, head, *row))
    sentences.sort(key=lambda each: -each.excess)
    own = {head: heads[head] for head in sparse}
    return DenseSentencesResult(model, sentences[:top], sparse, own, lengths, alphas or {})


def report(
    found: Sequence[DenseSentencesResult], texts: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]]
) -> Report:
    """A row a sentence and head.

    Args:
        texts: the sentences that each model read.
        numbers: their lines, from 0.
    """
    rows: list[tuple[Value, ...]] = []
    heads: list[tuple[Value, ...]] = []
    for each, lines, places in zip(found, texts, numbers, strict=True):
        for s in each.sentences:
            site, layer, number = s.head
            name = (each.model, SITE_NAMES[site], head_name(layer, number), layer, number)
            measures = (s.length, s.density, s.expected, s.excess, each.alphas.get(s.head))
            rows.append((*name, places[s.place] + 1, *measures, lines[s.place]))
        for (site, layer, number), mean in each.sparse.items():
            name = (each.model, SITE_NAMES[site], head_name(layer, number), layer, number)
            heads.append((*name, mean, each.alphas.get((site, layer, number))))
    start = (
        *(Column("model"), Column("site"), Column("head")),
        *(Column("layer", "count", False), Column("number", "count", False)),
    )
    alpha = Column("alpha", "number", any(each.alphas for each in found))
    columns = (
        *(*start, Column("sentence", "count"), Column("length", "count"), Column("density", "share")),
        *(Column("expected", "share"), Column("excess", "number"), alpha, Column("text")),
    )
    title = "sentences on which sparse heads are dense for the length"
    tables = (
        Table("dense-sentences", title, columns, tuple(rows)),
        Table("heads", "sparse heads", (*start, Column("density", "share"), alpha), tuple(heads), listed=False),
    )
    notes = [f"expected: mean on other sentences of similar length ({LEAST} at least); excess: in standard deviations"]
    for each in found:
        if not each.sparse:
            notes.append(f"{each.model}: no head is sparse")
        elif not each.sentences:
            notes.append(f"{each.model}: no sentence is unusual, or none has {LEAST} others of similar length")
    return Report("dense-sentences", tables, tuple(notes))


def panels(found: Sequence[DenseSentencesResult]) -> list[list[Panel]]:
    """A diagram a head, of those with the most unusual sentences: density against length; a few in a line."""
    lines: list[list[Panel]] = []
    for each in found:
        heads = list(dict.fromkeys(s.head for s in each.sentences))[:_PANELS]
        drawn = [_panel(each, head) for head in heads]
        lines += [drawn[i : i + _IN_LINE] for i in range(0, len(drawn), _IN_LINE)]
    if not lines:
        return [[Panel("", "", {}, title="no sparse head is unusually dense")]]
    most = max(map(len, lines))
    return [[*line, *([Panel("", "", {})] * (most - len(line)))] for line in lines]


def _panel(found: DenseSentencesResult, head: Head) -> Panel:
    own, lengths = found.densities[head], found.lengths
    expected = usual(own, lengths).mean

    def points(places: Iterable[int]) -> list[tuple[float, float | None]]:
        return [(float(lengths[i]), float(own[i])) for i in places if not np.isnan(own[i])]

    means = [(float(n), expected[lengths == n]) for n in np.unique(lengths)]
    listed = [s.place for s in found.sentences if s.head == head]
    series = {
        "sentences": points(range(len(own))),
        "unusually dense": points(listed),
        "expected": [(n, None if np.isnan(values).all() else float(np.nanmean(values))) for n, values in means],
    }
    site, layer, number = head
    title = f"{found.model}, {SITE_NAMES[site]}-attention, head {head_name(layer, number)}"
    return Panel("length", "density", series, title=title, percent="y", style="points", drawn=("expected",))
