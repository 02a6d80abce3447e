"""Reports on attention whose weights need not sum to 1: shares of what there is, and a note that says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sparsenmt.analysis.diversity import divergences
from sparsenmt.analysis.entropy import line_entropies
from sparsenmt.analysis.gates import LineBatches
from sparsenmt.analysis.observe import Attended
from sparsenmt.decoding.inputs import make_source
from sparsenmt.model.protocol import AttentionSeen, weight_shares
from tests.analysis.support import gated_bundle, sources
from tests.outside import registered

SIGMOID = {"transform": {"name": "sigmoid"}}


def bundle_of(**attention: Any) -> Any:
    with registered():
        return gated_bundle([], attention=attention)


def test_shares_sum_to_1_and_rows_of_zeros_stay_so() -> None:
    weights = torch.tensor([[[[0.2, 0.6, 0.0], [0.0, 0.0, 0.0]]]])
    torch.testing.assert_close(weight_shares(weights), torch.tensor([[[[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]]]))


def test_listeners_are_told_whether_weights_sum_to_1() -> None:
    bundle = bundle_of(encoder_self=SIGMOID)
    seen: list[AttentionSeen] = []
    with bundle.model.listen(seen.append), torch.inference_mode():
        memory = bundle.model.encode(make_source(bundle, sources(bundle)[:1])).memory
        bundle.model.decode(torch.tensor([[2, 5]]), memory)
    assert {each.site: each.normalised for each in seen} == {
        **{"encoder_self": False, "decoder_self": True, "cross": True},
    }
    own = next(each for each in seen if not each.normalised)
    assert not torch.allclose(own.weights.sum(-1), torch.ones(()).double())
    torch.testing.assert_close(own.shares.sum(-1), torch.ones_like(own.weights.sum(-1)))
    assert all(each.shares is each.weights for each in seen if each.normalised)


def test_the_entropy_is_that_of_shares() -> None:
    bundle = bundle_of(encoder_self=SIGMOID)
    line = sources(bundle)[0]
    seen: list[AttentionSeen] = []
    with bundle.model.listen(seen.append), torch.inference_mode():
        bundle.model.encode(make_source(bundle, [line]))
    weights, expected = seen[-1].weights[0], []
    for i in range(len(line.ids)):
        rows = [[float(w) / float(weights[h, i].sum()) for w in weights[h, i]] for h in range(len(weights))]
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        expected.append(-sum(p * math.log(p) for p in mean))
    (found,) = line_entropies(LineBatches(bundle, [line], 80))
    assert found.entropy.tolist() == pytest.approx(expected)


def test_diversity_does_not_depend_on_the_sums() -> None:
    weights = torch.rand(1, 2, 3, 4).double()
    visible, real = torch.ones(1, 1, 3, 4, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool)
    found = [divergences(Attended("encoder_self", 1, each, visible, real, [0])) for each in (weights, weights * 0.3)]
    torch.testing.assert_close(*found)
