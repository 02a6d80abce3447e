"""Properties of methods beyond equalities: what they may depend on, at which positions, and in which precision.

Each raises `checks.BrokenRule`. Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsenmt.model.sockets import ContentPattern, Keys, ScoreTerm, Span, Transform
from sparsenmt.testing.bench import VOCABULARY, Bench
from sparsenmt.testing.calls import MethodCall, calls_of
from sparsenmt.testing.checks import assert_same, check_gradients, check_learning, random_total, require
from sparsenmt.testing.fake_device import asking_frame

_COPIES = 2  # of a key, beside itself, that a stand-in stands for
_STEP = 1e-8  # of a difference quotient in float64
_SLOPE = 1e-4  # the most by which it may differ from a gradient, relatively


# What a result may depend on


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random numbers of PyTorch and Python in the context, and restore their states after it."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def results(bench: Bench, seed: int = 0) -> dict[Any, Tensor]:
    """Hidden states, losses and gates of a case, with random numbers of a seed."""
    with seeded(seed), torch.no_grad():
        encoded = bench.encode()
        found: dict[Any, Tensor] = {f"loss {name}": loss for name, loss in encoded.losses.items()}
        for n, memory in encoded.memories.items():
            found |= {(n, m): hidden for m, hidden in bench.decode(memory).items()}
            found |= {} if memory.gates is None else {f"gates {n}": memory.gates}
    return found


def other_sentences(bench: Bench) -> Bench:
    """The case with other tokens in sentences of the same lengths."""
    rng = torch.Generator().manual_seed(bench.case.seed + 1)
    tokens, target = (torch.randint(4, VOCABULARY, x.shape, generator=rng) for x in (bench.source.tokens, bench.target))
    source = replace(bench.source, tokens=tokens * bench.source.valid)
    return replace(bench, source=source, target=target)


def check_deterministic(bench: Bench) -> None:
    """In evaluation the same input gives the same bits, whatever the random numbers are."""
    first, second = results(bench.copy(), seed=1), results(bench.copy(), seed=2)
    assert_same(second, first, "evaluated twice", 0.0)


def check_state(bench: Bench) -> None:
    """A sentence is treated alike, whichever came before it: A, B and A give A's and B's own results."""
    bench, others = bench.again(), other_sentences(bench.again())
    expected, fresh = results(bench), results(others)
    follower = replace(others, model=bench.model)
    source, target = bench.alone(len(bench.source.valid) - 1)
    results(replace(bench, source=source, target=target))  # of another length
    assert_same(results(follower), fresh, "sentences B after sentences A = B alone", 0.0)
    assert_same(results(bench), expected, "sentences A after sentences B = A alone", 0.0)


def check_padding(bench: Bench) -> None:
    """Tokens at padded positions change nothing."""
    rng = torch.Generator().manual_seed(bench.case.seed + 2)
    noise = torch.randint(4, VOCABULARY, bench.source.tokens.shape, generator=rng)
    tokens = torch.where(bench.source.valid, bench.source.tokens, noise)
    changed = replace(bench, source=replace(bench.source, tokens=tokens))
    assert_same(results(changed), results(bench), "with other tokens at the padding")


def check_future(bench: Bench) -> None:
    """Later target tokens change no earlier state."""
    expected = bench.outputs()
    for kept in sorted({bench.target.shape[1] // 2, bench.target.shape[1] - 1} - {0}):
        target = bench.target.clone()
        target[:, kept:] = 4 + (target[:, kept:] - 3) % (VOCABULARY - 4)
        found = replace(bench, target=target).outputs()
        assert_same(
            {key: hidden[:, :kept] for key, hidden in found.items()},
            {key: hidden[:, :kept] for key, hidden in expected.items()},
            f"the first {kept} states with other tokens after them",
        )


# Calls of methods


def method_calls(bench: Bench, *kinds: type) -> list[MethodCall]:
    """The calls of the plugs' methods; with ``kinds``, of modules of these classes."""
    # Fixed heads of the encoder always get all queries.
    plugs = [plug for plug in bench.case.plugs if plug.place != "encoder_self.heads"]
    found = [call for plug in plugs for call in calls_of(bench, plug)]
    return [call for call in found if not kinds or isinstance(call.part, kinds)]


