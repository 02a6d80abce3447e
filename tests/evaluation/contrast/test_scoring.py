"""What a model is asked for a suite, and how its answers come back to the items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.decoding.forced_decoding import ScoredTargets, TargetScore
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.evaluation.contrast import scoring
from sparsenmt.evaluation.contrast.items import Item, Suite
from sparsenmt.evaluation.contrast.scoring import SuiteScorer

SUITE = Suite(
    "invented",
    "lingeval97",
    ("the bank", "a dog", "the bank"),
    (
        Item(0, "aa", ("b", "ccc"), "x", "1"),
        Item(0, "aa", ("dddd",), "y", "1"),
        Item(2, "b", ("eeeee",), "x", "3"),
        Item(1, "aa", ("aa",), "x", "2"),
    ),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of `score_alternatives`, whose scores are the lengths of the targets."""
    seen: dict[str, Any] = {}

    def answer(
        bundle: object, sources: Sequence[InputLine], targets: Sequence[Sequence[str]], **keys: Any
    ) -> list[ScoredTargets]:
        seen.update(sources=sources, targets=targets, **keys)
        return [
            ScoredTargets(SourceLine(i, source.text, [1], cut=i), tuple(TargetScore(len(text), 1) for text in own))
            for i, (source, own) in enumerate(zip(sources, targets, strict=True))
        ]

    monkeypatch.setattr(scoring, "score_alternatives", answer)
    return seen


def scores(scorer: SuiteScorer) -> list[tuple[float, list[float], int]]:
    return [
        (each.correct.log_probability, [one.log_probability for one in each.contrastive], each.source_cut)
        for each in scorer.score(None, batch_tokens=1)  # type: ignore[arg-type]
    ]


def test_every_source_and_target_is_asked_for_once(asked: dict[str, Any]) -> None:
    scorer = SuiteScorer(SUITE)
    assert scorer.sources == 2
    assert scores(scorer) == [(2, [1, 3], 0), (2, [4], 0), (1, [5], 0), (2, [2], 1)]
    assert asked["sources"] == input_lines(["the bank", "a dog"])
    assert asked["targets"] == [["aa", "b", "ccc", "dddd", "eeeee"], ["aa"]]


def test_the_model_runs_at_the_depth_asked_for(asked: dict[str, Any]) -> None:
    SuiteScorer(SUITE).score(None, batch_tokens=1, depth=(1, 2))  # type: ignore[arg-type]
    assert asked["depth"] == (1, 2)


def test_a_source_with_other_tags_is_another_one(asked: dict[str, Any]) -> None:
    tags = [TaggedSentence(tuple(source.split()), ("D", tag)) for source, tag in zip(SUITE.sources, "NMV", strict=True)]
    scorer = SuiteScorer(SUITE, tags)
    assert scores(scorer) == [(2, [1, 3], 0), (2, [4], 0), (1, [5], 1), (2, [2], 2)]
    assert asked["sources"] == input_lines(["the bank", "the bank", "a dog"], tags=[tags[0], tags[2], tags[1]])
    assert asked["targets"] == [["aa", "b", "ccc", "dddd"], ["b", "eeeee"], ["aa"]]
