"""One position of every hypothesis through all layers of a decoder, by the library's one function for it.

N rows, B sentences, D dimension, F feed-forward dimension, H heads, E head size, T positions so far (with the new one),
K entries of the memory, S slots.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.native.packing import Matrix, Packed, pack

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_MATRICES = ("own", "own_out", "query", "cross_out", "inner", "outer")
_NORMS = ("own_norm", "cross_norm", "feed_forward_norm")
_TOLERANCE = 1e-5


class Step:
    """The library's functions for a step."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.run = library.sparsenmt_step
        self.run.argtypes = [_POINTER, _POINTER, _SIZE, *[_POINTER] * 7, ctypes.c_int]
        self.run.restype = None
        self.scratch = library.sparsenmt_step_scratch
        self.scratch.argtypes = [_POINTER]
        self.scratch.restype = _SIZE


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("bias", _POINTER))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, Matrix) for name in _MATRICES),
        *((name, _Norm) for name in _NORMS),
        *((name, _SIZE) for name in ("own_places", "cross_places")),
    )


class _Room(ctypes.Structure):
    _fields_ = (
        *(
            (name, _POINTER)
            for name in ("keys", "values", "memory_keys", "memory_values", "memory_rows", "memory_bias")
        ),
        ("slots", _SIZE),
    )


class _Sizes(ctypes.Structure):
    _fields_ = (
        *(
            (name, _SIZE)
            for name in ("rows", "sentences", "dimension", "feed_forward", "heads", "length", "entries", "slot_stride")
        ),
        ("pre_norm", _SIZE),
        ("epsilon", ctypes.c_double),
        ("starts", _POINTER),
    )


@dataclass(frozen=True)
class Norm:
    """A layer normalisation: weight and bias (D), fp32."""

    weight: Tensor
    bias: Tensor

    @property
    def pointers(self) -> _Norm:
        """As the library sees it."""
        return _Norm(self.weight.data_ptr(), self.bias.data_ptr())


@dataclass(frozen=True)
class Layer:
    """What a layer has learned.

    Args:
        matrices: to the queries, keys and values of self-attention; out of it; to the queries of cross-attention; out
            of it; and the two of the feed-forward network, the first followed by a ReLU.
        norms: of self-attention, of cross-attention, of the feed-forward network.
        places: of both attentions, `Transform.places`; 0: softmax over all scores.
    """

    matrices: tuple[Packed, ...]
    norms: tuple[Norm, ...]
    places: tuple[int, int] = (0, 0)

    @property
    def weights(self) -> int:
        """Numbers in its matrices."""
        return sum(each.inner * each.outer for each in self.matrices)

    @property
    def structure(self) -> _Layer:
        """As the library sees it."""
        parts = (*(each.matrix for each in self.matrices), *(each.pointers for each in self.norms))
        return _Layer(*parts, *self.places)


@dataclass(frozen=True)
class Room:
    """What a layer reads beside its input, all fp32; at the last of the T positions it writes."""

    keys: Tensor  # (T, S, H, E)
    values: Tensor  # (T, S, H, E)
    memory_keys: Tensor  # (..., H, K, E), contiguous
    memory_values: Tensor  # (..., H, K, E), contiguous
    memory_rows: Tensor | None  # (B) int64: which of them are the sentences'; None: all, in order
    memory_bias: Tensor | None  # (B, ..., K), contiguous: added to the scores; minus infinity hides an entry

    @property
    def structure(self) -> _Room:
        """As the library sees it."""
        always = (self.keys, self.values, self.memory_keys, self.memory_values)
        maybe = (None if each is None else each.data_ptr() for each in (self.memory_rows, self.memory_bias))
        return _Room(*(each.data_ptr() for each in always), *maybe, self.keys.shape[1])


class Stack:
    """The layers of a decoder, one a step.

    Args:
        step: the library's functions.
        heads: of both attentions.
        last: the normalisation after the last layer, with ``pre_norm``.
    """

    def __init__(
        self,
        step: Step,
        layers: Sequence[Layer],
        *,
        heads: int,
        last: Norm | None,
        pre_norm: bool,
        epsilon: float,
    ) -> None:
        self._step = step
        self._held = (*layers, last)  # what the pointers point to
        self._layers = (_Layer * len(layers))(*(layer.structure for layer in layers))
        self._last = (None, None) if last is None else (last.weight.data_ptr(), last.bias.data_ptr())
        self._heads, self._pre_norm, self._epsilon = heads, pre_norm, epsilon
        self.feed_forward = layers[0].matrices[-1].inner

    def run(
        self, x: Tensor, rooms: Sequence[Room], slots: Tensor, threads: int, starts: Tensor | None = None
    ) -> Tensor:
        """x (N, D), contiguous, which is overwritten -> (N, D), after as many layers as there are rooms.

        slots (N, T) int32: where the keys and values of a row lie at every position; at the last, row n's in slot n.
        starts (B) int64, contiguous: the first position that the rows of a sentence have; None: 0.
        """
        (rows, size), memory, left = x.shape, rooms[0].memory_keys, rooms[0].memory_rows
        sizes = _Sizes(
            rows,
            memory.shape[0] if left is None else left.shape[0],
            size,
            self.feed_forward,
            self._heads,
            slots.shape[1],
            memory.shape[2],
            slots.stride(0),
            self._pre_norm,
            self._epsilon,
            None if starts is None else starts.data_ptr(),
        )
        scratch = x.new_empty(self._step.scratch(ctypes.addressof(sizes)))
        out = torch.empty_like(x)
        places = (_Room * len(rooms))(*(room.structure for room in rooms))
        self._step.run(
            ctypes.addressof(self._layers),
            ctypes.addressof(places),
            len(rooms),
            *self._last,
            ctypes.addressof(sizes),
            slots.data_ptr(),
            x.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            threads,
        )
        return out


