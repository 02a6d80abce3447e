"""alpha-entmax attention in tiles of scores, in Triton: weights are computed again where they are needed, never stored.

The row solver is that of `newton`: with b = alpha - 1, the largest score m of a row, and u = max(0, 1 + b (s - m) - e),
p = u^(1/b), thresholds e rise from 0 by Newton's method on S^b, S = sum c p. As they only rise, a tile of keys without
weight stays so: later passes, and the backward pass, leave it out (as in AdaSplash, Gonçalves et al. 2025, which has
one alpha for all heads). The gradients are those of `newton.gradients`.

Shapes: B rows, H heads, P = B * H, Q queries, K keys, E head size; R and C are queries and keys of a tile, M and N the
tiles of queries and keys. Tensors of Q or K by E are (B, length, H, E) in memory unless strides are given.
Flags (P, M, N) are 1 where a tile may have weight. A FORMULA is 1 for an alpha of 1.5, 2 for 2, 0 for any above 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_TINY = tl.constexpr(2.0**-126)
_LEAST_LOG2 = tl.constexpr(-126.0)  # of `newton.LEAST`
# Lengths and the strides of masks differ from batch to batch: none is worth a kernel of its own.
_ANY = ["heads", "queries", "keys", "allowed_b", "allowed_h", "allowed_q", "allowed_k"]


@triton.jit
def _log1p(y):
    """ln(1 + y), relatively exact near 0, where the logarithm of a GPU is not."""
    near = (y > -0.29) & (y < 0.4)
    x = tl.where(near, y, 0.0)
    r = x / (2.0 + x)
    r2 = r * r
    series = 2.0 * r * (1.0 + r2 * (1.0 / 3.0 + r2 * (0.2 + r2 * (1.0 / 7.0 + r2 * (1.0 / 9.0)))))
    return tl.where(near, series, tl.log(tl.maximum(1.0 + y, _TINY)))


@triton.jit
def _expm1(x):
    series = 1.0 + x / 6.0
    series = 1.0 + x / 5.0 * series
    series = 1.0 + x / 4.0 * series
    series = 1.0 + x / 3.0 * series
    series = x * (1.0 + x / 2.0 * series)
    return tl.where(x > -0.3, series, tl.exp(x) - 1.0)


@triton.jit
def _powers(s, top, e, b, FORMULA: tl.constexpr):
    """p, p / u where p is not 0, and ln p: (R, C). s (R, C), minus infinity at hidden keys; top and e (R)."""
    y = tl.maximum(b * (s - top[:, None]) - e[:, None], -1.0)
    u = 1.0 + y
    if FORMULA == 1:
        return u * u, u, u
    elif FORMULA == 2:
        return u, tl.where(u > 0, 1.0, 0.0), u
    else:
        log = _log1p(y) / b
        some = (y > -1.0) & (log * _LOG2_E >= _LEAST_LOG2)
        log = tl.where(some, log, 0.0)
        p = tl.where(some, tl.exp2(log * _LOG2_E), 0.0)
        return p, p / tl.maximum(u, _TINY), log


@triton.jit
def _step(mass, slope, b, FORMULA: tl.constexpr):
    """Distance from e to the root of the tangent of S^b - 1; 0 where S is at most 1: (R)."""
    over = mass > 1.0
    mass = tl.where(over, mass, 1.0)
    slope = tl.where(over, slope, 1.0)
    if FORMULA == 1:
        return (mass - tl.sqrt(mass)) / slope
    elif FORMULA == 2:
        return (mass - 1.0) / slope
    else:
        return -mass * _expm1(-b * _log1p(mass - 1.0)) / slope


@triton.jit
def _bend(log, b):
    """((p^b - 1) / b - p^b ln p) / b of ln p, by its series where that cancels: see `newton.gradients`."""
    y = log * b
    series = 1.0 / 144.0 + y * (1.0 / 840.0 + y * (1.0 / 5760.0))
    series = 0.5 + y * (1.0 / 3.0 + y * (0.125 + y * (1.0 / 30.0 + y * series)))
    far = tl.where(y > -0.3, -1.0, y)
    power = tl.exp(far)
    return -log * log * tl.where(y > -0.3, series, (1.0 - power + far * power) / (far * far))


@triton.jit
def _read(base, at, step, length, columns, size):
    """Rows ``at`` (R) of a matrix whose rows are ``step`` apart: (R, columns), zeros beyond its length and size."""
    inside = (at < length)[:, None] & (columns < size)[None, :]
    return tl.load(base + at[:, None] * step + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _write(base, at, step, length, columns, size, values):
    inside = (at < length)[:, None] & (columns < size)[None, :]
    tl.store(base + at[:, None] * step + columns[None, :], values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _see(rows, columns, hidden, queries, keys, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """The keys that queries see, bool (R, C), and the counts of keys (C)."""
    counts, own, positions, allowed, allowed_q, allowed_k = hidden
    counted = tl.load(counts + columns, mask=columns < keys, other=0.0)
    seen = (rows < queries)[:, None] & (counted > 0.0)[None, :]
    if CAUSAL:
        query_at = tl.load(own + rows, mask=rows < queries, other=0)
        key_at = tl.load(positions + columns, mask=columns < keys, other=0)
        seen = seen & (key_at[None, :] <= query_at[:, None])
    if MASKED:
        here = allowed + rows[:, None] * allowed_q + columns[None, :] * allowed_k
        seen = seen & (tl.load(here, mask=seen, other=0) != 0)
    return seen, counted


@triton.jit
def _score(asked, key, seen, factor, PRECISION: tl.constexpr):
    """Scores of queries (R, E) and keys (C, E), minus infinity at hidden ones: (R, C)."""
    return tl.where(seen, tl.dot(asked, tl.trans(key), input_precision=PRECISION) * factor, -float("inf"))


@triton.jit
def _tile(
    asked, k, k_l, rows, at, columns, hidden, sizes, SIZE: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of the keys ``at``, and their counts: see `_score` and `_see`."""
    queries, keys, factor = sizes
    seen, counted = _see(rows, at, hidden, queries, keys, CAUSAL, MASKED)
    return _score(asked, _read(k, at, k_l, keys, columns, SIZE), seen, factor, PRECISION), counted


