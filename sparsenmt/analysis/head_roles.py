"""The roles of the heads of encoder self-attention (Correia, Niculae and Martins 2019, 5.2).

The scores of a head are means of attention mass, from 0 to 1:

- previous, current, next: the weight of the position 1 before, at, or 1 after the query, over all queries that have
  one; ``</s>`` is a position.
- merging: over clusters, the largest mass that a token of the cluster puts on the rest of it; of a cluster of one
  token, the weight that it puts on itself. A cluster is a word between spaces, so that a hyphenated word is one,
  without the punctuation at its ends, every token of which is a cluster of its own; ``</s>`` is in none.
  ``merging_split`` is the mean over clusters of several tokens only. Where spaces do not bound words, and the words are
  not known otherwise (`text_words`), there are no clusters, and an interrogative word is a token.
- interrogation: the weight of the question mark (the last token with one), over the tokens of interrogative words
  before it; sentences without either do not count.

A position that a filter between the layers has masked is no position of later layers. A head has a role if its score
reaches a threshold.
Shapes: B sentences, H heads, S source positions, C clusters of the sentence that has most.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsenmt.analysis.alphas import learned_alphas
from sparsenmt.analysis.labels import HEAD_COLUMNS, Head, head_cells, head_name
from sparsenmt.analysis.observe import Attended, TensorSums
from sparsenmt.analysis.position_rates import inside_word
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.analysis.text_words import TextWords
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.data.vocabulary import EOS, SPACE
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.languages import base_language
from sparsenmt.report.plots import Heatmap, heatmaps
from sparsenmt.report.tables import Column, Report, Table, columns

THRESHOLD = 0.5
"""The least score of a head with a role: most of its weight."""
SCORES = ("previous", "current", "next", "merging", "merging_split", "interrogation")
OFFSETS = {"previous": -1, "current": 0, "next": 1}
ROLES = ("previous", "current", "next", "merging", "interrogation")
PUBLISHED = {
    "previous": "median of 3 / 3 / 4 heads: 93.5 / 94.4 / 95.9%",
    "next": "1 head each: about 95%",
    "merging": "best: under 80 / 85.6 / 89.8%",
    "interrogation": "98.5 / 97.0 / 99.5%",
}
"""The published scores of softmax / 1.5-entmax / learned alpha, WMT 2014 English to German."""
INTERROGATIVES = {
    "en": "what who whom whose which when where why how what's who's where's how's when's why's",
    "de": "was wer wem wen wessen wie wo wann warum wieso weshalb weswegen woher wohin womit wofür wovon woran worauf "
    "woraus worin worüber wozu welche welcher welches welchen welchem",
    "fr": "que qui quoi quel quelle quels quelles quand où pourquoi comment combien",
    "ro": "ce cine cui care când unde cum cât câtă câți câte",
}
_QUESTION_MARKS = "?？؟"
_BEST = 3  # heads that are listed with their scores


def measure_head_roles(
    session: AnalysisSession, *, threshold: float = THRESHOLD, words: Sequence[str] = ()
) -> AnalysisResult:
    """Make the report ``roles``.

    Args:
        threshold: the least score of a head with a role.
        words: interrogative words of the source language; empty: `interrogatives`.
    """
    found = []
    for model in session.opened():
        asking = frozenset(map(str.lower, words)) or interrogatives(model.bundle.recipe.data.source_language)
        counter = RoleCounter(model.sources, model.bundle.tokenizers.source, asking, session.words)
        found.append(model.attend(counter, ["encoder_self"]).result(model.label, learned_alphas(model.bundle.model)))
    made = report(found, threshold=threshold, words=session.words)
    settings = {"words": session.words.origin}
    notes = session.notes_on_weights()
    return session.result(made, lambda: heatmaps(grid(found), "score", most=1.0), settings=settings, notes=notes)


def interrogatives(language: str) -> frozenset[str]:
    """Return the interrogative words of a language; empty for an unknown one."""
    return frozenset(INTERROGATIVES.get(base_language(language), "").split())


@dataclass(frozen=True)
class SentenceStructure:
    """The clusters of one sentence, and the positions of its question mark and interrogative words."""

    clusters: list[int]
    """(S,) the cluster of each token, from 0; -1: none."""
    question_mark: int | None
    asking: list[int]
    """Tokens of interrogative words before the question mark."""


def sentence_structure(
    line: SourceLine, tokenizer: Tokenizer, words: Collection[str], cut: TextWords
) -> SentenceStructure:
    """Find clusters, question mark and interrogative words; none if nothing shows where words begin.

    Args:
        words: interrogative words, in lower case.
        cut: the words of the text.
    """
    ids = line.plain_ids
    if cut.lines is None and not tokenizer.keeps_word_boundaries:
        return SentenceStructure([-1] * len(ids), None, [])
    names = line.token_names(tokenizer)
    places: dict[int, list[int]] = {}
    for i, word in enumerate(cut.indices(line, tokenizer).tolist() if cut.known else range(len(ids))):
        if ids[i] != EOS and names[i] != SPACE:
            places.setdefault(word, []).append(i)
    marks = [i for i, name in enumerate(names) if any(mark in name for mark in _QUESTION_MARKS)]
    mark = marks[-1] if marks else None
    clusters, asking, count = [-1] * len(ids), [], 0
    for members in places.values():
        inner = inside_word([names[i] for i in members])
        whole = [members[i] for i in inner]
        for group in ([whole] if whole else []) + [[i] for i in members if i not in whole]:
            for i in group:
                clusters[i] = count
            count += 1
        text = "".join(names[i].removeprefix(SPACE) for i in whole).strip(" '\"“”„«»().,;:!?¿").lower()
        if mark is not None and text in words:
            asking += [i for i in whole if i < mark]
    return SentenceStructure(clusters if cut.known else [-1] * len(ids), mark, asking)


class RoleCounter:
    """An observer (`observe.observe`) of encoder self-attention; a few numbers for each head are kept.

    Args:
        words: interrogative words, in lower case.
        cut: the words of the text; None: between spaces.
    """

    def __init__(
        self, lines: Sequence[SourceLine], tokenizer: Tokenizer, words: Collection[str], cut: TextWords | None = None
    ) -> None:
        self._lines, self._tokenizer, self._words = lines, tokenizer, words
        self._cut = cut or TextWords()
        self._sums: TensorSums[int] = TensorSums()  # (H, scores)
        self._counts: TensorSums[int] = TensorSums()  # (scores,)
        self._batch: tuple[list[int], list[SentenceStructure]] = ([], [])  # `Attended.places`, and their structures

    def __call__(self, seen: Attended) -> None:
        if seen.site != "encoder_self":
            return
        weights = seen.shares.double()
        if self._batch[0] is not seen.places:  # found once for all layers
            lines = [self._lines[i] for i in seen.places]
            made = [sentence_structure(each, self._tokenizer, self._words, self._cut) for each in lines]
            self._batch = seen.places, made
        structures = self._batch[1]
        parts = [_positional(weights, seen.real, offset) for offset in OFFSETS.values()]
        parts += _merging(weights, seen.real, structures)
        parts.append(_interrogation(weights, seen.real, structures))
        self._sums.add(seen.layer, torch.stack([part[0] for part in parts], -1).cpu())
        self._counts.add(seen.layer, torch.tensor([part[1] for part in parts]))

    def result(self, model: str, alphas: Mapping[Head, float] | None = None) -> HeadRolesResult:
        """Return the scores of one model; ``alphas``: those of the heads that learn one."""
        scores: dict[tuple[int, int], dict[str, float | None]] = {}
        counts: dict[str, int] = {}
        for layer, sums in sorted(self._sums.items()):
            seen = self._counts[layer].tolist()
            counts = {name: max(counts.get(name, 0), count) for name, count in zip(SCORES, seen, strict=True)}
            for number, row in enumerate(sums.tolist(), start=1):
                means = [total / count if count else None for total, count in zip(row, seen, strict=True)]
                scores[layer, number] = dict(zip(SCORES, means, strict=True))
        own = {(layer, number): (alphas or {}).get(("encoder_self", layer, number)) for layer, number in scores}
        return HeadRolesResult(model, scores, counts, own)


def _positional(weights: Tensor, real: Tensor, offset: int) -> tuple[Tensor, int]:
    """Return the sum, over queries, of the weights at a distance of ``offset`` positions, (H,), and their number.

    Args:
        weights: (B, H, S, S). ``real``: (B, S) bool, False at padding.
    """
    diagonal = weights.diagonal(offset, 2, 3)  # (B, H, S - 1 or S)
    both = (real[:, :, None] & real[:, None, :]).diagonal(offset, 1, 2)
    return (diagonal * both[:, None]).sum((0, 2)), int(both.sum())


def _merging(weights: Tensor, real: Tensor, structures: Sequence[SentenceStructure]) -> list[tuple[Tensor, int]]:
    """Return the sum of merging over clusters, (H,), and their number: of all, and of those of several tokens.

    Arguments are as for `_positional`; ``structures``: of the sentences of the batch.
    """
    batch, heads, length, _ = weights.shape
    clusters = torch.full((batch, length), -1)
    for row, each in enumerate(structures):
        clusters[row, : len(each.clusters)] = torch.tensor(each.clusters)
    clusters = clusters.to(weights.device).where(real, -1)
    same = (clusters[:, :, None] == clusters[:, None]) & (clusters >= 0)[:, None]  # (B, S, S)
    sizes = same.sum(-1)  # (B, S)
    own = weights.diagonal(0, 2, 3)
    rest = (weights * same[:, None]).sum(-1) - own * (clusters >= 0)[:, None]  # (B, H, S)
    mass = torch.where(sizes[:, None] > 1, rest, own)
    count = int(clusters.max()) + 1 if length else 0
    index = clusters.where(clusters >= 0, count)  # tokens in no cluster share the last one
    index = index[:, None].expand(-1, heads, -1)
    best = weights.new_zeros(batch, heads, count + 1).scatter_reduce(2, index, mass, "amax")[..., :count]
    largest = sizes.new_zeros(batch, count + 1).scatter_reduce(1, index[:, 0], sizes, "amax")[:, :count]  # (B, C)
    return [((best * chosen[:, None]).sum((0, 2)), int(chosen.sum())) for chosen in (largest > 0, largest > 1)]


def _interrogation(weights: Tensor, real: Tensor, structures: Sequence[SentenceStructure]) -> tuple[Tensor, int]:
    """Return the sum of interrogation over tokens of interrogative words, (H,), and their number, as `_merging`."""
    places = [(row, i, each.question_mark) for row, each in enumerate(structures) for i in each.asking]
    if not places:
        return weights.new_zeros(weights.shape[1]), 0
    rows, queries, keys = (torch.tensor(column, device=weights.device) for column in zip(*places, strict=True))
    both = real[rows, queries] & real[rows, keys]
    return weights[rows, :, queries, keys][both].sum(0), int(both.sum())


@dataclass(frozen=True)
class HeadRolesResult:
    """The heads of one model, by layer and number, from 1; None: there was nothing to measure a score on."""

    model: str
    scores: dict[tuple[int, int], dict[str, float | None]]
    counts: dict[str, int]
    """Number of queries, clusters or tokens that each score is the mean of, in the layer that has most of them."""
    alphas: dict[tuple[int, int], float | None]

    def ranked(self, role: str) -> list[tuple[float, tuple[int, int]]]:
        """Return the heads by score, best first; none if the role was not measured."""
        scored = [(scores[role], head) for head, scores in self.scores.items()]
        return sorted([(score, head) for score, head in scored if score is not None], key=lambda pair: -pair[0])


def report(found: Sequence[HeadRolesResult], *, threshold: float = THRESHOLD, words: TextWords | None = None) -> Report:
    """Make two tables: roles, beside the published scores; and the scores of every head.

    Args:
        words: those of the text; None: between spaces.
    """
    rows, heads = [], []
    for each in found:
        for role in ROLES:
            ranked = each.ranked(role)
            having = [score for score, _ in ranked if score >= threshold]
            median = statistics.median(having) if having else None
            best = ", ".join(f"{head_name(*head)}: {score:.1%}" for score, head in ranked[:_BEST])
            top, count = (ranked[0][0] if ranked else None), each.counts.get(role, 0)
            number = len(having) if ranked else None
            rows.append((each.model, role, count, number, median, top, best or None, PUBLISHED.get(role)))
        for (layer, number), scores in each.scores.items():
            values = [scores[name] for name in SCORES]
            heads.append((each.model, *head_cells(layer, number), *values, each.alphas[layer, number]))
    measures = ("count measured_on heads", "share median", "hidden share best")
    role_columns = columns("text model role", *measures, "text best_heads published")
    alpha = Column("alpha", "number", any(row[-1] is not None for row in heads))
    head_columns = (*columns("text model"), *HEAD_COLUMNS, *columns(f"share {' '.join(SCORES)}"), alpha)
    title = "roles of encoder heads"
    tables = (
        Table("roles", title, role_columns, rows),
        Table("heads", f"{title}, scores", head_columns, heads, listed=len(found) == 1),
    )
    notes = (
        f"heads: number with a score of at least {threshold:.0%}; median: of their scores; best heads: layer.head",
        "published: softmax / 1.5-entmax / learned alpha (Correia et al. 2019, English to German)",
    )
    cut = words or TextWords()
    unmeasured = [f"{each.model}: {what}" for each in found for what in _unmeasured(each, known=cut.known)]
    unmeasured += cut.notes("merging is not measured, and an interrogative word is a token")
    return Report("roles", tables, (*notes, *unmeasured), {"threshold": threshold})


def _unmeasured(found: HeadRolesResult, *, known: bool) -> list[str]:
    """Return notes on scores of a model that are not measured; ``known``: the words of the text are known."""
    notes = []
    if not found.counts.get("interrogation"):
        notes.append("interrogation is not measured: no question with an interrogative word is in the text")
    if not known:
        return notes
    if not found.counts.get("merging"):
        notes.append("merging is not measured: its tokenizer does not show where words begin")
    elif not found.counts.get("merging_split"):
        notes.append("no word has several tokens: merging is the weight on the token itself")
    return notes


def grid(found: Sequence[HeadRolesResult]) -> list[list[Heatmap]]:
    """Draw one line for each model: roles down, heads across, percent in the cells."""
    lines = []
    for each in found:
        names = [head_name(*head) for head in each.scores]
        values = [[np.nan if s[role] is None else s[role] for s in each.scores.values()] for role in ROLES]
        weights = np.array(values, dtype=np.float64)
        labels = {"row_label": "role", "column_label": "encoder head (layer.head)"}
        lines.append([Heatmap(each.model, ROLES, names, weights, [False] * len(names), percent=True, **labels)])
    return lines