def _numbers(*shape: int, speed: float) -> Tensor:
    """Different numbers of both signs, without a random state."""
    return (torch.arange(math.prod(shape), dtype=torch.float32).view(shape) * speed).sin()


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float, places: int) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias
    if places:
        scores = scores.masked_fill(scores < scores.topk(places, -1).values[..., -1:], -math.inf)
    context: Tensor = scores.softmax(-1) @ v
    return context


def _plain(
    x: Tensor,
    weights: dict[str, Tensor],
    room: Room,
    slots: Tensor,
    starts: Tensor,
    heads: int,
    pre_norm: bool,
    places: Sequence[int],
) -> Tensor:
    """What a layer computes, by PyTorch; norms do nothing but normalise."""
    (rows, size), sentences = x.shape, room.memory_keys.shape[0]

    def before(x: Tensor) -> Tensor:
        return F.layer_norm(x, (size,)) if pre_norm else x

    def after(x: Tensor) -> Tensor:
        return x if pre_norm else F.layer_norm(x, (size,))

    q, k, v = (before(x) @ weights["own"].T).view(rows, 3, heads, -1).unbind(1)
    numbers = torch.arange(rows)
    last = slots.shape[1] - 1
    keys, values = (
        torch.stack([each[t, slots[:, t].long()] if t < last else new[numbers] for t in range(last + 1)], 2)
        for each, new in ((room.keys, k), (room.values, v))
    )
    before_start = torch.arange(last + 1) < starts.repeat_interleave(rows // sentences)[:, None]
    hidden = torch.zeros(rows, 1, 1, last + 1).masked_fill(before_start[:, None, None], -math.inf)
    context = _attend(q[:, :, None], keys, values, hidden, places[0])
    x = after(x + context.reshape(rows, size) @ weights["own_out"].T)
    q = (before(x) @ weights["query"].T).view(sentences, -1, heads, size // heads).transpose(1, 2)
    assert room.memory_bias is not None
    context = _attend(q, room.memory_keys, room.memory_values, room.memory_bias.view(sentences, 1, 1, -1), places[1])
    x = after(x + context.transpose(1, 2).reshape(rows, size) @ weights["cross_out"].T)
    return after(x + (before(x) @ weights["inner"].T).relu() @ weights["outer"].T)


def error(step: Step) -> float:
    """How far the library is from PyTorch on small problems, over what is allowed."""
    cases = ((True, 6, (0, 0)), (True, 60, (2, 3)), (False, 6, (1, 2)), (False, 60, (0, 0)))
    return max(_error(step, *case) for case in cases) / _TOLERANCE


def _error(step: Step, pre_norm: bool, rows: int, places: tuple[int, int]) -> float:
    size, wide, heads, length, entries, sentences = 64, 96, 2, 3, 5, 3
    shapes = {"own": (3 * size, size), "inner": (wide, size), "outer": (size, wide)}
    weights = {
        name: _numbers(*shapes.get(name, (size, size)), speed=1.1 + 0.2 * i) / 8 for i, name in enumerate(_MATRICES)
    }
    norm = Norm(torch.ones(size), torch.zeros(size))
    layer = Layer(tuple(pack(weights[name], None, torch.float32) for name in _MATRICES), (norm, norm, norm), places)
    bias = _numbers(sentences, entries, speed=0.9)
    bias[0, 1] = -math.inf
    shape, own = (sentences, heads, entries, size // heads), (length, rows, heads, size // heads)
    seen = (_numbers(*shape, speed=0.5), _numbers(*shape, speed=1.7), None, bias)
    room = Room(_numbers(*own, speed=0.7), _numbers(*own, speed=0.3), *seen)
    slots = torch.arange(rows, dtype=torch.int32)[:, None].repeat(1, length)
    slots[:, 0] = slots[:, 0].flip(0)
    starts = torch.tensor([0, 1, 2])
    x = _numbers(rows, size, speed=0.6)
    expected = _plain(x, weights, room, slots, starts, heads, pre_norm, places)
    stack = Stack(step, [layer], heads=heads, last=norm if pre_norm else None, pre_norm=pre_norm, epsilon=1e-5)
    found = stack.run(x.clone(), [room], slots, min(torch.get_num_threads(), 2), starts)
    if pre_norm:
        expected = F.layer_norm(expected, (size,))
    return float((found - expected).abs().nan_to_num(nan=math.inf).max())
