"""Rates by part of speech, against loops."""

from __future__ import annotations

from collections import Counter

import pytest

from sparsenmt.analysis.gates import GatedLine, LineBatches, SparsityRate, gated_lines
from sparsenmt.analysis.pos_rates import (
    CATEGORIES,
    OVERALL,
    CategorisedLine,
    PosResult,
    categorise,
    measure,
    panels,
    report,
)
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.tagsets import report_category, tag_category
from sparsenmt.data.vocabulary import EOS, SPACE
from tests.analysis.support import L0DROP, OUTPUT, gated_bundle, sources

TAGS = {"alte": "JJ", "Haus": "NN", "steht": "VBZ", "am": "IN", "Fluss": "NN", "und": "CC", "zwei": "CD", "nie": "XYZ"}


def tagged(lines: list[GatedLine]) -> tuple[list[CategorisedLine], str | None]:
    cut = [tuple(each.line.text.split(" ")) for each in lines]
    return categorise((TaggedSentence(words, tuple(TAGS.get(word, ".") for word in words)) for words in cut), "penn")


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("memory", [OUTPUT, L0DROP])
def test_rates_are_those_of_loops(memory: list[dict[str, str]], kind: str) -> None:
    bundle = gated_bundle(memory, kind=kind)
    lines = gated_lines(LineBatches(bundle, sources(bundle, 20), 300))
    words, _ = tagged(lines)
    positions: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for each, line in zip(lines, words, strict=True):
        names = bundle.tokenizers.source.pieces(each.line.ids)
        cut: list[list[int]] = []
        gates = each.gates.tolist()  # type: ignore[union-attr]
        for i, name in enumerate(names):
            if (name.startswith(SPACE) or i == 0 or kind == "word") and each.line.ids[i] != EOS:
                cut.append([])
            if each.line.ids[i] == EOS:
                positions["</s>"] += 1
                dropped["</s>"] += gates[i] == 0
            elif name == SPACE:
                positions["space"] += 1
                dropped["space"] += gates[i] == 0
            else:
                cut[-1].append(i)
        for tag, members in zip(line.tags, cut, strict=True):
            for order, i in enumerate(members):
                kinds = [report_category(tag_category(tag, "penn")), f"tag {tag}"]
                if len(members) > 1:
                    kinds = ["BPEO" if order else "BPEH"]
                positions.update(kinds)
                dropped.update(kinds if gates[i] == 0 else [])
    found = measure("m", lines, words, bundle.tokenizers.source)
    naive = {name: SparsityRate(count, dropped[name]) for name, count in positions.items()}
    assert {name: rate for name, rate in found.categories.items() if rate.positions} == {
        name: rate for name, rate in naive.items() if not name.startswith("tag ")
    }
    assert {f"tag {tag}": rate for tag, rate in found.tags.items()} == {
        name: rate for name, rate in naive.items() if name.startswith("tag ")
    }
    assert sum(found.categories.values(), SparsityRate()) == found.overall
    assert 0 < found.overall.dropped < found.overall.positions
    assert (found.words, found.unaligned) == (sum(len(line.words) for line in words), 0)


def test_unknown_tags_are_rest_and_listed_once() -> None:
    bundle = gated_bundle(OUTPUT, kind="word")
    lines, warning = tagged(gated_lines(LineBatches(bundle, sources(bundle, 20), 300)))
    assert warning is not None and "'XYZ'" in warning and warning.count("\n") == 0
    found = {kind for line in lines for tag, kind in zip(line.tags, line.categories, strict=True) if tag == "XYZ"}
    assert found == {"rest"}


def test_words_without_a_piece_are_counted() -> None:
    bundle = gated_bundle(OUTPUT, kind="word")
    lines = gated_lines(LineBatches(bundle, sources(bundle, 3), 300))
    words, _ = tagged(lines)
    halved = [
        CategorisedLine((w.words[0][:1], w.words[0][1:], *w.words[1:]), ("NN", *w.tags), ("content", *w.categories))
        for w in words
    ]
    found = measure("m", lines, halved, bundle.tokenizers.source)
    assert found.unaligned == 3 and found.words == sum(len(line.words) for line in halved)
    made = report([found], halved)
    assert made.notes[0].startswith(f"m: 3 of {found.words} words (")
    assert made.settings["unaligned"] == {"m": 3 / found.words}


def rates(*dropped: int) -> dict[str, SparsityRate]:
    return {name: SparsityRate(10, count) for name, count in zip(CATEGORIES, dropped, strict=True)}


def test_one_model_gives_bars_and_several_give_curves() -> None:
    one = PosResult("one", SparsityRate(80, 40), rates(1, 2, 3, 4, 5, 6, 7, 8), {"NN": SparsityRate(4, 1)}, 1, 0)
    two = PosResult(
        "two",
        SparsityRate(80, 20),
        rates(0, 1, 2, 3, 4, 5, 6, 7),
        {"NN": SparsityRate(4, 0), "DT": SparsityRate(1, 1)},
        1,
        0,
    )
    (bars,) = panels([one])
    assert bars.style == "bars" and "overall 50.0%" in bars.title and len(bars.ticks) == len(CATEGORIES)
    (curve,) = panels([one, two])
    assert curve.series["content"] == [(0.25, 0.0), (0.5, 0.1)]
    words = [CategorisedLine(("a", "b", "c"), ("DT", "NN", "NN"), ("function", "content", "content"))]
    categories, tags = report([one, two], words).tables
    assert categories.rows[0] == ("one", OVERALL, 80, 40, 0.5)
    assert tags.rows == [
        ("one", "NN", "content", 4, 1, 0.25),
        ("two", "NN", "content", 4, 0, 0.0),
        ("two", "DT", "function", 1, 1, 1.0),
    ]
