"""Tensors that do not fit are refused before compiled code reads or writes beside them."""

from __future__ import annotations

import ast
import copy
import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsenmt
from sparsenmt.engine.build import build
from sparsenmt.native.address import address
from sparsenmt.native.kernels import Kernels, pack
from sparsenmt.native.packing import PackedMatrix, RowTable, row_table
from sparsenmt.native.steps import LayerCache, LayerStack, NormWeights, PackedLayer
from sparsenmt.native.token_lists import TokenLists
from tests.model.support import random_model, random_source, random_target
from tests.native.libraries import decoding_kernels, simplex_kernel

PACKAGE = Path(sparsenmt.__file__).parent
X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("x", "free"),
    [
        (X.double(), 0),
        (torch.zeros(2, 3, 5), 0),
        (torch.zeros(24), 0),
        (X.to("meta"), 0),
        (torch.zeros(2, 4, 3).mT, 2),
        (torch.zeros(2, 3, 8)[..., ::2], 2),
        (torch.zeros(2, 6, 4)[:, ::2], 1),
    ],
)
def test_another_tensor_has_no_address(x: Tensor, free: int) -> None:
    with pytest.raises(ValueError, match="compiled code needs"):
        address(x, torch.float32, 2, 3, 4, free=free)


def test_strides_that_are_passed_along_are_free() -> None:
    wide, long = torch.zeros(2, 6, 4)[:, ::2], torch.zeros(5, 3, 4)[::4]
    for x, free in ((X, 0), (wide, 2), (long, 1), (X[:1].expand(2, 3, 4), 1)):
        assert address(x, torch.float32, 2, 3, 4, free=free) == x.data_ptr()


def attention(found: Kernels, **other: Any) -> None:
    given = {"q": torch.randn(2, 2, 1, 16), "keys": torch.randn(2, 2, 5, 16), "values": torch.randn(2, 2, 5, 16)}
    found.attend(**{**given, **other})


def search(found: Kernels, **other: Any) -> None:
    given = {"logits": torch.randn(4, 40), "scores": torch.zeros(2, 2), "never": (0,), "width": 3}
    found.candidates(**{**given, **other})


def product(found: Kernels, x: Tensor | None = None, added: Tensor | None = None, **other: Any) -> None:
    packed = replace(pack(torch.randn(40, 16), torch.randn(40), torch.float32), **other)
    found.product(torch.randn(4, 16) if x is None else x, packed, added=added)


def following(found: Kernels, **other: Any) -> None:
    given = {"x": torch.randn(4, 16), "scores": torch.zeros(2, 2), "never": (0,), "width": 3}
    found.next(weight=pack(torch.randn(40, 16), None, torch.float32), **{**given, **other})


def listed(found: Kernels, **other: Any) -> None:
    table, allowed = row_table(torch.randn(40, 16), None, torch.float32), torch.arange(40) < torch.tensor([[5], [9]])
    given = {"x": torch.randn(4, 16), "scores": torch.zeros(2, 2), "never": (0,), "width": 3, "table": table}
    found.next_listed(lists=TokenLists.of(allowed), **{**given, **other})


def rows(found: Kernels, logits: Tensor) -> None:
    found.log_sums(logits)


