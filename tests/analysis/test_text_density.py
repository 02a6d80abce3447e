"""Attended positions of language models, read in segments: against counts by hand over one pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.analysis.density import DensityCounter, DensityResult
from sparsenmt.analysis.labels import Head
from sparsenmt.analysis.observe import Attended, observe_text
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.text_scores import TextReading
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.transformer import Transformer
from tests.model.support import TARGET_SIZE, random_model
from tests.no_source import no_source

LEAST = 2.0**-126
TEXT = np.random.default_rng(1).integers(4, TARGET_SIZE, 41)
SPAN = {"name": "adaptive_span", "maximum": 16, "ramp": 4}
SHARES = [[0.0, 0.1, 0.3, 0.75], [0.2, 0.0, 0.0, 1.0]]
SITES: dict[str, dict[str, Any]] = {
    "span": {"span": SPAN},
    "span, top-k": {  # without positions the keys of repeated tokens would tie
        "position": {"name": "transformer_xl"},
        "span": SPAN,
        "transform": {"name": "topk", "k": 3},
    },
    "top-k, span": {"span": {**SPAN, "mask": "weights"}, "transform": {"name": "topk", "k": 3}},
    "span, entmax": {"span": SPAN, "transform": {"name": "entmax", "alpha": 1.7}},
    "position, span, sparsemax": {
        "position": {"name": "transformer_xl"},
        "span": SPAN,
        "transform": {"name": "sparsemax"},
    },
    "routing": {"pattern": {"name": "routing", "clusters": 2, "local": 2, "window": 5}},
    "routing, top-k": {
        "pattern": {"name": "routing", "clusters": 2, "local": 2, "window": 5},
        "transform": {"name": "topk", "k": 2},
    },
    "window": {"pattern": {"name": "window", "k": 4}},
}


def model_of(name: str, memory: int = 64) -> Transformer:
    model = random_model(
        heads=4,
        encoder_layers=0,
        tie_embeddings="all",
        positions="none" if memory else "sinusoidal",
        segment_memory=memory,
        attention={"decoder_self": SITES[name]},
    )
    with torch.no_grad():
        for own, parameter in zip(SHARES, model.bounds(), strict=False):
            model.get_parameter(parameter).copy_(torch.tensor(own))
    return model


def measured(model: Transformer, reading: TextReading) -> DensityResult:
    counter = DensityCounter()
    bundle: Any = SimpleNamespace(model=model, engine=TorchEngine(model), device=torch.device("cpu"))
    observe_text(bundle, TEXT, reading, [counter])
    return counter.result("m")


@torch.inference_mode()
def in_one_pass(model: Transformer) -> dict[Head, tuple[float, float]]:
    """Attended and visible positions of every head, counted key by key."""
    heard: list[AttentionSeen] = []
    with model.listen(heard.append):
        model.decode(torch.tensor([[EOS, *TEXT[:-1].tolist()]]), no_source(model, 1))
    found: dict[Head, tuple[float, float]] = {}
    for seen in heard:
        _, heads, queries, keys = seen.weights.shape
        visible = seen.keys.visible().expand(1, heads, queries, keys)[0].tolist()
        for head, rows in enumerate(seen.weights[0].tolist()):
            attended = sum(weight >= LEAST for row in rows for weight in row)
            total = sum(sum(row) for row in visible[head])
            found[seen.site, seen.step + 1, head + 1] = attended / queries, total / queries
    return found


@pytest.mark.parametrize("name", SITES)
def test_segments_count_what_one_pass_counts(name: str) -> None:
    model = model_of(name)
    expected = in_one_pass(model)
    for length in (7, 41):
        found = measured(model, TextReading(length, 64, 3, None)).heads
        assert found.keys() == expected.keys() and len(found) == 8
        for head, (attended, visible) in expected.items():
            assert found[head].attended == pytest.approx(attended) and found[head].visible == pytest.approx(visible)


@pytest.mark.parametrize("name", ["span", "span, top-k"])
def test_each_head_sees_as_far_as_its_own_span(name: str) -> None:
    found = measured(model_of(name), TextReading(6, 64, 1, None)).heads
    for layer, shares in enumerate(SHARES, start=1):
        for number, share in enumerate(shares, start=1):
            seen = [sum(0 <= i - j < min(4 + 16 * share, 16) for j in range(len(TEXT))) for i in range(len(TEXT))]
            kept = seen if name == "span" else [min(3, each) for each in seen]
            own = found["decoder_self", layer, number]
            assert own.visible == pytest.approx(sum(seen) / len(seen))
            assert own.attended == pytest.approx(sum(kept) / len(kept))
            assert own.queries == len(TEXT)


@pytest.mark.parametrize("rows", [1, 3])
def test_segments_that_are_read_together_are_numbered_one_by_one(rows: int) -> None:
    told: list[Attended] = []
    model = model_of("window", 0)
    bundle: Any = SimpleNamespace(model=model, engine=TorchEngine(model), device=torch.device("cpu"))
    observe_text(bundle, TEXT, TextReading(8, 0, rows, None), [told.append])
    assert [place for each in told if each.layer == 1 for place in each.places] == list(range(6))
