"""The attention of a model over a text, batch by batch; only what observers gather is kept (design rule 6).

Nothing is compacted, so that every source position has its own column. Positions whose gate is 0 all hold the same zero
vector: they are keys like others, and share equally the weight that the counted stand-in vector would get. Observers of
cross-attention get the positions that are kept, too.
Shapes: B sentences, H heads, Q queries, K keys, T target positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.analysis.gates import HINT_SPLIT, LineBatches
from sparsenmt.assemble.bundle import Bundle
from sparsenmt.data.batching import pad
from sparsenmt.data.tokenizers.frame import Frame
from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.inputs import SourceLine, describe_out_of_memory, not_finite
from sparsenmt.decoding.text_scores import TextReading, score_text
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import AttentionSeen, weight_shares
from sparsenmt.model.sites import SITES, SiteName

K = TypeVar("K")

ATTENTION_TOKENS = 32_768
"""Tokens at the beginning of a language model's text whose attention is measured, unless another number is asked for:
all weights are formed for it, which takes time."""


@dataclass(frozen=True)
class TargetLine:
    """The target that a decoder reads along one source line."""

    tokens: Sequence[int]
    """Token ids without EOS."""
    ended: bool = True
    """True if EOS follows; a translation that was cut at the maximum length has none."""
    unknown: Sequence[str] = ()
    """The texts of the unknown tokens, in order, for reports."""
    frame: Frame = field(default_factory=Frame)
    """The tokens before the sentence."""

    @property
    def ids(self) -> list[int]:
        """All target positions, those of a prefix included."""
        return [*self.frame.prefix, *self.tokens, EOS] if self.ended else [*self.frame.prefix, *self.tokens]

    @property
    def inputs(self) -> list[int]:
        """The decoder's inputs, one for each target position: its start, and all positions but the last."""
        return [self.frame.start, *self.ids[:-1]]


@dataclass(frozen=True)
class Attended:
    """The attention of one site at one execution step over one batch."""

    site: SiteName
    layer: int
    """The execution step, from 1."""
    weights: Tensor  # (B, H, Q, K) attention mass
    visible: Tensor  # (B, 1 or H, Q, K) bool: keys that a query may see
    real: Tensor  # (B, Q) bool: queries that are no padding
    places: list[int]  # (B) index of each sentence among those that are read
    kept: Tensor | None = None  # (B, K) bool: keys that no filter of the memory has dropped; None: all
    normalised: bool = True  # False: the weights of a query need not sum to 1

    @property
    def head_visible(self) -> Tensor:
        """(B, H, Q, K) `visible` for every head."""
        return self.visible.expand_as(self.weights)

    @property
    def shares(self) -> Tensor:
        """(B, H, Q, K) as `AttentionSeen.shares`."""
        return self.weights if self.normalised else weight_shares(self.weights)


Observer = Callable[[Attended], None]


class TensorSums(dict[K, Tensor]):
    """Running sums of tensors by key, for observers."""

    def add(self, key: K, value: Tensor) -> None:
        """Add a tensor to the sum of a key, all of one shape."""
        self[key] = self[key] + value if key in self else value


class _AttentionRelay:
    """A listener of the model that adds visible keys and real queries, and calls the observers."""

    def __init__(self, sites: Collection[SiteName], lines: Sequence[SourceLine], observers: Sequence[Observer]) -> None:
        self._sites, self._lines, self._observers = sites, lines, observers
        self._places: list[int] = []
        self.targets: Tensor | None = None
        """(B, T) bool: real target positions of the batch."""
        self.kept: Tensor | None = None
        """(B, S) bool: the source positions that the decoder's memory keeps; None: all."""

    def begin(self, places: list[int]) -> None:
        """Note the index of each sentence of the batch that follows among the lines."""
        self._places = places

    def __call__(self, seen: AttentionSeen) -> None:
        if seen.site not in self._sites:
            return
        real = seen.keys.valid if seen.site == "encoder_self" else self.targets
        assert real is not None
        sound = seen.weights.isfinite().all(-1).all(1)  # (B, Q)
        if bool((real & ~sound).any()):
            raise not_finite(self._lines[self._places[int((real & ~sound).any(1).int().argmax())]])
        _tell(self._observers, seen, real, self._places, self.kept if seen.site == "cross" else None)


