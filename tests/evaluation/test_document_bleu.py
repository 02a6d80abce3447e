"""d-BLEU: sacrebleu over documents whose sentences were put together beforehand."""

from __future__ import annotations

import random
from itertools import groupby

import pytest
import sacrebleu

from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import by_document, corpus_scores, statistics
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import PairedTest, compare

_CHOOSER = random.Random(4)
_WORDS = ("the", "a", "cat", "dog", "sees", "eats", "red", "big", "in", "house", "and", "it's", "no.")
REFERENCES = [" ".join(_CHOOSER.choices(_WORDS, k=_CHOOSER.randint(3, 14))) for _ in range(60)]
OTHERS = [" ".join(_CHOOSER.choices(_WORDS, k=9)) for _ in range(60)]
HYPOTHESES = [" ".join(w if _CHOOSER.random() < 0.8 else "oh" for w in line.split()) for line in REFERENCES]
BAD = [" ".join(w if _CHOOSER.random() < 0.5 else "oh" for w in line.split()) for line in REFERENCES]
IDS = [str(number // 7) for number in range(60)]


def joined(lines: list[str]) -> list[str]:
    """The plainest way to put documents together."""
    documents: dict[str, list[str]] = {}
    for id_, line in zip(IDS, lines, strict=True):
        documents.setdefault(id_, []).append(line)
    return [" ".join(document) for document in documents.values()]


def value(hypotheses: list[str], *references: list[str]) -> float:
    return corpus_scores(hypotheses, references, ScoringSettings(["dbleu"], documents=IDS))[0].value


def test_it_is_sacrebleus_bleu_of_documents() -> None:
    assert value(HYPOTHESES, REFERENCES) == sacrebleu.corpus_bleu(joined(HYPOTHESES), [joined(REFERENCES)]).score
    both = [joined(REFERENCES), joined(OTHERS)]
    assert value(HYPOTHESES, REFERENCES, OTHERS) == sacrebleu.corpus_bleu(joined(HYPOTHESES), both).score


def test_it_stands_beside_bleu_and_is_another_number() -> None:
    bleu, dbleu = corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(["bleu", "dbleu"], documents=IDS))
    assert bleu.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert dbleu.value != bleu.value
    assert dbleu.signature == f"docs:9|{bleu.signature}"


def test_where_lines_end_does_not_matter() -> None:
    """The words of a document may lie in any of its lines, and lines may be empty."""
    moved = []
    for _, group in groupby(zip(IDS, HYPOTHESES, strict=True), key=lambda pair: pair[0]):
        lines = [line for _, line in group]
        moved += ["", " ".join(lines[:2]), *lines[2:]]
    assert len(moved) == len(HYPOTHESES)
    assert value(moved, REFERENCES) == value(HYPOTHESES, REFERENCES)


def test_a_change_of_the_id_ends_a_document() -> None:
    assert by_document(["a", "", "b", "c"], ["x", "x", "x", "y"]) == ["a b", "c"]
    assert by_document(["a", "b"], ["x", "y"]) == ["a", "b"]
    assert by_document(["", ""], ["x", "x"]) == [""]


def test_documents_are_resampled() -> None:
    (found,) = statistics(HYPOTHESES, [REFERENCES], ScoringSettings(["dbleu"], documents=IDS))
    assert len(found.values) == 9
    assert found.score(found.values.sum(0)) == pytest.approx(value(HYPOTHESES, REFERENCES))
    both = compare(
        HYPOTHESES, BAD, [REFERENCES], ScoringSettings(["bleu", "dbleu"], documents=IDS), PairedTest(resamples=200)
    )
    alone = compare(HYPOTHESES, BAD, [REFERENCES], ScoringSettings(["bleu"]), PairedTest(resamples=200))
    assert both[0] == alone[0], "other metrics do not change"
    assert both[1].difference.value > 0 and both[1].p_value == 2 / 2**9, "all exchanges of nine documents"
    documents = compare(
        joined(HYPOTHESES), joined(BAD), [joined(REFERENCES)], ScoringSettings(["bleu"]), PairedTest(resamples=200)
    )
    assert both[1].difference == documents[0].difference


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="d-BLEU needs to know where documents end"):
        corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(["dbleu"]))
    with pytest.raises(UserError, match="the number of ids, 59, is not that of the lines, 60"):
        corpus_scores(HYPOTHESES, [REFERENCES], ScoringSettings(["dbleu"], documents=IDS[1:]))
