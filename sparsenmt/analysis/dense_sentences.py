"""Sentences on which a sparse head is unusually dense for their length (Correia, Niculae and Martins 2019, 5.2,
Fig. 10).

The paper shows that a sparse head becomes denser where the text is ambiguous, and compares sentences of similar length.
Here a head is sparse if its mean density (`density`) is below a limit. A sentence is compared with the other sentences
whose lengths differ by at most a tenth, or by 1, if there are at least `LEAST` of them: its expected density is their
mean, and its excess is the difference from that mean in standard deviations. The standard deviation counts as at least
`FLOOR` (a head may be equally dense on all of them).
Shapes: N sentences, B sentences of a batch, H heads, L lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.alphas import learned_alphas
from sparsenmt.analysis.density import sentence_densities
from sparsenmt.analysis.labels import HEAD_COLUMNS, SITE_NAMES, Head, head_cells, head_name, site_title
from sparsenmt.analysis.observe import Attended
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.model.sites import SiteName
from sparsenmt.report.plots import Panel, Points, panel_grid
from sparsenmt.report.tables import Column, Report, Table, columns

LEAST = 10
"""Sentences of similar length that a comparison needs."""
FLOOR = 0.01
SPARSE = 0.5
"""Mean density below which a head is sparse."""
_REACH = 0.1  # lengths that differ by this share are similar
_PANELS, _IN_LINE = 6, 3


def measure_dense_sentences(
    session: AnalysisSession, *, site: SiteName = "encoder_self", sparse: float = SPARSE, top: int = 20
) -> AnalysisResult:
    """Make the report ``dense-sentences``.

    Args:
        sparse: mean density below which a head is sparse.
        top: number of sentences to list, each for one head.
    """
    found, texts = [], []
    for model in session.opened():
        recorder = model.attend(DensityRecorder(len(model.sources)), [site])
        read = model.targets if site == "decoder_self" else model.sources
        lengths = np.array([len(each.ids) for each in read], dtype=np.int64)
        alphas = learned_alphas(model.bundle.model)
        found.append(find(model.label, recorder.heads(), lengths, limit=sparse, top=top, alphas=alphas))
        texts.append(model.sources)
    settings = {"site": site, "sparse": sparse, "top": top}
    return session.result(report(found, texts), lambda: panel_grid(panels(found)), settings=settings)


class DensityRecorder:
    """An observer (`observe.observe`) that keeps the density of every head on each of N sentences."""

    def __init__(self, sentences: int) -> None:
        self._sentences = sentences
        self._layers: dict[tuple[SiteName, int], NDArray[np.float32]] = {}  # (N, H), NaN: nothing was seen

    def __call__(self, seen: Attended) -> None:
        density, *_ = sentence_densities(seen)
        values: Tensor = density.float()
        key = seen.site, seen.layer
        if key not in self._layers:
            self._layers[key] = np.full((self._sentences, density.shape[1]), np.nan, dtype=np.float32)
        self._layers[key][seen.places] = values.cpu().numpy()

    def heads(self) -> dict[Head, NDArray[np.float32]]:
        """Return head -> densities on the sentences, (N,)."""
        return {
            (site, layer, number): values[:, number - 1]
            for (site, layer), values in self._layers.items()
            for number in range(1, values.shape[1] + 1)
        }


def usual(
    densities: NDArray[np.float32], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compare every sentence with the others of similar length.

    Args:
        densities: those of one head, (N,); NaN: not measured.
        lengths: those of the sentences, (N,).

    Returns:
        (N,) means, and (N,) excesses, the densities less the means in standard deviations; NaN: too few others.
    """
    measured = ~np.isnan(densities)
    values = np.where(measured, densities, 0.0).astype(np.float64)
    most = int(lengths.max(initial=0))
    # (3, L + 1): sums over all shorter lengths, so that the sums of a range of lengths are differences.
    sums = np.zeros((3, most + 2))
    for row, each in enumerate((measured.astype(np.float64), values, values**2)):
        sums[row, 1:] = np.cumsum(np.bincount(lengths, weights=each, minlength=most + 1))
    reach = np.maximum(1, np.rint(lengths * _REACH)).astype(np.int64)
    low, high = np.maximum(lengths - reach, 0), np.minimum(lengths + reach, most)
    count, total, squares = sums[:, high + 1] - sums[:, low] - np.stack([measured, values, values**2])
    enough = measured & (count >= LEAST)
    mean = np.where(enough, total / np.maximum(count, 1), np.nan)
    deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0.0))
    return mean, (values - mean) / np.maximum(deviation, FLOOR)