WRONG: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "heads of a size that is not compiled": (attention, {n: torch.randn(2, 2, 5, 24) for n in ("q", "keys", "values")}),
    "fewer keys than values": (attention, {"keys": torch.randn(2, 2, 4, 16)}),
    "keys of fewer rows": (attention, {"keys": torch.randn(1, 2, 5, 16), "values": torch.randn(1, 2, 5, 16)}),
    "double keys": (attention, {"keys": torch.randn(2, 2, 5, 16).double()}),
    "a short bias": (attention, {"bias": torch.randn(2, 4)}),
    "a bias of other strides": (attention, {"bias": torch.randn(5, 2).t()}),
    "slots of many queries": (
        attention,
        {"q": torch.randn(2, 2, 9, 16), "slots": torch.zeros(2, 2, dtype=torch.int32)},
    ),
    "slots in int64": (attention, {"slots": torch.zeros(2, 2, dtype=torch.long)}),
    "slots of fewer positions": (attention, {"slots": torch.zeros(2, 1, dtype=torch.int32)}),
    "fewer scores": (search, {"scores": torch.zeros(1, 2)}),
    "more scores": (search, {"scores": torch.zeros(3, 2)}),
    "a token that is not there": (search, {"never": (40,)}),
    "a negative token": (search, {"never": (-1,)}),
    "a token twice": (search, {"never": (1, 1)}),
    "nine tokens": (search, {"never": tuple(range(9))}),
    "no continuation": (search, {"width": 0}),
    "columns of logits": (search, {"logits": torch.randn(40, 4).t()}),
    "logits in double": (search, {"logits": torch.randn(4, 40).double()}),
    "more scores than states": (following, {"scores": torch.zeros(3, 2)}),
    "states of another size": (following, {"x": torch.randn(4, 15)}),
    "logits elsewhere": (rows, {"logits": torch.zeros(3, 40, device="meta")}),
    "a short sum": (product, {"added": torch.randn(3, 40)}),
    "added in double": (product, {"added": torch.randn(4, 40).double()}),
    "inputs in double": (product, {"x": torch.randn(4, 16).double()}),
    "a short bias of a product": (product, {"bias": torch.randn(39)}),
    "more columns than panels": (product, {"outer": 65, "bias": None}),
    "inputs of twice the size": (product, {"x": torch.randn(4, 32)}),
    "a table in int8 without scales": (
        listed,
        {"table": RowTable(torch.zeros(40, 64, dtype=torch.int8), None), "x": torch.randn(4, 64)},
    ),
    "a forbidden token beyond a list": (listed, {"never": (0, 6)}),
    "a larger inner dimension": (product, {"inner": 17, "x": torch.randn(4, 17)}),
    "int8 without scales": (product, {"dtype": torch.int8}),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str) -> None:
    call, other = WRONG[case]
    found = decoding_kernels(*([torch.float32] if call in (product, following, listed) else []))
    call(found, **{"logits": torch.randn(3, 40)} if call is rows else {})
    with pytest.raises(ValueError):
        call(found, **other)


def a_layer(size: int = 32, wide: int = 48, **other: Any) -> PackedLayer:
    shapes = [(3 * size, size), *[(size, size)] * 3, (wide, size), (size, wide)]
    norm = NormWeights(torch.ones(size), torch.zeros(size))
    matrices = tuple(pack(torch.randn(*shape) / 8, torch.randn(shape[0]), torch.float32) for shape in shapes)
    return replace(PackedLayer(matrices, (norm, norm, norm)), **other)


def a_stack(layers: int = 1, heads: int = 2, **other: Any) -> LayerStack:
    functions = decoding_kernels(torch.float32).layers
    return LayerStack(functions, [a_layer(**other)] * layers, heads=heads, last=None, pre_norm=False, epsilon=1e-5)


def run(stack: LayerStack, **other: Any) -> Tensor:
    own, memory = [torch.zeros(3, 4, 2, 16) for _ in range(2)], [torch.zeros(2, 2, 5, 16) for _ in range(2)]
    cache = LayerCache(*own, *memory, None, torch.zeros(2, 1, 1, 5))
    cache = replace(cache, **{name: value for name, value in other.items() if hasattr(cache, name)})
    x, slots = torch.linspace(-1, 1, 128).view(4, 32), torch.zeros(4, 3, dtype=torch.int32)
    caches, starts = other.get("caches", [cache]), other.get("starts")
    return stack.run(other.get("x", x), caches, other.get("slots", slots), 1, starts)


@pytest.mark.parametrize(
    "other",
    [
        {"keys": torch.zeros(2, 4, 2, 16), "values": torch.zeros(2, 4, 2, 16)},  # positions
        {"keys": torch.zeros(3, 3, 2, 16), "values": torch.zeros(3, 3, 2, 16)},  # slots
        {"values": torch.zeros(3, 4, 1, 16)},
        {"values": torch.zeros(3, 4, 2, 16).double()},
        {"keys": torch.zeros(3, 4, 2, 32)[..., ::2]},
        {"memory_keys": torch.zeros(2, 2, 4, 16)},
        {"memory_values": torch.zeros(1, 2, 5, 16)},
        {"memory_bias": torch.zeros(2, 4)},
        {"memory_rows": torch.zeros(2, dtype=torch.int32)},
        {"memory_rows": torch.zeros(3, dtype=torch.long)},
        {"x": torch.zeros(4, 33)},
        {"x": torch.zeros(3, 32)},
        {"x": torch.zeros(4, 32).double()},
        {"slots": torch.zeros(4, 3, dtype=torch.long)},
        {"slots": torch.zeros(3, 4, dtype=torch.int32).t()},
        {"slots": torch.zeros(4, 0, dtype=torch.int32)},
        {"starts": torch.zeros(1, dtype=torch.long)},
        {"starts": torch.zeros(2)},
        {"caches": []},
    ],
)
def test_a_step_that_does_not_fit_is_refused(other: dict[str, Any]) -> None:
    stack = a_stack()
    assert run(stack).shape == (4, 32)
    with pytest.raises(ValueError):
        run(stack, **other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: a_stack(heads=4),  # of 8 numbers
        lambda: a_stack(heads=3),
        lambda: a_stack(matrices=a_layer(48).matrices),
        lambda: a_stack(matrices=a_layer().matrices[:5]),
        lambda: a_stack(norms=(NormWeights(torch.ones(16), torch.zeros(32)),) * 3),
        lambda: a_stack(largest=(-1, 0)),
    ],
)
def test_layers_that_do_not_fit_are_refused(make: Callable[[], LayerStack]) -> None:
    with pytest.raises(ValueError):
        make()


