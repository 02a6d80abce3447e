"""The compiled kernels of decoding against PyTorch in float64, and against naive twins."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native import kernels as module
from sparsenmt.native import library as libraries
from sparsenmt.native.instruction_sets import features
from sparsenmt.native.kernels import Kernels, kernels, pack
from sparsenmt.native.sources import DECODING
from tests.native.libraries import IN_USE, PRODUCTS, build_or_skip, builds, decoding_kernels


@pytest.fixture(scope="module", params=builds(thorough=["AVX2, little optimisation"]))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The library that is in use, and others as they are built elsewhere."""
    return library(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=builds(thorough=[]))
def multiplying(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """The same; the other builds are slow here."""
    return library(request.param, tmp_path_factory)


def library(name: str, folders: pytest.TempPathFactory) -> Kernels:
    torch.manual_seed(0)
    if name == IN_USE:
        return decoding_kernels()
    built = Kernels(build_or_skip(DECODING, name, folders))
    assert built.layout.dtypes == PRODUCTS.get(name, built.layout.dtypes)
    return built


def test_it_is_right(found: Kernels) -> None:
    """By the check of every start, with one thread and with several."""
    assert module.error(found) <= 1


def products_or_skip(found: Kernels, dtype: torch.dtype) -> None:
    """Skip what a build is without; the library that is in use has all products that the processor has."""
    if found is kernels():
        decoding_kernels(dtype)
    elif dtype not in found.layout.dtypes:
        pytest.skip(f"built without products of {dtype}")


@pytest.mark.parametrize("queries", [1, 2, 4, 7, 8, 9, 30, 57])
@pytest.mark.parametrize(("length", "size"), [(1, 16), (16, 64), (33, 32), (70, 96), (130, 128)])
@pytest.mark.parametrize("biased", [False, True])
def test_attention(found: Kernels, queries: int, length: int, size: int, biased: bool) -> None:
    """Queries as they are split from a larger product, keys in any layout."""
    q = torch.randn(3, queries, 3 * 2 * size)[..., : 2 * size].unflatten(-1, (2, size)).transpose(1, 2)
    k, v = torch.randn(3, length, 2, size).transpose(1, 2), torch.randn(3, 2, length, size)
    bias = torch.randn(3, length).masked_fill(torch.rand(3, length) < 0.3, -math.inf) if biased else None
    if bias is not None:
        bias[:, 0] = 0.0
    assert found.attends(q, v)
    mask = None if bias is None else bias[:, None, None].double()
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)
    torch.testing.assert_close(found.attend(q, k, v, bias=bias).double(), expected, atol=2e-6, rtol=2e-6)


def test_attention_to_slots(found: Kernels) -> None:
    """Row by row what gathering the keys gives."""
    keys, values = torch.randn(21, 5, 2, 32), torch.randn(21, 5, 2, 32)
    slots = torch.randint(0, 5, (7, 30), dtype=torch.int32)[:, :21]
    q = torch.randn(7, 2, 1, 32)
    places = torch.arange(21), slots.long()
    k, v = (x[places[0], places[1]].transpose(1, 2).double() for x in (keys, values))
    expected = F.scaled_dot_product_attention(q.double(), k, v)
    torch.testing.assert_close(found.attend(q, keys, values, slots=slots).double(), expected, atol=2e-6, rtol=2e-6)


def test_what_attention_is_for(found: Kernels) -> None:
    q, v = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 5, 64)
    assert found.attends(q, v) and not found.attends(q[..., :20], v[..., :20])
    assert not found.attends(q.double(), v.double()) and not found.attends(q.requires_grad_(), v)


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 1000, 8003])
def test_the_vocabulary(found: Kernels, size: int) -> None:
    logits = torch.randn(5, size + 3)[:, :size] * 10
    expected = logits.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(found.log_sums(logits).double(), expected, atol=1e-6, rtol=1e-6)
    width = min(size, 8)
    values, pieces = found.best(logits, width)
    best = logits.topk(width, -1)
    assert torch.equal(values, best.values) and torch.equal(pieces, best.indices)


