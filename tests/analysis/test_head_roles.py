"""Roles of encoder heads, against loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.head_roles import (
    OFFSETS,
    SCORES,
    HeadRolesResult,
    RoleCounter,
    SentenceStructure,
    grid,
    interrogatives,
    report,
    sentence_structure,
)
from sparsenmt.analysis.observe import observe
from sparsenmt.analysis.text_words import UNKNOWN, TextWords
from sparsenmt.data.tokenizers.symbol_tokenizers import WordTokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.inputs import SourceLine
from tests.analysis.attention_support import KINDS, OUTPUTS, all_seen, attention_bundle, listen, seen_alone, texts

WORDS = frozenset(["haus", "am", "und"])


class Pieces:
    """Pieces as SentencePiece writes them: all that is asked of a tokenizer."""

    keeps_word_boundaries = True

    def __init__(self, *names: str) -> None:
        self.names = names

    @property
    def word_starts(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([False, False, False, True, *(name.startswith("▁") for name in self.names)])

    def pieces(self, ids: list[int], unknown: Sequence[str] = ()) -> list[str]:
        return ["</s>" if id_ == EOS else self.names[id_ - 4] for id_ in ids]


def cut(*names: str, words: frozenset[str] = frozenset(["why"]), found: TextWords | None = None) -> SentenceStructure:
    line = SourceLine(0, "", [*range(4, 4 + len(names)), EOS])
    return sentence_structure(line, Pieces(*names), words, found or TextWords())  # type: ignore[arg-type]


def test_clusters_are_words_without_the_punctuation_at_their_ends() -> None:
    assert cut("▁the", "▁ho", "use", ".").clusters == [0, 1, 1, 2, -1]
    assert cut("▁well", "-", "known", "!", "?").clusters == [0, 0, 0, 1, 2, -1]
    assert cut("▁(", "yes", ")").clusters == [1, 0, 2, -1]
    assert cut("▁", "house").clusters == [-1, 0, -1]  # a space alone is no piece of a word
    assert cut("▁...").clusters == [0, -1]


def test_questions() -> None:
    assert cut("▁Why", "▁not", "?") == SentenceStructure([0, 1, 2, -1], 2, [0])
    assert cut("▁Wh", "y", ",", "▁me", "▁?").asking == [0, 1]
    assert cut("▁why", "▁not").asking == [] and cut("▁why", "▁not").question_mark is None
    assert cut("▁so", "▁?", "▁why").asking == []  # behind the mark
    assert cut('▁"Why', "▁me", '?"').asking == [0]
    assert "warum" in interrogatives("de-DE") and interrogatives("xx") == frozenset()


def test_in_a_text_without_spaces_between_words_nothing_merges() -> None:
    assert cut("▁何", "が", "見える", "?", words=frozenset(["何"]), found=TextWords(UNKNOWN)) == SentenceStructure(
        [-1] * 5, 3, [0]
    )
    known = TextWords("stanza", [["何", "が", "見える", "?"]])
    found = cut("▁何", "が", "見", "える", "?", words=frozenset(["何"]), found=known)
    assert found == SentenceStructure([0, 1, 2, 2, 3, -1], 4, [0])


def test_unknown_words_and_marks_are_read_in_the_text() -> None:
    tokenizer, text = WordTokenizer(["me"], lowercase=False), "me Haus me ?"
    line = SourceLine(0, text, [*tokenizer.encode(text), EOS])
    assert sentence_structure(line, tokenizer, WORDS, TextWords()) == SentenceStructure([0, 1, 2, 3, -1], 3, [1])


def test_without_word_boundaries_there_are_no_words() -> None:
    tokenizer = Pieces("▁why", "▁?")
    tokenizer.keeps_word_boundaries = False
    assert sentence_structure(SourceLine(0, "", [4, 5, EOS]), tokenizer, WORDS, TextWords()) == SentenceStructure(
        [-1, -1, -1], None, []
    )  # type: ignore[arg-type]


def naive_scores(kind: str, layer: int, head: int) -> dict[str, list[float]]:
    """What each score of a head is the mean of."""
    bundle = attention_bundle(kind, tokenizer="bpe")
    found: dict[str, list[float]] = {name: [] for name in SCORES}
    for line, heard in zip(texts(bundle), all_seen(kind, tokenizer="bpe"), strict=True):
        seen = heard["encoder_self", layer]
        weights = seen.weights[0, head].tolist()
        real = seen.keys.valid[0].tolist()
        length = len(line.ids)
        for name, offset in OFFSETS.items():
            for i in range(length):
                if 0 <= i + offset < length and real[i] and real[i + offset]:
                    found[name].append(weights[i][i + offset])
        structure = sentence_structure(line, bundle.tokenizers.source, WORDS, TextWords())
        for cluster in range(max(structure.clusters) + 1):
            members = [i for i, each in enumerate(structure.clusters) if each == cluster and real[i]]
            if not members:
                continue
            rest = [sum(weights[i][j] for j in members if j != i) for i in members]
            score = max(rest) if len(members) > 1 else weights[members[0]][members[0]]
            found["merging"].append(score)
            if len(members) > 1:
                found["merging_split"].append(score)
        assert not structure.asking, "the score of questions has a test of its own"
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_loops(kind: str) -> None:
    bundle = attention_bundle(kind, tokenizer="bpe")
    counter = RoleCounter(texts(bundle), bundle.tokenizers.source, WORDS)
    listen(bundle, counter)
    found = counter.result("m")
    assert len(found.scores) == 3 * all_seen(kind, tokenizer="bpe")[0]["encoder_self", 1].weights.shape[1]
    for (layer, head), scores in found.scores.items():
        for name, values in naive_scores(kind, layer, head - 1).items():
            assert found.counts[name] >= len(values)
            assert layer > 1 or found.counts[name] == len(values)  # later layers may have fewer positions
            expected = sum(values) / len(values) if values else None
            assert scores[name] == (None if expected is None else pytest.approx(expected))
    assert found.counts["merging"] > found.counts["merging_split"] > 0


def test_interrogation_is_the_weight_of_the_question_mark() -> None:
    tokenizer = WordTokenizer(["warum", "nicht", "?"], lowercase=False)
    bundle = attention_bundle("sparse")
    ids = [[*tokenizer.encode(text), EOS] for text in ("warum nicht ?", "warum nicht", "nicht warum warum ?")]
    lines = [SourceLine(i, "", each) for i, each in enumerate(ids)]
    counter = RoleCounter(lines, tokenizer, interrogatives("de"))
    observe(LineBatches(bundle, lines, 100), None, [counter], sites=["encoder_self"])
    found = counter.result("m")
    assert found.counts["interrogation"] == 3
    first = seen_alone(bundle, lines[0], OUTPUTS[0])["encoder_self", 1].weights[0, 0].tolist()
    last = seen_alone(bundle, lines[2], OUTPUTS[0])["encoder_self", 1].weights[0, 0].tolist()
    assert found.scores[1, 1]["interrogation"] == pytest.approx((first[0][2] + last[1][3] + last[2][3]) / 3)


def scored(**scores: float | None) -> dict[str, float | None]:
    return {name: scores.get(name) for name in SCORES}


def test_the_report_names_heads_beside_what_is_published() -> None:
    scores = {
        (1, 1): scored(previous=0.9, merging=0.1),
        (1, 2): scored(previous=0.2, merging=0.3),
        (2, 1): scored(previous=0.7, merging=0.2),
    }
    counts = dict.fromkeys(SCORES, 5) | {"interrogation": 0}
    found = HeadRolesResult("m", scores, counts, {head: 1.5 if head == (1, 1) else None for head in scores})
    made = report([found], threshold=0.6)
    roles = {row["role"]: row for row in made.tables[0].records()}
    assert (roles["previous"]["heads"], roles["previous"]["median"]) == (2, pytest.approx(0.8))
    assert roles["previous"]["best_heads"] == "1.1: 90.0%, 2.1: 70.0%, 1.2: 20.0%"
    assert "93.5 / 94.4 / 95.9%" in str(roles["previous"]["published"])
    assert (roles["merging"]["heads"], roles["merging"]["median"], roles["merging"]["best"]) == (0, None, 0.3)
    assert (roles["interrogation"]["heads"], roles["interrogation"]["best_heads"]) == (None, None)
    assert any("interrogation is not measured" in note for note in made.notes)
    ((drawn,),) = grid([found])
    assert drawn.weights.shape == (5, 3) and np.isnan(drawn.weights[4]).all() and drawn.columns[2] == "2.1"


def test_a_text_of_whole_words_says_that_nothing_merges() -> None:
    bundle = attention_bundle("dense")
    counter = RoleCounter(texts(bundle), bundle.tokenizers.source, WORDS)
    listen(bundle, counter)
    assert any("no word has several tokens" in note for note in report([counter.result("m")]).notes)
