"""BLEU, chrF, TER and ROUGE: the libraries' own values, values by hand, several references, signatures, bad input."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import pytest
import sacrebleu
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer

from sparsenmt.errors import UserError
from sparsenmt.evaluation import rouge
from sparsenmt.evaluation.metrics import corpus_scores, statistics
from sparsenmt.evaluation.score_table import table
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import PairedTest, compare
from sparsenmt.metric import METRICS as ALL
from sparsenmt.metric import register_metric

METRICS = tuple(name for name, each in ALL.items() if not each.needs_documents and not each.model_variable)
ROUGE = tuple(name for name in ALL if name.startswith("rouge"))
HYPOTHESES = ["The cat sits on the mat.", "He reads an old book in the garden.", "", "Yes!"]
REFERENCES = ["The cat sat on the mat.", "He is reading an old book in a garden.", "Nothing is here.", "Yes!"]
OTHERS = ["A cat sits on a mat.", "He reads an old book in the garden.", "Nothing.", "Of course!"]


def value(name: str, hypotheses: list[str], references: list[list[str]], **options: str | bool) -> float:
    (score,) = corpus_scores(hypotheses, references, ScoringSettings([name], **options))  # type: ignore[arg-type]
    return score.value


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHERS]])
def test_sacrebleus_metrics_equal_sacrebleu(references: list[list[str]]) -> None:
    scores = corpus_scores(HYPOTHESES, references, ScoringSettings(["bleu", "chrf", "ter"]))
    assert [score.value for score in scores] == [
        sacrebleu.corpus_bleu(HYPOTHESES, references).score,
        sacrebleu.corpus_chrf(HYPOTHESES, references).score,
        sacrebleu.corpus_ter(HYPOTHESES, references).score,
    ]
    assert scores[0].signature == (
        f"nrefs:{len(references)}|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert all(f"nrefs:{len(references)}|" in score.signature for score in scores)


def test_bleu_by_hand() -> None:
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples, as long as the reference: (1 / 3) ** (1 / 4).
    hypothesis, reference = "one two three four five six", "one two three four five seven"
    assert value("bleu", [hypothesis], [[reference]]) == pytest.approx(100 * (1 / 3) ** 0.25)


def test_length_by_hand() -> None:
    # 13a splits off the full stop: 3 and 1 words against 4 and 1, or 3 and 5.
    hypotheses, references = ["A cat.", "Yes"], [["A big cat.", "No"], ["No cat.", "Not at all, no"]]
    assert value("length", hypotheses, references[:1]) == pytest.approx(100 * 4 / 5)
    assert value("length", hypotheses, references) == pytest.approx(100 * 4 / 4)
    (found,) = statistics(hypotheses, references[:1], ScoringSettings(["length"]))
    assert found.score(found.values[0]) == pytest.approx(100 * 3 / 4)
    (score,) = corpus_scores(hypotheses, references, ScoringSettings(["length"]))
    assert "nrefs:2|" in score.signature and "tok:13a" in score.signature


def test_lowercase_and_tokenize_reach_sacrebleu() -> None:
    shouting = [line.upper() for line in HYPOTHESES]
    assert value("bleu", shouting, [REFERENCES], lowercase=True) == value(
        "bleu", HYPOTHESES, [REFERENCES], lowercase=True
    )
    assert value("chrf", shouting, [REFERENCES], lowercase=True) > value("chrf", shouting, [REFERENCES])
    (score,) = corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(["bleu"], lowercase=True, tokenize="char"))
    assert score.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True, tokenize="char").score
    assert "case:lc" in score.signature
    assert "tok:char" in score.signature


def test_rouge_equals_rouge_score_for_english() -> None:
    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    for name in ROUGE:
        expected = [scorer.score(r, h)[name].fmeasure for h, r in zip(HYPOTHESES, REFERENCES, strict=True)]
        assert value(name, HYPOTHESES, [REFERENCES]) == pytest.approx(100 * sum(expected) / len(expected), abs=1e-12)


def test_rouge_takes_the_best_reference_of_each_sentence() -> None:
    for name in ROUGE:
        scorer = RougeScorer([name], use_stemmer=True)
        expected = [
            max(scorer.score(r, h)[name].fmeasure, scorer.score(o, h)[name].fmeasure)
            for h, r, o in zip(HYPOTHESES, REFERENCES, OTHERS, strict=True)
        ]
        both = value(name, HYPOTHESES, [REFERENCES, OTHERS])
        assert both == pytest.approx(100 * sum(expected) / len(expected), abs=1e-12)


def test_rouge_by_hand_in_german() -> None:
    hypothesis, reference = "Die schöne Tür öffnet sich.", "Eine SCHÖNE Tür öffnet sich nicht"
    # 4 of 5 and 4 of 6 words; 3 of 4 and 3 of 5 pairs; the longest common subsequence has 4 words.
    assert value("rouge1", [hypothesis], [[reference]], language="de") == pytest.approx(100 * 8 / 11)
    assert value("rouge2", [hypothesis], [[reference]], language="de") == pytest.approx(100 * 6 / 9)
    assert value("rougeL", [hypothesis], [[reference]], language="de") == pytest.approx(100 * 8 / 11)


def test_rouge_by_hand_with_stemming() -> None:
    assert value("rouge1", ["he walked"], [["he walks"]]) == 100
    assert value("rouge1", ["he walked"], [["he walks"]], language="de") == 50


def test_umlauts_are_letters_however_they_are_encoded() -> None:
    assert rouge.words("Schöne Straßen, über O'Neill's 3. Fuß_weg") == [
        *("schöne", "straßen", "über", "o", "neill", "s", "3", "fuß", "weg")
    ]
    assert rouge.words("scho\u0308n") == rouge.words("schön") == ["schön"]
    assert value("rouge1", ["grün"], [["grau"]], language="de") == 0, "not the shared letters gr"
    joined = ["می\u200cروم", "क्\u200dष", "خانه"]
    assert (
        rouge.words("می\u200cروم क्\u200dष, خانه\u200c \u200d") == joined
    )  # joiners are part of a word, and none alone
    assert rouge.words("Привет, мир! हिन्दी 東京は") == ["привет", "мир", "हिन्दी", "東", "京", "は"]


def test_rouge_lsum_sees_sentences() -> None:
    # As one sentence the common subsequence is 2 words long; sentence by sentence all 4 words are found.
    swapped, reference = "Zwei drei. Null eins.", "Null eins. Zwei drei."
    assert value("rougeL", [swapped], [[reference]], language="de") == 50
    assert value("rougeLsum", [swapped], [[reference]], language="de") == 100
    marked = ["zwei drei <n> null eins"]
    assert value("rougeLsum", marked, [["null eins <n> zwei drei"]], language="de") == 100
    assert value("rouge1", marked, [["null eins zwei drei"]], language="de") == 100, "the marker is no word"


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("marker", ["<n>", "<q>", "<doc>"])
def test_markers_glued_to_words_are_those_between_spaces(marker: str, language: str) -> None:
    glued, spaced = f"A b.{marker}C d.", f"C d. {marker} A b."
    for metric, wanted in (("rougeLsum", spaced), ("rouge1", "C d. A b."), ("rouge2", f"A b. {marker} C d.")):
        assert value(metric, [glued], [[wanted]], language=language) == value(metric, [wanted], [[wanted]]) == 100
    assert value("rouge1", [glued], [[f"A b n q doc {marker} c d"]], language=language) < 100


def test_rouge_lsum_of_the_definitions_example() -> None:
    """Lin 2004, section 3.2: against w1 w2 w3 w4 w5 the union of both sentences' subsequences is w1 w2 w3 w5."""
    reference, candidate = "w1 w2 w3 w4 w5", ["w1 w2 w6 w7 w8", "w1 w3 w8 w9 w5"]
    recall, precision = 4 / 5, 4 / 10
    expected = 100 * 2 * recall * precision / (recall + precision)
    for separator in (" <n> ", "\n"):
        assert value("rougeLsum", [separator.join(candidate)], [[reference]]) == pytest.approx(expected)
    # As one sentence: the longest common subsequence is w1 w2 w3 w5 as well. In the other order it is shorter.
    assert value("rougeLsum", [" ".join(candidate)], [[reference]]) == pytest.approx(expected)
    turned = " ".join(reversed(candidate))
    assert value("rougeLsum", [turned], [[reference]]) < expected
    assert value("rougeLsum", [" <n> ".join(reversed(candidate))], [[reference]]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "yes." (Really!) So.', ['He said "yes."', "(Really!)", "So."]),
        ("It costs 3.50 euros.", ["It costs 3.50 euros."]),
        ("One. Two <n> three", ["One. Two", "three"]),
        ("<n> one <n> <n> two <n>", ["one", "two"]),
        ("a<n>b. c", ["a", "b. c"]),
        ("A b.<n>C d.<q>E<doc> f. g", ["A b.", "C d.", "E", "f. g"]),
        ("a < n > b <nn> <s>", ["a < n > b <nn> <s>"]),
        ("One. Two\nthree", ["One. Two", "three"]),
        ("はい。「いいえ。」そう", ["はい。", "「いいえ。」", "そう"]),
        ("", []),
        (" \u2028 ", []),
    ],
)
def test_sentence_splitting(text: str, sentences: list[str]) -> None:
    assert rouge.split_sentences(text) == sentences


