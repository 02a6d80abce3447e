"""Greedy search in one call: what single steps find, whatever the threads and the company."""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import pytest
import torch

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.native_decoder import NativeDecoder
from sparsenmt.engine.native_engine import NativeEngine
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import EmbeddingOptions, PositionOptions, Transformer, Vocabulary
from sparsenmt.native import greedy
from sparsenmt.recipe.schema import Decoding
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.ssru import SSRU
from tests.decoding.support import encode, sources
from tests.native.libraries import decoding_kernels

VOCABULARY, LONGEST = 70, 12
LENGTHS = [9, 2, 7, 5, 3, 9, 1, 4, 6, 8]


def recurrent_model(norm: Any, position: Any, *, scaled: bool) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        site = SiteModules(SiteHeads(2), lambda *place: Softmax())
        model = Transformer(
            BlockOptions(64, 96, norm, "relu", 0.0, 0.0, 0.0),
            Vocabulary(VOCABULARY, VOCABULARY, "none", output_bias=True),
            PositionOptions(position, 64),
            DepthPlan((0, 1), (0, 1), (2,), (2,)),
            (site, site, site),
            embedding=EmbeddingOptions(scaled=scaled),
            recurrence=SSRU,
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            assert model.output_bias is not None
            model.output_bias[EOS] += 1.0
    return model.eval()


def batch_of(model: Transformer, chosen: list[int]) -> EncodedBatch:
    """Sentences of different lengths, limits and lists of tokens."""
    rows = sources(5, LENGTHS, VOCABULARY)
    tokens, number = torch.arange(VOCABULARY), torch.arange(len(LENGTHS))[:, None]
    allowed = (tokens < 4) | ((tokens + number) % (2 + number % 3) == 0)
    limits = torch.tensor([LONGEST - i % 4 for i in range(len(LENGTHS))])
    memory = encode(model, [rows[i] for i in chosen])
    return EncodedBatch(memory, limits[chosen], chosen, chosen, allowed=allowed[chosen])


def alone_in(batch: EncodedBatch, number: int) -> EncodedBatch:
    """One of the sentences of a batch, as it was encoded there."""
    chosen = torch.tensor([number])
    assert batch.allowed is not None
    memory, allowed = batch.memory.select(chosen), batch.allowed[chosen]
    return EncodedBatch(memory, batch.limits[chosen], [number], [number], allowed=allowed)


def search(engine: Engine, batch: EncodedBatch, method: str) -> Results:
    options = Decoding.model_validate({"method": method} | ({"beam_size": 1} if method == "beam" else {}))
    found: Results = {}
    for results in strategy_of(options).search(engine, [batch], lambda numbers: contextlib.nullcontext()):
        found |= results
    return found


@pytest.fixture(params=[("post", "sinusoidal", True), ("pre", "learned", False), ("post", "none", True)], ids=str)
def model(request: pytest.FixtureRequest) -> Transformer:
    norm, position, scaled = request.param
    return recurrent_model(norm, position, scaled=scaled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_one_call_finds_what_single_steps_find(
    model: Transformer, method: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding_kernels(dtype)
    engine = build(model, dtype)
    calls: list[int] = []
    whole = NativeDecoder.greedy

    def noting(*given: Any) -> Any:
        found = whole(*given)
        calls.append(len(found[1]))
        return found

    everything = list(range(len(LENGTHS)))
    batch = batch_of(model, everything)
    monkeypatch.setattr(greedy, "_TOGETHER", 3)  # sentences that end are replaced
    monkeypatch.setattr(NativeDecoder, "greedy", noting)
    found = search(engine, batch, method)
    assert calls == [len(LENGTHS)]
    alone = {number: search(engine, alone_in(batch, number), method)[number] for number in everything[:3]}
    monkeypatch.setattr(NativeDecoder, "takes_search", lambda *given: False)
    single = search(engine, batch, method)
    monkeypatch.setattr(NativeEngine, "_whole_decoder", None)
    expected = search(engine, batch, method)
    assert found.keys() == expected.keys() == set(everything)
    assert len({(len(each[0].tokens), each[0].ended) for each in expected.values()}) > 2
    for others in (expected, single, alone):
        for number, (other,) in others.items():
            (own,) = found[number]
            assert (own.tokens, own.ended) == (other.tokens, other.ended)
            assert own.log_probability == pytest.approx(other.log_probability, abs=1e-4)
            assert own.score == pytest.approx(other.score, abs=1e-4)


def test_a_sentence_whose_scores_are_not_finite_has_no_output() -> None:
    decoding_kernels(torch.float32)
    model = recurrent_model("post", "sinusoidal", scaled=True)
    engine = build(model)
    batch = batch_of(model, list(range(4)))
    expected = search(engine, batch, "beam")
    broken = copy.deepcopy(batch)
    broken.memory.states[1] = math.nan
    found = search(engine, broken, "beam")
    assert found[1] == [] and all(found[number] == expected[number] for number in (0, 2, 3))


def test_other_searches_take_single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention to earlier positions, listeners, and rules about single steps."""
    decoding_kernels(torch.float32)
    model = recurrent_model("post", "sinusoidal", scaled=True)
    engine = build(model)
    batch = batch_of(model, [0, 1])
    expected = search(engine, batch, "beam")
    with model.listen(lambda seen: None):
        assert {n: each[0].tokens for n, each in search(engine, batch, "beam").items()} == {
            n: each[0].tokens for n, each in expected.items()
        }
    calls: list[object] = []
    monkeypatch.setattr(NativeDecoder, "greedy", lambda *given: calls.append(1))
    for changes in ({"no_repeat_ngram": 2}, {"min_length": 2}, {"method": "sample", "seed": 1}, {"beam_size": 2}):
        options = Decoding.model_validate({"method": "beam", "beam_size": 1, **changes})
        list(strategy_of(options).search(engine, [batch], lambda numbers: contextlib.nullcontext()))
    assert not calls
