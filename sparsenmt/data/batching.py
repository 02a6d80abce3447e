"""Batches of token ids: the choice of their examples, and the padded tensors.

Shapes: B batch, S source tokens, T target tokens (both with EOS), N examples of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES, Frame, FramePair
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.data.vocabulary import PAD
from sparsenmt.process.devices import upload

T = TypeVar("T")
_POOL_BATCHES = 100  # batches in a pool: large enough for little padding, small enough to stay random


@dataclass(frozen=True)
class IndexBatch:
    """The examples of one batch: example i is pair ``index[i]`` of ``datasets[dataset[i]]``."""

    dataset: NDArray[np.int64]
    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def halves(self) -> tuple[IndexBatch, IndexBatch]:
        """The first and the second half of the examples."""
        middle = len(self) // 2
        return (
            IndexBatch(self.dataset[:middle], self.index[:middle]),
            IndexBatch(self.dataset[middle:], self.index[middle:]),
        )


@dataclass(frozen=True)
class Batch:
    """Examples as tensors, padded with PAD to the longest of the batch."""

    source: Tensor
    """(B, S) ids, ended by EOS."""
    source_valid: Tensor
    """(B, S) bool: True at tokens, False at padding."""
    features: dict[str, Tensor]
    """name -> (B, S) source features, 0 at padding."""
    target_input: Tensor
    """(B, T) ids, starting with BOS, without EOS; or with the start and the prefix of a frame."""
    target_output: Tensor
    """(B, T) ids, ended by EOS: the prediction targets of `target_input`; PAD in place of a given prefix."""
    target_valid: Tensor
    """(B, T) bool: True at tokens of `target_output` that are predicted."""
    corpus: tuple[str, ...] | None
    """The corpus of each example."""
    indices: tuple[int, ...]
    """The number of each example in its corpus."""
    links: Tensor | None = None
    """(3, N) the row, target and source position of each link of the pairs' word alignments; None: they are not read.
    """
    source_tokens: int = -1
    """Source tokens, EOS included; counted from `source_valid` unless given."""
    target_tokens: int = -1
    """Target tokens, EOS included; counted from `target_valid` unless given."""

    def __post_init__(self) -> None:
        # Python numbers, so that reading them later does not synchronize with the device.
        if self.source_tokens < 0:
            object.__setattr__(self, "source_tokens", int(self.source_valid.sum()))
        if self.target_tokens < 0:
            object.__setattr__(self, "target_tokens", int(self.target_valid.sum()))

    @property
    def sentences(self) -> int:
        """Number of examples B."""
        return len(self.indices)

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the batch."""
        return [*(value for value in vars(self).values() if isinstance(value, Tensor)), *self.features.values()]

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device."""
        own: dict[str, Any] = {
            name: upload(value, device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, features={name: upload(values, device) for name, values in self.features.items()}, **own)


class LazySequence(Sequence[T]):
    """Items that are made on access: an epoch of millions of examples takes only a few arrays.

    Args:
        make: returns the item with a number, from 0.
    """

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        numbers = range(self._count)[place]
        return [self._make(number) for number in numbers] if isinstance(numbers, range) else self._make(numbers)


class EpochPlan:
    """The batches of every epoch, as a pure function of the seed and the epoch.

    The examples of an epoch are shuffled into pools, each pool is sorted by length and split into batches, and the
    batches are shuffled.

    Args:
        datasets: the training corpora.
        weights: how often each corpus is seen in an epoch; 0.5 is a new random half every epoch.
        batch_tokens: maximum of rows times longest source or target in a batch; a longer example is a batch alone.
        seed: the random seed.
        frames: the tokens around sources and targets.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Sequence[float],
        batch_tokens: int,
        seed: int,
        frames: FramePair = NO_FRAMES,
    ) -> None:
        if len(datasets) != len(weights):
            raise ValueError(f"{len(datasets)} datasets but {len(weights)} weights")
        self._weights = list(weights)
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._sizes = [len(dataset) for dataset in datasets]
        self._bases = np.concatenate([[0], np.cumsum(self._sizes)]).astype(np.int64)
        # (N,) sort keys of the examples: the longer side determines the cost, the shorter side the padding.
        none = np.zeros(0, dtype=np.int32)
        more = frames.source.size, frames.target.size
        sides = [(d.source_lengths + more[0], d.target_lengths + more[1]) for d in datasets]
        self._longer = np.concatenate([none, *(np.maximum(*both) for both in sides)])
        self._shorter = np.concatenate([none, *(np.minimum(*both) for both in sides)])

    def batches(self, epoch: int, weights: Sequence[float] | None = None) -> Sequence[IndexBatch]:
        """The batches of an epoch.

        Args:
            weights: of the corpora in this epoch; None: those of the plan.
        """
        generator = np.random.default_rng([self._seed, epoch])
        examples = self._examples(generator, self._weights if weights is None else weights)
        boundaries, done = [0], 0
        for pool in self._pools(examples):  # views, sorted in place
            pool[:] = pool[np.lexsort((self._shorter[pool], self._longer[pool]))]
            boundaries.extend(done + end for end in _batch_ends(self._longer[pool], self._batch_tokens))
            done += len(pool)
        bounds, order = np.array(boundaries, dtype=np.int64), generator.permutation(len(boundaries) - 1)

        def batch(place: int) -> IndexBatch:
            first, last = bounds[order[place] : order[place] + 2]
            chosen = examples[first:last].astype(np.int64)
            dataset = np.searchsorted(self._bases, chosen, side="right") - 1
            return IndexBatch(dataset, chosen - self._bases[dataset])

        return LazySequence(len(order), batch)

    def _examples(self, generator: np.random.Generator, weights: Sequence[float]) -> NDArray[np.integer]:
        """The global numbers of an epoch's examples, shuffled."""
        type_ = np.int32 if self._bases[-1] <= np.iinfo(np.int32).max else np.int64
        parts = [np.zeros(0, dtype=type_)]
        for base, size, weight in zip(self._bases, self._sizes, weights, strict=False):
            copies, part = divmod(weight, 1.0)
            parts.extend([np.arange(base, base + size, dtype=type_)] * int(copies))
            if some := round(part * size):
                chosen = generator.choice(size, some, replace=False, shuffle=False)
                parts.append((base + chosen).astype(type_))
        examples: NDArray[np.integer] = np.concatenate(parts)
        generator.shuffle(examples)
        return examples

    def _pools(self, examples: NDArray[np.integer]) -> list[NDArray[np.integer]]:
        """Split the examples into pools of about equal size."""
        if not len(examples):
            return []
        tokens = int(self._longer[examples].sum(dtype=np.int64))
        return np.array_split(examples, max(1, round(tokens / (self._batch_tokens * _POOL_BATCHES))))