@dataclass(frozen=True)
class HeadOnSentence:
    """The density of a head on a sentence, and its comparison.

    Args:
        place: index of the sentence among those that were read.
        length: tokens of the sentence.
        excess: density less the expected one, in standard deviations.
    """

    place: int
    head: Head
    length: int
    density: float
    expected: float
    excess: float


@dataclass(frozen=True)
class DenseSentencesResult:
    """The unusual sentences of one model, the most unusual first."""

    model: str
    sentences: list[HeadOnSentence]
    sparse: dict[Head, float]
    """Mean density of the sparse heads."""
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
    """Find the sentences on which sparse heads are densest for their length.

    Args:
        heads: head -> densities on N sentences, (N,); NaN: not measured.
        lengths: tokens of the sentences, (N,).
        limit: mean density below which a head is sparse.
        top: number of sentences to list, each for one head.
        alphas: those of the heads that learn one; None: there are none.
    """
    sparse, sentences = {}, []
    for head, densities in heads.items():
        mean = float(np.nanmean(densities)) if not np.isnan(densities).all() else 1.0
        if mean >= limit:
            continue
        sparse[head] = mean
        means, excesses = usual(densities, lengths)
        order = np.argsort(-np.nan_to_num(excesses, nan=-np.inf), kind="stable")[:top]
        for place in order.tolist():
            if excesses[place] > 0:
                measures = (float(each[place]) for each in (densities, means, excesses))
                sentences.append(HeadOnSentence(place, head, int(lengths[place]), *measures))
    sentences.sort(key=lambda each: -each.excess)
    own = {head: heads[head] for head in sparse}
    return DenseSentencesResult(model, sentences[:top], sparse, own, lengths, alphas or {})


def report(found: Sequence[DenseSentencesResult], texts: Sequence[Sequence[SourceLine]]) -> Report:
    """Make two tables: sentences and heads; ``texts`` are the sentences that each model read."""
    rows, heads = [], []
    for each, lines in zip(found, texts, strict=True):
        for s in each.sentences:
            site, layer, number = s.head
            name = (each.model, SITE_NAMES[site], *head_cells(layer, number))
            measures = (s.length, s.density, s.expected, s.excess, each.alphas.get(s.head))
            rows.append((*name, lines[s.place].number + 1, *measures, lines[s.place].text))
        for (site, layer, number), mean in each.sparse.items():
            name = (each.model, SITE_NAMES[site], *head_cells(layer, number))
            heads.append((*name, mean, each.alphas.get((site, layer, number))))
    start = (*columns("text model site"), *HEAD_COLUMNS)
    alpha = Column("alpha", "number", any(each.alphas for each in found))
    measured = columns("count sentence length", "share density expected", "number excess")
    sentence_columns = (*start, *measured, alpha, *columns("text text"))
    head_columns = (*start, *columns("share density"), alpha)
    title = "sentences on which sparse heads are dense for the length"
    tables = (
        Table("dense-sentences", title, sentence_columns, rows),
        Table("heads", "sparse heads", head_columns, heads, listed=False),
    )
    notes = [f"expected: mean on other sentences of similar length ({LEAST} at least); excess: in standard deviations"]
    for each in found:
        if not each.sparse:
            notes.append(f"{each.model}: no head is sparse")
        elif not each.sentences:
            notes.append(f"{each.model}: no sentence is unusual, or none has {LEAST} others of similar length")
    return Report("dense-sentences", tables, tuple(notes))


def panels(found: Sequence[DenseSentencesResult]) -> list[list[Panel]]:
    """Draw density against length for the heads with the most unusual sentences, a few diagrams in a line."""
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
    """Draw the density of a head against the length: all sentences, the listed ones, and the expected density."""
    own, lengths = found.densities[head], found.lengths
    expected, _ = usual(own, lengths)

    def points(places: Iterable[int]) -> Points:
        """Return the measured ones of these sentences."""
        return [(float(lengths[i]), float(own[i])) for i in places if not np.isnan(own[i])]

    means = [(float(n), expected[lengths == n]) for n in np.unique(lengths)]
    listed = [s.place for s in found.sentences if s.head == head]
    series = {
        "sentences": points(range(len(own))),
        "unusually dense": points(listed),
        "expected": [(n, None if np.isnan(values).all() else float(np.nanmean(values))) for n, values in means],
    }
    site, layer, number = head
    title, x = f"{site_title(site, found.model)}, head {head_name(layer, number)}", "length of the sentence (tokens)"
    return Panel(x, "density", series, title=title, percent="y", style="points", drawn=("expected",))
