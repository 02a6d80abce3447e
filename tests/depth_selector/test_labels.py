"""Labels against brute force, ties, and the parts of a text."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from sparsenmt.depth_selector.labels import LabelledSentences, split_text
from sparsenmt.evaluation.depth_oracle import best_depths, chosen_lines, oracle_depths, sentence_chrf

REFERENCES = ["das Haus steht am Fluss", "zwei Katzen spielen", "nie"]
TRANSLATIONS = [  # of three depths
    ["das Haus", "zwei Katzen spielen", "x"],
    ["das Haus steht am Fluss", "zwei Katzen spielen", "y"],
    ["das Haus steht am Fluss", "Katzen", "z"],
]


def test_scores_are_those_of_every_sentence_by_itself() -> None:
    found = sentence_chrf(TRANSLATIONS, REFERENCES)
    for i, reference in enumerate(REFERENCES):
        for k, lines in enumerate(TRANSLATIONS):
            assert found[i, k] == CHRF().sentence_score(lines[i], [reference]).score


def test_labels_are_all_of_the_best() -> None:
    scores = sentence_chrf(TRANSLATIONS, REFERENCES)
    expected = [[each == max(row) for each in row] for row in scores.tolist()]
    assert best_depths(scores).tolist() == expected
    assert expected == [[False, True, True], [True, True, False], [True, True, True]], "ties, and all equally bad"


def test_the_oracle_takes_the_fastest_of_the_best() -> None:
    scores = sentence_chrf(TRANSLATIONS, REFERENCES)
    oracle = oracle_depths(scores)
    assert oracle.tolist() == [1, 0, 0]
    assert chosen_lines(TRANSLATIONS, oracle) == ["das Haus steht am Fluss", "zwei Katzen spielen", "x"]


def test_the_prior_is_the_share_of_sentences_with_a_label() -> None:
    scores = sentence_chrf(TRANSLATIONS, REFERENCES)
    labelled = LabelledSentences([[5, 3], [6, 3], [7, 3]], scores)
    assert labelled.prior.tolist() == pytest.approx([2 / 3, 1, 2 / 3])
    assert labelled.rows([0, 2]).prior.tolist() == pytest.approx([0.5, 1, 1])
    assert np.array_equal(labelled.rows([2]).scores, scores[2:])


@pytest.mark.parametrize("held_out", [True, False])
def test_parts(held_out: bool) -> None:
    lines = [f"sentence {number % 700}" for number in range(1000)]
    parts = split_text(lines, held_out=held_out)
    numbers = [*parts.training, *parts.validation, *parts.held_out]
    assert sorted(numbers) == list(range(1000))
    assert 60 < len(parts.validation) < 140 and (60 < len(parts.held_out) < 140) == held_out
    texts = [{lines[i] for i in part} for part in (parts.training, parts.validation, parts.held_out)]
    assert not texts[0] & texts[1] and not texts[1] & texts[2] and not texts[0] & texts[2]
    assert split_text(lines[:500], held_out=held_out).validation == [i for i in parts.validation if i < 500]
