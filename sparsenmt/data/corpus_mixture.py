"""The mixture of training corpora: weights by temperature, and the stages of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Data


def tempered_weights(pairs: Sequence[int], weights: Sequence[float], temperature: float) -> list[float]:
    """The weights of corpora at a temperature T: shares in proportion to (pairs x weight)^(1/T).

    Arivazhagan et al. (2019), section 4.1, whose sizes are those after weighting. An epoch keeps its size.

    Args:
        pairs: (C) pairs of each corpus.
        weights: (C) how often each is seen in an epoch at temperature 1; 0 leaves it out.
    """
    if temperature == 1:
        return list(weights)
    sizes = [count * weight for count, weight in zip(pairs, weights, strict=True)]
    total = sum(sizes)
    powers = [(size / total) ** (1 / temperature) if size else 0.0 for size in sizes]
    scale = total / sum(powers)
    return [scale * power / count if count else 0.0 for count, power in zip(pairs, powers, strict=True)]


@dataclass(frozen=True)
class CorpusMixture:
    """The weights of the corpora in each stage of a run.

    Args:
        begins: the update after which each stage begins, rising from 0.
        weights: of the corpora in each stage.
    """

    begins: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, data: Data, sizes: Mapping[str, int], weights: Sequence[float]) -> CorpusMixture:
        """The mixture of a recipe.

        Args:
            sizes: the pairs of each corpus that `prepare` kept, by its name.
            weights: those of the recipe.

        Raises:
            UserError: a stage has too little text for a pair.
        """
        own, pairs = dict(zip(sizes, weights, strict=True)), [*sizes.values()]
        stages = [(0, own, data.temperature)] + [
            (stage.after, {**own, **stage.weights}, stage.temperature or data.temperature) for stage in data.stages
        ]
        found = [tuple(tempered_weights(pairs, [*by.values()], temperature)) for _, by, temperature in stages]
        for number, chosen in enumerate(found[1:]):
            if not any(round(count * weight) for count, weight in zip(pairs, chosen, strict=True)):
                raise UserError(
                    "the corpora of this stage have no pair at their weights",
                    where=f"data.stages.{number}.weights",
                    hint="Raise a weight.",
                )
        return cls(tuple(after for after, _, _ in stages), tuple(found))

    def stage(self, update: int) -> int:
        """The number of the stage, from 0, to which the update after this one belongs."""
        return max(number for number, begin in enumerate(self.begins) if begin <= update)