def test_no_more_caches_than_layers() -> None:
    stack = a_stack()
    own, memory = [torch.zeros(3, 4, 2, 16) for _ in range(2)], [torch.zeros(2, 2, 5, 16) for _ in range(2)]
    with pytest.raises(ValueError, match="each layer"):
        run(stack, caches=[LayerCache(*own, *memory, None, None)] * 2)


@pytest.mark.parametrize(
    "other",
    [
        {"alphas": torch.ones(3)},
        {"alphas": torch.ones(2).double()},
        {"counts": torch.ones(2, 4)},
        {"visible": torch.ones(5, dtype=torch.uint8)},
        {"scores": torch.zeros(2, 2, 3, 5).double()},
    ],
)
def test_scores_that_do_not_fit_are_refused(other: dict[str, Tensor]) -> None:
    kernel = simplex_kernel()
    given = {"scores": torch.zeros(2, 2, 3, 5), "visible": None, "counts": None, "alphas": torch.ones(2)}
    mass = kernel.forward(**given)
    with pytest.raises(ValueError):
        kernel.forward(**{**given, **other})
    for slope in (torch.zeros(2, 2, 3, 4), mass.double()):
        with pytest.raises(ValueError):
            kernel.backward(mass, slope, None, given["alphas"], of_alpha=False)


def test_addresses_are_asked_for_in_one_place() -> None:
    """No module passes the pointer of a tensor that it was given, and no `assert`, which -O drops, guards memory."""
    callers = 0
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not any(isinstance(node, ast.Import) and node.names[0].name == "ctypes" for node in ast.walk(tree)):
            continue
        callers += 1
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], path
        made = {"out", "values", "indices", "logits", "rounded", "scratch", "mass", "gradient", "sums", "x"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "data_ptr":
                assert isinstance(node.value, ast.Name) and node.value.id in made, f"{path}:{node.lineno}"
    assert callers >= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("how", [copy.deepcopy, lambda packed: pickle.loads(pickle.dumps(packed))])
def test_a_copy_points_to_its_own_tensors(dtype: torch.dtype, how: Callable[[PackedMatrix], PackedMatrix]) -> None:
    packed = pack(torch.randn(40, 16), torch.randn(40), dtype)
    struct = packed.struct
    other = how(packed)
    for name in ("panels", "scales", "sums", "bias"):
        tensor = getattr(other, name)
        assert getattr(other.struct, name) == (None if tensor is None else tensor.data_ptr())
    assert other.struct.panels != struct.panels and packed.struct is struct


@torch.inference_mode()
def test_a_copy_of_a_packed_model_outlives_it() -> None:
    """Also after decoding with the original, which makes all structs."""
    decoding_kernels(torch.float32)
    model = random_model(torch.float32, dimension=64, feed_forward=96)
    build(model)
    source, target = random_source(), random_target(6, 1)

    def decode(model: Any) -> Tensor:
        cache = model.new_cache(next(iter(model.encode(source, compact=True).memories.values())))
        result: Tensor = next(iter(model.decode(target, cache.memory, cache=cache).values()))
        return result

    expected = decode(model)
    other = copy.deepcopy(model)
    for each in model.decoder._stack._given:
        for matrix in each.matrices:
            matrix.panels.fill_(torch.nan)
    assert decode(model).isnan().all()
    del model, each, matrix
    gc.collect()
    assert torch.equal(decode(other), expected)
