"""Methods with one silent mistake each: they train and translate, and no message says that they are wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates, Keys, MemoryFilter, Recurrence, Transform
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Options


class Sound(Transform):
    """A softmax with a learned temperature for each head, without a mistake; the others change one function of it."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.linspace(-0.5, 0.5, heads))

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        mass = self.mass(self.scale(scores), self.visible(keys)) * self.counts(scores, keys)
        return mass / mass.sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)

    def scale(self, scores: Tensor) -> Tensor:
        return scores * self.sharpness.to(scores.dtype).exp()[:, None, None]

    def visible(self, keys: Keys) -> Tensor:
        return keys.visible()

    def mass(self, scores: Tensor, visible: Tensor) -> Tensor:
        hidden = scores.masked_fill(~visible, -math.inf)
        top = hidden.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        return (hidden - top).exp()

    def counts(self, scores: Tensor, keys: Keys) -> Tensor:
        return torch.ones_like(scores[:1, :1, :1]) if keys.counts is None else keys.counts[:, None, None, :]


class IgnoresCounts(Sound):
    def counts(self, scores: Tensor, keys: Keys) -> Tensor:
        return torch.ones_like(scores)


class SeesTheFuture(Sound):
    def visible(self, keys: Keys) -> Tensor:
        return keys.valid[:, None, None, :] & keys.visible().any(-1, keepdim=True)


class Drops(Sound):
    def scale(self, scores: Tensor) -> Tensor:
        return F.dropout(super().scale(scores), 0.1)  # its default is training mode


class ScalesByTheBatch(Sound):
    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        largest = scores.detach().masked_fill(~keys.visible(), 0.0).abs().amax()
        return super().forward(scores / largest.clamp_min(1e-9), keys)


class LosesTheGradient(Sound):
    def scale(self, scores: Tensor) -> Tensor:
        return super().scale(scores.detach())


class LosesPartOfTheGradient(Sound):
    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        mass = self.mass(self.scale(scores), self.visible(keys)) * self.counts(scores, keys)
        return mass / mass.detach().sum(-1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)


