"""alpha-entmax attention on a GPU without a matrix of weights, where Triton is installed.

`blockwise_kernels` computes scores tile by tile, again in each pass, instead of storing them: memory grows with the
number of keys, not with its square. Whether that is possible is decided in `computable` and nowhere else: float64,
weights for reports, other devices and large heads take the way over `function.entmax`.

Shapes: B rows, H heads, P = B * H, Q queries, K keys, E head size.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsenmt.model.sockets import Keys

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_SIZE = 128  # of a head
_LEAST, _ROWS, _COLUMNS = 16, 64, 32  # of a tile: the least that tensor cores multiply; its usual queries and keys
_ONE, _MOST_KEYS = 128, 64  # keys that one tile has at most, if these are all; fewer where it sums gradients of them
_CLOSE = 2e-6
_FORMULAS = {1.5: 1, 2.0: 2}  # of `blockwise_kernels`; 0: any alpha above 1


@functools.cache
def kernels() -> ModuleType | None:
    """The module `blockwise_kernels`; None: Triton is missing."""
    try:
        return importlib.import_module("sparsenmt.sparsity.simplex.blockwise_kernels")
    except ImportError:
        return None


def computable(q: Tensor, k: Tensor, alpha: float | Tensor) -> bool:
    """Return True if `attend` takes these queries (B, H, Q, E) and keys: on a CUDA device, with Triton."""
    fits = q.dtype in _DTYPES and q.shape[-1] <= _MOST_SIZE and (isinstance(alpha, Tensor) or alpha > 1)
    # Where the device is a fake one of the tests, CUDA is not available.
    on_device = q.device.type == "cuda" and torch.cuda.is_available()
    return fits and on_device and bool(q.numel()) and bool(k.numel()) and kernels() is not None


def attend(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, keys: Keys, dropout: float, *, causal: bool
) -> Tensor:
    """Attention of q (B, H, Q, E) to k and v (B, H, K, E): (B, H, Q, E), in memory (B, Q, H, E), in their dtype.

    Queries that see no key get zeros. There is no second derivative.

    Args:
        alpha: above 1, at most 2; a tensor (H) has one for each head, and gets a gradient.
        keys: who sees what, but for causality if it is ``causal``.
        dropout: of the weights.
    """
    heads = alpha if isinstance(alpha, Tensor) else torch.full((q.shape[1],), alpha, device=q.device)
    formula = 0 if isinstance(alpha, Tensor) else _FORMULAS.get(alpha, 0)
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, heads))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    setting = _Setting(_hide(q, keys), float(dropout), formula, causal, keys.counts is not None, trains)
    with torch.cuda.device_of(q):  # kernels start on the current device
        context: Tensor = _BlockwiseFunction.apply(q, k, v, heads, setting)  # type: ignore[no-untyped-call]
    return context


@dataclass(frozen=True)
class _Hidden:
    """The tensors that decide which keys a query sees."""

    counts: Tensor  # (B, K) fp32, 0 at hidden keys
    own: Tensor  # (B, Q) int32 positions of queries
    positions: Tensor  # (B, K) int32
    allowed: Tensor | None  # bool, (B, H, Q, K), expanded; None: counts and positions say all


def _hide(q: Tensor, keys: Keys) -> _Hidden:
    rows, length = q.shape[0], keys.valid.shape[1]
    each_query = keys.allowed is not None and keys.allowed.shape[1:3] != (1, 1)
    shared = keys.valid if keys.allowed is None or each_query else keys.allowed[:, 0, 0]
    counts = shared.float() if keys.counts is None else keys.counts * shared
    return _Hidden(
        counts.float().expand(rows, length).contiguous(),
        keys.queries.int().expand(rows, q.shape[2]).contiguous(),
        keys.positions.int().expand(rows, length).contiguous(),
        keys.allowed.expand(*q.shape[:3], length) if each_query and keys.allowed is not None else None,
    )


@dataclass(frozen=True)
class _Setting:
    hidden: _Hidden
    dropout: float
    formula: int
    causal: bool
    counted: bool
    trains: bool

    def constants(self, q: Tensor) -> dict[str, Any]:
        """The constants that all kernels have."""
        exact = q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        return {
            "SIZE": q.shape[-1],
            "E": _tile(q.shape[-1], _MOST_SIZE),
            "FORMULA": self.formula,
            "CAUSAL": self.causal,
            "MASKED": self.hidden.allowed is not None,
            "COUNTED": self.counted,
            "DROPS": self.dropout > 0,
            "PRECISION": "ieee" if exact else "tf32",
        }

    def inputs(self, betas: Tensor, seed: Tensor) -> tuple[Tensor, ...]:
        hidden = self.hidden
        allowed = hidden.counts if hidden.allowed is None else hidden.allowed.view(torch.uint8)
        return betas, hidden.counts, hidden.own, hidden.positions, allowed, seed

    def sizes(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[float, ...]:
        """Strides, heads, lengths, and the factor of the scores."""
        strides = [stride for x in (q, k, v) for stride in x.stride()[:3]]
        allowed = self.hidden.allowed
        masks = (0, 0, 0, 0) if allowed is None else allowed.stride()
        return *strides, *masks, q.shape[1], q.shape[2], k.shape[2], q.shape[-1] ** -0.5


class _BlockwiseFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, setting: _Setting) -> Tensor:
        found, (rows, heads, queries, _) = kernels(), q.shape
        assert found is not None
        betas = alphas.detach().float() - 1
        seed = torch.empty(1, dtype=torch.int64, device=q.device)
        if setting.dropout:
            seed.random_()
        tile = _lengths(q, k)
        pairs, tiles = rows * heads, (-(-queries // tile["R"]), -(-k.shape[2] // tile["C"]))
        flags = torch.empty(pairs, *tiles, dtype=torch.int8, device=q.device)
        context = _empty(q)
        means, solved = context, betas  # unused but in training
        if setting.trains:
            means, solved = _empty(q, torch.float32), betas.new_empty(pairs, 3, queries)
        found.forward[pairs, tiles[0]](
            *(q, k, v, context, means, solved, flags),
            *setting.inputs(betas, seed),
            *setting.sizes(q, k, v),
            _CLOSE,
            setting.dropout,
            ONE=tiles[1] == 1,
            TRAINS=setting.trains,
            **tile,
            **setting.constants(q),
        )
        if setting.trains:
            ctx.save_for_backward(q, k, v, alphas, means, solved, flags, seed)
            ctx.setting = setting
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, alphas, means, solved, flags, seed = ctx.saved_tensors
        setting, found = ctx.setting, kernels()
        assert found is not None
        given = given.transpose(1, 2).contiguous().transpose(1, 2)
        levels = (given.float() * means).sum(-1).contiguous()
        betas, learned = alphas.float() - 1, bool(ctx.needs_input_grad[3])
        of_q, of_k, of_v = _empty(q), _empty(k), _empty(v)
        of_alpha = torch.empty_like(levels) if learned else levels
        common = (q, k, v, given, levels, solved, flags, *setting.inputs(betas, seed))
        rest = (*setting.sizes(q, k, v), setting.dropout)
        constants, tile = setting.constants(q), _lengths(q, k)
        pairs = flags.shape[0]
        found.backward_queries[pairs, flags.shape[1]](
            *common, of_q, of_alpha, *rest, LEARNED=learned, **tile, **constants
        )
        parts = max(1, tile["C"] // _MOST_KEYS)  # it has sums as long as its keys
        tile |= {"C": tile["C"] // parts, "num_warps": tile["num_warps"] // parts}
        columns = -(-k.shape[2] // tile["C"])
        found.backward_keys[pairs, columns](*common, of_k, of_v, *rest, PARTS=parts, **tile, **constants)
        return of_q, of_k, of_v, of_alpha.sum((0, 2)).to(alphas.dtype) if learned else None, None


def _empty(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(B, H, L, E), in memory (B, L, H, E)."""
    rows, heads, length, size = like.shape
    return like.new_empty(rows, length, heads, size, dtype=dtype).transpose(1, 2)


def _tile(length: int, most: int) -> int:
    return min(most, max(_LEAST, 1 << (length - 1).bit_length()))


def _lengths(q: Tensor, k: Tensor) -> dict[str, int]:
    """Queries R and keys C of a tile, and the warps that share it: as compilers show, registers hold no more."""
    keys = _tile(k.shape[2], _ONE) if k.shape[2] <= _ONE else _COLUMNS
    warps = 8 if keys == _ONE else 4
    shrunk = (1 + (q.element_size() == 4)) * (1 + (q.shape[-1] > _MOST_SIZE // 2))
    rows = max(_LEAST, min(_ROWS, 512 * warps // keys) // shrunk)
    return {"R": _tile(q.shape[2], rows), "C": keys, "num_warps": warps, "num_stages": 2}