def check_positions(bench: Bench) -> None:
    """A method finds queries and keys by their positions: some queries alone, and one more hidden key, change nothing.

    In decoding step by step the queries are the last ones, and keys out of reach are gone from the cache.
    """
    for call in method_calls(bench):
        for what, found, expected in _moved(call):
            assert_same({what: found.double()}, {what: expected.double()}, what)


def _moved(call: MethodCall) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(description, result, expected result) of a call with some of its queries, and with one more hidden key."""
    part, given, result = call.part, call.arguments, call.result
    rows = "the last queries alone"
    if isinstance(part, Transform):
        scores, keys = given
        chosen = _last(scores.shape[2])
        yield rows, call.again(scores[:, :, chosen], _of_queries(keys, chosen)), result[:, :, chosen]
        wider = torch.cat([scores[..., :1] + 1, scores], -1)
        yield "one more hidden key", call.again(wider, _behind_hidden_key(keys))[..., 1:], result
    elif isinstance(part, ContentPattern):
        if part.decodes:
            q, k, keys = given
            chosen, seen = _last(q.shape[2]), result & keys.visible()
            some = _of_queries(keys, chosen)
            yield rows, call.again(q[:, :, chosen], k, some) & some.visible(), seen[:, :, chosen]
    elif isinstance(part, ScoreTerm):
        q, distances = given
        chosen = _last(q.shape[2])
        yield rows, call.again(q[:, :, chosen], distances), result[:, :, chosen]
        yield "some distances alone", call.again(q, distances[1::2]), result[..., 1::2]
    elif isinstance(part, Span):
        yield rows, call.again(given[0][_last(len(given[0])), 1::2]), result[:, _last(len(given[0])), 1::2]
    elif not isinstance(part, nn.Module):
        yield from _moved_without_module(call, rows)


def _moved_without_module(call: MethodCall, rows: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    """`_moved` for a pattern, or for fixed heads."""
    given, result = call.arguments, call.result
    if not isinstance(given[-1], Keys):  # a pattern
        queries, positions, visible = given
        chosen, seen = _last(queries.shape[1]), _expanded(result & visible, queries, positions)
        part = visible if visible.shape[2] == 1 else visible[:, :, chosen]
        found = call.again(queries[:, chosen], positions, part)
        yield rows, _expanded(found & part, queries[:, chosen], positions), seen[:, :, chosen]
        more = torch.cat([torch.zeros_like(visible[..., :1]), visible], -1)
        found = call.again(queries, torch.cat([positions[:, :1], positions], 1), more)
        yield "one more hidden key", _expanded(found & more, queries, positions)[..., 1:], seen
    else:
        chosen = _last(given[-1].queries.shape[1])
        yield rows, call.again(*given[:-1], _of_queries(given[-1], chosen)), result[:, :, chosen]


def _expanded(seen: Tensor, queries: Tensor, positions: Tensor) -> Tensor:
    """A mask with its axes of queries and keys written out."""
    return seen.expand(*seen.shape[:2], queries.shape[1], max(seen.shape[3], positions.shape[1]))


def _last(count: int) -> slice:
    """The last two of some queries."""
    return slice(max(count - 2, 0), count)


def _of_queries(keys: Keys, chosen: slice) -> Keys:
    allowed = keys.allowed
    if allowed is not None and allowed.shape[2] > 1:
        allowed = allowed[:, :, chosen]
    return replace(keys, queries=keys.queries[:, chosen], allowed=allowed)


def _behind_hidden_key(keys: Keys) -> Keys:
    """The keys after one that no query sees."""

    def behind(x: Tensor, first: Tensor) -> Tensor:
        return torch.cat([first, x], -1)

    visible = keys.visible()
    return replace(
        keys,
        valid=behind(keys.valid, torch.zeros_like(keys.valid[:, :1])),
        positions=behind(keys.positions, keys.positions[:, :1]),
        allowed=behind(visible, torch.zeros_like(visible[..., :1])),
        counts=None if keys.counts is None else behind(keys.counts, torch.zeros_like(keys.counts[:, :1])),
    )


def check_empty_rows(bench: Bench) -> None:
    """A query that sees no key has weights of exactly 0, and finite gradients."""
    for call in method_calls(bench, Transform):
        scores, keys = call.arguments
        visible = keys.visible().expand(scores.shape).clone()
        visible[:1], visible[:, :, :1] = False, False
        with torch.enable_grad():
            given = scores.detach().clone().requires_grad_()
            mass = call.again(given, replace(keys, allowed=visible))
            blind = mass[~visible.any(-1)]
            require(bool((blind == 0).all()), "a query that sees no key has weights")
            slopes = torch.autograd.grad(mass.sum(), given, materialize_grads=True) if mass.requires_grad else (given,)
        require(bool(slopes[0].isfinite().all()), "a query that sees no key has a gradient that is not finite")


def check_counts(bench: Bench) -> None:
    """A key that stands for c keys has as much weight as c equal keys together, and leaves the others as much."""
    for call in method_calls(bench, Transform):
        scores, keys = call.arguments
        if call.part.position_dependent or keys.counts is not None:
            continue  # the engine merges nothing in front of it
        counts = torch.ones_like(keys.positions, dtype=scores.dtype)
        counts[:, 0] += _COPIES
        positions = keys.positions.clone()
        positions[:, 0] = -1
        one = call.again(scores, replace(keys, counts=counts, positions=positions, allowed=keys.visible()))

        def repeated(x: Tensor) -> Tensor:
            return torch.cat([x, *[x[..., :1]] * _COPIES], -1)

        many = call.again(
            repeated(scores),
            replace(keys, valid=repeated(keys.valid), positions=repeated(positions), allowed=repeated(keys.visible())),
        )
        width = scores.shape[-1]
        together = many[..., :1] + many[..., width:].sum(-1, keepdim=True)
        what = f"a key with a count of {_COPIES + 1} = {_COPIES + 1} equal keys"
        assert_same({"weights": one}, {"weights": torch.cat([together, many[..., 1:width]], -1)}, what)


# Precision and slopes


class _Narrowing(TorchDispatchMode):
    """Notes the operators that make narrower numbers of float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        narrow = [leaf.dtype for leaf in made if leaf.dtype != torch.float64]
        if narrow and any(leaf.dtype == torch.float64 for leaf in read):
            name, frame = func._schema.name.removeprefix("aten::"), asking_frame(__file__)
            place = "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.found.append(f"{str(narrow[0]).removeprefix('torch.')} in {place} ({name})")
        return result


