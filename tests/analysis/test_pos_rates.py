"""Rates by part of speech, against loops."""

from __future__ import annotations

from collections import Counter

import pytest

from sparsenmt.analysis.gates import GatedLine, LineBatches, SparsityRate, gated_lines
from sparsenmt.analysis.pos_rates import (
    CATEGORIES,
    LEAST,
    OVERALL,
    CategorisedLine,
    PosResult,
    _left_out,
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
    assert bars.style == "bars" and bars.level == ("overall, 50.0% of 80", 0.5) and len(bars.ticks) == len(CATEGORIES)
    assert bars.ticks[0] == (0.0, "content\n10")
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


def test_a_category_of_one_position_does_not_fill_the_axis() -> None:
    """It is left out, and the caption says so; where all are small, all are drawn."""
    many = {name: SparsityRate(LEAST, 2) for name in CATEGORIES} | {"rest": SparsityRate(1, 1)}
    found = [PosResult("m", SparsityRate(141, 15), many, {}, 1, 0)]
    (bars,) = panels(found)
    assert [label for _, label in bars.ticks if "rest" in label] == [] and len(bars.ticks) == len(CATEGORIES) - 1
    assert _left_out(found) == "left out, with fewer than 20 positions: rest (1)"
    (curve,) = panels([*found, PosResult("n", SparsityRate(160, 15), {**many, "rest": SparsityRate(20, 1)}, {}, 1, 0)])
    assert "rest" not in curve.series and "content" in curve.series
    few = [
        PosResult(
            "m", SparsityRate(3, 1), {name: SparsityRate(i // 6, 0) for i, name in enumerate(CATEGORIES)}, {}, 1, 0
        )
    ]
    assert len(panels(few)[0].ticks) == 2
