"""What is left of batches, searched together.

A few sentences of a batch need many more steps than the others, and a step of few rows takes most of the time of one of
many: the weights have to be read, whoever they are for. So a batch is left when few of its sentences are not done, and
the rest of several batches goes on as one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsenmt.decoding.beam import Beam
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.model.interfaces import Memory, TranslationModel
from sparsenmt.recipe.schema import Decoding

SHARE = 8
"""A batch is left when one in so many of its sentences is not done."""

Results = dict[int, list[Hypothesis]]


class Pool:
    """Searches over the batches of a text, by number of the sentence.

    Results come when they are there: every sentence's after `finish` at the latest. The sentences that wait are fewer
    than those of the largest batch; of their keys and values no more is held than they need.
    """

    def __init__(self, model: TranslationModel, options: Decoding) -> None:
        self._model, self._options = model, options
        self._waiting: list[Beam] = []
        self._largest = 0

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
        self._largest = max(self._largest, len(numbers))
        called = torch.tensor(numbers, device=limits.device)
        found = self._run(Beam(self._model, memory, limits, called, self._options))
        if sum(map(len, self._waiting)) >= self._largest:
            found |= self._run(self._together())
        return found

    def finish(self) -> Results:
        """The results of all that wait."""
        return self._together().run() if self._waiting else {}

    def _run(self, beam: Beam) -> Results:
        found = beam.run(len(beam) // SHARE)
        if not beam.joins:
            return found | beam.run()
        if len(beam):
            self._waiting.append(Beam.join([beam]))
        return found

    def _together(self) -> Beam:
        waiting, self._waiting = self._waiting, []
        return Beam.join(waiting)
