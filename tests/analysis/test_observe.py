"""Reading a text while observers listen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import Attended, TargetLine, observe
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES, SiteName
from tests.analysis.attention_support import OUTPUTS, attention_bundle, listen, texts
from tests.analysis.support import gated_bundle, sources


@pytest.mark.parametrize("site", SITES)
def test_only_the_sites_that_are_asked_for_are_told(site: SiteName) -> None:
    told: list[Attended] = []
    bundle = attention_bundle("dense")
    listen(bundle, told.append, sites=[site])
    assert {each.site for each in told} == {site}
    assert {each.layer for each in told} == ({1, 2, 3} if site == "encoder_self" else {1, 2})


def test_as_many_layers_run_as_the_recipe_decodes_with() -> None:
    told: list[Attended] = []
    whole = attention_bundle("dense")
    listen(replace(whole, chosen_depth=(2, 1)), told.append)
    layers = {site: {each.layer for each in told if each.site == site} for site in SITES}
    assert layers == {"encoder_self": {1, 2}, "decoder_self": {1}, "cross": {1}}
    in_whole: list[Attended] = []
    listen(whole, in_whole.append)
    ours, theirs = (next(e for e in each if (e.site, e.layer) == ("cross", 1)) for each in (told, in_whole))
    assert not torch.equal(ours.weights, theirs.weights)  # another memory


def test_every_query_of_every_sentence_is_real_once() -> None:
    told: list[Attended] = []
    bundle = attention_bundle("dense")
    listen(bundle, told.append, batch_tokens=30)
    lines = texts(bundle)
    for site in SITES:
        own = [each for each in told if each.site == site and each.layer == 1]
        assert len(own) > 2
        counts = {place: int(n) for each in own for place, n in zip(each.places, each.real.sum(1), strict=True)}
        expected = [len(line.ids) for line in lines] if site == "encoder_self" else [len(o.ids) for o in OUTPUTS]
        assert [counts[i] for i in range(len(lines))] == expected
        for each in own:
            assert each.weights.shape[0] == len(each.places) and each.head_visible.shape == each.weights.shape


def test_without_outputs_the_decoder_is_not_run() -> None:
    told: list[Attended] = []
    bundle = attention_bundle("dense")
    observe(LineBatches(bundle, texts(bundle), 100), None, [told.append], sites=["encoder_self"])
    assert len(told) >= 3


def test_an_output_is_read_one_piece_behind() -> None:
    assert TargetLine([7, 5]).inputs == [BOS, 7, 5] and TargetLine([7, 5]).ids == [7, 5, EOS]
    assert TargetLine([7, 5], ended=False).inputs == [BOS, 7]


def test_an_output_of_nothing_has_no_target_position() -> None:
    told: list[Attended] = []
    bundle = attention_bundle("dense")
    lines, outputs = texts(bundle)[:2], [TargetLine([], ended=False), TargetLine([7])]
    observe(LineBatches(bundle, lines, 1000), outputs, [told.append], sites=["cross"])
    assert told[0].real.sum(1).tolist() == [0 if place == 0 else 2 for place in told[0].places]


@pytest.mark.parametrize("site", ["encoder_self", "cross"])
def test_weights_that_are_not_numbers_are_an_error(site: SiteName) -> None:
    bundle = gated_bundle([], kind="word")
    name = "encoder.layers.0.self.q.weight" if site == "encoder_self" else "decoder.layers.0.cross.q.weight"
    with torch.no_grad():
        dict(bundle.model.named_parameters())[name].fill_(torch.nan)
    lines = sources(bundle)
    with pytest.raises(UserError, match="not finite"):
        observe(LineBatches(bundle, lines, 100), OUTPUTS, [lambda seen: None], sites=[site])
