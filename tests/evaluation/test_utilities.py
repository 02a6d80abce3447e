"""Expected utilities equal double loops over sacrebleu's sentence scores."""

from __future__ import annotations

import pytest
import sacrebleu

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import make_scorer
from sparsenmt.evaluation.scorer import PairScorer, ScoringSettings
from sparsenmt.evaluation.utilities import Utility

CANDIDATES = [
    "ein Hund sitzt im Gras",
    "der Hund sitzt auf dem Gras .",
    "ein Hund sitzt im Gras",
    "zwei Katzen",
    "",
    "Ein Hund sitzt im Gras .",
]
SENTENCE_SCORES = {
    "chrf": lambda hypothesis, reference: sacrebleu.sentence_chrf(hypothesis, [reference]).score,
    "bleu": lambda hypothesis, reference: sacrebleu.sentence_bleu(hypothesis, [reference]).score,
    "ter": lambda hypothesis, reference: sacrebleu.sentence_ter(hypothesis, [reference]).score,
}


@pytest.mark.parametrize("metric", SENTENCE_SCORES)
def test_equals_a_double_loop(metric: str) -> None:
    utility, score = Utility(metric, "de"), SENTENCE_SCORES[metric]
    (found, twice) = utility.expected([CANDIDATES, CANDIDATES[:2]], ["", ""])
    expected = [sum(score(own, other) for other in CANDIDATES) / len(CANDIDATES) for own in CANDIDATES]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert twice[1] == pytest.approx((score(CANDIDATES[1], CANDIDATES[0]) + score(*CANDIDATES[1:2] * 2)) / 2)
    best = min(expected) if metric == "ter" else max(expected)
    assert utility.order(found)[0] == expected.index(best)


def test_statistics_of_pairs_are_those_of_each_pair() -> None:
    texts = [*dict.fromkeys(CANDIDATES), "aaaa aaab", "a", "日本 語", "xyz", "  "]
    for lowercase in (False, True):
        scorer = make_scorer("chrf", ScoringSettings(("chrf",), lowercase))
        assert isinstance(scorer, PairScorer)
        pairs = [(text, other) for text in texts for other in texts]
        one_by_one = scorer.statistics([text for text, _ in pairs], [[other for _, other in pairs]])
        assert scorer.pair_statistics(texts).tolist() == one_by_one.tolist()


def test_equal_candidates_keep_their_order() -> None:
    utility = Utility("chrf", "de")
    assert utility.order(*utility.expected([["a b", "c d"]], [""])) == [0, 1]


def test_text_without_spaces_is_compared_by_characters() -> None:
    (found,) = Utility("bleu", "zh").expected([["我们在这里唱歌", "我们在那里唱歌", "他"]], [""])
    assert found[0] > 100 / 3 + 1, "more than its own score with itself"


@pytest.mark.parametrize("metric", ["dbleu", "length"])
def test_metrics_that_are_no_utilities(metric: str) -> None:
    with pytest.raises(UserError, match=r"compares documents|is no measure of quality"):
        Utility(metric, "de")
