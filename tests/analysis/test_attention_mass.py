"""Cross-attention averaged over heads and layers, and what source words get of it, against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.analysis.attention_maps import ChosenAttention, MapChoice
from sparsenmt.analysis.attention_mass import CrossAttentionMap, MassCounter, cross_attention_maps, panels, report
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import TargetLine, observe
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.data.word_boundaries import word_ids
from sparsenmt.decoding.inputs import SourceLine
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sites import SiteName
from tests.analysis.support import (
    EVERYWHERE,
    L0DROP,
    MASKED,
    OUTPUT,
    TinyBundle,
    encoded_alone,
    gated_bundle,
    naive_gates,
    sources,
)

OUTPUTS = [TargetLine([7, 5, 9, 4][: 1 + i % 4], ended=i % 3 > 0) for i in range(9)]


def naive_map(bundle: TinyBundle, line: SourceLine, output: TargetLine, pick: MapChoice) -> list[list[float]]:
    """(Q, K), summed head by head and layer by layer, of one sentence without company."""
    seen: list[AttentionSeen] = []
    target = [*output.tokens, EOS] if output.ended else list(output.tokens)
    memory = encoded_alone(bundle, line)
    with bundle.model.listen(seen.append), torch.inference_mode():
        bundle.model.decode(torch.tensor([[BOS, *target[:-1]]]), memory)
    if pick.site == "encoder_self":
        seen.clear()
        with bundle.model.listen(seen.append):
            encoded_alone(bundle, line)
    chosen = [each for each in seen if each.site == pick.site and each.step + 1 in (pick.layers or (each.step + 1,))]
    queries, keys = chosen[0].weights.shape[2:]
    result = [[0.0] * keys for _ in range(queries)]
    for each in chosen:
        heads = [head - 1 for head in pick.heads] or list(range(each.weights.shape[1]))
        for h in heads:
            for q in range(queries):
                for k in range(keys):
                    result[q][k] += float(each.weights[0, h, q, k]) / len(heads) / len(chosen)
    return result


def all_maps(bundle: TinyBundle) -> list[CrossAttentionMap]:
    lines = sources(bundle)
    found = dict(cross_attention_maps(LineBatches(bundle, lines, 90), OUTPUTS))
    return [found[i] for i in range(len(lines))]


@pytest.mark.parametrize("memory", [[], OUTPUT, MASKED, EVERYWHERE])
def test_maps_are_those_of_loops(memory: list[dict[str, Any]]) -> None:
    bundle = gated_bundle(memory)
    for line, output, seen in zip(sources(bundle), OUTPUTS, all_maps(bundle), strict=True):
        naive = np.array(naive_map(bundle, line, output, MapChoice()))
        assert seen.target == output.ids and seen.source.line == line
        assert np.abs(seen.weights - naive).max() < 1e-9
        visible = memory != MASKED or not seen.source.dropped.all()
        assert np.abs(seen.weights.sum(1) - visible).max() < 1e-9
        if memory:
            assert seen.source.gates is not None
            assert seen.source.gates.tolist() == pytest.approx(naive_gates(bundle, line))


PICKS = [((), ()), ((1,), ()), ((1, 2), (4,)), ((2,), (1, 3))]


@pytest.mark.parametrize("site", ["cross", "encoder_self", "decoder_self"])
@pytest.mark.parametrize(("layers", "heads"), PICKS)
def test_picked_maps_are_those_of_loops(site: SiteName, layers: tuple[int, ...], heads: tuple[int, ...]) -> None:
    bundle, pick = gated_bundle(OUTPUT, kind="word"), MapChoice(site, layers, heads)
    lines, seen = sources(bundle), ChosenAttention(pick)
    observe(LineBatches(bundle, lines, 40), OUTPUTS, [seen])
    assert seen.parts() == [None]
    for place, (line, output) in enumerate(zip(lines, OUTPUTS, strict=True)):
        naive = np.array(naive_map(bundle, line, output, pick))
        assert np.abs(seen.weights(place, None, *naive.shape) - naive).max() < 1e-9


def test_apart_every_head_has_a_map() -> None:
    bundle, seen = gated_bundle([], kind="word"), ChosenAttention(MapChoice("decoder_self", (2,), (), apart=True))
    lines = sources(bundle)
    observe(LineBatches(bundle, lines, 40), OUTPUTS, [seen])
    assert seen.parts() == [(2, 1), (2, 2), (2, 3), (2, 4)]
    for head in range(1, 5):
        naive = np.array(naive_map(bundle, lines[3], OUTPUTS[3], MapChoice("decoder_self", (2,), (head,))))
        assert np.abs(seen.weights(3, (2, head), *naive.shape) - naive).max() < 1e-9


@pytest.mark.parametrize("memory", [OUTPUT, L0DROP])
def test_dropped_positions_have_the_mass_of_their_stand_in(memory: list[dict[str, Any]]) -> None:
    """The engine's stand-in has position -1; uncompacted, its mass lies on the closed positions, in equal parts."""
    bundle = gated_bundle(memory)
    compared = 0
    for line, output, seen in zip(sources(bundle), OUTPUTS, all_maps(bundle), strict=True):
        heard: list[AttentionSeen] = []
        memory_ = encoded_alone(bundle, line, compact=True)
        with bundle.model.listen(heard.append), torch.inference_mode():
            bundle.model.decode(torch.tensor([[BOS, *output.ids[:-1]]]), memory_)
        crossing = [each for each in heard if each.site == "cross"]
        stand_ins = crossing[0].keys.positions[0] < 0
        assert int(stand_ins.sum()) == int(seen.source.dropped.any())
        mass = torch.stack([each.weights[0].mean(0)[:, stand_ins].sum(-1) for each in crossing]).mean(0)
        dropped = seen.weights[:, seen.source.dropped]
        if dropped.size:
            assert np.abs(dropped.sum(1) - mass.numpy()).max() < 1e-9
            assert np.ptp(dropped, axis=1).max() < 1e-9
            compared += 1
    assert compared


