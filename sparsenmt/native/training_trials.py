"""The problems in which the compiled kernels of training are checked against PyTorch, and measured (`choice.Choice`).

Shapes: as in gradients.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsenmt.native.choice import Trial
from sparsenmt.native.training_operators import LEVELS, HiddenKeys, plain_attention

if TYPE_CHECKING:  # that module imports this one
    from sparsenmt.native.gradients import GradientKernels

_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
_CHECKED_CORES = (1, 3)
_TRIAL_SCORES, _TRIAL_ROWS, _TRIAL_NUMBERS = 1 << 17, 64, 1 << 18
_CHECKED_ATTENTION = (
    *((6, 21, False, None), (21, 21, True, None)),
    *((50, 50, False, (3, 2)), (90, 90, False, (40, 30)), (70, 70, False, (9, 0))),
)
"""Queries, keys, causal, reach."""


@torch.enable_grad()
def error(found: GradientKernels) -> float:
    """The largest deviation from PyTorch on small problems, by one thread and by several, relative to the tolerance."""
    before, worst = found.cores, 0.0
    try:
        for cores in _CHECKED_CORES:
            found.cores = cores
            for dtype, tolerance in _TOLERANCE.items():
                errors = [_loss_error(found, dtype), _dropout_error(found, dtype)]
                errors += [_attention_error(found, dtype, *each) for each in _CHECKED_ATTENTION]
                worst = max(worst, *(each / tolerance for each in errors))
    finally:
        found.cores = before
    return worst


def _waves(*shape: int, speed: float = 0.7) -> Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32) * speed).sin().view(shape)


def _distance(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative where values are above 1; infinity for NaN."""
    differences = (found.double() - expected).abs() / expected.abs().clamp_min(1)
    return float(differences.nan_to_num(nan=float("inf")).max())


def _attention_error(
    found: GradientKernels,
    dtype: torch.dtype,
    queries: int,
    keys: int,
    causal: bool,
    reach: tuple[int, int] | None,
) -> float:
    batch, heads, size = 2, 3, 32
    inputs = [_waves(batch, n, heads, size, speed=s) for n, s in ((queries, 0.7), (keys, 0.31), (keys, 1.3))]
    q, k, v = (x.to(dtype).transpose(1, 2) for x in inputs)
    bias, given = _waves(batch, keys, speed=0.9), _waves(batch, heads, queries, size, speed=0.23).to(dtype)
    bias[0, 3:7], hidden = -torch.inf, HiddenKeys(bias, causal, reach)
    if reach is not None:
        bias[1, 10:30] = -torch.inf  # also queries that see none
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    expected = plain_attention(wide[0], wide[1], wide[2], hidden)
    slopes = torch.autograd.grad(expected, wide, given.double())
    results = found.attend(q, k, v, hidden), *found.attend_back(q, k, v, hidden, given)
    return max(_distance(a, b) for a, b in zip(results, (expected.detach(), *slopes), strict=True))


def _loss_error(found: GradientKernels, dtype: torch.dtype) -> float:
    worst = 0.0
    for size in (64, 77):
        logits, target = (9 * _waves(5, size)).to(dtype), torch.arange(5) * 16 % size
        wide = logits.double()
        expected = torch.softmax(wide, -1).scatter_add(1, target[:, None], torch.full((5, 1), -0.9, dtype=wide.dtype))
        own, logs = found.loss(logits, target, 0.9)
        pairs = (
            (logits, expected),
            (own, wide.gather(1, target[:, None]).squeeze(1)),
            (logs, wide.logsumexp(1)),
        )
        worst = max(worst, *(_distance(a, b) for a, b in pairs))
    return worst


