"""The sockets of the engine as types: the protocols that sparsity methods implement, and their arguments.

In decoding, two threads may call a method at the same time, each with batches of its own (`decoding.side_by_side`):
what it keeps between calls is replaced as one object, and read once.

Shapes: B sentences, H heads, G fixed heads, Q queries, K keys, S source positions, D model dimension, E head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from sparsenmt.errors import UserError
from sparsenmt.model.memory import Memory
from sparsenmt.plugins.failure import PluggedMethod, plugged


@dataclass(frozen=True)
class Keys:
    """The keys of one attention, and the positions of its queries.

    Positions are absolute: those before any compaction. A stand-in for dropped positions has position -1.
    At cross-attention the hypotheses of a sentence are on the query axis, so that Q is not time.
    """

    valid: Tensor  # (B, K) bool: real keys
    queries: Tensor  # (B, Q) absolute positions of the queries
    positions: Tensor  # (B, K) absolute positions of the keys
    allowed: Tensor | None = None  # bool, broadcastable to (B, H, Q, K): pattern, causality and padding together
    counts: Tensor | None = None  # (B, K) how many positions a key stands for; None: one each
    features: Mapping[str, Tensor] = field(default_factory=dict)  # uncompacted source features, indexed by positions

    def visible(self) -> Tensor:
        """Bool, broadcastable to (B, H, Q, K): the keys that each query sees."""
        seen = self.valid[:, None, None, :] if self.allowed is None else self.allowed
        return seen if self.counts is None else seen & (self.counts > 0)[:, None, None, :]

    def select(self, rows: Tensor) -> Keys:
        """Keep only these rows, in this order."""

        def pick(x: Tensor | None) -> Tensor | None:
            return x if x is None or len(x) == 1 < len(self.queries) else x.index_select(0, rows)

        valid, queries, positions = (x.index_select(0, rows) for x in (self.valid, self.queries, self.positions))
        features = {name: each.index_select(0, rows) for name, each in self.features.items()}
        return Keys(valid, queries, positions, pick(self.allowed), pick(self.counts), features)


@dataclass(frozen=True)
class Gates:
    """A filter's decision on a memory."""

    values: Tensor  # (B, S') in [0, 1]; exactly 0 means closed
    on_closed: Literal["zero", "mask"] = "zero"  # closed: a zero vector, or masked
    losses: Mapping[str, Tensor] = field(default_factory=dict)  # name -> (B,), one value a sentence
    evaluated: Tensor | None = None  # (B, S') the gates of evaluation, where ``values`` are samples; None: the same
    cumulative: bool = False  # positions that an earlier filter has closed stay closed, whatever the gates say


class Pattern(Protocol):
    """The keys that a query may see, as a function of positions and of what is visible at all.

    None in place of a pattern: everything is seen.
    """

    @property
    def reach(self) -> tuple[int, int] | None:
        """The largest distances to the left and to the right at which a key is seen; None: no bound.

        With a reach the engine computes attention in bands; without one the pattern only masks. Two optional attributes
        narrow the bands: ``segment: int`` (the sequence is cut into segments of this length, and a query sees only its
        own) and ``stride: int`` (a query sees only keys at distances that are multiples of it). ``contiguous = True``
        says that a query sees every key within reach: one kernel computes such a window in training.

        ``first: int`` widens them: a query may see keys at positions below it, too, however far, and a query at such a
        position any key (``symmetric = False``: only those of others), as with the global attention of the Longformer
        (Beltagy et al. 2020). The engine gathers these keys beside each band, and caches keep them.
        """

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """queries (B, Q), positions (B, K), visible (B, 1, Q or 1, K) -> bool, broadcastable to (B, H, Q, K)."""
        ...


@dataclass(frozen=True)
class SoftmaxKernel:
    """A softmax that the compiled decoding step computes, over all scores of a row or over the largest.

    Args:
        largest: the number of scores that get weight; None: all.
        tolerance: scores from t - tolerance * (1 + |t|) on, t the last of the largest, tie with t and get weight, too.
    """

    largest: int | None = None
    tolerance: float = 0.0


