"""alpha-entmax weights of rows of scores, and their gradients, in PyTorch, on any device, in fp32 or float64.

A row has keys k with score z, count c and weight p >= 0; sum_k c p = 1. With b = alpha - 1, d = z - max z and

    u = max(0, 1 + b d - e),   p = u^(1/b),

a row is solved for its threshold e in [0, 1) (Peters, Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models",
ACL, Eq. 11, with tau = e - 1 after the largest score is taken off). S(e) = sum c p. S^b is the norm of u with exponent
1 / b >= 1: convex, falling, and linear in e where all scores are equal and for b -> 0. Newton's method on it rises to
the root from the left without passing it, in a handful of steps; a bracket that is halved guards it against rounding.
No sorting is needed, and for alpha of 1.5 and 2 the end is exact, as it is for a sort: one more step changes nothing.
Weights below `LEAST` are 0, in every number format and in the compiled kernel alike: near alpha = 1 the weights of keys
far below the largest score would otherwise be 0 or not by how a library rounds numbers that fp32 can hardly hold.

Shapes: R rows, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparsenmt.process.devices import may_hold

Alpha = float | Tensor  # one for all rows, or (R, 1)

LEAST = 2.0**-126
"""The smallest weight that is not 0: the smallest normal number of fp32 and bf16."""
_BELOW = LEAST - 2.0**-149  # the number of fp32 before it

_CHUNK = 1 << 17  # scores that a CPU core processes at once, so that intermediate results fit its cache
_STEPS = 16
_HALVINGS = 100
_LOG2_E = math.log2(math.e)
# The largest |S - 1|, as rows are normalised afterwards; and that below which no progress means rounding.
_CLOSE = {torch.float32: (5e-7, 1e-5), torch.float64: (1e-14, 1e-12)}

At = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]  # e -> p, S, and sum c p / u = -b dS/de
Step = Callable[[Tensor, Tensor], Tensor]  # S and that sum -> distance to the root of the tangent


def weights(scores: Tensor, alpha: Alpha, counts: Tensor | None = None) -> Tensor:
    """scores (R, K), minus infinity at masked keys -> mass c p (R, K); fully masked rows are zero.

    Args:
        alpha: from 1 to 2.
        counts: (R, K): the number of keys that each stands for.
    """
    if not scores.numel():
        return torch.zeros_like(scores)
    mass = torch.empty_like(scores)
    for part in _parts(scores):
        mass[part] = _weigh(scores[part], _rows_of(alpha, part), None if counts is None else counts[part])
    return mass


def gradients(
    mass: Tensor, given: Tensor, alpha: Alpha, counts: Tensor | None, *, of_alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of scores (R, K) and, if wanted, of each row's alpha (R), from that of the mass (R, K).

    With s = p^(2 - alpha) on the support, the Jacobian over scores is c (diag(s) - s s^T c / sum c s) (Correia, Niculae
    and Martins 2019, "Adaptively Sparse Transformers", EMNLP, Eq. 7). Proposition 1 for alpha, and its limit at alpha =
    1 (Eq. 38), are the same gradient of the scores times ((p^b - 1) / b - p^b ln p) / b, summed: in this form nothing
    is divided by b squared that does not vanish with it.
    """
    gradient = torch.empty_like(mass)
    sums = mass.new_zeros(mass.shape[0]) if of_alpha else None
    ones = mass.new_ones(mass.shape[1])  # a product with it is a faster sum, above all for short rows
    for part in _parts(mass):
        beta = _rows_of(alpha, part) - 1
        p, counted = mass[part], None if counts is None else counts[part]
        if counted is not None:
            p = p / torch.where(counted > 0, counted, 1)
        slope, logs = _slope(p, beta, logs=of_alpha)
        if counted is not None:
            slope = slope * counted
        total = slope @ ones
        along = torch.mul(slope, given[part], out=gradient[part]) @ ones
        mean = along / torch.where(total == 0, 1, total)
        found = torch.sub(given[part], mean[:, None], out=gradient[part]).mul_(slope)
        if sums is not None and logs is not None:
            sums[part] = _bend(logs, beta).mul_(found) @ ones
    return gradient, sums


