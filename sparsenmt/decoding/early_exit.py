"""Greedy search with early exits: the decoder runs as many layers for a token as its confidence needs.

A token takes the first decoder exit at which its probability exceeds that of the next best token by more than
``exit_confidence``: the "softmax response" of "Confident Adaptive Language Modeling" (Schuster et al. 2022). Layers
that it skips read its state at the exit: `stacks.Decoder` says how. Probabilities are those of the whole vocabulary.

Every exit that is tried costs a product with the output table; in a batch the layers that only some rows need run for
these rows alone.

Shapes: B sentences, N of them that are not finished, D dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sparsenmt.assemble.bundle import Bundle
from sparsenmt.decoding.single_hypothesis import extend_hypotheses, most_probable
from sparsenmt.decoding.strategies import EncodedBatch, ErrorContext, Results, Strategy
from sparsenmt.engine.contract import Engine
from sparsenmt.errors import UserError


class ConfidentExits:
    """Stops rows whose next token is certain; implements `single_hypothesis.CountedExits`.

    Args:
        exits: depths at which rows may stop, the last one excluded.
        last: the deepest.
        like: (B, ...) of the batch, for the number of sentences and the device.
        confidence: what the difference of the two largest probabilities must exceed.
    """

    def __init__(self, engine: Engine, exits: Iterable[int], last: int, like: Tensor, confidence: float) -> None:
        self.exits, self._engine, self._last, self._confidence = frozenset(exits), engine, last, confidence
        self.layers = torch.zeros(len(like), dtype=torch.long, device=like.device)
        self._rows = self.layers

    def begin_step(self, rows: Tensor) -> None:
        """Count all layers for these sentences (N); those that stop give back what they skip."""
        self._rows = rows
        self.layers[rows] += self._last

    def __call__(self, depth: int, states: Tensor, rows: Tensor) -> Tensor:
        """states (N', D) of some rows -> (N') bool: those that stop after ``depth`` layers."""
        logits = self._engine.project(states)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        best = (logits.topk(2, -1).values - logits.logsumexp(-1, keepdim=True)).exp()
        stops = best[:, 0] - best[:, 1] > self._confidence
        self.layers.index_add_(0, self._rows[rows], (depth - self._last) * stops.long())
        return stops


class EarlyExitSearch(Strategy):
    """Greedy search that stops the decoder where it is confident."""

    name = "early_exit"
    keeps_prefixes = True

    def _exits(self, decoder_exits: Iterable[int]) -> tuple[list[int], int]:
        """Return the exits before the last one, and that one."""
        known = sorted(decoder_exits)
        last = self.options.decoder_layers or known[-1]
        return [depth for depth in known if depth < last], last

    def check(self, bundle: Bundle) -> None:
        if bundle.others:
            raise UserError(
                "the members of an ensemble cannot stop at exits of their own",
                where="--method early_exit",
                hint="Take --method greedy.",
            )
        exits, last = self._exits(bundle.model.plan.decoder_exits)
        if not exits:
            raise UserError(
                f"the model has no trained exit before decoder layer {last}",
                where="--method early_exit",
                hint="Train one with `model.depth: {name: tied_multi}`, or take --method greedy.",
            )

    def search(self, engine: Engine, batches: Iterable[EncodedBatch], naming: ErrorContext) -> Iterator[Results]:
        for batch in batches:
            exits, last = self._exits(batch.decoder_exits)
            with naming(batch.numbers):
                rule = ConfidentExits(engine, exits, last, batch.limits, self.options.exit_confidence)
                results = extend_hypotheses(engine, batch, self.options, most_probable, rule=rule)
            yield results