class Transform(nn.Module):
    """Scores to attention mass. Scores come in at least fp32; the mass of a key includes its count."""

    position_dependent: bool = False
    """True if the result depends on positions: dropped positions then cannot be merged into one stand-in."""

    normalised: ClassVar[bool] = True
    """False if the weights of a query that sees keys need not sum to 1, as with a sink or a sigmoid."""

    fusable: ClassVar[bool] = False
    """True if `score_bias` is implemented; set when the class is defined."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.fusable = cls.score_bias is not Transform.score_bias

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        """scores (B, H, Q, K) -> mass (B, H, Q, K); rows that see nothing are all zero."""
        raise NotImplementedError

    def score_bias(self, keys: Keys) -> Tensor | None:
        """The bias of a transform that is a softmax after adding it, so that a fused kernel can be used.

        Broadcastable to (B, H, Q, K), or None for a bias of zero. The engine masks keys that are not visible.

        Raises:
            NotImplementedError: the transform is something else.
        """
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keys: Keys, dropout: float, *, causal: bool) -> Tensor | None:
        """Contexts (B, H, Q, E) of q (B, H, Q, E), k and v (B, H, K, E), with scores q k' / sqrt(E), in one operator.

        Args:
            keys: restricted, but for causality if it is ``causal``.
            dropout: of the weights.

        Returns:
            None where there is no such operator: then `forward` makes a matrix of weights.
        """
        return None

    def logged(self) -> Mapping[str, Tensor]:
        """Values for the training log, by name: (H), one for each learned head; empty: there are none."""
        return {}

    def softmax_kernel(self) -> SoftmaxKernel | None:
        """The kernel that computes this transform, after its `score_bias` if there is one; None: there is none."""
        return SoftmaxKernel() if self.fusable else None


class ScoreTerm(nn.Module):
    """A term of the scores that depends on the query and on the distance of the key, at a self-attention site.

    The engine asks for the term at distances, and moves it to the keys. Distances count to the left: a key after the
    query has a negative one.
    """

    def content(self, q: Tensor) -> Tensor:
        """Queries of the product with the keys, which may have a bias. q (B, H, Q, E) -> (B, H, Q, E)."""
        return q

    def forward(self, q: Tensor, distances: Tensor) -> Tensor:
        """q (B, H, Q, E), distances (N) int64 -> (B, H, Q, N), scaled by the engine like the product with the keys."""
        raise NotImplementedError


class Span(nn.Module):
    """A factor of attention weights that depends on the head and on the distance of the key, at self-attention."""

    on: Literal["scores", "weights"] = "scores"
    """``scores``: its logarithm is added before the transform; ``weights``: it multiplies the weights, which then are
    normalised again if the transform normalises. With a softmax both are the same."""

    @property
    def reach(self) -> int:
        """The largest distance at which any head's factor is not 0: keys beyond are neither computed nor cached."""
        raise NotImplementedError

    def forward(self, distances: Tensor) -> Tensor:
        """distances (Q, K) >= 0 -> (H, Q, K) in [0, 1]; exactly 0 at keys that are not attended to."""
        raise NotImplementedError

    def losses(self) -> Mapping[str, Tensor]:
        """Losses of the parameters, by name: scalars."""
        return {}

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """Least and largest values of its parameters, by name: training clamps them after every update."""
        return {}

    def logged(self) -> Mapping[str, Tensor]:
        """Values for the training log, as `Transform.logged`."""
        return {}


@dataclass(frozen=True)
class Groups:
    """Groups of positions, each of which attends within itself. A position may be in several groups, or in none."""

    queries: Tensor  # (B, H, C, W) indices of queries, rising
    keys: Tensor  # (B, H, C, U) indices of keys, rising


