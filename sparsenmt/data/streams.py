"""Streams: a text that is read in segments, in several places at once.

Shapes: B streams, T tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsenmt.data.batching import LazySequence
from sparsenmt.data.text_dataset import TextDataset
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError


@dataclass(frozen=True)
class _TextRange:
    """A range of a corpus's tokens."""

    text: TextDataset
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class _JoinedText:
    """The corpora of an epoch, one after the other, as ranges of their memory-mapped ids."""

    parts: Sequence[_TextRange]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.parts) else 0

    def ranges(self, first: int, count: int) -> Iterator[_TextRange]:
        """The ranges of some tokens from a position on; after the last token follows the first."""
        while count:
            position = first % len(self)
            number = int(np.searchsorted(self._ends, position, side="right"))
            part = self.parts[number]
            start = part.last - (int(self._ends[number]) - position)
            found = _TextRange(part.text, start, min(start + count, part.last))
            yield found
            first, count = first + len(found), count - len(found)

    def read(self, first: int, out: NDArray[np.int64]) -> None:
        """Copy the ids from a position on."""
        done = 0
        for part in self.ranges(first, len(out)):
            out[done : done + len(part)] = part.text.ids[part.first : part.last]
            done += len(part)


@dataclass(frozen=True)
class Segment:
    """One segment of every stream.

    Args:
        starts: the positions in the epoch's text at which the segment begins in each stream; past its end, it is read
            again from its beginning.
        length: tokens of the segment, T.
    """

    text: _JoinedText
    starts: Sequence[int]
    length: int

    @property
    def rows(self) -> int:
        """Number of streams B."""
        return len(self.starts)

    @property
    def tokens(self) -> int:
        """Number of targets of all streams."""
        return self.rows * self.length

    def read(self, first: int = 0, last: int | None = None) -> tuple[Tensor, Tensor]:
        """Read the streams from row ``first`` to before row ``last``; None: to the end.

        Returns:
            (B, T) inputs: the token before each target; where a stream begins with the text, EOS.
            (B, T) targets.
        """
        starts = self.starts[first:last]
        ids = np.empty((len(starts), self.length + 1), dtype=np.int64)
        for row, start in zip(ids, starts, strict=True):
            if start:
                self.text.read(start - 1, row)
            else:
                row[0] = EOS
                self.text.read(start, row[1:])
        both = torch.from_numpy(ids)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def ranges(self, first: int = 0, last: int | None = None) -> Iterator[tuple[TextDataset, int, int]]:
        """The corpora of the targets that `read` returns, with the first token and the one after the last."""
        for start in self.starts[first:last]:
            yield from ((each.text, each.first, each.last) for each in self.text.ranges(start, self.length))


class StreamPlan:
    """The streams of every epoch, as a pure function of the seed and the epoch.

    The corpora of an epoch are shuffled, each as often as its weight says, and joined; the joined text is rotated by a
    random number of tokens and divided into equal streams of whole segments. The remainder, shorter than one segment of
    every stream, is left out: through the rotation, another one every epoch.

    Args:
        datasets: the training corpora.
        weights: how often each corpus is seen in an epoch; 0.5 is a new random half, in one range, every epoch.
        streams: number of streams.
        segment_length: tokens of a segment.
        seed: the random seed.

    Raises:
        UserError: the text is shorter than one segment of every stream.
    """

    def __init__(
        self, datasets: Sequence[TextDataset], weights: Sequence[float], streams: int, segment_length: int, seed: int
    ) -> None:
        if len(datasets) != len(weights):
            raise ValueError(f"{len(datasets)} datasets but {len(weights)} weights")
        self._texts = list(datasets)
        self._weights = list(weights)
        self._streams, self._length, self._seed = streams, segment_length, seed
        tokens = sum(
            int(weight) * len(text) + round(weight % 1.0 * len(text))
            for text, weight in zip(self._texts, self._weights, strict=True)
        )
        self.segments = tokens // (streams * segment_length)
        """Number of segments of an epoch."""
        if not self.segments:
            raise UserError(
                f"the training text of {tokens:,} tokens is shorter than one segment of {segment_length:,} tokens in "
                f"each of {streams:,} streams",
                where="training.streams",
                hint="Lower `training.streams` or `training.segment_length`, or add text.",
            )

    def batches(self, epoch: int, rank: int = 0, world_size: int = 1) -> Sequence[Segment]:
        """The segments of an epoch, in order: of every stream, or of the share of one of several ranks.

        A stream continues from each segment to the next.

        Raises:
            UserError: the streams cannot be divided equally among the ranks.
        """
        if self._streams % world_size:
            raise UserError(
                f"{self._streams:,} streams cannot be divided among {world_size:,} processes",
                where="training.streams",
                hint="Write a multiple of the number of processes.",
            )
        generator = np.random.default_rng([self._seed, epoch])
        text = _JoinedText(self._parts(generator))
        offset = int(generator.integers(len(text)))
        stride = self.segments * self._length
        starts = [(offset + number * stride) % len(text) for number in range(rank, self._streams, world_size)]

        def segment(number: int) -> Segment:
            return Segment(text, [start + number * self._length for start in starts], self._length)

        return LazySequence(self.segments, segment)

    def _parts(self, generator: np.random.Generator) -> list[_TextRange]:
        """The ranges of an epoch's joined text."""
        copies: list[list[_TextRange]] = []
        for text, weight in zip(self._texts, self._weights, strict=True):
            size = len(text)
            copies.extend([[_TextRange(text, 0, size)]] * int(weight))
            if some := round(weight % 1.0 * size):
                start = int(generator.integers(size))
                end = start + some
                copies.append([_TextRange(text, start, min(end, size)), _TextRange(text, 0, max(0, end - size))])
        order = generator.permutation(len(copies))
        return [part for number in order for part in copies[number] if len(part)]
