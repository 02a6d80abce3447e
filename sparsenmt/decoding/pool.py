"""What is left of batches, searched together.

A few sentences of a batch need many more steps than the others, and a step of few rows takes most of the time of one of
many: the weights have to be read, whoever they are for. So a batch is left when few of its sentences are not done, and
the rest of several batches goes on as one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from sparsenmt.decoding.beam import Beam
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.recipe.schema import Decoding

SHARE = 8
"""A batch is left when one in so many of its sentences is not done."""

Results = dict[int, list[Hypothesis]]


class Pool:
    """Searches over the batches of a text, by number of the sentence.

    Results come when they are there: every sentence's after `finish` at the latest. What waits, padding included, needs
    no more room for keys and values, of the memory and of pieces so far, than a batch has needed.

    Args:
        naming: a context for the numbers of sentences that says what was done where the memory of the machine ends.
    """

    def __init__(
        self, model: TranslationModel, options: Decoding, naming: Callable[[list[int]], AbstractContextManager[None]]
    ) -> None:
        self._model, self._options, self._naming = model, options, naming
        self._waiting: list[Beam] = []
        self._room = (0, 0)  # the most entries of a memory, and pieces, that a batch had

    @property
    def waiting(self) -> list[int]:
        """Numbers of the sentences that were begun and are not done."""
        return [int(number) for beam in self._waiting for number in beam.numbers]

    def search(self, memory: Memory, limits: Tensor, numbers: list[int]) -> Results:
        """Search over a batch; returns what is done, of this and of earlier ones.

        Args:
            memory: of B sentences, possibly compacted.
            limits: (B) maximum lengths, EOS included.
            numbers: of its sentences.
        """
        with self._naming(numbers):
            beam = Beam(self._model, memory, limits, torch.tensor(numbers, device=limits.device), self._options)
            found, rest = _begin(beam)
            width, columns = beam.size
            self._room = max(self._room[0], len(numbers) * width), max(self._room[1], len(numbers) * columns)
        return found if rest is None else found | self._wait(rest)

    def finish(self) -> Results:
        """The results of all that wait."""
        if not self._waiting:
            return {}
        with self._naming(self.waiting):
            return self._together().run()

    def _together(self) -> Beam:
        waiting, self._waiting = self._waiting, []
        return Beam.join(waiting)

    def _wait(self, beam: Beam) -> Results:
        """Let it wait; where there is no room for it beside the others, these go on first."""
        found: Results = {}
        if self._waiting and not self._fits(beam):
            with self._naming(self.waiting):
                found, rest = _begin(self._together())
            self._waiting = [] if rest is None else [rest]
        if self._waiting and not self._fits(beam):
            found |= self.finish()
        self._waiting.append(beam)
        return found

    def _fits(self, beam: Beam) -> bool:
        """Whether all that wait and this one could be a batch."""
        beams = [*self._waiting, beam]
        count, sizes = sum(map(len, beams)), [each.size for each in beams]
        return all(count * max(each) <= most for each, most in zip(zip(*sizes, strict=True), self._room, strict=True))


def _begin(beam: Beam) -> tuple[Results, Beam | None]:
    """Search until few sentences are left; what is done, and the rest, where it can wait."""
    found = beam.run(len(beam) // SHARE)
    if not beam.joins:
        return found | beam.run(), None
    return found, Beam.join([beam]) if len(beam) else None
