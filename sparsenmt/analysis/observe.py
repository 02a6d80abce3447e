"""Attention of a model over a text, batch by batch: nothing is kept but what observers gather (design rule 6).

Nothing is compacted, so that every source position has its own column. Positions whose gate is 0 all hold the same zero
vector: they are keys like others, and share in equal parts what one counted stand-in would get.
Shapes: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsenmt.analysis.gates import ALONE, encoded_batches
from sparsenmt.data.batching import pad
from sparsenmt.data.vocabulary import BOS, EOS
from sparsenmt.decoding.inputs import ModelBundle, SourceLine, describe_out_of_memory, not_finite
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import AttentionSeen
from sparsenmt.model.sites import SITES, SiteName

SITE_NAMES = {"encoder_self": "encoder self", "decoder_self": "decoder self", "cross": "cross"}
"""What reports call the attention sites."""

Head = tuple[SiteName, int, int]
"""Site, layer and number of a head, from 1. Given heads come before learned ones."""


def head_name(layer: int, head: int) -> str:
    """What reports call a head: ``2.4`` is the fourth of the second layer."""
    return f"{layer}.{head}"


@dataclass(frozen=True)
class Output:
    """The target that is read along one source line."""

    tokens: Sequence[int]
    """Pieces, without EOS."""
    ended: bool = True
    """Whether EOS follows them; a translation that was cut at the maximum length has none."""

    @property
    def ids(self) -> list[int]:
        """All target positions."""
        return [*self.tokens, EOS] if self.ended else list(self.tokens)

    @property
    def inputs(self) -> list[int]:
        """What the decoder reads, one before each target position."""
        return [BOS, *self.ids[:-1]]


@dataclass(frozen=True)
class Attended:
    """The attention of one site at one execution step over one batch."""

    site: SiteName
    layer: int
    """The execution step, from 1."""
    weights: Tensor  # (B, H, Q, K) attention mass
    visible: Tensor  # (B, 1 or H, Q, K) bool: keys that a query may see
    real: Tensor  # (B, Q) bool: queries that are no padding
    places: list[int]  # (B) the number of each sentence among those that are read

    @property
    def head_visible(self) -> Tensor:
        """(B, H, Q, K) `visible`, a head each."""
        return self.visible.expand_as(self.weights)


Observer = Callable[[Attended], None]


class _Ear:
    """Adds to what the model tells which queries are real, and passes it on."""

    def __init__(self, sites: Collection[SiteName], lines: Sequence[SourceLine], observers: Sequence[Observer]) -> None:
        self._sites, self._lines, self._observers = sites, lines, observers
        self._places: list[int] = []
        self.targets: Tensor | None = None
        """(B, T) bool: real target positions of the batch."""

    def begin(self, places: list[int]) -> None:
        self._places = places

    def __call__(self, seen: AttentionSeen) -> None:
        if seen.site not in self._sites:
            return
        real = seen.keys.valid if seen.site == "encoder_self" else self.targets
        assert real is not None
        sound = seen.weights.isfinite().all(-1).all(1)  # (B, Q)
        if bool((real & ~sound).any()):
            raise not_finite(self._lines[self._places[int((real & ~sound).any(1).int().argmax())]])
        used = (seen.weights != 0).any(1, keepdim=True)  # a given head may look where the others' pattern does not
        visible = seen.keys.visible().expand(len(self._places), -1, *used.shape[2:]) | used
        for observer in self._observers:
            observer(Attended(seen.site, seen.step + 1, seen.weights, visible, real, self._places))


@torch.inference_mode()
def observe(
    bundle: ModelBundle,
    lines: Sequence[SourceLine],
    outputs: Sequence[Output] | None,
    observers: Sequence[Observer],
    *,
    sites: Collection[SiteName] = SITES,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> None:
    """Read lines, and the outputs along them, while observers are told the attention.

    Args:
        outputs: one a line; None where no site of the decoder is asked for.
        sites: what the observers are told of.
        batch_tokens: sentences times the longest source or output of a batch, at most.
        advance: told the number of sentences that each batch finished.

    Raises:
        UserError: a batch needs more memory than there is, or the model's weights are not numbers.
    """
    ear = _Ear(sites, lines, observers)
    lengths = [len(line.ids) for line in lines]
    if outputs is not None:
        lengths = [max(length, len(output.ids)) for length, output in zip(lengths, outputs, strict=True)]
    with ExitStack() as stack:
        if "encoder_self" in sites:
            stack.enter_context(bundle.model.listen(ear))
        for chosen, _, memory in encoded_batches(
            bundle, lines, batch_tokens=batch_tokens, lengths=lengths, begin=ear.begin, advance=advance
        ):
            if outputs is not None and any(site != "encoder_self" for site in sites):
                batch = [outputs[i] for i in chosen]
                with describe_out_of_memory(
                    [lines[i] for i in chosen], "read along", batch_tokens=batch_tokens, single_hint=ALONE
                ):
                    _decode(bundle, memory, batch, ear, listening="encoder_self" in sites)


def _decode(bundle: ModelBundle, memory: Memory, batch: Sequence[Output], ear: _Ear, *, listening: bool) -> None:
    """Run the decoder along the outputs; ``listening``: whether the model tells the ear already."""
    inputs, _ = pad([output.inputs for output in batch])
    ended = torch.tensor([len(output.ids) for output in batch])  # nothing at all has one input, and no target position
    ear.targets = (torch.arange(inputs.shape[1]) < ended[:, None]).to(bundle.device)
    with ExitStack() as stack:
        if not listening:
            stack.enter_context(bundle.model.listen(ear))
        bundle.model.decode(inputs.to(bundle.device), memory, exits=bundle.depth[1:])