def check_double_precision(bench: Bench) -> None:
    """No number is rounded to fp32 or less where float64 comes in."""
    with _Narrowing() as mode:
        found: dict[Any, Tensor] = {**bench.outputs(), **bench.encode().losses}
    require(not mode.found, f"float64 numbers are rounded to {mode.found[0] if mode.found else ''}")
    for name, value in found.items():
        require(value.dtype == torch.float64, f"{name} is {value.dtype} in a model of float64")


def check_slopes(bench: Bench) -> None:
    """Gradients are the slopes of the function, compacted as dense, and reach every parameter of a method."""
    check_gradients(bench)
    check_learning(bench)
    directions: list[Callable[[str], bool]] = [lambda name: True, lambda name: name.endswith(("q.weight", "k.weight"))]
    for chosen in directions:
        _check_slope(bench, chosen)


def _check_slope(bench: Bench, chosen: Callable[[str], bool]) -> None:
    """Compare the gradient with a difference quotient along a random direction of some parameters."""
    rng = torch.Generator().manual_seed(bench.case.seed + 3)
    named = {name: p for name, p in bench.model.named_parameters() if chosen(name) and p.requires_grad}
    if not named:
        return
    direction = {name: torch.randn(p.shape, generator=rng, dtype=p.dtype) for name, p in named.items()}
    with torch.enable_grad():
        total = random_total(bench)
        slopes = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    pairs = zip(direction.values(), slopes, strict=True)
    expected = float(torch.stack([(slope * each).sum() for each, slope in pairs]).sum())
    here, quotients = float(total.detach()), []
    for step in (_STEP, -_STEP):
        moved = replace(bench, model=copy.deepcopy(bench.model))
        with torch.no_grad():
            for name, parameter in moved.model.named_parameters():
                if name in direction:
                    parameter.add_(direction[name], alpha=step)
            quotients.append((float(random_total(moved)) - here) / step)
    # On one of the sides a ReLU may change its sign: then the other one has the slope.
    quotient = min(quotients, key=lambda each: abs(each - expected))
    size = max(abs(expected), abs(quotient), 1e-3)
    require(abs(quotient - expected) <= _SLOPE * size, f"the gradient is {expected:.6g}, the slope {quotient:.6g}")
