"""Subword regularization of training text: another division of each sentence into tokens in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from sparsenmt.data.tokenizers.subword_sampler import SubwordSampler, subword_sampler
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.data.vocabulary import EOS
from sparsenmt.recipe.schema import SubwordRegularization

_EPOCHS, _CORPORA, _LINES = 1 << 32, 1 << 20, 1 << 44


@dataclass(frozen=True)
class SampledDivision:
    """The random divisions of training sentences.

    A division is a function of the seed, the epoch, the corpus and the line: no process, batch or earlier update
    decides. Copies of a line in one epoch (`weight` above 1) are divided alike.

    Args:
        samplers: of the sources and of the targets; None: the side is not divided anew.
        seed: the run's.
        longest: tokens of a sentence without EOS; one that would be longer keeps its tokens.
        cut: tokens to which sources are cut; None: they are not.
    """

    samplers: tuple[SubwordSampler | None, SubwordSampler | None]
    seed: int
    longest: int | None = None
    cut: int | None = None

    @classmethod
    def of(
        cls,
        options: SubwordRegularization,
        tokenizers: Tokenizers,
        seed: int,
        longest: int | None = None,
        cut: int | None = None,
    ) -> SampledDivision:
        """Make the samplers of a recipe.

        Raises:
            UserError: a tokenizer is of another kind than the options.
        """
        source, target = (
            None if chosen is None else subword_sampler(each, chosen, f"data.subword_regularization.{side}")
            for side, chosen, each in (
                ("source", options.source, tokenizers.source),
                ("target", options.target, tokenizers.target),
            )
        )
        return cls((source, target), seed, longest, cut)

    def divided(
        self, side: int, ids: NDArray[np.integer], *, epoch: int, corpus: int, line: int
    ) -> Sequence[int] | NDArray[np.integer]:
        """Divide a sentence anew.

        Args:
            side: 0: a source, 1: a target.
            ids: (N) its tokens, ended by EOS.
            corpus, line: their numbers, from 0.

        Returns:
            (M) its tokens, ended by EOS.
        """
        sampler = self.samplers[side]
        if sampler is None:
            return ids
        key = (((self.seed * _EPOCHS + epoch) * _CORPORA + corpus) * _LINES + line) * 2 + side
        drawn = sampler.sample(ids[:-1].tolist(), Random(key).random)
        if side == 0 and self.cut is not None:
            drawn = drawn[: self.cut]
        if self.longest is not None and len(drawn) > self.longest:
            return ids
        return [*drawn, EOS]