def _tell(
    observers: Sequence[Observer], seen: AttentionSeen, real: Tensor, places: list[int], kept: Tensor | None = None
) -> None:
    """Pass the attention of a step to the observers, with the keys that queries may see; arguments as in `Attended`."""
    used = seen.weights != 0  # a fixed head may look where the others' pattern does not
    visible = seen.keys.visible().expand(len(places), -1, *used.shape[2:])
    visible = visible | (used if visible.shape[1] > 1 else used.any(1, keepdim=True))  # spans differ from head to head
    for observer in observers:
        observer(Attended(seen.site, seen.step + 1, seen.weights, visible, real, places, kept, seen.normalised))


@torch.inference_mode()
def observe(
    text: LineBatches,
    targets: Sequence[TargetLine] | None,
    observers: Sequence[Observer],
    *,
    sites: Collection[SiteName] = SITES,
) -> None:
    """Run a model over lines, and its decoder along the targets, while observers get the attention.

    Args:
        targets: one for each line; None where no site of the decoder is observed.

    Raises:
        UserError: a batch needs more memory than there is, or the model's weights are not numbers.
    """
    bundle, lines, most = text.bundle, text.lines, text.batch_tokens
    relay = _AttentionRelay(sites, lines, observers)
    lengths = [len(line.ids) for line in lines]
    if targets is not None:
        lengths = [max(length, len(target.ids)) for length, target in zip(lengths, targets, strict=True)]
    with bundle.model.listen(relay) if "encoder_self" in sites else nullcontext():
        for chosen, memory in text.encoded(lengths, relay.begin):
            if targets is not None and any(site != "encoder_self" for site in sites):
                batch, sources = [targets[i] for i in chosen], [lines[i] for i in chosen]
                with describe_out_of_memory(sources, "read along", batch_tokens=most, single_hint=HINT_SPLIT):
                    _decode(bundle, memory, batch, relay, listening="encoder_self" in sites)


def _decode(
    bundle: Bundle, memory: Memory, batch: Sequence[TargetLine], relay: _AttentionRelay, *, listening: bool
) -> None:
    """Run the decoder along the targets of a batch; ``listening``: True if the relay listens to the model already."""
    inputs, _ = pad([target.inputs for target in batch])
    lengths = torch.tensor([len(target.ids) for target in batch])  # an empty target has one input and no position
    relay.kept = None if memory.gates is None else memory.open_entries()
    relay.targets = (torch.arange(inputs.shape[1]) < lengths[:, None]).to(bundle.device)
    with nullcontext() if listening else bundle.model.listen(relay):
        bundle.model.decode(inputs.to(bundle.device), memory, exits=bundle.depth[1:])


def observe_text(
    bundle: Bundle,
    ids: NDArray[np.integer],
    reading: TextReading,
    observers: Sequence[Observer],
    advance: Callable[[int], object] | None = None,
) -> None:
    """Read a text with a language model while observers get the attention; each segment counts as a sentence.

    Args:
        ids: (N,) the tokens of the text.
        advance: called with the number of tokens of each segment.

    Raises:
        UserError: a probability is not finite.
    """
    read = 0

    def relay(seen: AttentionSeen) -> None:
        """Pass the attention of the segments that are read together to the observers."""
        rows, _, queries, _ = seen.weights.shape
        real = torch.ones(rows, queries, dtype=torch.bool, device=seen.weights.device)
        _tell(observers, seen, real, list(range(read, read + rows)))

    with bundle.model.listen(relay):
        modules = bundle.model.modules()
        for values in score_text(bundle.engine, ids, reading, bundle.device, modules=modules, advance=advance):
            read += -(-len(values) // reading.segment_length)  # several segments may be read at once