class ContentPattern(nn.Module):
    """The keys that a query may see, decided by the queries and keys themselves, at a self-attention site.

    In training it may gather statistics of the queries and keys; `pending` holds them until an update is complete.
    """

    grouped: ClassVar[bool] = False
    """True if `groups` gives groups."""
    least_keys: int = 1
    """Number of keys below which the pattern has no meaning."""
    decodes: ClassVar[bool] = True
    """False if later positions decide what a query sees, so that a text cannot be decoded step by step."""

    def prepare(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The queries and keys of which scores are formed. q (B, H, Q, E), k (B, H, K, E)."""
        return q, k

    def forward(self, q: Tensor, k: Tensor, keys: Keys) -> Tensor:
        """Prepared q (B, H, Q, E) and k (B, H, K, E) -> bool, broadcastable to (B, H, Q, K)."""
        raise NotImplementedError

    def groups(self, q: Tensor, k: Tensor, keys: Keys) -> Groups | None:
        """Groups in place of the last heads of the mask: a query's output is the mean over its groups; None: none."""
        return None

    def pending(self) -> list[Tensor]:
        """Sums since `forget` was called, in the order of `update`; processes add theirs up in place."""
        return []

    def update(self) -> None:
        """Apply the pending sums after an update of the parameters."""

    def forget(self) -> None:
        """Drop the pending sums: an update begins."""


class FixedHeads(Protocol):
    """Heads with fixed attention weights: they have values, but no query and key projections."""

    heads: int  # G
    names: Sequence[str]  # of each head, for reports

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        """values (B, G, K, E) -> context (B, G, Q, E), in O(length)."""
        ...

    def weights(self, keys: Keys) -> Tensor:
        """(B, G, Q, K): the weights as a matrix, for reports and for decoding step by step."""
        ...


class Recurrence(nn.Module):
    """The cell of a recurrent layer in the place of the decoder's self-attention: a state in place of keys and values.

    The engine computes linear projections of the input, which the cell combines with its state.
    """

    projections: ClassVar[Mapping[str, bool]] = {}
    """The names of the projections (D to D), in the order of `forward`; True: it has a bias."""
    compiled: ClassVar[bool] = False
    """True if the compiled decoding step computes the cell: of two projections z and g the state
    f c + (1 - f) z with f = sigmoid(g), whose ReLU is the output."""

    def forward(self, projected: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs of all positions, and the state after the last.

        Args:
            projected: (N, T, D) each.
            state: (N, D), in fp32 at least, after the positions before; None: the target begins here.

        Returns:
            (N, T, D) in the dtype of ``projected``, and (N, D), in fp32 at least.
        """
        raise NotImplementedError


class MemoryFilter(nn.Module):
    """A gate for each encoder output. The filter decides, the engine drops.

    A filter after the last layer may decide by `Memory.before_norm`, too: the states before the final normalisation.
    """

    label: str = ""
    """The name of the method, under which the share that it closes is logged if it has no loss."""

    requires: Collection[str] = frozenset()
    """Names of the source features that the filter reads."""

    position_dependent: bool = False
    """True if gates depend on positions or features: positions dropped before then cannot be merged into a stand-in."""

    start_option: str | None = None
    """Option that gives the values of untrained gates, which messages name; None if they are not learned."""

    def forward(self, memory: Memory) -> Gates:
        """Gates for the entries of ``memory``. Deterministic unless the module is in training mode.

        In decoding, states may come in lower precision than the filter's parameters, which stay in fp32.
        """
        raise NotImplementedError


WIDE = (Transform, Span, ContentPattern, Recurrence, MemoryFilter)
"""Modules of methods that compute in fp32 at least: their parameters are never rounded."""
_METHODS = (*WIDE, ScoreTerm)


def method_weights(model: nn.Module) -> set[str]:
    """The names of the weights of a model that belong to methods."""
    modules = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, _METHODS)]
    return {f"{prefix}.{name}" for prefix, module in modules for name in module.state_dict()}


# Methods from outside the package


def content_patterns(modules: Iterable[nn.Module]) -> list[ContentPattern]:
    """Return those of a model's modules that are patterns which follow queries and keys in training."""
    return [module for module in modules if isinstance(module, ContentPattern)]


def start_options(modules: Iterable[nn.Module]) -> list[str]:
    """Return the options that give the values of untrained gates, of the filters among a model's modules."""
    filters = [module for module in modules if isinstance(module, MemoryFilter)]
    return sorted({each.start_option for each in filters if each.start_option is not None})


def nonfinite_method(modules: Iterable[nn.Module], run: Callable[[], object]) -> UserError | None:
    """The error of the method from outside the package that makes the first number that is not finite, of finite ones.

    Minus infinity among what it is given hides a key.

    Args:
        modules: of the model.
        run: repeats what gave such numbers.

    Returns:
        None: no such method is the first.
    """
    found: list[PluggedMethod] = []
    own = {module: method for module in modules if (method := plugged(module)) is not None}

    def note(module: nn.Module, given: Any, made: Any) -> None:
        values, result = [each for each in given if isinstance(each, Tensor)], main_tensor(made)
        if isinstance(result, Tensor) and all(bool((each < math.inf).all()) for each in values):
            found.extend([] if bool(result.isfinite().all()) else [own[module]])

    def note_gradients(module: nn.Module, made: Any, given: Any) -> None:
        note(module, given, made)

    with ExitStack() as hooks:
        for module in own:
            hooks.callback(module.register_forward_hook(note).remove)
            hooks.callback(module.register_full_backward_hook(note_gradients).remove)
        if own:
            with suppress(RuntimeError):  # a hook may not suit what changes in place: then nothing is found
                run()
    return nonfinite_error(found[0]) if found else None


def nonfinite_error(method: PluggedMethod) -> UserError:
    """The error of a method from outside the package that makes numbers that are not finite, of finite ones."""
    return UserError(
        f"{method.title} returns numbers or gradients that are not finite, of finite ones",
        where=method.where,
        hint="Correct the method; of a row that sees no key, its weights are zero.",
    )


def main_tensor(result: Any) -> Any:
    """The tensor that a method returns, alone or among others."""
    return result.values if isinstance(result, Gates) else result[0] if isinstance(result, tuple) else result
