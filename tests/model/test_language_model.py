"""Language models: segments with memory, steps with a cache and one pass over the whole text give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.transformer import Transformer
from tests.model.support import TARGET_SIZE, random_model
from tests.no_source import no_source

SPAN = {"name": "adaptive_span", "maximum": 9, "ramp": 3, "init": 0.3}
RELATIVE = {"name": "transformer_xl"}
VECTORS = {"name": "distance_vectors", "maximum": 9}
CASES: dict[str, tuple[int, dict[str, Any]]] = {  # the segment memory covers what the heads see
    "relative": (512, {"position": RELATIVE}),
    "relative and top-k": (512, {"position": RELATIVE, "transform": {"name": "topk", "k": 3}}),
    "relative and entmax": (512, {"position": RELATIVE, "transform": {"name": "entmax15"}}),
    "relative and a window": (3, {"position": RELATIVE, "pattern": {"name": "window", "k": 4}}),
    "vectors": (512, {"position": VECTORS}),
    "span": (9, {"position": VECTORS, "span": SPAN}),
    "span, then top-k": (9, {"span": SPAN, "transform": {"name": "topk", "k": 3}}),
    "top-k, then span": (9, {"span": SPAN | {"mask": "weights"}, "transform": {"name": "topk", "k": 3}}),
    "span and sparsemax": (9, {"span": SPAN, "transform": {"name": "sparsemax"}, "position": RELATIVE}),
}
LENGTH = 230  # bands are gathered


def language_model(memory: int, site: dict[str, Any], **keys: Any) -> Transformer:
    return random_model(
        **{"encoder_layers": 0, "tie_embeddings": "all", "positions": "none", **keys},
        segment_memory=memory,
        attention={"decoder_self": site},
    )


def text(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(4, TARGET_SIZE, (rows, length), generator=torch.Generator().manual_seed(1))


def in_segments(model: Transformer, tokens: Tensor, size: int) -> Tensor:
    memory: SegmentMemory | None = None
    parts = []
    for segment in tokens.split(size, 1):
        hidden, memory = model.read_segment(segment, memory)
        parts.append(hidden[2])
    return torch.cat(parts, 1)


def in_steps(model: Transformer, tokens: Tensor, sizes: tuple[int, ...]) -> Tensor:
    cache = model.new_cache(no_source(model, len(tokens)))
    parts, first = [], 0
    for size in (*sizes, tokens.shape[1] - sum(sizes)):
        parts.append(model.decode(tokens[:, first : first + size], cache.memory, cache=cache)[2])
        first += size
    return torch.cat(parts, 1)


def same(found: Tensor, expected: Tensor) -> None:
    assert float((found - expected).detach().abs().max()) < 1e-9


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_segments_with_memory_equal_one_pass(name: str) -> None:
    model, tokens = language_model(*CASES[name]), text()
    whole = model.read_segment(tokens)[0][2]
    same(in_segments(model, tokens, 130), whole)
    same(in_segments(model, tokens, 7), whole)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_steps_equal_one_pass_beyond_a_segment(name: str) -> None:
    model, tokens = language_model(*CASES[name]), text()
    whole = model.read_segment(tokens)[0][2]
    same(in_steps(model, tokens, (1, 1, 5, 1, 150, 1, 1)), whole)
    same(model.decode(tokens, no_source(model, len(tokens)))[2], whole)


@torch.no_grad()
def test_steps_read_as_many_positions_as_the_segment_memory_holds() -> None:
    model, tokens = language_model(4, {"position": RELATIVE}), text(1, 20)
    same(in_steps(model, tokens, (1,) * 19), in_segments(model, tokens, 1))
    longer = model.new_cache(no_source(model, 1), segment_memory=64)
    found = model.decode(tokens, longer.memory, cache=longer)[2]
    same(found, model.read_segment(tokens)[0][2])


@torch.no_grad()
def test_without_segment_memory_a_segment_sees_itself_alone() -> None:
    model, tokens = language_model(0, {}, positions="sinusoidal"), text(2, 24)
    alone = torch.cat([model.read_segment(part)[0][2] for part in tokens.split(8, 1)], 1)
    same(in_segments(model, tokens, 8), alone)
    same(in_steps(model, tokens, (1, 2, 1)), model.read_segment(tokens)[0][2])


def test_memory_has_no_gradient_and_ends_where_its_length_says() -> None:
    model, tokens = language_model(6, {"position": RELATIVE}), text(2, 10)
    hidden, memory = model.read_segment(tokens)
    assert memory.length == 10 and [each.shape[1] for each in memory.states] == [6, 6]
    assert not any(each.requires_grad for each in memory.states)
    hidden[2].sum().backward()
    restored = SegmentMemory.of(memory.tensors(), torch.device("cpu"))
    same(model.read_segment(tokens, restored)[0][2], model.read_segment(tokens, memory)[0][2])
    rows = SegmentMemory.concatenate([memory.select(slice(0, 1)), memory.select(slice(1, 2))])
    same(model.read_segment(tokens, rows)[0][2], model.read_segment(tokens, memory)[0][2])


def test_memory_is_as_long_as_the_longest_span() -> None:
    model = language_model(9, CASES["span"][1])
    shares = [p for name, p in model.named_parameters() if name.endswith("span.share")]
    with torch.no_grad():
        for share, longest in zip(shares, (1.5, 2.5), strict=True):
            share.copy_(torch.tensor([longest, 0.5, 0.0, 1.0]) / 9)
    _, memory = model.read_segment(text(1, 30))
    assert [each.shape[1] for each in memory.states] == [4, 5]  # the farthest key has a factor: less than span and ramp


@torch.no_grad()
def test_the_cache_holds_as_many_positions_as_the_longest_span_of_a_layer() -> None:
    model, tokens = language_model(9, CASES["span"][1]), text(1, 40)
    shares = [p for name, p in model.named_parameters() if name.endswith("span.share")]
    for share, longest in zip(shares, (1.5, 2.5), strict=True):
        share.copy_(torch.tensor([longest, 0.5, 0.0, 1.0]) / 9)
    cache = model.new_cache(no_source(model, 1))
    for step in range(40):
        model.decode(tokens[:, step : step + 1], cache.memory, cache=cache)
    held = [own.values.content.shape[0] for own in cache._steps.values()]  # type: ignore[attr-defined]
    assert held == [4 + 1, 5 + 1]  # those within reach, and the query's own


def test_every_parameter_gets_a_gradient() -> None:
    for memory, site in CASES.values():
        model = language_model(memory, site)
        model.read_segment(text(1, 30))[0][2].square().sum().backward()
        assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_span_losses_and_bounds() -> None:
    model = language_model(9, CASES["span"][1])
    shares = {name: p for name, p in model.named_parameters() if name.endswith("span.share")}
    assert model.bounds() == {name: (0.0, 1.0) for name in shares} and len(shares) == 2
    expected = sum(9 * float(p.detach().mean()) for p in shares.values())
    assert float(model.parameter_losses()["span"].detach()) == pytest.approx(expected)