@triton.jit
def _keep(seed, rows, columns, keys, dropout):
    """Factors of dropout, 0 or 1 / (1 - dropout): (R, C), the same in every pass."""
    random = tl.rand(seed, rows[:, None] * keys + columns[None, :])
    return tl.where(random >= dropout, 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def _sums(s, counted, top, e, b, FORMULA: tl.constexpr, COUNTED: tl.constexpr):
    """S = sum c p and sum c p / u over a tile: (R) each."""
    p, slope, _ = _powers(s, top, e, b, FORMULA)
    if COUNTED:
        p = p * counted[None, :]
        slope = slope * counted[None, :]
    return tl.sum(p, 1), tl.sum(slope, 1)


@triton.jit
def _largest(
    asked, k, k_l, s, flags, rows, columns, hidden, sizes, R: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr,
    ONE: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The largest score of each row, 0 if it sees no key, and zeros that are NaN if a score is not finite: (R) each.

    Flags tiles of which something is seen. ``s`` are the scores if there is ONE tile.
    """
    queries, keys, factor = sizes
    top, wrong = tl.full([R], -float("inf"), tl.float32), tl.zeros([R], tl.float32)
    for j in range(0, tl.cdiv(keys, C)):
        at = j * C + tl.arange(0, C)
        seen, _ = _see(rows, at, hidden, queries, keys, CAUSAL, MASKED)
        some = tl.max(tl.max(seen.to(tl.int32), 1), 0)
        tl.store(flags + j, some.to(tl.int8))
        if some > 0:
            if ONE:
                here = s
            else:
                here = _score(asked, _read(k, at, k_l, keys, columns, SIZE), seen, factor, PRECISION)
            shown = tl.where(seen, here, 0.0)
            wrong += tl.sum(shown - shown, 1)  # a maximum may not show NaN
            top = tl.maximum(top, tl.max(here, 1))
    tl.debug_barrier()  # other threads read the flags than wrote them
    return tl.where(top == -float("inf"), 0.0, top), wrong


@triton.jit
def _solve(
    asked, k, k_l, s, counted, top, flags, rows, columns, hidden, sizes, b, close, R: tl.constexpr, C: tl.constexpr,
    SIZE: tl.constexpr, ONE: tl.constexpr, FORMULA: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    COUNTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The threshold e of each row (R), from below; takes away the flags of tiles that have no weight."""
    keys = sizes[1]
    e, left = tl.zeros([R], tl.float32), 64  # steps at most; a handful is usual
    while left > 0:
        if ONE:
            mass, slope = _sums(s, counted, top, e, b, FORMULA, COUNTED)
        else:
            mass, slope = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
            for j in range(0, tl.cdiv(keys, C)):
                if tl.load(flags + j) > 0:
                    at = j * C + tl.arange(0, C)
                    here, count = _tile(
                        asked, k, k_l, rows, at, columns, hidden, sizes, SIZE, CAUSAL, MASKED, PRECISION
                    )
                    more, steeper = _sums(here, count, top, e, b, FORMULA, COUNTED)
                    mass += more
                    slope += steeper
                    tl.debug_barrier()  # all threads have read the flag
                    tl.store(flags + j, (tl.max(more, 0) > 0.0).to(tl.int8))
            tl.debug_barrier()
        further = e + _step(mass, slope, b, FORMULA)
        goes_on = tl.max(((mass - 1.0 > close) & (further > e)).to(tl.int32), 0)
        e = further
        left = tl.where(goes_on > 0, left - 1, 0)
    return e


@triton.jit
def _weigh(
    asked, k, k_l, v, v_l, top, e, flags, rows, columns, hidden, sizes, b, seed, dropout, R: tl.constexpr,
    C: tl.constexpr, E: tl.constexpr, SIZE: tl.constexpr, FORMULA: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, COUNTED: tl.constexpr, DROPS: tl.constexpr, TRAINS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of c p v, and if it ``TRAINS`` of c s v, (R, E) each; sums of c p and of c s, (R) each."""
    keys = sizes[1]
    total, slopes = tl.zeros([R], tl.float32), tl.zeros([R], tl.float32)
    context, mean = tl.zeros([R, E], tl.float32), tl.zeros([R, E], tl.float32)
    for j in range(0, tl.cdiv(keys, C)):
        if tl.load(flags + j) > 0:
            at = j * C + tl.arange(0, C)
            here, count = _tile(asked, k, k_l, rows, at, columns, hidden, sizes, SIZE, CAUSAL, MASKED, PRECISION)
            p, slope, _ = _powers(here, top, e, b, FORMULA)
            if COUNTED:
                p = p * count[None, :]
                slope = slope * count[None, :]
            more = tl.sum(p, 1)
            total += more
            slopes += tl.sum(slope, 1)
            tl.debug_barrier()
            tl.store(flags + j, (tl.max(more, 0) > 0.0).to(tl.int8))
            if DROPS:
                kept = _keep(seed, rows, at, keys, dropout)
                p = p * kept
                slope = slope * kept
            value = _read(v, at, v_l, keys, columns, SIZE)
            context += tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
            if TRAINS:
                mean += tl.dot(slope.to(value.dtype), value, input_precision=PRECISION)
    return context, mean, total, slopes


@triton.jit(do_not_specialize=_ANY)
def forward(
    q, k, v, out, means, solved, flags, betas, counts, own, positions, allowed, seeds,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, allowed_b, allowed_h, allowed_q, allowed_k,
    heads, queries, keys, factor, close, dropout,
    SIZE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr, ONE: tl.constexpr, FORMULA: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, DROPS: tl.constexpr, TRAINS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Contexts ``out`` of a tile of queries; if it ``TRAINS``, the means of v by s = p^(2 - alpha), too.

    ``solved`` (P, 3, Q) gets the largest score, the threshold and 1 / S of each row. ``close`` is the largest S - 1
    that is not improved, as rows are normalised afterwards. ``ONE``: a single tile has all keys; its scores are kept.
    """
    pair, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, tiles = pair // heads, pair % heads, tl.cdiv(keys, C)
    b = tl.load(betas + head)
    rows, lanes, columns = tile * R + tl.arange(0, R), tl.arange(0, C), tl.arange(0, E)
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    allowed += batch * allowed_b + head * allowed_h
    hidden = (counts + batch * keys, own + batch * queries, positions + batch * keys, allowed, allowed_q, allowed_k)
    flags += (pair * tl.num_programs(1) + tile) * tiles
    sizes = (queries, keys, factor)
    asked = _read(q + batch * q_b + head * q_h, rows, q_l, queries, columns, SIZE)
    s, counted = _tile(asked, k, k_l, rows, lanes, columns, hidden, sizes, SIZE, CAUSAL, MASKED, PRECISION)
    top, wrong = _largest(
        asked, k, k_l, s, flags, rows, columns, hidden, sizes, R, C, SIZE, ONE, CAUSAL, MASKED, PRECISION
    )
    e = _solve(
        asked, k, k_l, s, counted, top, flags, rows, columns, hidden, sizes, b, close,
        R, C, SIZE, ONE, FORMULA, CAUSAL, MASKED, COUNTED, PRECISION,
    )  # fmt: skip
    context, mean, total, slopes = _weigh(
        asked, k, k_l, v, v_l, top, e, flags, rows, columns, hidden, sizes, b, tl.load(seeds) + pair, dropout,
        R, C, E, SIZE, FORMULA, CAUSAL, MASKED, COUNTED, DROPS, TRAINS, PRECISION,
    )  # fmt: skip
    scale = tl.where(total > 0.0, 1.0 / tl.maximum(total, _TINY), 0.0) + wrong
    place = (batch * queries * heads + head) * SIZE
    _write(out + place, rows, heads * SIZE, queries, columns, SIZE, context * scale[:, None])
    if TRAINS:
        mean = mean / tl.where(slopes > 0.0, slopes, 1.0)[:, None]
        _write(means + place, rows, heads * SIZE, queries, columns, SIZE, mean)
        solved += pair * 3 * queries + rows
        tl.store(solved, top, mask=rows < queries)
        tl.store(solved + queries, e, mask=rows < queries)
        tl.store(solved + 2 * queries, scale, mask=rows < queries)


@triton.jit
def _gradients(s, counted, solved, level, along, rows, queries, b, FORMULA: tl.constexpr, COUNTED: tl.constexpr):
    """Mass, gradient of the scores, and ln p: (R, C) each, from the gradient ``along`` of the mass.

    ``level`` (R) is the mean of that gradient by s.
    """
    inside = rows < queries
    top, e = tl.load(solved + rows, mask=inside, other=0.0), tl.load(solved + queries + rows, mask=inside, other=0.0)
    p, slope, log = _powers(s, top, e, b, FORMULA)
    p = p * tl.load(solved + 2 * queries + rows, mask=inside, other=0.0)[:, None]
    if COUNTED:
        p = p * counted[None, :]
        slope = slope * counted[None, :]
    return p, slope * (along - level[:, None]), log


@triton.jit(do_not_specialize=_ANY)
def backward_queries(
    q, k, v, given, levels, solved, flags, betas, counts, own, positions, allowed, seeds, of_q, of_alpha,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, allowed_b, allowed_h, allowed_q, allowed_k,
    heads, queries, keys, factor, dropout,
    SIZE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr, FORMULA: tl.constexpr, LEARNED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients ``of_q`` of a tile of queries, and ``of_alpha`` (P, Q) of the alpha of each of their rows."""
    pair, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, tiles = pair // heads, pair % heads, tl.cdiv(keys, C)
    b = tl.load(betas + head)
    rows, lanes, columns = tile * R + tl.arange(0, R), tl.arange(0, C), tl.arange(0, E)
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    allowed += batch * allowed_b + head * allowed_h
    hidden = (counts + batch * keys, own + batch * queries, positions + batch * keys, allowed, allowed_q, allowed_k)
    flags += (pair * tl.num_programs(1) + tile) * tiles
    place = (batch * queries * heads + head) * SIZE
    asked = _read(q + batch * q_b + head * q_h, rows, q_l, queries, columns, SIZE)
    back = _read(given + place, rows, heads * SIZE, queries, columns, SIZE)
    level = tl.load(levels + pair * queries + rows, mask=rows < queries, other=0.0)
    seed = tl.load(seeds) + pair
    gradient, bent = tl.zeros([R, E], tl.float32), tl.zeros([R], tl.float32)
    for j in range(0, tiles):
        if tl.load(flags + j) > 0:
            at = j * C + lanes
            key, value = _read(k, at, k_l, keys, columns, SIZE), _read(v, at, v_l, keys, columns, SIZE)
            seen, counted = _see(rows, at, hidden, queries, keys, CAUSAL, MASKED)
            s = _score(asked, key, seen, factor, PRECISION)
            along = tl.dot(back, tl.trans(value), input_precision=PRECISION)
            if DROPS:
                along = along * _keep(seed, rows, at, keys, dropout)
            _, found, log = _gradients(
                s, counted, solved + pair * 3 * queries, level, along, rows, queries, b, FORMULA, COUNTED
            )
            gradient += tl.dot(found.to(key.dtype), key, input_precision=PRECISION)
            if LEARNED:
                bent += tl.sum(found * _bend(log, b), 1)
    _write(of_q + place, rows, heads * SIZE, queries, columns, SIZE, gradient * factor)
    if LEARNED:
        tl.store(of_alpha + pair * queries + rows, bent, mask=rows < queries)


@triton.jit(do_not_specialize=_ANY)
def backward_keys(
    q, k, v, given, levels, solved, flags, betas, counts, own, positions, allowed, seeds, of_k, of_v,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, allowed_b, allowed_h, allowed_q, allowed_k,
    heads, queries, keys, factor, dropout,
    SIZE: tl.constexpr, R: tl.constexpr, C: tl.constexpr, E: tl.constexpr, FORMULA: tl.constexpr, CAUSAL: tl.constexpr,
    MASKED: tl.constexpr, COUNTED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and of their values; flags have one for each ``PARTS`` tiles of keys."""
    pair, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head, tiles = pair // heads, pair % heads, tl.cdiv(queries, R)
    b = tl.load(betas + head)
    lanes, at, columns = tl.arange(0, R), tile * C + tl.arange(0, C), tl.arange(0, E)
    q += batch * q_b + head * q_h
    allowed += batch * allowed_b + head * allowed_h
    hidden = (counts + batch * keys, own + batch * queries, positions + batch * keys, allowed, allowed_q, allowed_k)
    across = tl.cdiv(tl.num_programs(1), PARTS)
    flags += pair * tiles * across + tile // PARTS
    given += (batch * queries * heads + head) * SIZE
    key = _read(k + batch * k_b + head * k_h, at, k_l, keys, columns, SIZE)
    value = _read(v + batch * v_b + head * v_h, at, v_l, keys, columns, SIZE)
    seed = tl.load(seeds) + pair
    gradient, weighed = tl.zeros([C, E], tl.float32), tl.zeros([C, E], tl.float32)
    for i in range(0, tiles):
        if tl.load(flags + i * across) > 0:
            rows = i * R + lanes
            asked = _read(q, rows, q_l, queries, columns, SIZE)
            back = _read(given, rows, heads * SIZE, queries, columns, SIZE)
            level = tl.load(levels + pair * queries + rows, mask=rows < queries, other=0.0)
            seen, counted = _see(rows, at, hidden, queries, keys, CAUSAL, MASKED)
            s = _score(asked, key, seen, factor, PRECISION)
            along = tl.dot(back, tl.trans(value), input_precision=PRECISION)
            if DROPS:
                kept = _keep(seed, rows, at, keys, dropout)
                along = along * kept
            p, found, _ = _gradients(
                s, counted, solved + pair * 3 * queries, level, along, rows, queries, b, FORMULA, COUNTED
            )
            if DROPS:
                p = p * kept
            weighed += tl.dot(tl.trans(p).to(back.dtype), back, input_precision=PRECISION)
            gradient += tl.dot(tl.trans(found).to(asked.dtype), asked, input_precision=PRECISION)
    place = (batch * keys * heads + head) * SIZE
    _write(of_k + place, at, heads * SIZE, keys, columns, SIZE, gradient * factor)
    _write(of_v + place, at, heads * SIZE, keys, columns, SIZE, weighed)
