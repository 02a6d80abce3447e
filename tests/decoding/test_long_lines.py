"""A line that is too long is translated in parts: one output, made of those that the parts have alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.data.input_line import InputLine, input_lines
from sparsenmt.data.tagging.tagged_text import TaggedSentence
from sparsenmt.data.terminology import Term, WordEdges
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import UNK
from sparsenmt.decoding.alternatives import find_alternatives
from sparsenmt.decoding.inputs import read_sources
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.term_counts import TermCounts
from sparsenmt.decoding.translate import TranslatedLine, merge_parts, sparsity_rate, translate_lines
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Decoding, TokenizerSection
from tests.decoding.support import TinyBundle, invented_lines, tiny_bundle
from tests.decoding.test_ahead import gated_bundle

SENTENCES = ["Zwei Katzen spielen dort.", "Nie sieht das alte Haus am Fluss und steht.", "Haus am Fluss?"]
LONG = "  ".join(SENTENCES)
LINES = ["Katzen spielen", LONG, "", "am Fluss"]


def translate(bundle: TinyBundle, lines: list[InputLine], **values: Any) -> list[TranslatedLine]:
    told: list[int] = []
    options = Decoding.model_validate({"max_length_factor": 0.5, "max_length_offset": 3, "beam_size": 3, **values})
    found = list(translate_lines(bundle, lines, options, advance=told.append))
    assert sum(told) == len(lines), "lines are counted, not parts"
    return found


def divided(bundle: TinyBundle, longest: int = 50) -> TinyBundle:
    return replace(bundle, longest=(30, longest))


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_a_line_is_made_of_its_sentences(method: str) -> None:
    bundle = divided(tiny_bundle(2))
    found = translate(bundle, input_lines(LINES), method=method)
    assert [each.source.number for each in found] == [0, 1, 2, 3]
    assert [each.source.text for each in found] == LINES
    parts = translate(bundle, input_lines(SENTENCES), method=method, long="refuse")
    count = len(parts[0].hypotheses)
    for rank, text in enumerate(found[1].best_texts(count)):
        assert text == " ".join(each.best_texts(count)[rank] for each in parts if each.best_texts(count)[rank])
        own = found[1].hypotheses[rank]
        assert own.log_probability == pytest.approx(sum(each.hypotheses[rank].log_probability for each in parts))
        assert own.score == pytest.approx(sum(each.hypotheses[rank].score for each in parts))
        assert own.tokens == [token for each in parts for token in each.hypotheses[rank].tokens]
    scores = [each.score for each in found[1].hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert found[1].source.parts == len(SENTENCES) and found[0].source.parts == 1


def test_lines_that_are_short_enough_stay_as_they_are() -> None:
    plain, bundle = tiny_bundle(2, max_positions=200), divided(tiny_bundle(2, max_positions=200))
    ours, theirs = (translate(each, input_lines(LINES)) for each in (bundle, plain))
    assert [each.text for i, each in enumerate(ours) if i != 1] == [
        each.text for i, each in enumerate(theirs) if i != 1
    ]
    assert theirs[1].source.parts == 1, "it fits the positions, and no shorter length is known"


def test_a_sentence_beyond_the_positions_is_divided_and_nothing_is_cut() -> None:
    bundle = tiny_bundle(2, max_positions=12)
    (found,) = translate(bundle, input_lines([LONG]))
    read = [part.source.text for part in found.parts]
    assert "".join("".join(read).split()) == "".join(LONG.split())
    assert found.source.cut == 0 and max(part.source.kept for part in found.parts) <= bundle.max_source_length
    (cut,) = translate(bundle, input_lines([LONG]), long="cut")
    assert cut.source.cut == len(bundle.tokenizers.source.encode(LONG)) - bundle.max_source_length


def test_a_long_line_is_refused_where_it_stands() -> None:
    bundle = divided(tiny_bundle(2))
    with pytest.raises(UserError) as error:
        translate(bundle, input_lines(LINES), long="refuse")
    assert (error.value.where, "30 tokens, or 50 in a sentence" in error.value.message) == ("line 2", True)


def test_a_long_line_with_tags_is_refused_too() -> None:
    bundle, (line,) = divided(tiny_bundle(2)), input_lines([LONG])
    tagged = replace(line, tags=TaggedSentence(tuple(LONG.split()), ("NN",) * len(LONG.split()), text=LONG))
    assert len(read_sources(bundle, [tagged], long="split")) == 1
    with pytest.raises(UserError, match="longer than what the model was trained on"):
        read_sources(bundle, [tagged], long="refuse")


@pytest.mark.parametrize("text", ["\r", "\t", "\u00a0", " \u3000\u2028 "])
def test_white_space_is_an_empty_line(text: str) -> None:
    bundle = tiny_bundle(2)
    assert bundle.tokenizers.source.encode(text)
    (found,) = translate(bundle, input_lines([text]))
    assert found.source.empty and found.text == ""


def test_gates_of_all_parts_count() -> None:
    bundle = divided(gated_bundle())
    found = translate(bundle, input_lines(LINES))
    line = found[1]
    assert line.gates is not None and len(line.gates) == len(line.source.ids)
    np.testing.assert_array_equal(line.gates, np.concatenate([part.gates for part in line.parts]))
    assert 0 < (sparsity_rate(found) or 0) < 1


def test_a_prefix_belongs_to_the_first_part() -> None:
    bundle = divided(tiny_bundle(2))
    prefix = tuple(bundle.tokenizers.target.encode("zwei"))
    (found,) = translate(bundle, [replace(*input_lines([LONG]), prefix=prefix)])
    assert all(tuple(each.tokens[:4]) == prefix for each in found.hypotheses)
    assert [part.source.prefix for part in found.parts] == [prefix, (), ()]


def term(source: str, target: str, line: str, place: int, bundle: TinyBundle) -> Term:
    tokenizer = bundle.tokenizers.target
    return Term(
        source, target, tuple(tokenizer.encode(target)), None, WordEdges.of(tokenizer), (place, place + len(source))
    )


def test_every_part_has_its_terms_and_a_term_is_not_divided() -> None:
    bundle = divided(tiny_bundle(2, kind="word"))
    bundle = replace(bundle, longest=(5, 6))
    line = "Haus am Fluss. Katzen sieht das alte Haus und spielen dort"
    places = [line.index("Haus"), line.index("Haus", 9)]
    across = line.index("Fluss. Katzen")
    terms = (
        term("Haus", "nie", line, places[0], bundle),
        term("Fluss. Katzen", "dort", line, across, bundle),
        term("Haus", "nie", line, places[1], bundle),
    )
    sources = read_sources(bundle, [replace(*input_lines([line]), terms=terms)], long="split")
    assert len(sources) > 1
    found = [(own.target, part.text[slice(*own.span)]) for part in sources for own in part.terms]
    assert sorted(found) == [("dort", "Fluss. Katzen"), ("nie", "Haus"), ("nie", "Haus")]
    (output,) = translate(bundle, [replace(*input_lines([line]), terms=terms)], max_length_offset=9)
    counts = TermCounts()
    counts.add(output)
    assert (counts.wanted, counts.missing) == (3, 0)


def test_a_term_counts_once_in_a_line_that_is_not_divided() -> None:
    bundle, line = tiny_bundle(2), "Haus am Haus"
    terms = tuple(term("Haus", "nie", line, place, bundle) for place in (0, 8))
    (source,) = read_sources(bundle, [replace(*input_lines([line]), terms=terms)], long="split")
    assert [own.span for own in source.terms] == [(0, 4)]


@pytest.mark.parametrize("tags", ["<bt> ", "<bt> >>fra<< ", "translate German to French: "])
def test_every_part_has_the_tags_of_its_line(tags: str) -> None:
    options = TokenizerSection.model_validate({"kind": "word", "vocabulary_size": 60})
    words = [*invented_lines(20, 1), "<bt> >>fra<< translate German to French:"]
    tokenizer = train_tokenizer(options, words)
    bundle = replace(tiny_bundle(2), tokenizers=Tokenizers(tokenizer, tokenizer, True), source_language="source")
    own = len(tokenizer.encode(tags))
    bundle = replace(bundle, longest=(4 + own, 4 + own))
    line = tags + "Zwei Katzen spielen. Nie sieht das alte Haus am Fluss."
    parts = read_sources(bundle, input_lines([line]), long="split")
    assert [part.text for part in parts] == [
        tags + text for text in ("Zwei Katzen spielen.", "Nie sieht das alte", "Haus am Fluss.")
    ]
    assert [part.ids[:-1] for part in parts] == [tokenizer.encode(part.text) for part in parts]


def test_parts_draw_their_own_samples() -> None:
    bundle = replace(tiny_bundle(2, ending=-9.0), longest=(5, 9))
    (found,) = translate(bundle, input_lines(["Katzen. Katzen. Katzen."]), method="sample", max_length_offset=20)
    texts = [part.text for part in found.parts]
    assert len(set(texts)) == len(texts) == 3
    (alone,) = translate(bundle, input_lines(["Katzen."]), method="sample", max_length_offset=20)
    assert alone.text == texts[0], "what is drawn for a line is drawn for its first part"


def test_other_readers_cut() -> None:
    (line,) = read_sources(divided(tiny_bundle(2, max_positions=20)), input_lines([LONG]))
    assert line.cut > 0 and line.parts == 1


def test_alternatives_begin_with_the_words_before_them() -> None:
    bundle = tiny_bundle(2, kind="word")
    options = Decoding.model_validate({"beam_size": 2, "max_length_offset": 4, "unknown": "forbid"})
    lines = input_lines(["zwei Katzen", "", "das alte Haus", "nie"])
    plain = list(translate_lines(bundle, lines, options))
    for window in (2, 9):
        found = list(find_alternatives(bundle, lines, options, position=2, count=3, window=window))
        assert [each.translation.text for each in found] == [each.text for each in plain]
        for each in found:
            words = each.translation.text.split(" ")
            assert len(each.found) == (0 if not each.translation.text else 3)
            for other in each.found:
                assert other.translation.text.split(" ")[:2] == [words[0], other.word] == [each.prefix, other.word]
            assert [other.probability for other in each.found] == sorted(
                (o.probability for o in each.found), reverse=True
            )
            assert len({other.word for other in each.found}) == len(each.found)
            assert {other.translation.source.number for other in each.found} <= {each.translation.source.number}


def test_alternatives_keep_to_a_target_prefix() -> None:
    bundle = tiny_bundle(2, kind="word")
    options = Decoding.model_validate({"beam_size": 2, "max_length_offset": 4, "unknown": "forbid"})
    prefix = tuple(bundle.tokenizers.target.encode("Haus nie"))
    lines = [replace(*input_lines(["zwei Katzen"]), prefix=prefix)]
    for position, count in ((1, 0), (2, 0), (3, 2)):
        (found,) = find_alternatives(bundle, lines, options, position=position, count=2)
        assert found.reached and len(found.found) == count
        assert all(each.translation.text.startswith("Haus nie ") for each in found.found)


def test_no_alternative_is_beyond_the_positions() -> None:
    bundle = tiny_bundle(2, kind="word", max_positions=6, ending=-30.0)
    options = Decoding.model_validate({"beam_size": 2, "max_length_offset": 9, "unknown": "forbid"})
    (plain,) = translate_lines(bundle, input_lines(["zwei Katzen"]), options)
    for position in range(1, 9):
        (found,) = find_alternatives(bundle, input_lines(["zwei Katzen"]), options, position=position, count=2)
        assert found.translation.text == plain.text and bool(found.found) == (position <= bundle.max_target_length)


def test_alternatives_have_what_is_copied() -> None:
    bundle = tiny_bundle(2, kind="word")
    with torch.no_grad():
        bundle.model.embeddings["output"][UNK] *= 3
    options = Decoding.model_validate({"beam_size": 2, "max_length_offset": 4, "unknown": "copy"})
    copied = 0
    for position in (1, 2, 3):
        (found,) = find_alternatives(bundle, input_lines(["Wale Wale"]), options, position=position, count=20)
        for each in found.found:
            words = each.translation.text.split(" ")
            assert words[: position - 1] == found.prefix.split(" ")[: position - 1] and words[position - 1] == each.word
            copied += each.word == "Wale"
    assert copied


def test_sampled_alternatives_do_not_depend_on_the_lines_beside_theirs() -> None:
    bundle = tiny_bundle(2, kind="word")
    options = Decoding.model_validate({"method": "sample", "max_length_offset": 4, "unknown": "forbid"})
    lines = input_lines(["zwei Katzen", "das alte Haus", "nie", "Katzen"])
    for position in (1, 99):
        together, alone = (
            list(find_alternatives(bundle, lines, options, position=position, count=2, window=window))
            for window in (9, 1)
        )
        found = [[[other.translation.text for other in each.found] for each in own] for own in (together, alone)]
        assert found[0] == found[1] and [each.reached for each in together] == [position == 1] * len(lines)


def test_layers_of_a_line_are_the_mean_over_the_tokens_of_its_parts() -> None:
    (line,) = read_sources(divided(tiny_bundle(2)), input_lines(LINES[:1]))
    tokenizer = tiny_bundle(2).tokenizers.target
    outputs = [Hypothesis([5, 6, 7], -1.0, -1.0, True, layers=1.0), Hypothesis([5], -1.0, -1.0, False, layers=3.5)]
    parts = [TranslatedLine(line, [each], tokenizer) for each in outputs]
    assert merge_parts(parts).hypotheses[0].layers == pytest.approx((4 * 1.0 + 1 * 3.5) / 5)
    assert merge_parts(parts[:1]).hypotheses[0].layers == 1.0
