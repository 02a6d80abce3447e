"""The binary format of a split: memory-mapped token ids of sentence pairs, and their source features.

A directory with raw little-endian arrays and one small JSON file:

``meta.json``             name, number of pairs, types of the arrays, names of features
``source.bin``            concatenated source ids of all pairs, each sentence ended by EOS
``source.offsets.bin``    int64 (pairs + 1): pair i is ``source.bin[offsets[i]:offsets[i + 1]]``
``target*.bin``           the same for the target, without BOS, with EOS
``lines.bin``             int64 (pairs): the line number, from 0, of each pair in its corpus
``feature.NAME.bin``      int32, one value for each source token
``links.bin``             int32 (N, 2): linked target and source tokens of all pairs, if the corpus is aligned
``links.offsets.bin``     int64 (pairs + 1): the links of pair i are ``links.bin[offsets[i]:offsets[i + 1]]``
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.storage.files import invalid_file, name_file_in_errors, no_follow, read_json, write_json
from sparsenmt.storage.records import Count, is_plain_name, typed

_OFFSET = np.dtype("<i8")
_LINE = np.dtype("<i8")
_FEATURE = np.dtype("<i4")
_COUNTED = 1 << 24  # tokens that are compared at once
_HINT = "Run `sparsenmt prepare` again."


def id_type(size: int) -> np.dtype[Any]:
    """The smallest type that holds the ids of a vocabulary of this size."""
    return np.dtype("<u2" if size <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class PackedSentences:
    """Sentences as one array: (N,) ids, each sentence ended by EOS, and (S,) lengths, EOS included."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> PackedSentences:
        """Pack sentences of ids without EOS."""
        lengths = np.fromiter((len(ids) + 1 for ids in sentences), dtype=_OFFSET, count=len(sentences))
        flat = chain.from_iterable(chain(ids, (EOS,)) for ids in sentences)
        return cls(np.fromiter(flat, dtype=np.int32, count=int(lengths.sum())), lengths)


class ArrayWriter:
    """Writes arrays into a directory, and ``meta.json`` at the end; a context manager.

    Args:
        directory: created if it is missing; files of the same names are overwritten.
        meta: the contents of ``meta.json``, which may change until the end.
    """

    def __init__(self, directory: Path, meta: dict[str, Any]) -> None:
        self._directory, self._meta = Path(directory), meta
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files = ExitStack()

    def create(self, stem: str) -> BinaryIO:
        """Open a new file for the bytes of an array; a link is refused."""
        return self._files.enter_context(open(self._directory / f"{stem}.bin", "wb", opener=no_follow))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with name_file_in_errors(self._directory):
            self._files.close()
        if kind is None:
            write_json(self._directory / "meta.json", self._meta)


