"""`Model.attention`, `kept`, `alignments` and `encode`: what the reports say, as arrays with names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import sparsenmt
from sparsenmt.analysis.attention_maps import MapChoice, measure_attention_maps
from sparsenmt.analysis.session import AnalysisSession
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.inputs import make_source, read_sources
from tests.api.support import SENTENCES

SOURCE, TARGET = SENTENCES[0], "two old cats see the river"


def test_a_map_is_that_of_the_report(gated: sparsenmt.Model, tmp_path: Path) -> None:
    (tmp_path / "target").write_text(f"{TARGET}\n")
    session = AnalysisSession([gated.directory], sentences=[SOURCE], target=tmp_path / "target")
    for site in ("cross", "encoder_self", "decoder_self"):
        rows = measure_attention_maps(session, MapChoice(site, (2,), (3,))).report.tables[0].records()
        target = None if site == "encoder_self" else TARGET
        found = gated.attention(SOURCE, target, site=site, layer=2, head=3)  # type: ignore[arg-type]
        expected = {(row["query_position"], row["key_position"]): row["weight"] for row in rows}
        for (query, key), weight in expected.items():
            own = found.stand_in[query] if key == -1 and found.stand_in is not None else found[query, key]
            assert own == pytest.approx(weight, abs=1e-6)
        assert len(expected) == found.values.size + (0 if found.stand_in is None else len(found))
        assert {row["query"] for row in rows} == set(found.queries)
        assert {row["key"] for row in rows} - {"(dropped)"} == set(found.keys)


def test_weights_of_zero_are_exactly_zero(dense: sparsenmt.Model) -> None:
    found = dense.attention(SOURCE, TARGET, layer=1, head=1)
    values = np.asarray(found)
    assert values.shape == found.shape == (len(found.queries), len(found.keys)) and values.dtype == np.float64
    assert 0 < found.zeros == int((values == 0).sum()) < values.size
    assert values.sum(1) == pytest.approx(np.ones(len(found)), abs=1e-5)
    shown = found._repr_html_()
    assert shown.count("·</td>") == found.zeros and shown.count("<td") == values.size
    small = (values > 0) & (values < 0.005)
    assert shown.count("&lt;1</td>") == small.sum()


def test_dropped_words_have_their_weight_in_the_stand_in(gated: sparsenmt.Model) -> None:
    found, kept = gated.attention(SOURCE, TARGET), gated.kept(SOURCE)
    assert list(found.dropped) == (kept.gates == 0).tolist() and any(found.dropped) and not all(found.dropped)
    assert found.stand_in is not None and not found[:, list(found.dropped)].any()
    assert found[:].sum(1) + found.stand_in == pytest.approx(np.ones(len(found)), abs=1e-5)
    assert "(dropped)" in found._repr_html_()


def test_the_model_reads_its_own_translation(dense: sparsenmt.Model) -> None:
    own, found = dense.translate([SOURCE])[0], dense.attention(SOURCE)
    tokens = [name for name in found.queries if name != "</s>"]
    assert "".join(tokens) == own.text.replace(" ", "")


def test_the_mean_over_heads_and_layers(dense: sparsenmt.Model) -> None:
    alone = [dense.attention(SOURCE, TARGET, layer=n, head=h).values for n in (1, 2) for h in (1, 2, 3, 4)]
    assert dense.attention(SOURCE, TARGET).values == pytest.approx(np.mean(alone, 0))
    assert dense.attention(SOURCE, TARGET, head=[2, 1]).values == pytest.approx(np.mean([*alone[:2], *alone[4:6]], 0))
    assert repr(dense.attention(SOURCE, TARGET, layer=2, head=1)).startswith("AttentionMap(cross, head 1 of layer 2: ")
    assert "mean of all heads of all layers" in repr(dense.attention(SOURCE, TARGET))
    assert len(dense.heads("cross")) == 4 and dense.layers == (2, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layer": 3}, r"^layer: model has 2 decoder layers, not 3"),
        ({"layer": 0}, r"^layer: must be numbers from 1"),
        ({"head": [1, 5]}, r"^head: model has 4 heads at cross, not 5"),
        ({"head": []}, r"^head: must be numbers from 1"),
        ({"site": "self"}, r"^site: there is no site 'self'"),
        ({"site": "encoder_self", "target": TARGET}, r"^target: has no meaning at encoder_self"),
        ({"source": "  "}, "there is no text in it"),
    ],
)
def test_what_there_is_not_is_refused(dense: sparsenmt.Model, given: dict[str, object], message: str) -> None:
    with pytest.raises(sparsenmt.UserError, match=message):
        dense.attention(**{"source": SOURCE, **given})  # type: ignore[arg-type]


def test_a_language_model_attends_to_what_it_has_read(language: sparsenmt.Model) -> None:
    found = language.attention(SOURCE, layer=2, head=1)
    assert found.site == "decoder_self" and found.queries == found.keys and found.queries[0] == "</s>"
    assert not np.triu(found.values, 1).any() and found.values.sum(1) == pytest.approx(np.ones(len(found)), abs=1e-5)
    for given in ({"site": "cross"}, {"target": TARGET}):
        with pytest.raises(sparsenmt.UserError, match=r"a language model has decoder_self only"):
            language.attention(SOURCE, **given)  # type: ignore[arg-type]
    with pytest.raises(sparsenmt.UserError, match=r"^source: the text has \d+ tokens, and the model 64 positions"):
        language.attention("house " * 90)
    for call in (lambda: language.kept(SOURCE), lambda: language.encode([SOURCE])):
        with pytest.raises(sparsenmt.UserError, match=r"this is a language model"):
            call()
    with pytest.raises(sparsenmt.UserError, match=r"this is a language model"):
        language.alignments([SOURCE], [TARGET])


def test_kept_words_have_the_gates_of_their_tokens(gated: sparsenmt.Model, dense: sparsenmt.Model) -> None:
    for sentence in SENTENCES:
        kept = gated.kept(sentence)
        assert [word.text for word in kept] == [*sentence.split(), "</s>"]
        tokens = "".join(token for word in kept for token in word.tokens)
        assert tokens.replace("▁", "") == "".join(sentence.split()) + "</s>"
        (line,) = read_sources(gated.bundle, input_lines([sentence]))
        gates = gated.bundle.model.encode(make_source(gated.bundle, [line])).memory.gates
        assert gates is not None and kept.gates == pytest.approx(gates[0].numpy(), abs=1e-6)
        assert kept.kept == [word.text for word in kept if any(gate > 0 for gate in word.gates)]
        assert kept.dropped == [word.text for word in kept if not any(word.gates)]
        assert kept.sparsity == float((kept.gates == 0).mean())
    shown = gated.kept(SENTENCES[3])._repr_html_()
    assert "<b>" not in shown and "line-through" in shown and "background:#" in shown
    with pytest.raises(sparsenmt.UserError, match=r"no filter decides"):
        dense.kept(SOURCE)


def test_alignments_follow_the_strongest_attention(gated: sparsenmt.Model) -> None:
    found = gated.alignments(SENTENCES, [TARGET] * len(SENTENCES))
    for sentence, own in zip(SENTENCES, found, strict=True):
        assert own.source == tuple(sentence.split()) and own.target == tuple(TARGET.split())
        weights, kept = gated.attention(sentence, TARGET, layer=2), gated.kept(sentence)
        source = [i for i, word in enumerate(kept.words) for _ in word.tokens][:-1]
        target = np.repeat(range(len(own.target)), [len(gated.bundle.tokenizers.target.encode(w)) for w in own.target])
        expected = {
            (source[int(row[:-1].argmax())], int(word)) for row, word in zip(weights.values, target, strict=False)
        }
        assert set(own) == expected and list(own) == sorted(own)
        assert not {kept[i].text for i, _ in own} & (set(kept.dropped) - set(kept.kept))
        assert str(own) == " ".join(f"{i}-{j}" for i, j in own)
        assert own.words == [(own.source[i], own.target[j]) for i, j in own]
        assert "<b>" not in own._repr_html_()


def test_alignments_of_other_heads_empty_texts_and_wrong_numbers(dense: sparsenmt.Model) -> None:
    first, blank = dense.alignments([SOURCE, " "], [TARGET, TARGET], layer=1, head=2)
    assert first != dense.alignments([SOURCE], [TARGET])[0] and len(blank) == 0 and str(blank) == ""
    assert dense.alignments(["", " "], ["", ""]) == [blank, blank] and dense.alignments([], []) == []
    assert dense.alignments([SOURCE]) == dense.alignments([SOURCE], dense.translate([SOURCE]).texts)
    with pytest.raises(sparsenmt.UserError, match=r"^targets: there are 1 for 2 sources"):
        dense.alignments([SOURCE, SOURCE], [TARGET])
    with pytest.raises(sparsenmt.UserError, match=r"^head: model has 4 heads"):
        dense.alignments([SOURCE], [TARGET], head=5)


@torch.inference_mode()
def test_states_are_those_that_the_decoder_reads(gated: sparsenmt.Model, dense: sparsenmt.Model) -> None:
    for found, (line,) in zip(
        gated.encode(SENTENCES), (read_sources(gated.bundle, input_lines([one])) for one in SENTENCES), strict=True
    ):
        memory = gated.bundle.model.encode(make_source(gated.bundle, [line])).memory
        assert found.states == pytest.approx(memory.states[0].numpy(), abs=1e-5) and found.states.dtype == np.float32
        assert len(found.tokens) == sum(found.word_lengths) == len(line.ids) == len(found.states)
        assert found.words == (*found.text.split(), "</s>")
        assert found.kept is not None and not found.states[found.kept.gates == 0].any()
        assert found.kept.gates == pytest.approx(gated.kept(found.text).gates, abs=1e-5)
        starts = np.cumsum([0, *found.word_lengths])
        for n, mean in enumerate(found.word_states()):
            assert mean == pytest.approx(found.states[starts[n] : starts[n + 1]].mean(0), abs=1e-5)
        assert len(repr(found)) < 120
    assert dense.encode(SENTENCES)[0].kept is None and dense.encode([]) == []
