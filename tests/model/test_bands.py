"""Bands against masks, for every pattern with a reach, forward and gradients; and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from sparsenmt.errors import UserError
from sparsenmt.model import attend, attention, bands
from sparsenmt.model.attend import attend_banded, attend_masked, restrict
from sparsenmt.model.bands import BandLayout, band_layout, blocks, classes, joined, overlapping, unclassed
from sparsenmt.model.first_batch import check_first_batch
from sparsenmt.model.sockets import Keys, Transform
from sparsenmt.plugins.failure import PluggedMethod, mark
from sparsenmt.sparsity.block import BlockPattern
from sparsenmt.sparsity.dilated import DilatedPattern
from sparsenmt.sparsity.global_pattern import GlobalPattern
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.topk import TopK
from sparsenmt.sparsity.topk_oow import TopKOutOfWindow
from sparsenmt.sparsity.window import WindowPattern
from tests.model.support import random_model, random_source, random_target
from tests.toys.lookback import Lookback
from tests.toys.recency import Recency

B, H, E = 2, 3, 4


class Ahead:
    """Shows the keys of another pattern and the first ones; if symmetric, queries at their positions see every key."""

    def __init__(self, pattern: Any, first: int, symmetric: bool = True) -> None:
        self.pattern, self.first, self.symmetric = pattern, first, symmetric
        vars(self).update({k: getattr(pattern, k) for k in ("reach", "stride", "segment") if hasattr(pattern, k)})
        self.contiguous = True  # of what is within reach: the first keys are not

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        ahead = (positions < self.first)[:, None, None, :]
        from_there = (queries < self.first)[:, None, :, None] & torch.tensor(self.symmetric)
        return ahead | from_there | self.pattern(queries, positions, visible)


PATTERNS: dict[str, Callable[[bool], Any]] = {
    "window": lambda causal: WindowPattern(8, causal=causal),
    "one": lambda causal: WindowPattern(1, causal=causal),
    "wide": lambda causal: WindowPattern(60, causal=causal),
    "block": lambda causal: BlockPattern(5, causal=causal),
    "large block": lambda causal: BlockPattern(40, causal=causal),
    "dilated": lambda causal: DilatedPattern(8, 3, causal=causal),
    "far": lambda causal: DilatedPattern(8, 17, causal=causal),  # so far that classes are sorted out
    "uneven": lambda causal: Lookback(3, 9),
    "global": lambda causal: GlobalPattern(3, causal=causal),
    "first and window": lambda causal: Ahead(WindowPattern(8, causal=causal), 2),
    "first and block": lambda causal: Ahead(BlockPattern(5, causal=causal), 7),
    "first and far": lambda causal: Ahead(DilatedPattern(8, 17, causal=causal), 3),
    "first, seen alone": lambda causal: Ahead(WindowPattern(30, causal=causal), 20, symmetric=False),
}
TRANSFORMS: dict[str, Callable[[bool], Transform]] = {
    "softmax": lambda causal: Softmax(),
    "bias": lambda causal: Recency(H).double(),
    "top-k": lambda causal: TopK(3),
    "out of window": lambda causal: TopKOutOfWindow(4, causal=causal),
}


def inputs(length: int, layout: str = "projected") -> list[Tensor]:
    """Queries, keys and values (B, H, L, E): heads behind each other at a position, or positions in a head."""
    rng = torch.Generator().manual_seed(length)
    projected = [torch.randn(B, length, H, E, generator=rng, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    return [
        x.clone(memory_format=torch.preserve_format if layout == "projected" else torch.contiguous_format)
        for x in projected
    ]


def keys_of(length: int, padded: bool) -> Keys:
    at = torch.arange(length).expand(B, -1)
    lengths = torch.tensor([[length], [max(length // 3, 1) if padded else length]])
    return Keys(at < lengths, at, at)


def both(length: int, pattern: Any, transform: Transform, causal: bool, padded: bool) -> None:
    tensors = [x.requires_grad_() for x in inputs(length)]
    keys = keys_of(length, padded)
    banded = attend_banded(*tensors, keys, transform, 0.0, pattern=pattern, causal=causal)
    masked = attend_masked(*tensors, restrict(keys, pattern, causal), transform, 0.0)
    torch.testing.assert_close(banded, masked, atol=1e-12, rtol=0)
    gradient = inputs(length + 1)[0][:, :, :length]
    found = torch.autograd.grad(banded, tensors, gradient)
    expected = torch.autograd.grad(masked, tensors, gradient)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_banded_equals_masked(pattern: str, transform: str, causal: bool, padded: bool) -> None:
    for length in (1, 2, 15, 16, 50, 97, 160):
        both(length, PATTERNS[pattern](causal), TRANSFORMS[transform](causal), causal, padded)


@pytest.mark.parametrize(
    "cut",
    [
        BandLayout(1, 0, 0, 4),
        BandLayout(1, 3, 2, 4),
        BandLayout(1, 9, 0, 2),
        BandLayout(1, 0, 5, 1),
        BandLayout(1, 1, 1, 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["projected", "heads first"])
def test_bands_are_the_keys_around_a_block(cut: BandLayout, layout: str) -> None:
    for length in (1, 4, 9):
        x = inputs(length, layout)[0]
        n = -(-length // cut.block)
        laid = overlapping(x, cut).unflatten(0, (B, n))
        parts = blocks(x, cut).unflatten(0, (B, n))
        for block in range(n):
            for place in range(cut.width):
                at = block * cut.block - cut.left + place
                if 0 <= at < length:
                    assert torch.equal(laid[:, block, :, place], x[:, :, at])
            for place in range(cut.block):
                at = block * cut.block + place
                wanted = x[:, :, at] if at < length else torch.zeros(B, H, E)
                assert torch.equal(parts[:, block, :, place], wanted.double())
        assert torch.equal(joined(parts.flatten(0, 1), B, length), x)


@pytest.mark.parametrize(
    "cut",
    [
        BandLayout(1, 0, 0, 4),
        BandLayout(1, 3, 2, 4),
        BandLayout(1, 9, 0, 2),
        BandLayout(1, 0, 5, 1),
        BandLayout(1, 1, 1, 32),
    ],
    ids=str,
)
def test_gradients_of_bands_add_up(cut: BandLayout) -> None:
    for length in (1, 4, 9):
        x = inputs(length)[0].requires_grad_()
        laid = overlapping(x, cut)
        own = torch.zeros(laid.shape[0], cut.width, dtype=torch.bool)  # what a mask lets through
        n = laid.shape[0] // B
        for row in range(laid.shape[0]):
            for place in range(cut.width):
                own[row, place] = 0 <= row % n * cut.block - cut.left + place < length
        weights = torch.randn(laid.shape, dtype=torch.float64) * own[:, None, :, None]
        (found,) = torch.autograd.grad((laid * weights).sum(), x)
        expected = torch.zeros_like(x)
        for row in range(laid.shape[0]):
            for place in range(cut.width):
                if own[row, place]:
                    expected[row // n, :, row % n * cut.block - cut.left + place] += weights[row, :, place]
        torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("at_once", [1, 2 * 60 * 2 * 8 * E])
@pytest.mark.parametrize("transform", ["softmax", "bias"])
def test_a_few_heads_at_a_time(monkeypatch: pytest.MonkeyPatch, transform: str, at_once: int) -> None:
    monkeypatch.setattr(bands, "_AT_ONCE", at_once)
    for pattern in (WindowPattern(8, causal=False), Ahead(WindowPattern(8, causal=False), 3)):
        both(60, pattern, TRANSFORMS[transform](False), False, True)


def test_the_first_keys_are_those_of_the_first_positions() -> None:
    """A later part of a text, as a segment without a memory, has none of them."""
    pattern, transform = Ahead(WindowPattern(4, causal=True), 3), Softmax()
    at = torch.arange(40, 140).expand(B, -1)
    keys, tensors = Keys(torch.ones(at.shape, dtype=torch.bool), at, at), inputs(100)
    found = attend_banded(*tensors, keys, transform, 0.0, pattern=pattern, causal=True)
    expected = attend_masked(*tensors, restrict(keys, pattern, True), transform, 0.0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("first", "reach"), [(-1, (4, 0)), ("2", (4, 0)), (1.0, (4, 0)), (3, None)])
def test_what_a_plugin_says_of_the_first_keys_is_checked(first: Any, reach: Any) -> None:
    pattern = Ahead(WindowPattern(5, causal=True), 2)
    model = random_model(attention={"decoder_self": {"pattern": {"name": "window", "k": 5}}})
    for number in range(2):
        model.decoder.steps.at(number, "self").pattern = pattern
    mark(pattern, PluggedMethod("the pattern method 'ahead'", "ahead.py", "model.attention.decoder_self.pattern"))
    check_first_batch(model)
    vars(pattern).update(first=first, reach=reach)
    with pytest.raises(UserError, match=r"'ahead' has first=.* in place of a number of positions") as error:
        check_first_batch(model)
    assert error.value.where == "ahead.py, model.attention.decoder_self.pattern, layer 1"


def test_the_first_keys_count_in_the_length_that_bands_need() -> None:
    window, first = WindowPattern(8, causal=False), 5
    plain = band_layout(window, False)
    assert plain is not None and not plain.first
    for symmetric, causal, more in ((True, False, 2 * first), (False, False, first), (True, True, first)):
        cut = band_layout(Ahead(WindowPattern(8, causal=causal), first, symmetric), causal)
        assert cut is not None and cut.first == first and cut.symmetric is (symmetric and not causal)
        assert causal or cut.shortest == plain.shortest + more


def test_heads_are_split_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.zeros(2, 8, 100, 4)  # a head's bands: 2 x 100 x 4 numbers of 4 bytes, twice
    for at_once, expected in ((1, 1), (6400, 1), (12800, 2), (20000, 3), (25600, 4), (50000, 4), (51200, 8)):
        monkeypatch.setattr(bands, "_AT_ONCE", at_once)
        assert bands.heads_at_once(keys, BandLayout(1, 8, 8, 16)) == expected


@pytest.mark.parametrize("stride", [1, 2, 5, 30])
def test_classes_and_back(stride: int) -> None:
    for length in (1, 5, 12):
        x = inputs(length)[0]
        sorted_out = classes(x, stride)
        assert torch.equal(unclassed(sorted_out, stride, length), x)
        for at in range(length):
            rows = sorted_out.unflatten(0, (B, stride))[:, at % stride]
            assert torch.equal(rows[:, :, at // stride], x[:, :, at])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_scores_grow_with_the_length_and_the_reach(pattern: str, causal: bool) -> None:
    """Counted where they are computed, holes and overlaps included: whatever the length, so many a query."""
    made = PATTERNS[pattern](causal)
    scores = 0

    def counted(q: Tensor, k: Tensor, *rest: Any, **named: Any) -> Tensor:
        nonlocal scores
        scores += q.shape[0] * q.shape[2] * k.shape[2]
        return torch.nn.functional.scaled_dot_product_attention(q, k, *rest[:1])

    for length in (500, 2000):
        scores = 0
        with mock.patch.object(attend, "attend_fused", counted):
            attend_banded(*inputs(length), keys_of(length, False), Softmax(), 0.0, pattern=made, causal=causal)
        keys = restrict(keys_of(300, False), made, causal).allowed
        assert keys is not None
        assert scores / (B * length) <= 2 * int(keys.sum(-1).max()) + 32


@pytest.mark.parametrize(
    ("choice", "kept", "first"),
    [
        ({"name": "window", "k": 5}, 5, 0),
        ({"name": "block", "k": 5}, 5, 0),
        ({"name": "dilated", "k": 3, "rate": 4}, 9, 0),
        ({"name": "global", "k": 2}, 1, 2),
        ({"name": "global", "k": 50}, 1, 40),
        ({"name": "bigbird", "k": 4}, 40, 0),
    ],
)
def test_the_cache_forgets_what_is_out_of_reach(choice: dict[str, Any], kept: int, first: int) -> None:
    model, target = random_model(attention={"decoder_self": {"pattern": choice}}), random_target(2, 40)
    memory = model.encode(random_source((4, 6))).memories[2]
    cache = model.new_cache(memory)
    found = [model.decode(target[:, i : i + 1], cache.memory, cache=cache)[2] for i in range(40)]
    torch.testing.assert_close(torch.cat(found, 1), model.decode(target, memory)[2], atol=1e-10, rtol=0)
    own = cache._steps.values()  # type: ignore[attr-defined]
    assert {each.values.content.shape[0] for each in own} == {kept}
    assert {0 if each.first is None else each.first.shape[3] for each in own} == {first}


def test_a_pattern_without_a_reach_has_no_bands() -> None:
    class Masking:
        reach = None

        def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
            return visible

    assert band_layout(Masking(), False) is None


@pytest.mark.parametrize("name", ["window", "block", "dilated", "global"])
@pytest.mark.parametrize("site", ["encoder_self", "decoder_self"])
def test_a_model_gathers_bands_where_they_pay(site: str, name: str) -> None:
    model = random_model(attention={site: {"pattern": {"name": name, "k": 4}}})
    target = random_target(1, 150)
    with mock.patch.object(attention, "attend_banded", wraps=attention.attend_banded) as banded:
        model.decode(target, model.encode(random_source((150,))).memories[2])
        assert banded.call_count == 2, "both layers"
        banded.reset_mock()
        model.decode(target[:, :20], model.encode(random_source((20,))).memories[2])
        assert not banded.called, "one masked matrix is faster"