class RoundsToSingle(Sound):
    def mass(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().mass(scores.float(), visible).to(scores.dtype)


class KeepsTheFirstScale(Sound):
    first: Tensor | None = None

    def scale(self, scores: Tensor) -> Tensor:
        if self.first is None:
            self.first = scores.detach().std(correction=0)
        return super().scale(scores) / self.first.to(scores.dtype).clamp_min(1e-3)


class CountsColumns(Sound):
    """A bias by distance, which takes indices for positions."""

    position_dependent = True

    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        columns = torch.arange(scores.shape[-1], device=scores.device)
        return super().forward(scores - 0.1 * (keys.queries[:, None, :, None] - columns).abs(), keys)


class UniformWhereNothingIsSeen(Sound):
    def mass(self, scores: Tensor, visible: Tensor) -> Tensor:
        return super().mass(scores.masked_fill(~visible, -1e9), torch.ones_like(visible))


class SumsToAnything(Sound):
    def forward(self, scores: Tensor, keys: Keys) -> Tensor:
        return scores.sigmoid().masked_fill(~keys.visible(), 0.0) * self.counts(scores, keys) + 0 * self.scale(scores)


class UnlikeItsBias(Sound):
    def score_bias(self, keys: Keys) -> Tensor | None:
        return None if keys.counts is None else keys.counts.clamp_min(1e-30).log()[:, None, None, :]


class MakesItOnTheProcessor(Sound):
    def scale(self, scores: Tensor) -> Tensor:
        return super().scale(scores) * torch.linspace(0.9, 1.1, scores.shape[1])[:, None, None]


class RefusesSilently(Sound):
    pass


class Neighbours:
    """The keys at most two positions away."""

    reach: tuple[int, int] | None = (2, 2)
    away = 2

    def __call__(self, queries: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        return (self.places(queries)[:, None, :, None] - positions[:, None, None, :]).abs() <= self.away

    def places(self, queries: Tensor) -> Tensor:
        return queries


class IndexOfTheQuery(Neighbours):
    reach = None

    def places(self, queries: Tensor) -> Tensor:
        return torch.arange(queries.shape[1], device=queries.device)[None]


class ReachTooShort(Neighbours):
    away = 3


class MeanOfAll:
    """Two fixed heads: the mean of all positions, padding included."""

    heads = 2
    names = ("mean", "mean again")

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        return values.mean(2, keepdim=True).expand(-1, -1, keys.queries.shape[1], -1)

    def weights(self, keys: Keys) -> Tensor:
        rows, queries, width = len(keys.valid), keys.queries.shape[1], keys.valid.shape[1]
        return torch.full((rows, 2, queries, width), 1 / width, dtype=torch.float64, device=keys.valid.device)


class WeightsOfValid(MeanOfAll):
    """Two fixed heads: the mean of the real positions; reports get other weights."""

    def __call__(self, values: Tensor, keys: Keys) -> Tensor:
        own = keys.valid[:, None, :, None].to(values.dtype)
        mean = (values * own).sum(2, keepdim=True) / own.sum(2, keepdim=True).clamp_min(1)
        return mean.expand(-1, -1, keys.queries.shape[1], -1)

    def weights(self, keys: Keys) -> Tensor:
        own = keys.valid[:, None, None, :].double()
        return (own / own.sum(-1, keepdim=True) ** 2).expand(-1, 2, keys.queries.shape[1], -1)


class EveryOther(MemoryFilter):
    """Closes every other entry, and does not say that it decides by position."""

    def forward(self, memory: Memory) -> Gates:
        index = torch.arange(memory.states.shape[1], device=memory.states.device)
        return Gates((index % 2 == 0).to(memory.states.dtype).expand_as(memory.valid))


class ForgetsItsState(Recurrence):
    """A running sum that begins anew with every call."""

    projections = {"input": True}

    def forward(self, projected: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
        (x,) = projected
        sums = x.cumsum(1) * 0.3
        return sums, sums[:, -1]


@dataclass(frozen=True)
class Mistake:
    """A planted mistake, the rule that names it, and the place where the method stands."""

    made: type
    rule: str
    place: str
    refuses: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.made.__name__.lower()

    def build(self, options: Options, **context: Any) -> Any:
        if self.made is RefusesSilently and context["site"] == "cross":
            raise ValueError("this place does not suit it")
        return self.made(context["heads"]) if issubclass(self.made, Sound) else self.made()


MISTAKES = (
    Mistake(IgnoresCounts, "counts", "cross.transform"),
    Mistake(SeesTheFuture, "future", "decoder_self.transform"),
    Mistake(Drops, "deterministic", "encoder_self.transform"),
    Mistake(ScalesByTheBatch, "batch", "cross.transform"),
    Mistake(LosesTheGradient, "gradients", "encoder_self.transform"),
    Mistake(LosesPartOfTheGradient, "gradients", "cross.transform"),
    Mistake(RoundsToSingle, "float64", "encoder_self.transform"),
    Mistake(KeepsTheFirstScale, "state", "encoder_self.transform"),
    Mistake(CountsColumns, "positions", "cross.transform"),
    Mistake(IndexOfTheQuery, "positions", "decoder_self.pattern", ("cross",)),
    Mistake(ReachTooShort, "reach", "encoder_self.pattern", ("cross",)),
    Mistake(MeanOfAll, "padding", "encoder_self.heads", ("decoder_self", "cross")),
    Mistake(WeightsOfValid, "weights", "encoder_self.heads", ("decoder_self", "cross")),
    Mistake(UniformWhereNothingIsSeen, "empty", "cross.transform"),
    Mistake(SumsToAnything, "weights", "cross.transform"),
    Mistake(UnlikeItsBias, "fused", "cross.transform"),
    Mistake(MakesItOnTheProcessor, "device", "encoder_self.transform"),
    Mistake(EveryOther, "compaction", "memory.between"),
    Mistake(ForgetsItsState, "steps", "recurrence"),
    Mistake(RefusesSilently, "build", "cross.transform"),
)

SOCKETS: Mapping[str, registry.Socket] = {"output": "memory", "between": "memory", "recurrence": "recurrence"}


@contextmanager
def planted(mistake: Mistake) -> Iterator[registry.Method]:
    """Register the method with a mistake in the context."""
    with registry.scope():
        socket: Any = mistake.place.rpartition(".")[2]
        socket = SOCKETS.get(socket, socket)
        registry.register(socket, mistake.name, refuses=mistake.refuses)(mistake.build)
        yield registry.get(socket, mistake.name)
