"""`Model.score`, `log_likelihood`, `perplexity` and `load`: the values of `sparsenmt score`, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import sparsenmt
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.workflows.evaluation.score_text import score_text_file
from tests.api.support import SENTENCES

OTHERS = [line.replace("the", "a") for line in SENTENCES]


def test_scores_are_those_of_files(dense: sparsenmt.Model, tmp_path: Path) -> None:
    for name, lines in (("ours", OTHERS), ("reference", SENTENCES), ("base", OTHERS[::-1])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    files = [str(tmp_path / name) for name in ("ours", "reference", "base")]
    expected = sparsenmt.score_files(files[0], [files[1]], files[2])
    found = dense.score(OTHERS, SENTENCES, baseline=OTHERS[::-1])
    assert found == expected and [score.name for score in found.scores] == ["bleu", "chrf", "ter"]
    assert found["chrf"] == found.scores[1].value and found.comparisons[0].name == "bleu"
    assert repr(found).startswith("ScoreResult(BLEU ") and len(repr(found)) < 240


def test_translations_and_several_references_are_scored(dense: sparsenmt.Model) -> None:
    outputs = dense.translate(SENTENCES)
    assert dense.score(outputs, OTHERS).scores == dense.score(outputs.texts, OTHERS).scores
    both = dense.score(OTHERS, [SENTENCES, OTHERS], metrics=["bleu"])
    assert [score.name for score in both.scores] == ["bleu"] and both["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("given", "where"),
    [({"metrics": ["blue"]}, "metrics"), ({"metrics": ["dbleu"]}, "metrics"), ({"tokenize": "no"}, "tokenize")],
)
def test_settings_that_there_are_not(dense: sparsenmt.Model, given: dict[str, Any], where: str) -> None:
    with pytest.raises(sparsenmt.UserError) as caught:
        dense.score(OTHERS, SENTENCES, **given)
    assert caught.value.where == where and "--" not in str(caught.value)


def test_lists_that_do_not_fit(dense: sparsenmt.Model) -> None:
    with pytest.raises(sparsenmt.UserError, match=r"the number of its lines, 2, is not that of the hypotheses, 5"):
        dense.score(OTHERS, SENTENCES[:2])
    with pytest.raises(TypeError, match=r"^hypotheses is one str"):
        dense.score("a", ["a"])
    with pytest.raises(TypeError, match=r"^references is one str"):
        dense.score(["a"], "a")
    with pytest.raises(sparsenmt.UserError, match=r"there are no lines to score"):
        dense.score([], [])


def test_likelihoods_are_those_of_forced_decoding(gated: sparsenmt.Model) -> None:
    found = gated.log_likelihood(SENTENCES, OTHERS)
    expected = list(score_pairs(gated.bundle, input_lines(SENTENCES), OTHERS))
    for each, own in zip(found, expected, strict=True):
        assert each.token_log_probabilities == pytest.approx(own.token_log_probabilities, abs=1e-4)
        assert list(each.tokens) == own.tokens and each.log_probability == pytest.approx(own.log_probability, abs=1e-3)
    count = sum(len(each.tokens) for each in found)
    total = sum(each.log_probability for each in found)
    assert gated.perplexity(SENTENCES, OTHERS) == pytest.approx(math.exp(-total / count))
    with pytest.raises(TypeError, match=r"^targets are missing"):
        gated.log_likelihood(SENTENCES)
    with pytest.raises(sparsenmt.UserError, match=r"^targets: there are 1 for 5 sources"):
        gated.log_likelihood(SENTENCES, OTHERS[:1])


def test_a_language_model_reads_one_text(language: sparsenmt.Model, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join([*SENTENCES, ""]) + "\n")
    quality, _ = score_text_file(language.directory, tmp_path / "text", device="cpu")
    assert language.perplexity([*SENTENCES, ""]) == pytest.approx(quality.value("perplexity"))
    found = language.log_likelihood([*SENTENCES[:2], "\n".join(SENTENCES[2:]), ""])
    assert [each.text.count("\n") for each in found] == [0, 0, 2, 0]
    assert -sum(each.log_probability for each in found) == pytest.approx(quality.nats)
    assert [each.tokens.count("</s>") for each in found] == [1, 1, 3, 1]
    assert language.log_likelihood([]) == []
    with pytest.raises(sparsenmt.UserError, match=r"^texts: there is no text"):
        language.perplexity([])
    with pytest.raises(TypeError, match=r"a language model reads texts alone"):
        language.log_likelihood(SENTENCES, OTHERS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "gpu"}, r"^device: must be one of auto, cpu, cuda, cuda:N; not 'gpu'"),
        ({"dtype": "fp64"}, r"^dtype: there is no data type 'fp64'"),
        ({"checkpoint": 7}, "the model has no checkpoints"),
        ({"target_language": "fr"}, "fr"),
        ({"disabled_heads": ["cross:9"]}, r"^disabled_heads cross:9: there is no head 9 at cross"),
        ({"directory": "nothing"}, "there is no such model directory"),
    ],
)
def test_what_cannot_be_loaded(dense: sparsenmt.Model, given: dict[str, Any], message: str) -> None:
    with pytest.raises(sparsenmt.UserError, match=message):
        sparsenmt.load(**{"directory": dense.directory, **given})


def test_heads_are_disabled(dense: sparsenmt.Model) -> None:
    other = sparsenmt.load(str(dense.directory), device="cpu", disabled_heads=["cross:1,2"])
    assert other.log_likelihood(SENTENCES, OTHERS) != dense.log_likelihood(SENTENCES, OTHERS)
    with pytest.raises(TypeError, match=r"^disabled_heads is one str"):
        sparsenmt.load(dense.directory, disabled_heads="cross:1")