def length_batches(lengths: ArrayLike, batch_tokens: int) -> list[list[int]]:
    """Group sentences of similar length into batches, the longest first, for decoding and validation.

    Args:
        lengths: (N,) the length of each sentence.
        batch_tokens: maximum of rows times longest length in a batch; a longer sentence is a batch alone.

    Returns:
        batches of sentence numbers, every number once.
    """
    array = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(array, kind="stable")
    boundaries = [0, *_batch_ends(array[order], batch_tokens)]
    return [order[start:stop].tolist() for start, stop in pairwise(boundaries)][::-1]


def collate(
    datasets: Sequence[Dataset],
    batch: IndexBatch,
    frames: FramePair = NO_FRAMES,
    division: SampledDivision | None = None,
    epoch: int = 0,
    *,
    links: bool = False,
) -> Batch:
    """Read the examples of a batch, put them into their frames and pad them. Given prefixes are no targets.

    Args:
        division: divides the sentences into other tokens, of this ``epoch``; None: they keep theirs.
        links: True: the word alignments of the pairs, too.
    """
    source, source_valid = _read(batch, [(d.source_ids, d.source_offsets) for d in datasets])
    target_output, target_valid = _read(batch, [(d.target_ids, d.target_offsets) for d in datasets])
    if division is not None:
        source, source_valid = _divided(0, (source, source_valid), datasets, batch, division, epoch)
        target_output, target_valid = _divided(1, (target_output, target_valid), datasets, batch, division, epoch)
    features = {
        name: _read(batch, [(d.feature_values[name], d.source_offsets) for d in datasets])[0]
        for name in datasets[0].features
    }
    # Shifted right by BOS, or what the decoder begins with, a shorter row would keep its EOS: replace it by padding.
    target_input = torch.full_like(target_output, PAD)
    target_input[:, 0] = frames.target.start
    target_input[:, 1:] = target_output[:, :-1].masked_fill(~target_valid[:, 1:], PAD)
    if frame := frames.source:
        lengths = source_valid.sum(1).tolist()
        features = {
            name: pad([framed_feature(row[:end], frame) for row, end in zip(values.numpy(), lengths, strict=True)])[0]
            for name, values in features.items()
        }
        source, source_valid = pad([frame.around(row[:end]) for row, end in zip(source.tolist(), lengths, strict=True)])
    if prefix := frames.target.prefix:
        rows = torch.tensor(prefix).expand(len(batch), -1)
        target_input = torch.cat([target_input[:, :1], rows, target_input[:, 1:]], 1)
        target_output = torch.cat([torch.full_like(rows, PAD), target_output], 1)
        target_valid = torch.cat([torch.zeros_like(rows, dtype=torch.bool), target_valid], 1)
    return Batch(
        source=source,
        source_valid=source_valid,
        features=features,
        target_input=target_input,
        target_output=target_output,
        target_valid=target_valid,
        corpus=tuple(datasets[number].name for number in batch.dataset.tolist()),
        indices=tuple(batch.index.tolist()),
        links=_links(datasets, batch, frames) if links else None,
    )


