"""Documents through a model in blocks: every line comes back, whatever the model says, alone or after a break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsenmt.data.documents import separator_id
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.input_line import input_lines
from sparsenmt.data.tagging import taggers
from sparsenmt.data.tagging.source_tagger import SourceTagger
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.tagging.tagsets import TagSet, WordCategory
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.decoding.documents import BlockTranslation, Mismatches, pack_pairs, source_lines, translate_documents
from sparsenmt.decoding.forced_decoding import score_pairs
from sparsenmt.decoding.translate import translate_lines
from sparsenmt.recipe.schema import Decoding, Documents
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle, tiny_model

LINES = [*invented_lines(9, 3), "", *invented_lines(8, 4), " ", *invented_lines(5, 6)]
IDS = [str(number // 7) for number in range(len(LINES))]
BLOCKS = Documents(max_length=24)
METHODS = [{"method": "beam", "beam_size": 3}, {"method": "greedy"}, {"method": "sample", "seed": 5}]


def bundle_of_documents(kind: str = "word", *, liking: float = 0.0) -> TinyBundle:
    """A random model whose vocabulary has the separator.

    Args:
        liking: added to the separator's logit, more or less.
    """
    options = TokenizerOptions.model_validate({"kind": kind, "vocabulary_size": 60, "user_symbols": ["<sep>"]})
    tokenizer = train_tokenizer(options, iter(invented_lines(200, 1)))
    model = tiny_model(1, vocabulary=tokenizer.size, ending=0.5, max_positions=64)
    with torch.no_grad():  # along this direction lies a constant after the last norm
        model.embeddings["output"][separator_id(tokenizer, "<sep>")] += liking * torch.ones(16) / 4
    return replace(
        tiny_bundle(), model=model, tokenizers=Tokenizers(tokenizer, tokenizer, True), features=FeatureSet({})
    )


def options(**values: object) -> Decoding:
    return Decoding.model_validate({"max_length_factor": 1, "max_length_offset": 3, **values})


def translate(bundle: TinyBundle, lines: Sequence[str] = LINES, **values: object) -> list[BlockTranslation]:
    given = input_lines(lines, documents=IDS[-len(lines) :])
    return list(translate_documents(bundle, given, options(**values), BLOCKS))


@pytest.mark.parametrize("kind", ["word", "char"])
@pytest.mark.parametrize("liking", [0.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
def test_every_line_comes_back(method: dict[str, object], liking: float, kind: str) -> None:
    bundle, mismatches = bundle_of_documents(kind, liking=liking), Mismatches()
    found = translate(bundle, **method)
    for each in found:
        mismatches.add(each)
    assert [sentence.texts[0] for each in found for sentence in each.block.sentences] == LINES
    assert len([line for each in found for line in each.lines]) == len(LINES)
    separator = separator_id(bundle.tokenizers.target, "<sep>")
    for each in found:
        assert len(each.texts) == len(each.translation.hypotheses)
        assert {len(texts) for texts in each.texts} == {len(each.block.sentences)}
        best = each.translation.hypotheses[0].tokens
        assert each.surplus == best.count(separator) + 1 - len(each.block.sentences)
        # No word is lost: together the lines are the output without separators.
        words = bundle.tokenizers.target.decode([id_ for id_ in best if id_ != separator])
        assert "".join("".join(each.lines).split()) == "".join(words.split())
        assert not any("<sep>" in line for line in each.lines)
    assert mismatches.blocks == len(found)
    assert mismatches.missing == sum(max(-each.surplus, 0) for each in found)
    assert (mismatches.warning() is None) == all(each.surplus == 0 for each in found)
    for number, line in enumerate(LINES):
        if not line.strip():
            assert [each.lines for each in found if each.block.first == number] == [[""]]


def test_blocks_are_translated_as_single_lines_are() -> None:
    bundle = bundle_of_documents(liking=1.0)
    found = translate(bundle)
    texts = [each.block.texts[0] for each in found]
    assert any("<sep>" in text for text in texts)
    plain = list(translate_lines(bundle, input_lines(texts), options()))
    for each, other in zip(found, plain, strict=True):
        assert [h.tokens for h in each.translation.hypotheses] == [h.tokens for h in other.hypotheses]
        assert each.translation.source.number == each.block.first


@pytest.mark.parametrize("method", METHODS)
def test_work_goes_on_after_any_window(method: dict[str, object]) -> None:
    bundle = bundle_of_documents(liking=1.0)
    beside = input_lines(LINES, documents=IDS)
    whole = list(translate_documents(bundle, beside, options(**method), BLOCKS, window=2))
    for blocks in range(0, len(whole), 2):
        done = sum(len(each.block.sentences) for each in whole[:blocks])
        rest = translate_documents(bundle, beside[done:], options(**method), BLOCKS, window=2)
        for mine, theirs in zip(rest, whole[blocks:], strict=True):
            assert mine.block == theirs.block and mine.texts == theirs.texts


def test_blocks_are_shorter_where_only_the_source_is_known() -> None:
    bundle = bundle_of_documents()
    beside = input_lines(LINES, documents=IDS)
    short = Documents(max_length=24, source_length=12)
    lengths = [
        len(each.block.ids[0]) + 1
        for each in translate_documents(bundle, beside, options(), short)
        if len(each.block.sentences) > 1
    ]
    assert lengths and max(lengths) <= 12
    # What the positions allow counts too.
    narrow = replace(bundle, max_positions=10)
    for each in translate_documents(narrow, beside, options(), BLOCKS):
        assert len(each.block.sentences) == 1 or len(each.block.ids[0]) < 10
        assert each.translation.source.cut == 0


class Tagger:
    """Short words are articles; keeps what it was given."""

    name, version, language = "hanta", "1", "en"
    tagset: TagSet = "penn"

    def __init__(self, language: str) -> None:
        self.seen: list[list[str]] = []

    def tokenize(self, line: str) -> list[str]:
        return line.split()

    def tag(self, words: Sequence[str]) -> list[str]:
        self.seen.append(list(words))
        return ["NN" if len(word) > 3 else "DT" for word in words]


def test_sentences_are_tagged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = Tagger("en")
    monkeypatch.setitem(taggers._TAGGERS, "hanta", lambda language: tagger)
    plain = bundle_of_documents()
    tagging = SourceTagger(plain.tokenizers.source, name="hanta", language="en")
    features = FeatureSet.fit(["pos_category"], plain.tokenizers, [], tagging)
    computed: list[dict[str, list[int]]] = []
    compute = FeatureSet.compute

    def watched(self: FeatureSet, *arguments: Any) -> Any:
        found = compute(self, *arguments)
        computed.append({name: values.tolist() for name, values in found.items()})
        return found

    monkeypatch.setattr(FeatureSet, "compute", watched)
    bundle = replace(plain, features=features)
    beside = input_lines(LINES, documents=IDS)
    made = list(translate_documents(bundle, beside, options(), BLOCKS))
    assert tagger.seen == [line.split() for line in LINES]
    by_tagger, computed[:] = list(computed), []
    assert any(WordCategory.REST in each["pos_category"] for each in by_tagger), "separators"
    given = [TaggedSentence(tuple(words), tuple(tagger.tag(words)), tagset="penn") for words in map(str.split, LINES)]
    tagged = input_lines(LINES, tags=given, documents=IDS)
    again = list(translate_documents(bundle, tagged, options(), BLOCKS))
    assert [each.lines for each in made] == [each.lines for each in again]
    assert computed == by_tagger


def test_forced_scores_are_those_of_blocks() -> None:
    bundle = bundle_of_documents()
    targets = list(reversed(LINES))
    blocks = pack_pairs(bundle, input_lines(LINES, documents=IDS), targets, BLOCKS)
    assert [sentence.texts for block in blocks for sentence in block.sentences] == list(
        zip(LINES, targets, strict=True)
    )
    assert all(line.tags is None for line in source_lines(blocks))
    scores = list(score_pairs(bundle, source_lines(blocks), [block.texts[1] for block in blocks]))
    for block, score in zip(blocks, scores, strict=True):
        assert score.source.number == block.first
        assert score.tokens.count("<sep>") == len(block.sentences) - 1
        assert score.log_probability == pytest.approx(sum(score.token_log_probabilities))
        assert len(block.sentences) == 1 or len(score.tokens) <= 24