@pytest.mark.parametrize("opened", [1, 3])
@pytest.mark.parametrize("size", [37, 300])
@pytest.mark.parametrize("never", [(), (0,), (5, 2), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_candidates(found: Kernels, never: tuple[int, ...], opened: int, size: int) -> None:
    """Also where what may never come is the largest, nothing else is left, or a hypothesis is closed."""
    logits, scores = torch.randn(6, size), torch.randn(6 // opened, opened)
    logits[1, list(never)] = 50.0
    logits[2, 8:] = -math.inf
    scores[1, 0] = -math.inf
    rest = logits.clone()
    rest[:, list(never)] = -math.inf
    totals, parents, pieces = found.candidates(given := logits.clone(), scores, never, 5)
    every = ((rest - found.log_sums(logits)) + scores.view(6, 1)).view(len(scores), -1)
    expected = every.topk(5, -1)
    assert torch.equal(totals, expected.values)
    there = totals > -math.inf
    assert torch.equal((parents * size + pieces)[there], expected.indices[there])
    assert not (parents[~there].any() or pieces[~there].any())
    assert torch.equal(given, rest)


def test_what_is_no_number_is_no_candidate(found: Kernels) -> None:
    logits = torch.randn(4, 90)
    logits[[0, 3], 7] = math.nan
    logits[1] = math.inf
    scores = torch.tensor([[0.0], [0.0], [0.0], [-math.inf]])
    totals, _, _ = found.candidates(logits, scores, (), 4)
    assert totals[:2].isnan().all() and totals[2].isfinite().all() and (totals[3] == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize(("sentences", "opened"), [(1, 1), (1, 5), (9, 4), (60, 3), (83, 1)])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("size", "inner"), [(301, 70), (1603, 64)])
def test_candidates_without_all_logits(
    multiplying: Kernels,
    dtype: torch.dtype,
    sentences: int,
    opened: int,
    threads: int,
    size: int,
    inner: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit what is found in the logits: few rows and many, one part of the vocabulary and several."""
    products_or_skip(multiplying, dtype)
    monkeypatch.setattr(module, "threads", lambda work: threads)
    x, weight = torch.randn(sentences * opened, inner), torch.randn(size, inner)
    packed, scores = multiplying.layout.pack(weight, None, dtype), -torch.rand(sentences, opened) * 5
    if opened > 1:
        scores[-1, 1:] = -math.inf
    expected = multiplying.candidates(multiplying.product(x, packed), scores, (0, 299), 7)
    for ours, theirs in zip(multiplying.next(x, packed, scores, (0, 299), 7), expected, strict=True):
        assert torch.equal(ours, theirs)
    mask = torch.zeros(sentences, size).masked_fill_(torch.rand(sentences, size) < 0.9, -math.inf)  # of shortlists
    mask[0, 600:] = -math.inf  # whole parts
    logits = multiplying.product(x, packed) + mask.repeat_interleave(opened, 0)
    expected = multiplying.candidates(logits, scores, (0, 299), 7)
    for ours, theirs in zip(multiplying.next(x, packed, scores, (0, 299), 7, mask), expected, strict=True):
        assert torch.equal(ours, theirs)
    x[0, 3] = math.nan
    totals, _, _ = multiplying.next(x, packed, scores, (0, 299), 7)
    assert bool(totals[0].isnan().all()) and not bool(totals[1:].isnan().any())


def test_forbidden_and_equal_pieces(found: Kernels) -> None:
    logits = torch.full((2, 300), -math.inf)
    logits[0, [7, 200, 299]] = torch.tensor([1.0, 2.0, 1.0])
    logits[1] = 0.5
    values, pieces = found.best(logits, 4)
    assert values[0].tolist() == [2.0, 1.0, 1.0, -math.inf] and pieces[0, :3].tolist() == [200, 7, 299]
    assert pieces[1].tolist() == [0, 1, 2, 3]


def test_what_is_no_number_stays_none(found: Kernels) -> None:
    logits = torch.zeros(3, 100)
    logits[1, 37] = math.nan
    assert found.log_sums(logits).isnan().flatten().tolist() == [False, True, False]
    for dtype in found.layout.dtypes - {torch.float32}:
        result = found.product(logits, found.layout.pack(torch.randn(40, 100), None, dtype), relu=True)
        assert result.isnan().any(1).tolist() == [False, True, False]


def rounded(x: Tensor, dtype: torch.dtype, most_of_pair: int, *, rows: bool) -> Tensor:
    """As the kernel rounds weights, or (``rows``) inputs, in float64."""
    if dtype == torch.bfloat16:
        return x.to(dtype).double()
    if not rows:
        step = x.abs().amax(1, keepdim=True) / 127
        if most_of_pair:
            pairs = F.pad(x, (0, x.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2).abs()
            step = torch.maximum(step, pairs.amax(1, keepdim=True) / (most_of_pair - 1))
        return (x / step).round().double() * step.double()
    levels = (2**15 - 1) // most_of_pair if most_of_pair else 255
    low, high = x.amin(1, keepdim=True).clamp_max(0), x.amax(1, keepdim=True).clamp_min(0)
    step = (high - low) / levels
    zero = (-low / step).round()
    return (((x / step).round() + zero).clamp(0, levels) - zero).double() * step.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize(
    ("rows", "inner", "outer"),
    [
        *((1, 8, 32), (13, 70, 41), (33, 64, 100), (260, 33, 7)),
        *(
            (1, 2048, 64),
            (15, 64, 33),
            (16, 512, 96),
            (17, 128, 16),
            (47, 192, 70),
            (300, 256, 513),
        ),  # whole tiles of AMX
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_products(multiplying: Kernels, dtype: torch.dtype, rows: int, inner: int, outer: int, scale: float) -> None:
    products_or_skip(multiplying, dtype)
    torch.manual_seed(rows)  # whatever ran before: a number between two steps may be rounded either way
    x, weight, bias = torch.randn(rows, inner) * scale, torch.randn(outer, inner), torch.randn(outer)
    added = torch.randn(rows, outer)
    packed = multiplying.layout.pack(weight, bias, dtype)
    pair = multiplying.layout.most_of_pair
    inputs, weights = rounded(x, dtype, pair, rows=True), rounded(weight, dtype, pair, rows=False)
    expected = inputs @ weights.T + bias.double()
    if dtype == torch.bfloat16:  # sums in fp32, in any order
        sums = inputs.abs() @ weights.abs().T + bias.double().abs() + added.double().abs()
        allowed = sums * 4 * 2.0**-24
    else:  # a step apart where an input lies between two of them: the kernel multiplies by the inverse of the step
        allowed = 1e-2 * scale + 1e-4 * expected.abs()
    assert ((multiplying.product(x, packed).double() - expected).abs() <= allowed).all()
    both = multiplying.product(x, packed, relu=True, added=added).double()
    assert ((both - (expected.relu() + added.double())).abs() <= allowed).all()
    close = F.linear(x, weight, bias)
    assert float((multiplying.product(x, packed) - close).abs().max()) <= 0.05 * float((close - bias).abs().max())


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_int8_do_not_saturate(multiplying: Kernels, sign: int) -> None:
    """Inputs at the highest level, next to weights that are all the largest, or all but one small."""
    products_or_skip(multiplying, torch.int8)
    x = torch.ones(7, 128)
    x[:, -1] = -1e-3
    weight = torch.full((40, 128), float(sign))
    weight[1, 2:], weight[2, 1:], weight[3, ::2] = sign / 100, sign / 100, -sign
    packed = multiplying.layout.pack(weight, None, torch.int8)
    torch.testing.assert_close(multiplying.product(x, packed), x @ weight.T, atol=0.3, rtol=0.01)


@pytest.mark.parametrize("largest", [1e-44, 1e-38, 1e-37, 7e-37])
def test_the_smallest_inputs_of_int8_are_numbers(multiplying: Kernels, largest: float) -> None:
    """The step between two levels of such a row has no finite inverse."""
    products_or_skip(multiplying, torch.int8)
    x = torch.zeros(2, 64)
    x[0, 5], x[1] = largest, 1.0
    weight = torch.randn(40, 64)
    result = multiplying.product(x, multiplying.layout.pack(weight, None, torch.int8))
    torch.testing.assert_close(result[0], x[0] @ weight.T, atol=1e-35, rtol=0)
    torch.testing.assert_close(result[1], x[1] @ weight.T, atol=0.3, rtol=0.01)


def test_weights_of_another_layout_are_refused(multiplying: Kernels) -> None:
    products_or_skip(multiplying, torch.int8)
    packed = pack(torch.randn(40, 16), None, torch.int8, most_of_pair=77)
    with pytest.raises(ValueError, match="int8 weights"):
        multiplying.product(torch.randn(3, 16), packed)


@pytest.mark.slow
def test_tiles_of_amx_give_the_same_integers(tmp_path_factory: pytest.TempPathFactory) -> None:
    if "amx_int8" not in features():
        pytest.skip("this processor has no AMX")
    torch.manual_seed(0)
    plain, found = library("avx512_bf16", tmp_path_factory), library(IN_USE, tmp_path_factory)
    for rows, inner, outer in ((1, 64, 32), (31, 512, 70), (300, 2048, 129)):
        weight, bias = torch.randn(outer, inner), torch.randn(outer)
        x, packed = torch.randn(rows, inner), plain.layout.pack(weight, bias, torch.int8)
        assert torch.equal(found.product(x, packed), plain.product(x, packed))


def test_they_can_be_turned_off(found: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_NATIVE", "0")
    assert kernels() is None


def test_a_library_that_is_wrong_is_not_used(found: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Kernels):
        def __init__(self, path: Path) -> None:
            vars(self).update(vars(found))

        def log_sums(self, logits: Tensor) -> Tensor:
            return super().log_sums(logits) * 1.001

    monkeypatch.setattr(module, "Kernels", Wrong)
    monkeypatch.setattr(libraries, "notify", lambda line, *, once: None)  # once in a process: other tests read it
    module._found.cache_clear()
    try:
        assert kernels() is None
    finally:
        module._found.cache_clear()
