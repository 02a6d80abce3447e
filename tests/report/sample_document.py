"""A document with every kind of part, of made-up figures and of texts that try to break out of a page."""

from __future__ import annotations

import random
from collections.abc import Sequence

from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.report.page.document import (
    AlignedSentence,
    AttentionMaps,
    ComparedOutput,
    ComparedSentence,
    Diagram,
    Document,
    HeadDescription,
    HeadWeights,
    Listing,
    MarkedWord,
    Matrix,
    ReportSection,
    SentenceWords,
)
from sparsenmt.report.plots import Panel
from sparsenmt.report.tables import Table, columns

HOSTILE = (
    "<script>document.body.dataset.hacked = 1</script>",
    "</script><script>document.body.dataset.hacked = 2</script>",
    "\"'><img src=x onerror='document.body.dataset.hacked = 3'>",
    "{{ 7 * 7 }} {% raw %} & &amp; <!-- ]]>",
    "left \u202eright to left\u202c, \u200fmark",
    "control \x00 \x1b[31m \x7f \udcff end",
    "שלום עולם, hello",
)
LONG = "long " * 200_000
"""A line of a megabyte."""
MODELS = ("dense", "l0drop-0.3", "entmax-1.5")
WORDS = (
    "a",
    "group",
    "of",
    "young",
    "people",
    "in",
    "colourful",
    "clothes",
    "stands",
    "before",
    "an",
    "old",
    "building",
)
TAGS = ("DET", "NOUN", "ADP", "ADJ", "NOUN", "ADP", "ADJ", "NOUN", "VERB", "ADP", "DET", "ADJ", "NOUN", "NOUN", "ADP")


def sample_document(sentences: int = 12, *, layers: int = 2, heads: int = 4, hostile: bool = True) -> Document:
    """Return a document; the same arguments give the same.

    Args:
        hostile: True: the first lines are `HOSTILE`, and one is `LONG`.
    """
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(6, 24))) for _ in range(sentences)]
    if hostile:
        lines = [*HOSTILE, LONG, *lines][: max(sentences, len(HOSTILE) + 1)]
    sections = (
        ReportSection(
            "recipe", "Recipes and versions", "Models", listings=(Listing("Recipe of dense", RECIPE, "yaml"),)
        ),
        _curves(draw),
        _scores(),
        ReportSection(
            "tagged_accuracy", "Accuracy by part of speech", "Quality", missing="No tagger: install `sparsenmt[pos]`."
        ),
        _compared(lines, draw),
        _sweep(),
        _rates(draw),
        ReportSection("kept_words", "Kept and dropped words", "Sentences", kept_words=_kept(lines, draw)),
        _attention(lines, draw, layers, heads),
        ReportSection("alignments", "Alignments", "Sentences", alignments=_aligned(lines)),
    )
    settings = {"source": "test.en", "seed": 1, "models": None}
    return Document("Dense and sparse models of Multi30k", "sparsenmt 0.9.0", MODELS, settings, sections)


RECIPE = "model:\n  layers: 3\n  memory:\n    output: {method: l0drop} # <b>not bold</b>\n"


def _curves(draw: random.Random) -> ReportSection:
    loss = {
        name: [(float(100 * i), 6.0 / (1 + i / 8) + 0.1 * k + draw.uniform(0, 0.1)) for i in range(80)]
        for k, name in enumerate(MODELS)
    }
    closed = {"l0drop-0.3": [(float(100 * i), None if i < 5 else min(0.3, i / 100)) for i in range(80)]}
    panels = (
        Panel("update", "training loss (nats per token)", loss, style="lines", title="loss"),
        Panel(
            "update", "closed gates", closed, style="lines", percent="y", title="closed share", level=("target", 0.3)
        ),
        Panel("validation", "BLEU", {m: [(1.0, 20.0 + i), (2.0, 30.0 + i)] for i, m in enumerate(MODELS)}),
    )
    return ReportSection(
        "training", "Training curves", "Models", "sparsenmt runs", diagrams=(Diagram("Training", panels),)
    )