def _links(datasets: Sequence[Dataset], batch: IndexBatch, frames: FramePair) -> Tensor:
    """(3, N) the links of a batch, moved by the prefixes of frames; see `Batch.links`."""
    pairs = zip(batch.dataset.tolist(), batch.index.tolist(), strict=True)
    found = [datasets[number].links(index) for number, index in pairs]
    rows = np.repeat(np.arange(len(found)), [len(each) for each in found])
    places = np.concatenate([np.zeros((0, 2), dtype=np.int64), *found]).T
    shifts = [[len(frames.target.prefix)], [len(frames.source.prefix)]]
    return torch.from_numpy(np.concatenate([rows[None], places + shifts]).astype(np.int64))


def framed_feature(values: NDArray[np.integer], frame: Frame) -> NDArray[np.integer]:
    """The values of a feature of a source in its frame, whose tokens have that of EOS."""
    if not frame:
        return values
    return np.pad(values, (len(frame.prefix), len(frame.suffix)), constant_values=values[-1])


def _read(batch: IndexBatch, stores: Sequence[tuple[NDArray[np.integer], NDArray[np.int64]]]) -> tuple[Tensor, Tensor]:
    """Read the examples of a batch from (values, offsets) of every dataset, padded as by `pad`."""
    starts = np.zeros(len(batch), dtype=np.int64)
    lengths = np.zeros(len(batch), dtype=np.int64)
    members = [(number, np.flatnonzero(batch.dataset == number)) for number in np.unique(batch.dataset).tolist()]
    for number, rows in members:
        offsets = stores[number][1]
        starts[rows] = offsets[batch.index[rows]]
        lengths[rows] = offsets[batch.index[rows] + 1] - starts[rows]
    columns = np.arange(lengths.max(initial=0))
    valid = columns < lengths[:, None]
    padded = np.full(valid.shape, PAD, dtype=np.int64)
    for number, rows in members:
        real = np.zeros_like(valid)
        real[rows] = valid[rows]
        padded[real] = stores[number][0][(starts[:, None] + columns)[real]]
    return torch.from_numpy(padded), torch.from_numpy(valid)


def _divided(
    side: int,
    padded: tuple[Tensor, Tensor],
    datasets: Sequence[Dataset],
    batch: IndexBatch,
    division: SampledDivision,
    epoch: int,
) -> tuple[Tensor, Tensor]:
    """Divide the sentences of a side anew; both before and after padded as by `pad`."""
    if division.samplers[side] is None:
        return padded
    ids, lengths = padded[0].numpy(), padded[1].sum(1).tolist()
    places = zip(batch.dataset.tolist(), batch.index.tolist(), strict=True)
    return pad(
        [
            division.divided(
                side, row[:end], epoch=epoch, corpus=corpus, line=int(datasets[corpus].line_numbers[index])
            )
            for row, end, (corpus, index) in zip(ids, lengths, places, strict=True)
        ]
    )


def pad(rows: Sequence[ArrayLike]) -> tuple[Tensor, Tensor]:
    """Pad rows of ids to one tensor.

    Args:
        rows: B sequences of at most L integers.

    Returns:
        (B, L) int64, padded with PAD; (B, L) bool, False at padding.
    """
    arrays = [np.asarray(row) for row in rows]
    lengths = np.array([len(row) for row in arrays], dtype=np.int64)
    valid = np.arange(lengths.max(initial=0)) < lengths[:, None]
    values = np.full(valid.shape, PAD, dtype=np.int64)
    if arrays:
        values[valid] = np.concatenate(arrays)
    return torch.from_numpy(values), torch.from_numpy(valid)


def _batch_ends(lengths: NDArray[np.integer], batch_tokens: int) -> Iterator[int]:
    """The ends of batches of sorted examples, shortest first, with rows x longest <= batch_tokens.

    Each batch takes as many examples as fit, at least one.
    """
    start = 0
    while start < len(lengths):
        # The shortest example limits the number of rows.
        most = max(1, batch_tokens // max(1, int(lengths[start])))
        window = lengths[start : start + most]
        fits = np.arange(1, len(window) + 1) * window <= batch_tokens
        start += max(1, int(fits.sum()))  # `fits` is monotonic: rows x longest grows with every row
        yield start
