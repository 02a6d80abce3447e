"""Checks of what methods from outside the package give, on the first batch: the boundary between them and the model.

What a method is asked for first is checked once: type, shape, data type, device, range, finite numbers, and that a
transform gives no weight to keys that are hidden, such as the future. Then the check is gone, and a call costs what it
would without it. Patterns and fixed heads, which depend on positions alone, are tried on a few positions instead.

Shapes: B sentences, H heads, G fixed heads, Q queries, K keys, S' entries of a memory, E head size, D model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsenmt.errors import UserError
from sparsenmt.model.attention import AttentionStep, MultiHeadAttention
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import (
    ContentPattern,
    FixedHeads,
    Gates,
    Groups,
    Keys,
    MemoryFilter,
    Recurrence,
    ScoreTerm,
    Span,
    Transform,
    nonfinite_error,
)
from sparsenmt.plugins.failure import PluggedMethod, plugged

_LEAST = torch.finfo(torch.float32).tiny  # less is no weight
_ROWS, _LENGTH = 2, 5  # of the positions on which patterns and fixed heads are tried
_TRIED = 8  # sentences whose last key is hidden on trial
Check = Callable[[Any, Sequence[Any], Any], str | None]
"""(module, arguments, result) -> what is wrong with the result, or None."""


def check_first_batch(model: nn.Module) -> None:
    """Check what the methods from outside the package give when they are called next, and remove the checks then.

    Raises:
        UserError: a pattern, fixed heads or the reach of a span are not what they must be; the others raise it when
            they are called.
    """
    like = next(model.parameters())
    for module in model.modules():
        if (method := plugged(module)) is not None:
            for kind, checks in _CHECKS.items():
                for name, check in checks.items() if isinstance(module, kind) else ():
                    if getattr(type(module), name) is not getattr(kind, name):  # not the one that all inherit
                        _FirstCall.await_call(module, name, check, method)
        if isinstance(module, AttentionStep) and (method := plugged(module.pattern)) is not None:
            _refuse(_pattern_problem(module, like.device), replace(method, layer=module.step + 1))
        if isinstance(module, MultiHeadAttention) and (method := plugged(module.fixed)) is not None:
            assert module.fixed is not None
            _refuse(_fixed_heads_problem(module.fixed, like, module.head_size), method)
        if isinstance(module, Span) and (method := plugged(module)) is not None:
            _refuse(_reach_problem(module.reach), method)


def _refuse(problem: str | None, method: PluggedMethod) -> None:
    if problem == _NOT_FINITE:
        raise nonfinite_error(method)
    if problem is not None:
        raise UserError(
            f"{method.title} {problem}",
            where=method.where,
            hint="Correct the method; `sparsenmt.model.sockets` says what a method of each socket takes and returns.",
        )


class _FirstCall:
    """A function of a method's object in the place of its own, until it is called.

    It is an attribute of the object, which hides that of the class, and which is removed.
    """

    def __init__(self, owner: nn.Module, name: str, check: Check, method: PluggedMethod) -> None:
        self.owner, self.name, self.check, self.method = owner, name, check, method
        self.own: Callable[..., Any] = getattr(owner, name)

    @classmethod
    def await_call(cls, owner: nn.Module, name: str, check: Check, method: PluggedMethod) -> None:
        """Put a check in place, unless one is there."""
        if name not in vars(owner):
            vars(owner)[name] = cls(owner, name, check, method)

    def __call__(self, *arguments: Any) -> Any:
        vars(self.owner).pop(self.name, None)  # two threads may come here
        result = self.own(*arguments)
        with torch.no_grad():
            _refuse(self.check(self.owner, arguments, result), self.method)
        return result


# What is wrong with a result, by socket

_NOT_FINITE = "is not finite"


def _holds(condition: Tensor) -> bool:
    """Read a bool from the device: all reads of the checks are here."""
    return bool(condition)


def _described(found: Any) -> str:
    return f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__


def _tensor_problem(
    found: Any, shape: Sequence[int], like: Tensor, *, given: Sequence[Tensor] = (), dtype: torch.dtype | None = None
) -> str | None:
    """Describe the fault of a tensor of floating-point numbers; None: it has none.

    Args:
        like: on the device where it must be.
        given: what it was made of; where that is finite, or minus infinity, the result is finite.
        dtype: that it must have; None: any of floating point.
    """
    if not isinstance(found, Tensor) or tuple(found.shape) != tuple(shape) or not found.is_floating_point():
        return f"returns {_described(found)} in place of a floating-point tensor {tuple(shape)}"
    if found.device != like.device:
        return f"returns a tensor on {found.device}, and the model is on {like.device}"
    if dtype not in (None, found.dtype):
        return f"returns {_described(found)} in place of {dtype}"
    broken = ~found.isfinite().all()
    for each in given:
        broken = broken & (each < torch.inf).all()
    return _NOT_FINITE if _holds(broken) else None


def _mask_problem(found: Any, rows: int, queries: int, keys: int, like: Tensor) -> str | None:
    """Describe the fault of a mask, which is bool, broadcastable to (B, H, Q, K); None: it has none."""
    if not isinstance(found, Tensor) or found.dtype != torch.bool:
        return f"returns {_described(found)} in place of a bool tensor (B, H, Q, K)"
    if found.device != like.device:
        return f"returns a tensor on {found.device}, and the model is on {like.device}"
    return None if _broadcasts(found, rows, queries, keys) else _not_broadcast(found, rows, queries, keys)


def _broadcasts(found: Tensor, rows: int, queries: int, keys: int) -> bool:
    """True if a tensor can be broadcast to (B, H, Q, K), with any number of heads."""
    shape = [1] * (4 - found.dim()) + list(found.shape)
    return len(shape) == 4 and all(
        own in (1, wanted) for own, wanted in zip(shape, (rows, shape[1], queries, keys), strict=True)
    )


def _not_broadcast(found: Tensor, rows: int, queries: int, keys: int) -> str:
    return f"returns {_described(found)}, which cannot be broadcast to ({rows}, H, {queries}, {keys})"


def _weights(transform: Transform, arguments: Sequence[Any], weights: Any) -> str | None:
    scores, keys = arguments[:2]
    problem = _tensor_problem(weights, scores.shape, scores, given=[scores])
    if problem is not None:
        return problem
    if _leaks(weights, keys) or _leaks_on_trial(transform, scores, keys):
        return "gives weight to keys that are hidden: it does not use Keys.visible()"
    return None


def _leaks(weights: Tensor, keys: Keys) -> bool:
    """True if weight is given to a hidden key, by a query that sees another one."""
    hidden = _hidden(keys)
    return _holds(((weights.abs() >= _LEAST) & hidden).any())


def _hidden(keys: Keys) -> Tensor:
    """Bool, broadcastable to (B, H, Q, K): the keys that are hidden from queries that see others."""
    visible = keys.visible()
    return ~visible & visible.any(-1, keepdim=True)


def _leaks_on_trial(transform: Transform, scores: Tensor, keys: Keys) -> bool:
    """True if weight is given to the last key of a few sentences, which this batch shows, and the trial hides.

    Nothing is tried if the batch itself hides keys, or if rows of `keys` stand for several rows of scores.
    """
    if len(keys.valid) not in (1, len(scores)) or _holds(_hidden(keys).any()):
        return False
    few = slice(_TRIED)
    valid, visible = keys.valid[few], keys.visible()[few]
    last = valid & (valid.cumsum(1) == valid.sum(1, keepdim=True))
    counts, features = keys.counts, {name: each[few] for name, each in keys.features.items()}
    less = Keys(
        valid & ~last,
        keys.queries[few],
        keys.positions[few],
        visible & ~last[:, None, None, :],
        None if counts is None else counts[few],
        features,
    )
    devices = [scores.device] if scores.device.type == "cuda" else []
    with torch.random.fork_rng(devices):  # what it may draw changes nothing
        return _leaks(transform.forward(scores[few].detach(), less), less)


def _score_bias(transform: Transform, arguments: Sequence[Any], bias: Any) -> str | None:
    keys: Keys = arguments[0]
    sizes = keys.valid.shape[0], keys.queries.shape[1], keys.valid.shape[1]
    if bias is None:
        return None
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        return f"returns {_described(bias)} of score_bias in place of a floating-point tensor or None"
    if not _broadcasts(bias, *sizes):
        return _not_broadcast(bias, *sizes)
    if bias.device != keys.valid.device:
        return f"returns a tensor on {bias.device}, and the model is on {keys.valid.device}"
    return None if _holds((bias < torch.inf).all()) else _NOT_FINITE


def _content(term: ScoreTerm, arguments: Sequence[Any], result: Any) -> str | None:
    (q,) = arguments
    return _tensor_problem(result, q.shape, q, given=[q], dtype=q.dtype)


def _score_term(term: ScoreTerm, arguments: Sequence[Any], result: Any) -> str | None:
    q, distances = arguments
    return _tensor_problem(result, (*q.shape[:3], len(distances)), q, given=[q], dtype=q.dtype)


def _factors(span: Span, arguments: Sequence[Any], result: Any) -> str | None:
    (distances,) = arguments
    heads = result.shape[:1] if isinstance(result, Tensor) else ()
    problem = _tensor_problem(result, (*heads, *distances.shape), distances, given=[distances])
    return problem or _range_problem("factors", result)


def _range_problem(what: str, values: Tensor) -> str | None:
    """Describe the fault of numbers that must lie in [0, 1]; None: they do."""
    outside = (values < 0) | (values > 1)
    return f"gives {what} outside of [0, 1], such as {float(values[outside][0]):.4g}" if _holds(outside.any()) else None


def _span_losses(span: Span, arguments: Sequence[Any], result: Any) -> str | None:
    return _losses_problem(result, (), "a scalar")


def _losses_problem(losses: Any, shape: tuple[int, ...], words: str) -> str | None:
    if not isinstance(losses, Mapping):
        return f"gives {type(losses).__name__} in place of losses by name"
    for name, value in losses.items():
        if not isinstance(value, Tensor) or tuple(value.shape) != shape or not value.is_floating_point():
            return (
                f"gives the loss '{name}' as {_described(value)} in place of a floating-point tensor {shape}: {words}"
            )
        if not _holds(value.isfinite().all()):
            return f"gives the loss '{name}', which is not finite"
    return None


def _reach_problem(reach: Any) -> str | None:
    good = isinstance(reach, int) and reach >= 0
    return None if good else f"has the reach {reach!r} in place of a number of positions from 0 on"


def _gates(module: MemoryFilter, arguments: Sequence[Any], gates: Any) -> str | None:
    memory: Memory = arguments[0]
    real = memory.states.masked_fill(~memory.valid[..., None], 0)
    if not isinstance(gates, Gates):
        return f"returns {type(gates).__name__} in place of Gates"
    if gates.on_closed not in ("zero", "mask"):
        return f"returns on_closed={gates.on_closed!r} in place of 'zero' or 'mask'"
    for values in (gates.values, gates.evaluated):
        if values is None and gates.values is not None:
            continue
        problem = _tensor_problem(values, memory.valid.shape, memory.states, given=[real])
        if problem := problem or _range_problem("gates", values.masked_fill(~memory.valid, 0)):
            return problem
    return _losses_problem(gates.losses, (len(memory.valid),), "one value a sentence")


def _recurrence(cell: Recurrence, arguments: Sequence[Any], result: Any) -> str | None:
    projected, first = arguments[0], arguments[0][0]
    if not isinstance(result, tuple) or len(result) != 2:
        return f"returns {type(result).__name__} in place of outputs and a state"
    outputs, state = result
    size = first.shape[0], first.shape[2]
    problem = _tensor_problem(outputs, first.shape, first, given=projected, dtype=first.dtype)
    return problem or _tensor_problem(state, size, first, given=projected)


def _content_mask(pattern: ContentPattern, arguments: Sequence[Any], mask: Any) -> str | None:
    q, k = arguments[:2]
    return _mask_problem(mask, len(q), q.shape[2], k.shape[2], q)


def _groups(pattern: ContentPattern, arguments: Sequence[Any], groups: Any) -> str | None:
    q, k = arguments[:2]
    if groups is None:
        return None
    if not isinstance(groups, Groups):
        return f"returns {type(groups).__name__} of groups in place of Groups or None"
    for index, count in ((groups.queries, q.shape[2]), (groups.keys, k.shape[2])):
        if index.dtype != torch.int64 or index.dim() != 4 or len(index) != len(q) or index.device != q.device:
            return f"returns groups of {_described(index)} in place of int64 (B, H, C, W)"
        if not _holds(((index >= 0) & (index < count)).all()):
            return f"returns groups of positions that are not there: there are {count}"
    return None


_CHECKS: dict[type[nn.Module], dict[str, Check]] = {
    Transform: {"forward": _weights, "score_bias": _score_bias},
    ScoreTerm: {"forward": _score_term, "content": _content},
    Span: {"forward": _factors, "losses": _span_losses},
    ContentPattern: {"forward": _content_mask, "groups": _groups},
    Recurrence: {"forward": _recurrence},
    MemoryFilter: {"forward": _gates},
}
"""Class of a socket -> its functions that the model calls, each with its check."""


# Patterns and fixed heads, on a few positions


def _pattern_problem(step: AttentionStep, device: torch.device) -> str | None:
    pattern = step.pattern
    assert pattern is not None
    reach: Any = pattern.reach
    if reach is not None and not (
        isinstance(reach, tuple | list) and len(reach) == 2 and all(isinstance(d, int) and d >= 0 for d in reach)
    ):
        return f"has the reach {reach!r} in place of None, or the numbers of positions to the left and to the right"
    first: Any = getattr(pattern, "first", 0)
    if not isinstance(first, int) or first < 0 or (first and reach is None):
        return f"has first={first!r} in place of a number of positions, at least 0, beside a reach"
    positions = torch.arange(_LENGTH, device=device).expand(_ROWS, -1)
    visible = torch.ones(_ROWS, 1, _LENGTH, _LENGTH, dtype=torch.bool, device=device).tril()
    return _mask_problem(pattern(positions, positions, visible), _ROWS, _LENGTH, _LENGTH, positions)


def _fixed_heads_problem(fixed: FixedHeads, like: Tensor, size: int) -> str | None:
    heads: Any = fixed.heads
    if not isinstance(heads, int) or heads < 1 or len(fixed.names) != heads:
        return f"has heads={heads!r} and {len(fixed.names)} names in place of as many names as heads"
    values = torch.ones(_ROWS, heads, _LENGTH, size, dtype=like.dtype, device=like.device)
    positions = torch.arange(_LENGTH, device=like.device).expand(_ROWS, -1)
    keys = Keys(positions >= 0, positions, positions)
    problem = _tensor_problem(fixed(values, keys), values.shape, values, given=[values], dtype=like.dtype)
    weights = fixed.weights(keys)
    return problem or _tensor_problem(weights, (_ROWS, heads, _LENGTH, _LENGTH), values, given=[values])