def _scores() -> ReportSection:
    heads = columns("text model metric", "score score difference low high", "number p_value")
    rows = (
        ("dense", "BLEU", 38.213, None, None, None, None),
        ("l0drop-0.3", "BLEU", 38.0, -0.213, -0.71, 0.22, 0.31),
        ("entmax-1.5", "BLEU", 7.5, -30.7, -31.2, -29.9, 0.001),
    )
    grams = Table(
        "ngrams",
        "n-grams that l0drop-0.3 gets right and dense does not",
        columns("text ngram", "count right others"),
        [("brick building", 4, 0), ("in colourful", 11, 2), (HOSTILE[0], 3, 1)],
    )
    bars = {name: [(float(i), 0.6 - 0.05 * i + 0.02 * k) for i in range(4)] for k, name in enumerate(MODELS)}
    ticks = [(float(i), f"{name}\n{count:,}") for i, (name, count) in enumerate([("<10", 420), ("10-19", 1377)])]
    ticks += [(2.0, "20-29\n204"), (3.0, "30 or more\n12")]
    intervals = {name: [(y - 0.03, y + 0.03) for _, y in points] for name, points in bars.items()}
    panel = Panel(
        "words of the reference, and number of sentences", "F1 of words", bars, percent="y", style="bars", ticks=ticks,
        intervals=intervals,
    )  # fmt: skip
    return ReportSection(
        "scores",
        "Scores",
        "Quality",
        "sparsenmt compare dense l0drop-0.3 entmax-1.5 --source test.en --reference test.de",
        notes=("Intervals: 95%, paired bootstrap with 1,000 samples.",),
        tables=(Table("scores", "scores against dense", heads, rows), grams),
        diagrams=(Diagram("Accuracy by length", (panel,), "Bars: 95% intervals by bootstrap."),),
    )


def _compared(lines: Sequence[str], draw: random.Random) -> ReportSection:
    found = []
    for i, line in enumerate(lines):
        text = line if len(line) < 3000 else line[:3000]
        outputs = [
            ComparedOutput(model, text, {"chrF": round(draw.uniform(10, 90), 3)}, ((2, 9), (12, 15)) if k else ())
            for k, model in enumerate(MODELS)
        ]
        found.append(ComparedSentence(i + 1, line, line[::-1], round(50 - i * 1.5, 2), tuple(outputs)))
    return ReportSection("differences", "Sentences that differ most", "Quality", comparisons=tuple(found))


def _sweep() -> ReportSection:
    points = {"l0drop": [(0.0, 38.2), (0.3, 38.0), (0.5, 36.1)], "rules": [(0.25, 35.0), (0.5, 30.4)]}
    panel = Panel(
        "sparsity rate", "BLEU", points, percent="x", intervals={"l0drop": [(37.5, 38.9), (37.3, 38.7), (35.2, 36.9)]}
    )
    heads = columns("text model kernel", "share sparsity", "rate sentences_per_second", "number speedup")
    rows = [("dense", "native", 0.0, 1203.0, None), ("l0drop-0.3", "native", 0.3012, 1177.0, 0.978)]
    values = ((31.25, 33.5, None), (32.0, 34.75, 35.5), (None, 35.0, 36.25))
    grid = Matrix(
        "BLEU by depth", "encoder layers", ("1", "2", "3"), "decoder layers", ("1", "2", "3"), values, "score"
    )
    return ReportSection(
        "sparsity",
        "Quality against sparsity",
        "Sparsity",
        diagrams=(Diagram("Quality against sparsity", (panel,)),),
        tables=(Table("speed", "measured time beside nominal sparsity", heads, rows),),
        matrices=(grid,),
    )


def _rates(draw: random.Random) -> ReportSection:
    names = ["noun", "verb", "adjective", "adverb", "pronoun", "determiner", "preposition", "punctuation"]
    ticks = [(float(i), f"{name}\n{draw.randint(30, 3000):,}") for i, name in enumerate(names)]
    points = {"category": [(float(i), draw.random()) for i in range(len(names))]}
    text = "category, and number of source positions"
    rates = Panel(
        text, "sparsity rate", points, percent="y", style="bars", ticks=ticks, level=("overall, 30.1%", 0.301)
    )
    steps = {m: [(i / 20, draw.randint(0, 9) * 1.0) for i in range(20)] + [(1.0, None)] for m in MODELS[:2]}
    alphas = Panel("alpha", "heads", steps, style="steps", x_range=(0.0, 1.0), title="alphas")
    spans = {m: [(float(i % 3 + 1), draw.uniform(1, 40)) for i in range(12)] for m in MODELS}
    ends = Panel(
        "layer", "span of each head (positions)", spans, style="points", ticks=[(1.0, "1"), (2.0, "2"), (3.0, "3")]
    )
    diagrams = (Diagram("Rates", (rates, alphas, ends)),)
    return ReportSection("rates", "Sparsity by part of speech", "Sparsity", diagrams=diagrams)