def test_rouge_signature_names_what_changes_the_value() -> None:
    (english,) = corpus_scores(HYPOTHESES, [REFERENCES, OTHERS], ScoringSettings(["rougeL"]))
    (german,) = corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(["rougeL"], language="de"))
    assert english.signature.startswith("nrefs:2|case:lc|avg:sentence-f1|stem:porter|tok:rouge-score|")
    assert german.signature.startswith("nrefs:1|case:lc|avg:sentence-f1|stem:no|tok:unicode-words|")
    assert "|version:rouge-score-" in german.signature


@pytest.mark.parametrize(
    ("language", "english"), [("en", True), ("en-GB", True), ("eng", True), ("de", False), ("enm", False)]
)
def test_language_codes(language: str, english: bool) -> None:
    assert rouge.is_english(language) is english


def test_rouge_asks_the_network_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert value("rougeLsum", ["One. Two."], [["One. Two."]]) == 100
    assert value("rougeLsum", ["Eins. Zwei."], [["Eins. Zwei."]], language="de") == 100


def test_odd_characters_inside_lines_are_data() -> None:
    odd = ["one\u2028two three four", "a\rb\x0cc\x00d e f"]
    for name in METRICS:
        expected = 0 if name == "ter" else 100
        assert value(name, odd, [odd], language="de") == pytest.approx(expected)