def _parts(x: Tensor) -> list[slice]:
    """Slices of rows that are processed at once."""
    rows, keys = x.shape
    if x.device.type != "cpu":
        return [slice(0, rows)]
    size = max(1, _CHUNK * torch.get_num_threads() // max(keys, 1))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _rows_of(alpha: Alpha, part: slice) -> Alpha:
    return alpha[part] if isinstance(alpha, Tensor) else alpha


def _weigh(z: Tensor, alpha: Alpha, counts: Tensor | None) -> Tensor:
    """Mass of rows."""
    top = z.amax(1, keepdim=True)
    fully_masked = top == -torch.inf
    some_masked = may_hold(fully_masked)
    if some_masked:
        top = top.masked_fill(fully_masked, 0.0)
    d = z - top
    if some_masked:
        d = d.masked_fill(fully_masked, 0.0)  # all equal: solved in one step; zeroed at the end
        counts = None if counts is None else torch.where(fully_masked, 1, counts)
    beta = alpha - 1
    if isinstance(beta, Tensor):
        p, total = _between(d, beta, counts)
    elif beta == 0:
        p = d.exp_()
        total = _sum(p, counts)
    elif beta == 0.5:
        p, total = _solve(_half(d, counts), _half_step, d)
    elif beta == 1:
        p, total = _solve(_linear(d, counts), _linear_step, d)
    else:
        p, total = _general(d, beta, counts)
    scale = 1 / total
    if some_masked:
        scale = scale.masked_fill(fully_masked, 0.0)
    p = p.mul_(scale)
    if isinstance(beta, Tensor) or beta not in (0.5, 1):  # there, fp32 has no u between 0 and 2^-48
        torch.threshold_(p, _BELOW, 0.0)  # one pass; NaN stays
    return p if counts is None else p.mul_(counts)


def _between(d: Tensor, beta: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """p and S if every row has its own alpha, from 1 on."""
    soft = beta == 0
    if not bool(soft.any()):
        return _general(d, beta, counts)
    p, _ = _general(d, torch.where(soft, 0.5, beta), counts)
    p = torch.where(soft, d.exp(), p)
    return p, _sum(p, counts)


def _general(d: Tensor, beta: Alpha, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """p and S for alpha strictly above 1."""

    def step(mass: Tensor, slope: Tensor) -> Tensor:
        return -mass * torch.expm1(-beta * mass.log()) / slope

    return _solve(_power(d, beta, counts), step, d)


def _solve(at: At, step: Step, d: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method from the left of the roots of rows d; returns p and S when all rows are close to them."""
    e, worst = d.new_zeros(len(d), 1), math.inf
    close, noise = _CLOSE[e.dtype]
    for _ in range(_STEPS):
        p, mass, slope = at(e)
        before, worst = worst, float((mass - 1).abs_().amax())
        if worst <= close or before / 4 < worst < noise:
            return p, mass
        e = e + step(mass, slope)
    return _solve_guarded(at, step, e)


def _solve_guarded(at: At, step: Step, e: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method inside a bracket, which is halved if a step leaves it or is NaN, until nothing changes."""
    low, high = torch.zeros_like(e), torch.ones_like(e)
    p, mass, slope = at(e)
    for _ in range(_HALVINGS):
        over = mass > 1
        low, high = torch.where(over, e, low), torch.where(over, high, e)
        further = e + step(mass, slope)
        further = torch.where((further > low) & (further < high), further, (low + high) / 2)
        goes_on = ((mass - 1).abs() > _CLOSE[e.dtype][0]) & (further != e)
        if not bool(goes_on.any()):
            break
        e = torch.where(goes_on, further, e)
        p, mass, slope = at(e)
    return p, mass


# Each of the following functions has one buffer: p is overwritten by the next call.


def _half(d: Tensor, counts: Tensor | None) -> At:
    """alpha = 1.5: p = u^2."""
    u = torch.empty_like(d)

    def at(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torch.add(1 - e, d, alpha=0.5, out=u).relu_()
        slope = _sum(u, counts)
        return u.square_(), _sum(u, counts), slope

    return at


def _half_step(mass: Tensor, slope: Tensor) -> Tensor:
    return (mass - mass.sqrt()) / slope


def _linear(d: Tensor, counts: Tensor | None) -> At:
    """alpha = 2: p = u."""
    u, support = torch.empty_like(d), torch.empty_like(d)

    def at(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torch.add(1 - e, d, out=u).relu_()
        return u, _sum(u, counts), _sum(torch.sign(u, out=support), counts)

    return at


def _linear_step(mass: Tensor, slope: Tensor) -> Tensor:
    return (mass - 1) / slope


def _power(d: Tensor, beta: Alpha, counts: Tensor | None) -> At:
    """Any alpha above 1: p = exp(ln u / b), with ln(1 + y) for ln u, whose rounding 1 / b would blow up."""
    base, inverse = d * beta, _LOG2_E / beta
    y, p = torch.empty_like(d), torch.empty_like(d)
    tiny = torch.finfo(d.dtype).tiny

    def at(e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        torch.sub(base, e, out=y).clamp_min_(-1)
        torch.log1p(y, out=p).mul_(inverse).exp2_()  # exp2 is faster than exp
        torch.div(p, y.add_(1).clamp_min_(tiny), out=y)
        return p, _sum(p, counts), _sum(y, counts)

    return at


def _sum(x: Tensor, counts: Tensor | None) -> Tensor:
    return (x if counts is None else x * counts).sum(1, keepdim=True)


def _slope(p: Tensor, beta: Alpha, *, logs: bool) -> tuple[Tensor, Tensor | None]:
    """s = p^(2 - alpha), 0 where p is 0; and ln p, if wanted, finite everywhere."""
    if not isinstance(beta, Tensor) and not logs:
        if beta == 0:
            return p, None
        if beta == 0.5:
            return p.sqrt(), None
        if beta == 1:
            return p.sign(), None
    log = p.clamp_min(torch.finfo(p.dtype).tiny).log_()
    return p / (log * (_LOG2_E * beta)).exp2_(), log


def _bend(log: Tensor, beta: Alpha) -> Tensor:
    """((p^b - 1) / b - p^b ln p) / b of ln p; -(ln p)^2 / 2 at b = 0."""
    y = log * beta
    if float(beta.min() if isinstance(beta, Tensor) else beta) >= 0.005:
        rise = torch.expm1(y)
        return (rise - y).sub_(rise.mul_(y)) / beta**2
    # (1 - e^y + y e^y) / y^2 = sum over n >= 2 of (n - 1) y^(n - 2) / n!, for y so small that the left side cancels.
    series = torch.full_like(y, 1 / 5760)
    for coefficient in (1 / 840, 1 / 144, 1 / 30, 1 / 8, 1 / 3, 1 / 2):
        series = series * y + coefficient
    far = torch.where(y > -0.3, -1.0, y)
    power = far.exp()
    return log.square().neg_() * torch.where(y > -0.3, series, (1 - power + far * power) / far.square())