def _dropout_problem(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    draws = (torch.arange(count) * 12345 % LEVELS - LEVELS // 2).to(torch.int16)
    return _waves(count).to(dtype), draws, _waves(count, speed=1.3).to(dtype)


def _plain_drop(x: Tensor, draws: Tensor, dropped: int, added: Tensor | None) -> Tensor:
    keep = torch.ge(draws, dropped - LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    kept = (x * keep).mul_(LEVELS / (LEVELS - dropped))
    return kept if added is None else kept.add_(added)


def _dropout_error(found: GradientKernels, dtype: torch.dtype) -> float:
    worst = 0.0
    for count in (3, 9001):
        x, draws, added = _dropout_problem(count, dtype)
        for more in (None, added):
            wide = None if more is None else more.double()
            expected = _plain_drop(x.double(), draws, 20000, wide)
            worst = max(worst, _distance(found.drop(x, draws, 20000, more), expected))
    return worst


def dropout_trial(found: GradientKernels, dtype: torch.dtype) -> Trial:
    x, draws, added = _dropout_problem(_TRIAL_NUMBERS, dtype)
    dropped = LEVELS // 10
    return lambda: found.drop(x, draws, dropped, added), lambda: _plain_drop(x, draws, dropped, added)


def loss_trial(found: GradientKernels, dtype: torch.dtype, size: int) -> Trial:
    logits, target = _waves(_TRIAL_ROWS, size).to(dtype), torch.arange(_TRIAL_ROWS) % size

    def plain() -> Tensor:
        p = torch.softmax(logits, -1, dtype=torch.float32)
        logits.amax(-1), p.amax(-1)
        return p.scatter_add_(1, target[:, None], p.new_full((_TRIAL_ROWS, 1), -0.9)).to(dtype)

    return lambda: found.loss(logits, target, 0.0), plain


def attention_trial(found: GradientKernels, dtype: torch.dtype, size: int, length: int) -> Trial:
    heads = 4
    batch = max(1, _TRIAL_SCORES // (heads * length * length))
    q, k, v, given = (_waves(batch, length, heads, size, speed=s).to(dtype).transpose(1, 2) for s in (0.7, 0.3, 1.3, 2))
    hidden = HiddenKeys(torch.zeros(batch, length))

    def kernel() -> object:
        found.attend(q, k, v, hidden)
        return found.attend_back(q, k, v, hidden, given)

    def plain() -> object:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            if dtype == torch.bfloat16:
                out = plain_attention(leaves[0], leaves[1], leaves[2], hidden)
            else:
                mask = torch.zeros(batch, 1, 1, length)
                one, two, three = leaves
                out = torch.nn.functional.scaled_dot_product_attention(one, two, three, attn_mask=mask)
            return torch.autograd.grad(out, leaves, given.clone())

    return kernel, plain


def window_trial(found: GradientKernels, dtype: torch.dtype, size: int, reach: int) -> Trial:
    """A window against its bands, which are copied."""
    heads, left, block = 4, reach // 2, 32
    length = max(4 * block, _TRIAL_SCORES // (heads * reach) // block * block)
    q, k, v, given = (_waves(1, length, heads, size, speed=s).to(dtype).transpose(1, 2) for s in (0.7, 0.3, 1.3, 2))
    hidden = HiddenKeys(torch.zeros(1, length), reach=(left, reach - left))
    at, keys = torch.arange(block)[:, None], torch.arange(block + reach)
    mask = torch.zeros(block, block + reach).masked_fill_((keys < at) | (keys > at + reach), -torch.inf).to(dtype)

    def kernel() -> object:
        found.attend(q, k, v, hidden)
        return found.attend_back(q, k, v, hidden, given)

    def bands(x: Tensor) -> Tensor:
        wide = torch.nn.functional.pad(x, (0, 0, left, reach - left))
        return wide.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).flatten(0, 1).contiguous()

    def plain() -> object:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            parts = (
                leaves[0].unflatten(2, (-1, block)).transpose(1, 2).flatten(0, 1),
                bands(leaves[1]),
                bands(leaves[2]),
            )
            out = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask.clone())
            return torch.autograd.grad(
                out.transpose(1, 2).reshape(1, length, heads, size).transpose(1, 2), leaves, given.clone()
            )

    return kernel, plain