def _kept(lines: Sequence[str], draw: random.Random) -> tuple[SentenceWords, ...]:
    found = []
    for i, line in enumerate(lines):
        for model in MODELS[:2]:
            words = []
            for k, word in enumerate(line.split()[:300] or [line]):
                gate = 0.0 if draw.random() < 0.3 else 1.0
                tokens = (word[:3], word[3:]) if len(word) > 6 else (word,)
                gates = (gate, draw.choice([gate, 0.37])) if len(tokens) == 2 else (gate,)
                words.append(MarkedWord(word, tokens, gates if model != "dense" else (), TAGS[k % len(TAGS)]))
            found.append(
                SentenceWords(
                    i + 1, model, (*words, MarkedWord("</s>", ("</s>",), (1.0,) * (model != "dense"))), line, line[:50]
                )
            )
    return tuple(found)


def _attention(lines: Sequence[str], draw: random.Random, layers: int, heads: int) -> ReportSection:
    found: list[AttentionMaps] = []
    for i, line in enumerate(lines):
        words = line.split()[:104] or [line]
        long = len(words) > 100
        tokens = [part for word in words for part in ([f"▁{word[:5]}", word[5:]] if len(word) > 5 else [f"▁{word}"])]
        groups = [k for k, word in enumerate(words) for _ in range(2 if len(word) > 5 else 1)]
        for model in MODELS:
            for site in SITES:
                size = (1, 1) if long else (layers, heads)
                found.append(_site_maps(i + 1, model, site, tokens, groups, draw, *size))
    described = [
        HeadDescription(model, site, layer + 1, head + 1, "previous token", "entmax", 1.5 + head / 10, 0.25)
        for model in MODELS
        for site in SITES
        for layer in range(layers)
        for head in range(heads)
    ]
    given = {"attention": tuple(found), "heads": tuple(described)}
    return ReportSection("attention", "Attention", "Sentences", notes=("By forced decoding.",), **given)


def _site_maps(
    number: int,
    model: str,
    site: SiteName,
    tokens: Sequence[str],
    groups: Sequence[int],
    draw: random.Random,
    layers: int,
    heads: int,
) -> AttentionMaps:
    stand_in = site == "cross" and model == MODELS[1]
    columns = ["[stand-in]", *tokens] if stand_in else list(tokens)
    dropped = [stand_in and k % 3 == 2 for k in range(len(columns))]
    maps = tuple(
        HeadWeights(layer + 1, head + 1, _weights(len(tokens), dropped, draw))
        for layer in range(layers)
        for head in range(heads)
    )
    words = [-1, *groups] if stand_in else list(groups)
    sides = tuple(tokens), tuple(columns), tuple(groups), tuple(words)
    return AttentionMaps(number, model, site, *sides, tuple(dropped), stand_in, maps)


def _weights(rows: int, dropped: Sequence[bool], draw: random.Random) -> tuple[tuple[float, ...], ...]:
    found = []
    for _ in range(rows):
        scores = [0.0 if gone or draw.random() < 0.4 else draw.expovariate(1.0) ** 3 for gone in dropped]
        total = sum(scores) or 1.0
        found.append(tuple(score / total for score in scores))
    return tuple(found)


def _aligned(lines: Sequence[str]) -> tuple[AlignedSentence, ...]:
    return tuple(
        AlignedSentence(
            i + 1, MODELS[0], tuple(line.split()), tuple(line.upper().split()[:-1]), ((0, 0), (1, 2), (1, 1))
        )
        for i, line in enumerate(lines)
        if 4 < len(line.split()) < 100
    )