@pytest.mark.parametrize("unit", ["piece", "word"])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("memory", [[], OUTPUT, MASKED, L0DROP])
def test_masses_are_those_of_loops(memory: list[dict[str, Any]], eos: bool, unit: str) -> None:
    bundle = gated_bundle(memory, kind="bpe")
    counter = MassCounter(bundle.tokenizers.source, unit=unit, eos=eos)  # type: ignore[arg-type]
    retained: list[float] = []
    stand_ins: list[float] = []
    words = 0
    for seen in all_maps(bundle):
        counter.add(seen)
        ids, dropped = seen.source.line.ids, seen.source.dropped.tolist()
        places = word_ids(ids, bundle.tokenizers.source).tolist() if unit == "word" else list(range(len(ids)))
        kept: dict[int, float] = {}
        lost = 0.0
        for s, piece in enumerate(ids):
            if piece == EOS and not eos:
                continue
            mass = sum(float(seen.weights[t, s]) for t, target in enumerate(seen.target) if eos or target != EOS)
            if dropped[s]:
                lost += mass
            else:
                kept[places[s]] = kept.get(places[s], 0.0) + mass
        words += len({places[s] for s, piece in enumerate(ids) if eos or piece != EOS})
        retained += kept.values()
        stand_ins += [lost] if any(d for d, piece in zip(dropped, ids, strict=True) if eos or piece != EOS) else []
    found = counter.result("m", 0.3)
    total = sum(retained) + sum(stand_ins)
    assert (found.words, found.retained) == (words, len(retained))
    assert found.mean == pytest.approx(total / words)
    assert found.retained_mean == pytest.approx(sum(retained) / len(retained))
    assert found.under_threshold == pytest.approx(sum(mass < 0.3 for mass in retained) / len(retained))
    assert found.stand_in_share == pytest.approx(sum(stand_ins) / total)
    assert found.stand_in_mean == (pytest.approx(sum(stand_ins) / len(stand_ins)) if stand_ins else None)
    assert found.histogram == np.histogram(retained, [i / 5 for i in range(26)] + [1e9])[0].tolist()
    assert bool(memory) == bool(stand_ins) and (memory != MASKED or sum(stand_ins) == 0)


def test_the_report_states_what_was_counted() -> None:
    bundle = gated_bundle(OUTPUT)
    counter = MassCounter(bundle.tokenizers.source, eos=False)
    for seen in all_maps(bundle):
        counter.add(seen)
    found = counter.result("m")
    made = report([found], unit="piece", eos=False)
    assert "a word is a piece; </s> does not count" in made.notes[0] and "less than 0.6" in made.notes[0]
    summary, histogram = made.tables
    assert summary.records()[0]["retained_mean"] == found.retained_mean
    assert sum(int(str(each["words"])) for each in histogram.records()) == found.retained
    (panel,) = panels([found])
    (points,) = panel.series.values()
    assert len(points) == len(found.histogram) + 1
    assert sum(y or 0 for _, y in points) == pytest.approx(1)
