"""`Model.translate` and `Model.generate`: what `decode` writes, with scores, n-best lists and kept words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import sparsenmt
from sparsenmt.recipe.schema import Decoding
from tests.api.support import SENTENCES


def test_translations_are_those_of_decode(
    gated: sparsenmt.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("\n".join([*SENTENCES, ""]) + "\n")
    written: list[str] = []
    use: dict[str, Any] = {"n_best": 2, "beam_size": 2, "alpha": 1.0}
    sparsenmt.decode(gated.directory, input=str(tmp_path / "text"), as_json=True, write=written.append, **use)
    found = gated.translate([*SENTENCES, ""], **use)
    expected = [json.loads(line)["hypotheses"] for line in written]
    assert [[one.text for one in each.n_best] for each in found] == [[one["text"] for one in own] for own in expected]
    for each, own in zip(found, expected, strict=True):
        assert [one.score for one in each.n_best] == pytest.approx([one["score"] for one in own])
        assert [one.log_probability for one in each.n_best] == pytest.approx([one["log_probability"] for one in own])
        assert [one.ended for one in each.n_best] == [one["ended"] for one in own]
        assert each.text == each.n_best[0].text == str(each) and each.score == each.n_best[0].score
    assert [each.source for each in found] == [*SENTENCES, ""] and found[-1].text == ""


def test_options_default_to_the_models_own(dense: sparsenmt.Model) -> None:
    options = dense.recipe.decoding
    assert dense.translate(SENTENCES).texts == sparsenmt.translate_texts(dense.bundle, SENTENCES)
    assert dense.translate(SENTENCES).texts == sparsenmt.translate_texts(dense.bundle, SENTENCES, options)
    greedy = dense.translate(SENTENCES, method="greedy").texts
    changed = options.model_copy(update={"method": "greedy"})
    assert greedy == sparsenmt.translate_texts(dense.bundle, SENTENCES, changed)
    assert greedy == dense.translate(iter(SENTENCES), beam_size=1).texts


def test_every_decoding_key_is_an_option() -> None:
    elsewhere = {"dtype", "source_language", "target_language", "segment_length", "segment_memory", "threads"}
    assert get_type_hints(sparsenmt.DecodingOptions).keys() == Decoding.model_fields.keys() - elsewhere


def test_results_are_a_list(gated: sparsenmt.Model) -> None:
    found = gated.translate(SENTENCES, n_best=3)
    assert len(found) == 5 and list(found)[1] is found[1] and found[-1].source == SENTENCES[-1]
    assert found[1:3].texts == found.texts[1:3] and isinstance(found[1:3], sparsenmt.Translations)
    assert gated.translate([]) == sparsenmt.Translations() and repr(gated.translate([])) == "Translations(0)"
    for shown in (repr(found), repr(found[0]), repr(found[0].kept), repr(found[0].n_best[0]), repr(gated)):
        assert len(shown) <= 240 and "\n" not in shown
    assert ", 3 best, " in repr(found[0]) and "words kept" in repr(found[0])


def test_kept_words_come_with_the_translation(gated: sparsenmt.Model, dense: sparsenmt.Model) -> None:
    for each in gated.translate(SENTENCES):
        alone = gated.kept(each.source)
        assert each.kept is not None and [word.text for word in each.kept] == [word.text for word in alone]
        assert each.kept.gates == pytest.approx(alone.gates, abs=1e-5) and each.kept.dropped == alone.dropped
    assert [each.kept for each in dense.translate(SENTENCES)] == [None] * len(SENTENCES)


def test_alignments_come_when_they_are_asked_for(gated: sparsenmt.Model) -> None:
    found = gated.translate([*SENTENCES, " "], alignment=True)
    expected = gated.alignments([*SENTENCES, " "], found.texts)
    assert [each.alignment for each in found] == expected
    assert found[0].alignment is not None and gated.translate(SENTENCES)[0].alignment is None


def test_html_is_escaped(gated: sparsenmt.Model) -> None:
    shown = gated.translate(SENTENCES)._repr_html_()
    assert "<b>" not in shown and "&lt;" in shown and "&amp;" in shown and "line-through" in shown
    assert gated.translate(SENTENCES)[3]._repr_html_().count("<tr>") == 2 < shown.count("<tr>")


TEXTS_OF = {
    "translate": "texts",
    "encode": "texts",
    "alignments": "sources",
    "log_likelihood": "texts",
    "perplexity": "texts",
    "generate": "prompts",
}


@pytest.mark.parametrize("method", TEXTS_OF)
def test_one_string_is_no_list(dense: sparsenmt.Model, method: str) -> None:
    name = TEXTS_OF[method]
    with pytest.raises(TypeError, match=rf"^{name} is one str, not a list of them: write \['A man walks.'\]$"):
        getattr(dense, method)("A man walks.")
    with pytest.raises(TypeError, match=rf"^{name}\[1\] is NoneType, not str$"):
        getattr(dense, method)(["A man walks.", None])


@pytest.mark.parametrize("method", ["kept", "attention"])
def test_a_list_is_no_text(gated: sparsenmt.Model, method: str) -> None:
    with pytest.raises(TypeError, match=r"^source is list, not str: call the method once for each text$"):
        getattr(gated, method)(["A man walks."])


def test_errors_name_arguments(dense: sparsenmt.Model, language: sparsenmt.Model) -> None:
    with pytest.raises(TypeError, match=r"^unknown keyword argument 'beamsize': did you mean 'beam_size'\?$"):
        dense.translate(SENTENCES, beamsize=3)  # type: ignore[call-arg]
    with pytest.raises(sparsenmt.UserError) as caught:
        dense.translate(SENTENCES, beam_size=0)
    assert caught.value.where == "beam_size" and str(caught.value).startswith("beam_size: ")
    with pytest.raises(sparsenmt.UserError) as caught:
        dense.translate(SENTENCES, n_best=9)
    assert (caught.value.where, caught.value.hint) == ("n_best", "Raise beam_size.")
    with pytest.raises(sparsenmt.UserError, match=r"^n_best: must be at least 1, not 0"):
        dense.translate(SENTENCES, n_best=0)
    with pytest.raises(sparsenmt.UserError, match=r"^encoder_layers 5: the encoder has 2 layers"):
        dense.translate(SENTENCES, encoder_layers=5)
    with pytest.raises(sparsenmt.UserError, match=r"^max_lines: the model translates"):
        dense.translate(SENTENCES, max_lines=2)
    with pytest.raises(sparsenmt.UserError, match=r"this is a language model"):
        language.translate(SENTENCES)
    with pytest.raises(sparsenmt.UserError, match=r"the model translates"):
        dense.generate(SENTENCES)
    with pytest.raises(sparsenmt.UserError, match=r"^shortlist: has no meaning for a language model"):
        language.generate(SENTENCES, shortlist="model")


def test_a_language_model_continues_prompts(language: sparsenmt.Model, tmp_path: Path) -> None:
    prompts = ["the old", "", "two cats"]
    (tmp_path / "text").write_text("\n".join(prompts) + "\n")
    written: list[str] = []
    sparsenmt.decode(language.directory, input=tmp_path / "text", write=written.append, max_lines=2)
    found = language.generate(prompts, max_lines=2)
    assert [each.text.replace("\n", "\\n") for each in found] == written
    assert all(each.text.startswith(each.source) for each in found)