@pytest.mark.parametrize("name", METRICS)
def test_summed_statistics_give_the_corpus_score(name: str) -> None:
    (found,) = statistics(HYPOTHESES, [REFERENCES, OTHERS], ScoringSettings([name]))
    assert found.values.shape[0] == len(HYPOTHESES)
    assert found.score(found.values.sum(0)) == pytest.approx(value(name, HYPOTHESES, [REFERENCES, OTHERS]), abs=1e-9)


@pytest.mark.parametrize("name", ["ter", "rougeL", "rougeLsum"])
def test_lines_that_would_take_all_memory_are_refused(name: str) -> None:
    long, ideographs = "word " * 4000, "\u4e00" * 4000
    for one, other in ((long, long), (long, ideographs), (ideographs, long)):
        with pytest.raises(UserError, match=r"line 2: too long for .*: 4,000 words against 4,000"):
            value(name, ["a", one], [["a", "b"], ["a", other]])
    assert value(name, ["x" * 1_000_000], [["x" * 1_000_000]]) == (0.0 if name == "ter" else 100.0), "a single word"


def test_long_lines_are_no_trouble_for_the_others() -> None:
    long = "word " * 40_000
    assert value("bleu", [long], [[long]]) == pytest.approx(100)
    assert value("rouge1", [long], [[long]]) == pytest.approx(100)


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match=r"no metric 'rougel'(.|\n)*Did you mean 'rougeL'"):
        value("rougel", HYPOTHESES, [REFERENCES])
    with pytest.raises(UserError, match=r"no tokenizer '13b'(.|\n)*Did you mean '13a'"):
        value("bleu", HYPOTHESES, [REFERENCES], tokenize="13b")
    with pytest.raises(UserError, match="reference 2: the number of its lines, 1, is not that of the hypotheses, 4"):
        value("bleu", HYPOTHESES, [REFERENCES, ["one"]])
    with pytest.raises(UserError, match="at least one reference"):
        value("bleu", HYPOTHESES, [])
    with pytest.raises(UserError, match="no lines"):
        value("bleu", [], [[]])


class SentenceAccuracy:
    """The share of hypotheses that are a reference: a scorer as small as they come."""

    def __init__(self, name: str, settings: ScoringSettings) -> None:
        self._name, self._lowercase = name, settings.lowercase

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
        return self.value(self.statistics(hypotheses, references).sum(0)), f"nrefs:{len(references)}|{self._name}"

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        rows = zip(hypotheses, *references, strict=True)
        return np.array([[hypothesis in others, 1] for hypothesis, *others in rows], dtype=np.float64)

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(100 * sums[0] / sums[1])


def test_a_new_metric_is_one_registration() -> None:
    with ALL.scope():
        register_metric("same", "accuracy")(SentenceAccuracy)
        _compares()


def _compares() -> None:
    (score,) = corpus_scores(HYPOTHESES, [HYPOTHESES[:2] + OTHERS[2:], OTHERS], ScoringSettings(["same"]))
    assert (score.value, score.signature) == (50.0, "nrefs:2|same")
    (compared,) = compare(HYPOTHESES, OTHERS, [HYPOTHESES], ScoringSettings(["same"]), PairedTest(resamples=20))
    assert (compared.system.value, compared.baseline.value) == (100.0, 25.0)
    assert "accuracy " in table([score], [compared])
