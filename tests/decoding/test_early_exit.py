"""Early exits: the outputs and states of a loop that computes every key and value anew."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.data.vocabulary import BOS, EOS, PAD
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch, Results, strategy_of
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Keys
from sparsenmt.model.stacks import memory_keys
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.test_speculative import batch_of, model_of, texts
from tests.examples import examples
from tests.native.libraries import decoding_kernels

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "post-norm, one layer three times": {"norm": "post", "depth": {"name": "tied_multi", "recurrent": "both"}},
    "a window": {"attention": {"decoder_self": {"pattern": {"name": "toy_lookback", "left": 2}}}},
    "a filter": {"memory": [{"name": "toy_faint"}]},
    "another transform": {"attention": {"cross": {"transform": {"name": "toy_temperature"}}}},
    "two of three exits": {"depth": {"name": "tied_multi", "weights": [[0.0, 1.0, 1.0]] * 2}},
}


def search(engine: Engine, batch: EncodedBatch, **keys: Any) -> Results:
    options = Decoding.model_validate({"method": "early_exit", **keys})
    (found,) = strategy_of(options).search(engine, [batch], lambda numbers: nullcontext())
    return found


def of(model: Transformer, **given: Any) -> EncodedBatch:
    batch = batch_of(model, **given)
    return EncodedBatch(
        batch.memory,
        batch.limits,
        batch.numbers,
        batch.numbers,
        allowed=batch.allowed,
        decoder_exits=model.plan.decoder_exits,
    )


@torch.inference_mode()
def naive(model: Transformer, memory: Memory, limit: int, confidence: float) -> tuple[list[int], float, list[int]]:
    """The tokens of one sentence, their log-probability, and the layers of each.

    ``inputs[t]`` has the state with which every position came to layer t: that of its exit, where it skipped the layer.
    """
    decoder, depth = model.decoder, model.plan.decoder_exits[-1]
    inputs: list[Tensor] = [torch.empty(1, 0, model.output_table.shape[1], dtype=torch.float64)] * depth
    tokens, layers, total = [BOS], list[int](), 0.0
    while len(tokens) <= limit:
        place = len(tokens) - 1
        x = model._embed(torch.tensor([tokens[-1:]]), "target", place)
        stopped = depth
        for t in range(depth):
            inputs[t] = torch.cat([inputs[t], x], 1)
            if t >= stopped:
                continue
            block: Any = decoder.layers[decoder.plan[t]]
            seen = block.self_input(inputs[t])
            positions = torch.arange(place + 1)[None]
            keys = Keys(torch.ones(1, place + 1, dtype=torch.bool), positions[:, -1:], positions)
            q, kv = block.own.project_queries(seen[:, -1:]), block.own.project_keys_values(seen)
            x = block.add_self(x, q, kv, keys, decoder.steps.at(t, "self"))
            cross = block.cross.project_keys_values(memory.states)
            x = block.add_cross(x, cross, memory_keys(memory, positions[:, -1:]), decoder.steps.at(t, "cross"))
            x = block.add_feed_forward(x)
            first, second = model.project(decoder.norm(x))[0, -1].softmax(-1).topk(2).values.tolist()
            if t + 1 in model.plan.decoder_exits and first - second > confidence:
                stopped = min(stopped, t + 1)
        layers.append(stopped)
        values = model.project(decoder.norm(x))[0, -1].log_softmax(-1)
        total, allowed = total, values.clone()
        allowed[[PAD, BOS]] = -math.inf
        tokens.append(int(allowed.argmax()))
        total += float(values[tokens[-1]])
        if tokens[-1] == EOS:
            break
    return tokens[1:], total, layers


@examples("confidence", [0.0, 0.05, 0.2, 1.0], fast=[0.05, 0.2])
@pytest.mark.parametrize("keys", MODELS.values(), ids=MODELS)
def test_equals_a_plain_loop(keys: dict[str, Any], confidence: float) -> None:
    model = model_of(**keys)
    batch = of(model)
    found = search(TorchEngine(model), batch, exit_confidence=confidence)
    ran: list[int] = []
    for number, limit in zip(batch.numbers, batch.limits.tolist(), strict=True):
        tokens, total, layers = naive(model, batch.memory.select(torch.tensor([number])), limit, confidence)
        (own,) = found[number]
        assert own.tokens == (tokens[:-1] if tokens[-1] == EOS else tokens)
        assert own.log_probability == pytest.approx(total, abs=1e-9)
        assert own.layers == pytest.approx(sum(layers) / len(layers))
        ran += layers
    least = min(model.plan.decoder_exits)
    assert {0.0: {least}, 1.0: {3}}.get(confidence, set(ran)) == set(ran)


def test_without_an_exit_it_is_greedy_search() -> None:
    model = model_of()
    batch = of(model)
    (expected,) = strategy_of(Decoding(method="greedy")).search(TorchEngine(model), [batch], lambda _: nullcontext())
    assert texts(search(TorchEngine(model), batch, exit_confidence=1.0)) == texts(expected)


def test_a_sentence_alone_gives_what_it_gives_in_a_batch() -> None:
    model = model_of()
    batch, engine = of(model), TorchEngine(model)
    together, layers = search(engine, batch, exit_confidence=0.1), set[float | None]()
    for number in batch.numbers:
        row = torch.tensor([number])
        single = EncodedBatch(
            batch.memory.select(row), batch.limits[row], [number], [number], decoder_exits=batch.decoder_exits
        )
        alone: Hypothesis = search(engine, single, exit_confidence=0.1)[number][0]
        assert (alone.tokens, alone.layers) == (together[number][0].tokens, together[number][0].layers)
        layers.add(alone.layers)
    assert len(layers) > 2


def test_layers_that_are_skipped_compute_nothing_but_keys_and_values() -> None:
    model = model_of()
    batch, rows = of(model), [0, 0, 0]

    def noting(t: int) -> Any:
        def note(module: Any, given: tuple[Tensor], output: Tensor) -> None:
            rows[t] += given[0].shape[0] * given[0].shape[1]

        return note

    handles = [block.feed_forward.register_forward_hook(noting(t)) for t, block in enumerate(model.decoder.layers)]
    found = search(TorchEngine(model), batch, exit_confidence=0.1)
    for handle in handles:
        handle.remove()
    tokens = sum(len(each.tokens) + each.ended for (each,) in found.values())
    layers = sum(round(each.layers * (len(each.tokens) + each.ended)) for (each,) in found.values() if each.layers)
    assert rows[0] == tokens and sum(rows) == layers and rows[0] > rows[1] > rows[2] > 0


@pytest.mark.parametrize("listed", [False, True])
def test_with_compiled_kernels(listed: bool) -> None:
    decoding_kernels(torch.float32)
    model = model_of(dimension=64, feed_forward=96, heads=4)
    batch = of(model)
    if listed:
        allowed = torch.rand(len(batch.numbers), 20, generator=torch.Generator().manual_seed(1)) < 0.6
        allowed[:, :4] = True
        batch = of(model, allowed=allowed)
    expected = search(TorchEngine(model), batch, exit_confidence=0.1)
    model.float()
    batch = of(model, allowed=batch.allowed)
    found = search(build(model), batch, exit_confidence=0.1)
    assert texts(found) == texts(expected)
    assert [each.layers for (each,) in found.values()] == [each.layers for (each,) in expected.values()]