class DatasetWriter(ArrayWriter):
    """Writes a new split, which is complete after it.

    Args:
        directory: see `ArrayWriter`.
        name: the corpus's name, for reports.
        source_size, target_size: sizes of the vocabularies.
        features: names of the features that `write_features` will add.
        aligned: True: `write_links` will add links.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        source_size: int,
        target_size: int,
        features: Sequence[str] = (),
        aligned: bool = False,
    ) -> None:
        meta = {"name": name, "pairs": 0, "features": list(features)}
        super().__init__(directory, {**meta, "aligned": True} if aligned else meta)
        sizes = {"source": id_type(source_size), "target": id_type(target_size)}
        self._meta |= {f"{side}_type": type_.str for side, type_ in sizes.items()}
        self._sides = [
            _SideWriter(side, type_, self.create(side), self.create(f"{side}.offsets")) for side, type_ in sizes.items()
        ]
        self._lines = self.create("lines")

    def append(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], lines: Iterable[int]) -> None:
        """Append pairs.

        Args:
            source, target: ids without BOS and EOS; EOS is added.
            lines: the line number, from 0, of each pair in its corpus.
        """
        self.append_packed(PackedSentences.of(source), PackedSentences.of(target), np.fromiter(lines, dtype=_LINE))

    def append_packed(self, source: PackedSentences, target: PackedSentences, lines: NDArray[np.int64]) -> None:
        """Append pairs; see `append`."""
        if not len(source.lengths) == len(target.lengths) == len(lines):
            counts = f"{len(source.lengths)} sources, {len(target.lengths)} targets and {len(lines)} line numbers"
            raise ValueError(counts)
        with name_file_in_errors(self._directory):
            for side, sentences in zip(self._sides, (source, target), strict=True):
                side.append(sentences)
            self._lines.write(lines.astype(_LINE).tobytes())
        self._meta["pairs"] += len(lines)


class _SideWriter:
    """Ids and offsets of one language."""

    def __init__(self, name: str, type_: np.dtype[Any], ids: BinaryIO, offsets: BinaryIO) -> None:
        self._name, self._type, self._ids, self._offsets, self._end = name, type_, ids, offsets, 0
        self._offsets.write(np.zeros(1, dtype=_OFFSET).tobytes())

    def append(self, sentences: PackedSentences) -> None:
        if sentences.ids.max(initial=0) > np.iinfo(self._type).max:
            raise ValueError(f"a {self._name} id does not fit the vocabulary")
        self._ids.write(sentences.ids.astype(self._type).tobytes())
        self._offsets.write((self._end + np.cumsum(sentences.lengths, dtype=_OFFSET)).tobytes())
        self._end += int(sentences.lengths.sum())


@dataclass(frozen=True)
class _Meta:
    """The contents of ``meta.json``."""

    name: str
    pairs: Count
    features: list[str]
    source_type: Literal["<u2", "<u4"]
    target_type: Literal["<u2", "<u4"]
    aligned: bool = False


class Dataset:
    """A split, read-only and memory-mapped; several processes may open it.

    Args:
        directory: written by `DatasetWriter`.
        with_features: False ignores features and links, before they are written.

    Raises:
        UserError: a file is missing or has a wrong size.
    """

    def __init__(self, directory: Path, *, with_features: bool = True) -> None:
        self.directory = Path(directory)
        path = self.directory / "meta.json"
        meta = typed(read_json(path), _Meta, path, hint=_HINT)
        if not all(is_plain_name(f"feature.{name}") and "/" not in name for name in meta.features):
            raise invalid_file(path, "the name of a feature leads to another directory")
        self.name = meta.name
        self.features = tuple(meta.features) if with_features else ()
        self._pairs = meta.pairs
        self.line_numbers: NDArray[np.int64] = map_array(self.directory, "lines", _LINE, self._pairs)
        self.source_offsets: NDArray[np.int64] = map_array(self.directory, "source.offsets", _OFFSET, self._pairs + 1)
        self.target_offsets: NDArray[np.int64] = map_array(self.directory, "target.offsets", _OFFSET, self._pairs + 1)
        tokens = int(self.source_offsets[-1])
        self.source_ids = map_array(self.directory, "source", np.dtype(meta.source_type), tokens)
        self.target_ids = map_array(self.directory, "target", np.dtype(meta.target_type), int(self.target_offsets[-1]))
        self.feature_values: Mapping[str, NDArray[np.integer]] = {
            name: map_array(self.directory, f"feature.{name}", _FEATURE, tokens) for name in self.features
        }
        self._links = None
        if meta.aligned and with_features:
            offsets = map_array(self.directory, "links.offsets", _OFFSET, self._pairs + 1)
            self._links = map_array(self.directory, "links", _FEATURE, 2 * int(offsets[-1])).reshape(-1, 2), offsets

    @property
    def is_aligned(self) -> bool:
        """True if word alignments were prepared."""
        return self._links is not None

    def links(self, index: int) -> NDArray[np.int32]:
        """(N, 2) the linked tokens of a pair, target and source; none if the corpus is not aligned."""
        if self._links is None:
            return np.zeros((0, 2), dtype=np.int32)
        pairs, offsets = self._links
        found: NDArray[np.int32] = pairs[offsets[index] : offsets[index + 1]]
        return found

    def check_contents(self, source_size: int, target_size: int) -> None:
        """Check that ids are in vocabularies of these sizes, that no sentence is empty, and no feature negative.

        Raises:
            UserError: they are not, as is possible in files that another program wrote.
        """
        sides = (self.source_offsets, self.source_ids, source_size), (self.target_offsets, self.target_ids, target_size)
        for offsets, ids, size in sides:
            if offsets[0] != 0 or np.diff(offsets).min(initial=1) < 1 or ids.max(initial=0) >= size:
                message = "the prepared data have empty sentences, or ids that are not in their vocabularies"
                raise UserError(message, where=str(self.directory), hint=_HINT)
        if any(values.min(initial=0) < 0 for values in self.feature_values.values()):
            raise UserError("the prepared data have negative features", where=str(self.directory), hint=_HINT)
        if self._links is not None:
            pairs, offsets = self._links
            counts = np.diff(offsets)
            sound = offsets[0] == 0 and offsets[-1] == len(pairs) and counts.min(initial=0) >= 0
            most = np.stack([self.target_lengths, self.source_lengths], 1)
            if not sound or pairs.min(initial=0) < 0 or (pairs >= np.repeat(most, counts, axis=0)).any():
                message = "the prepared data have links that lead beyond their sentences"
                raise UserError(message, where=str(self.directory), hint=_HINT)

    def __len__(self) -> int:
        return self._pairs

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """(pairs,) tokens of each source, EOS included; a new array at every call."""
        return np.diff(self.source_offsets).astype(np.int32)

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """(pairs,) tokens of each target, EOS included; a new array at every call."""
        return np.diff(self.target_offsets).astype(np.int32)

    def source(self, index: int) -> NDArray[np.integer]:
        """(S,) ids of a source, ended by EOS."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> NDArray[np.integer]:
        """(T,) ids of a target, without BOS, ended by EOS."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]

    def feature(self, name: str, index: int) -> NDArray[np.integer]:
        """(S,) the values of a feature of a source, EOS included."""
        return self.feature_values[name][self.source_offsets[index] : self.source_offsets[index + 1]]

    def spans(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Split into ranges of successive pairs (start, stop) with at most this many source tokens, or of one pair."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.source_offsets, self.source_offsets[start] + tokens, side="right")) - 1
            stop = max(start + 1, stop)
            yield start, stop
            start = stop


def map_array(directory: Path, stem: str, type_: DTypeLike, count: int) -> NDArray[Any]:
    """(count,) the memory-mapped array of a prepared split.

    Raises:
        UserError: the file is missing or has another size.
    """
    path = directory / f"{stem}.bin"
    expected = count * np.dtype(type_).itemsize
    try:
        size = path.stat().st_size
    except OSError:
        raise UserError("the prepared data lack a file", where=str(path), hint=_HINT) from None
    if size != expected:
        raise UserError(
            f"the prepared data are damaged: {size:,} bytes instead of {expected:,}", where=str(path), hint=_HINT
        )
    if not count:  # an empty file cannot be mapped
        return np.zeros(0, dtype=type_)
    # A plain array over the map: slicing np.memmap costs several times more.
    return np.asarray(np.memmap(path, dtype=type_, mode="r", shape=(count,)))


def count_token(ids: NDArray[np.integer], token: int) -> int:
    """Count a token in ids, which may be larger than the memory."""
    return sum(int((ids[first : first + _COUNTED] == token).sum()) for first in range(0, len(ids), _COUNTED))


def write_features(directory: Path, names: Sequence[str], rows: Iterable[Mapping[str, NDArray[np.int64]]]) -> None:
    """Write the source features of a split that is complete otherwise.

    Args:
        directory: the split.
        names: the features.
        rows: feature -> values of one or several successive pairs, one for each token, in order.
    """
    meta = read_json(directory / "meta.json")
    writer = ArrayWriter(directory, {**meta, "features": list(names)})
    with name_file_in_errors(directory), writer:
        streams = {name: writer.create(f"feature.{name}") for name in names}
        for row in rows:
            for name, stream in streams.items():
                stream.write(row[name].astype(_FEATURE).tobytes())


def write_links(directory: Path, pairs: Iterable[NDArray[np.int32]]) -> None:
    """Write the word alignments of a split that is complete otherwise.

    Args:
        directory: the split.
        pairs: (N, 2) the linked target and source tokens of each pair, in order.
    """
    end = 0
    writer = ArrayWriter(directory, read_json(directory / "meta.json"))
    with name_file_in_errors(directory), writer:
        links, offsets = writer.create("links"), writer.create("links.offsets")
        offsets.write(np.zeros(1, dtype=_OFFSET).tobytes())
        for each in pairs:
            end += len(each)
            links.write(each.astype(_FEATURE).tobytes())
            offsets.write(np.array([end], dtype=_OFFSET).tobytes())
