"""The KV cache of step-by-step decoding, its buffers, and how it is reordered and merged (design rule 5).

Self-attention keys and values belong to an execution step. Cross-attention keys and values belong to (block, memory)
and are projected once a sentence, never per hypothesis. A recurrent layer in the place of self-attention has a state.
Shapes: B sentences, R hypotheses a sentence, N = B * R rows, T positions, K of them kept, S slots, H heads, E head
size.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import KeysValues, SlottedKeysValues
from sparsenmt.model.memory import Memory

_INITIAL_POSITIONS = 16  # capacity of a new buffer
_INITIAL_POSITIONS_LAZY = 128  # the same where memory is committed lazily: what is never written costs nothing


@functools.cache
def _commits_lazily() -> bool:
    """True if the system commits memory at the first write, not at the allocation."""
    try:
        import resource

        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return not limited and Path("/proc/sys/vm/overcommit_memory").read_bytes().strip() != b"2"
    except (ImportError, OSError):  # not Linux
        return False


_pools = threading.RLock()
"""Held while buffers are taken from a pool or returned: searches in several threads may share it. Python may collect
garbage meanwhile, and a cache that it finds returns its buffers in the same thread."""


_ROOM = 4
"""Largest size of a free buffer that is taken, over the size that is needed: others are left to larger batches."""


class BufferPool:
    """Buffers that one search releases and the next acquires: fresh memory costs a page fault for each page."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # flat

    def acquire(self, size: int, like: Tensor) -> Tensor:
        """An uninitialised tensor (at least ``size``), with dtype and device of ``like``."""
        if not torch.is_inference_mode_enabled():  # a tensor made in inference mode cannot be written to outside of it
            return like.new_empty(size)
        with _pools:
            matching = {
                i: len(x) for i, x in enumerate(self._free) if x.dtype == like.dtype and x.device == like.device
            }
            fitting = [i for i, length in matching.items() if size <= length <= _ROOM * size]
            if fitting:
                return self._free.pop(min(fitting, key=matching.__getitem__))
            smaller = [i for i, length in matching.items() if length < size]
            if smaller:  # the new buffer replaces one that is too small: a pool holds what searches have needed
                self._free.pop(max(smaller, key=matching.__getitem__))
        return like.new_empty(size)

    def release(self, buffers: list[Tensor]) -> None:
        """Take back buffers that nothing reads any more, and empty the list."""
        with _pools:
            self._free += [buffer for buffer in buffers if buffer.is_inference()]
        buffers.clear()


class _PositionBuffer:
    """Keys or values of a step, (T, S, H, E), preallocated for more positions.

    Each row writes to its own slot, position after position, and nothing moves afterwards: a search that reorders its
    rows copies only slot numbers (`_SlotTable`).
    """

    def __init__(self, buffers: BufferPool) -> None:
        self._buffers = buffers
        self._flat: list[Tensor] = []  # the pool's tensor that ``_storage`` is a view of
        self._storage: Tensor | None = None
        self._first = self._end = 0

    @property
    def content(self) -> Tensor:
        """(K, S, H, E)."""
        assert self._storage is not None
        return self._storage[self._first : self._end]

    def append(self, new: Tensor, keep: int | None) -> Tensor:
        """Write new (N, H, T, E), row n to slot n, after the last ``keep`` positions (None: after all).

        Returns:
            the content.
        """
        by_position = new.permute(2, 0, 1, 3)
        count, rows = by_position.shape[:2]
        if keep is not None:
            self._first = max(self._end - keep, self._first)
        storage = self._storage
        if torch.is_grad_enabled() and (new.requires_grad or (storage is not None and storage.requires_grad)):
            slots = rows if storage is None else max(rows, storage.shape[1])
            parts = [by_position] if storage is None else [self.content, by_position]
            self._storage = torch.cat([F.pad(part, (0, 0, 0, 0, 0, slots - part.shape[1])) for part in parts])
            self._first, self._end = 0, self._storage.shape[0]
            return self.content
        content = self.extend(by_position)
        content[-count:, :rows] = by_position
        return content

    def extend(self, like: Tensor) -> Tensor:
        """The content, followed by uninitialised positions for the rows of ``like`` (T, N, H, E), which is not read."""
        count, rows = like.shape[:2]
        if self._storage is None or self._end + count > self._storage.shape[0] or rows > self._storage.shape[1]:
            self._grow(like)
        self._end += count
        return self.content

    def truncate(self, count: int) -> None:
        """Remove the last ``count`` positions, which later ones overwrite."""
        self._end -= count
        assert self._first <= self._end

    def shift(self, slots: Tensor, counts: Tensor, length: int) -> None:
        """Remove the last positions of every row, as many as ``counts`` (N) says; the others move to the end.

        In the result, row n is in slot n; the first positions of rows that moved are copies of what stood first.

        Args:
            slots: (N, K): the slot table.
            length: the most positions that are kept.
        """
        content = self.content
        columns = (torch.arange(content.shape[0], device=counts.device)[:, None] - counts).clamp_min(0)  # (K, N)
        index = slots.T.gather(0, columns) + columns * content.shape[1]
        moved = content.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)
        content[:, : len(counts)] = moved
        self._first = max(self._first, self._end - length)

    def _grow(self, new: Tensor) -> None:
        kept, slots = self._end - self._first, new.shape[1]
        if self._storage is not None:
            slots = max(slots, self._storage.shape[1])
        flat, larger = self._allocate(2 * (kept + new.shape[0]), slots, new)
        if kept:
            larger[:kept, : self.content.shape[1]] = self.content
        self.release()
        self._flat, self._storage, self._first, self._end = [flat], larger, 0, kept

    def _allocate(self, positions: int, slots: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The pool's flat tensor, and a view of it with at least this many positions and slots."""
        if like.device.type == "cpu" and positions < _INITIAL_POSITIONS_LAZY and _commits_lazily():
            size = _INITIAL_POSITIONS_LAZY * slots * math.prod(like.shape[2:])
            try:
                flat = self._buffers.acquire(1 << (size - 1).bit_length(), like)  # fits a later, larger batch, too
                return flat, flat[:size].view(_INITIAL_POSITIONS_LAZY, slots, *like.shape[2:])
            except RuntimeError:  # the address space is exhausted: allocate no more than is needed
                pass
        shape = (max(_INITIAL_POSITIONS, positions), slots, *like.shape[2:])
        size = math.prod(shape)
        flat = self._buffers.acquire(size, like)
        return flat, flat[:size].view(shape)

    def release(self) -> None:
        """Return the storage to the pool."""
        self._buffers.release(self._flat)

    @staticmethod
    def merge(
        parts: Sequence[_PositionBuffer], slots: Sequence[Tensor], length: int, buffers: BufferPool
    ) -> _PositionBuffer:
        """The last ``length`` positions that the rows of several buffers still read, aligned at the newest.

        In the result, row n is in slot n; positions that a row does not have are zeros.

        Args:
            slots: for each part, (N, T): its slot table.
        """
        merged, kept = _PositionBuffer(buffers), min(length, max(each.content.shape[0] for each in parts))
        flat, storage = merged._allocate(2 * kept, sum(each.shape[0] for each in slots), parts[0].content)
        row = 0
        for part, table in zip(parts, slots, strict=True):
            content = part.content[-kept:]
            count, rows = content.shape[0], table.shape[0]
            steps = torch.arange(count, device=table.device) * content.shape[1]
            index = table[:, table.shape[1] - count :].T + steps[:, None]  # (K, N)
            target = storage[:kept, row : row + rows]
            target[: kept - count] = 0.0  # masked, but multiplied: must be finite
            target[kept - count :] = content.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)
            row += rows
        merged._flat, merged._storage, merged._end = [flat], storage, kept
        return merged


class _SlotTable:
    """The slot of every row at every position, for all steps: (N, T) int32."""

    def __init__(self) -> None:
        self._storage: Tensor | None = None
        self._end = 0
        self._places: dict[tuple[int, int], Tensor] = {}  # of this step
        self.identity = True  # row n has always been in slot n

    def last(self, count: int) -> Tensor:
        """(N, count)."""
        assert self._storage is not None
        return self._storage[:, self._end - count : self._end]

    def places(self, count: int, slots: int) -> Tensor:
        """(N * count) places of the last positions' rows in a buffer (count * slots, ...): the same for every layer."""
        if (count, slots) not in self._places:
            last = self.last(count)
            self._places[count, slots] = (last + torch.arange(count, device=last.device) * slots).flatten()
        return self._places[count, slots]

    def append(self, rows: int, count: int, device: torch.device) -> None:
        """Add ``count`` positions, at which row n is in slot n."""
        self._places = {}
        if self._storage is None or self._end + count > self._storage.shape[1]:
            capacity = max(_INITIAL_POSITIONS, 2 * (self._end + count))
            larger = torch.empty(rows, capacity, dtype=torch.int32, device=device)
            if self._storage is not None:
                larger[:, : self._end] = self.last(self._end)
            self._storage = larger
        self._storage[:, self._end : self._end + count] = torch.arange(rows, device=device)[:, None]
        self._end += count

    def truncate(self, count: int) -> None:
        """Remove the last ``count`` positions."""
        self._places = {}
        self._end -= count

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self._places = {}
        if self._storage is not None:
            self._storage = self._storage.index_select(0, rows)
            self.identity = False


class _StepCache:
    """Self-attention keys and values of one step; without keys if no head is learned.

    Attributes:
        first: (2, N, H, G, E) keys and values of every row's first positions, which it keeps after the others were
            dropped; None: it keeps none.
        dropped: some positions were dropped.
        length: positions so far, those that were dropped included.
    """

    def __init__(self, keys: _PositionBuffer | None, values: _PositionBuffer) -> None:
        self.keys, self.values = keys, values
        self.first: Tensor | None = None
        self.dropped = False
        self.length = 0

    @property
    def buffers(self) -> list[_PositionBuffer]:
        """Those of the values, and of the keys if there are any."""
        return [self.values] if self.keys is None else [self.values, self.keys]

    def truncate(self, length: int) -> None:
        """Remove the positions from ``length`` on, if there are any."""
        for buffer in self.buffers if self.length > length else ():
            buffer.truncate(self.length - length)
        self.length = min(self.length, length)
        self.first = None if self.first is None else self.first[:, :, :, :length]

    def keep_first(self, new: KeysValues, most: int, begin: int, starts: Tensor | None, latest: int) -> None:
        """Write what is among the first positions of its row, beside the buffers.

        Args:
            new: (N, H, T, E) each.
            most: positions to keep.
            begin: the column of ``new``. ``starts``: (N, 1) the columns at which rows begin; None: 0 for all.
            latest: the largest of them.
        """
        if begin >= latest + most or new.keys is None:
            return
        both = torch.stack([new.keys, new.values])
        if starts is None:
            both = both[:, :, :, : most - begin]
            self.first = both.clone() if self.first is None else torch.cat([self.first, both], 3)
            return
        first = both[:, :, :, :0] if self.first is None else self.first
        size = min(most, begin + both.shape[3])
        first = F.pad(first, (0, 0, 0, size - first.shape[3]))
        for column in range(both.shape[3]):
            here = begin + column - starts == torch.arange(size, device=starts.device)  # (N, G)
            first = torch.where(here[:, None, :, None], both[:, :, :, column : column + 1], first)
        self.first = first

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows, in this order: the others stay where they are."""
        self.first = None if self.first is None else self.first.index_select(1, rows)

    @staticmethod
    def merge(parts: Sequence[_StepCache], slots: Sequence[Tensor], length: int, buffers: BufferPool) -> _StepCache:
        """Merge as `_PositionBuffer.merge` does."""
        keys = [part.keys for part in parts if part.keys is not None]
        values = _PositionBuffer.merge([part.values for part in parts], slots, length, buffers)
        merged = _StepCache(_PositionBuffer.merge(keys, slots, length, buffers) if keys else None, values)
        merged.dropped, merged.length = any(part.dropped for part in parts), length
        first = [part.first for part in parts if part.first is not None]
        if first:
            size = min(max(each.shape[3] for each in first), length)
            merged.first = torch.cat([F.pad(each, (0, 0, 0, size - each.shape[3])) for each in first], 1)
        return merged

    def release(self) -> None:
        """Return the storage to the pool."""
        for buffer in self.buffers:
            buffer.release()


def _release(steps: dict[int, _StepCache]) -> None:
    for step in steps.values():
        step.release()


class KVCache:
    """The KV cache of a search: self-attention keys and values of the positions so far, and those of the memory.

    Args:
        stepwise: few queries will read it, many times.
        buffers: the pool of its buffers, which go back to it when the cache is garbage-collected.
        projected: cross-attention keys and values by block, where they are projected already.
        keep: of every step, the positions before new ones that can still be attended to; None: all, of a step or of
            all steps.
        first: of every step, the positions at the beginning that are kept beside them; None: none, of all steps.
    """

    can_merge = False
    """True if a merged cache is decoded in one batch without loss of speed."""

    def __init__(
        self,
        memory: Memory,
        *,
        stepwise: bool = True,
        buffers: BufferPool | None = None,
        projected: dict[int, KeysValues] | None = None,
        keep: Sequence[int | None] | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        self._keep, self._first = keep, first
        self._buffers = buffers or BufferPool()
        self._memory = memory
        self._stepwise = stepwise
        self._steps: dict[int, _StepCache] = {}
        weakref.finalize(self, _release, self._steps)
        self._slots = _SlotTable()
        self._memory_kv = projected or {}
        self._memory_masks: dict[int, AttentionMask | None] = {}
        self.states: dict[int, Tensor] = {}
        """(N, D) by step: the states of recurrent layers."""
        self.length = 0
        """Positions so far."""
        self.starts: Tensor | None = None
        """(B) int64: the column at which each sentence begins, its position 0; None: 0 for all."""
        self._latest_start = 0

    @property
    def memory(self) -> Memory:
        """The memory of the sentences that are still searched."""
        return self._memory

    def advance(self, rows: int, count: int) -> None:
        """Add ``count`` positions for each of the rows."""
        self._slots.append(rows, count, self._memory.states.device)
        self.length += count

    def append(self, step: int, new: KeysValues) -> tuple[SlottedKeysValues, int]:
        """Add projected keys and values to a step.

        Returns:
            everything that is kept, and the position of the first.
        """
        if step not in self._steps:
            keys_buffer = None if new.keys is None else _PositionBuffer(self._buffers)
            self._steps[step] = _StepCache(keys_buffer, _PositionBuffer(self._buffers))
        own, keep = self._steps[step], None if self._keep is None else self._keep[step]
        first = 0 if self._first is None or keep is None else self._first[step]
        if first:
            rows, added = new.values.shape[0], new.values.shape[2]
            own.keep_first(new, first, self.length - added, self.row_starts(rows), self._latest_start)
        keys = None if own.keys is None or new.keys is None else own.keys.append(new.keys, keep)
        values = own.values.append(new.values, keep)
        count, table = values.shape[0], self._slots
        own.dropped, own.length = own.dropped or count < self.length, self.length
        places = functools.partial(table.places, *values.shape[:2])
        ahead = own.first if own.dropped else None
        stored = SlottedKeysValues(keys, values, table.last(count), table.identity, places, ahead)
        return stored, self.length - count

    def extend(self, step: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (T, S, H, E) of a step, with one more position, which the caller writes.

        like: (1, N, H, E), not read.
        """
        if step not in self._steps:
            self._steps[step] = _StepCache(_PositionBuffer(self._buffers), _PositionBuffer(self._buffers))
        own = self._steps[step]
        own.length = self.length
        assert own.keys is not None
        return own.keys.extend(like), own.values.extend(like)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the self-attention keys and values that new positions can attend to."""
        total = sum(own.first.nbytes for own in self._steps.values() if own.first is not None and own.dropped)
        for step, own in self._steps.items():
            keep = None if self._keep is None else self._keep[step]
            for buffer in (own.values, own.keys):
                content = None if buffer is None else buffer.content
                if content is not None:
                    total += (content if keep is None else content[max(len(content) - keep, 0) :]).nbytes
        return total

    @property
    def slots(self) -> Tensor:
        """(N, T) int32: the slots of every row's keys and values."""
        return self._slots.last(self.length)

    @property
    def written(self) -> Tensor | None:
        """(K) bool: the positions of a step that have keys and values; None: all."""
        return None

    @property
    def position_bound(self) -> int | None:
        """A number above all positions, where it is known without waiting for a device; None: it is not."""
        return None

    def row_starts(self, rows: int) -> Tensor | None:
        """(N, 1): `starts` of every row."""
        starts = self.starts  # `repeat_interleave` would read the numbers of repetitions
        return None if starts is None else starts[:, None].expand(-1, rows // len(starts)).reshape(-1, 1)

    def next_positions(self, rows: int) -> int | Tensor:
        """The next position: one for all rows, or (N) one for each."""
        starts = self.row_starts(rows)
        return self.length if starts is None else self.length - starts.squeeze(1)

    def memory_keys_values(self, block: int, project: Callable[..., KeysValues]) -> KeysValues:
        """The cross-attention keys and values of a block, projected at the first call."""
        if block not in self._memory_kv:
            memory = self._memory
            transposed = self._stepwise and memory.counts is not None and memory.states.device.type == "cpu"
            self._memory_kv[block] = project(memory.states, transposed=transposed)
        return self._memory_kv[block]

    def memory_mask(self, step: int, make: Callable[[], AttentionMask | None]) -> AttentionMask | None:
        """The cross-attention mask of a step, made at the first call."""
        if step not in self._memory_masks:
            self._memory_masks[step] = make()
        return self._memory_masks[step]

    def reorder(self, hypotheses: Tensor) -> None:
        """Keep these rows (of B * R), in this order, for the next step. hypotheses: (B' * R')."""
        self._slots.select(hypotheses)
        for own in self._steps.values():
            own.reorder(hypotheses)
        self.states = {step: state.index_select(0, hypotheses) for step, state in self.states.items()}

    def allow_truncation(self, count: int) -> None:
        """Keep ``count`` positions more than can be attended to, so that as many may be removed again."""
        self._keep = None if self._keep is None else [None if each is None else each + count for each in self._keep]

    def truncate(self, count: int) -> None:
        """Remove the last ``count`` positions of all rows, in every step that has them. Recurrent layers cannot."""
        assert not self.states
        self.length -= count
        self._slots.truncate(count)
        for own in self._steps.values():
            own.truncate(self.length)

    def truncate_rows(self, counts: Sequence[int]) -> None:
        """Remove the last positions of every sentence, which has one row, as many as ``counts`` (B) says.

        Rows stay aligned at the newest position, so that those that lose more than others are copied to other columns.
        """
        self.truncate(min(counts))
        if max(counts) == min(counts):
            return
        more = torch.tensor([count - min(counts) for count in counts], device=self._memory.valid.device)
        starts = more if self.starts is None else self.starts + more
        front = int(starts.min())  # columns that no row has any more
        self.length -= front
        for own in self._steps.values():
            for buffer in own.buffers:
                buffer.shift(self._slots.last(buffer.content.shape[0]), more, self.length)
            own.length = self.length
            own.first = None if own.first is None else own.first[:, :, :, : self.length]
        self._slots = _SlotTable()
        self._slots.append(len(counts), self.length, starts.device)
        self._latest_start = int(starts.max()) - front
        self.starts = starts - front if self._latest_start else None

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep these sentences (of B) of the memory. sentences: (B',)."""
        self._memory = self._memory.select(sentences)
        if self.starts is not None:
            self.starts = self.starts[sentences]
        self._select_memory(sentences)
        self._memory_masks = {step: mask and mask.select(sentences) for step, mask in self._memory_masks.items()}

    def _select_memory(self, sentences: Tensor) -> None:
        """Keep the cross-attention keys and values of these sentences."""
        self._memory_kv = {block: kv.select(sentences) for block, kv in self._memory_kv.items()}

    def _own_memory(self) -> dict[int, KeysValues]:
        """The cross-attention keys and values of the sentences that are still searched, by block."""
        return self._memory_kv

    def _with_memory(self, memory: Memory, projected: dict[int, KeysValues]) -> KVCache:
        """Make an empty cache of the same kind for another memory."""
        keep, first, buffers = self._keep, self._first, self._buffers
        return KVCache(memory, stepwise=self._stepwise, buffers=buffers, projected=projected, keep=keep, first=first)

    def merge(self, others: Sequence[KVCache]) -> KVCache:
        """Merge with other caches, which must have as many hypotheses a sentence; sentences keep their order.

        Sentences may differ in length: the next positions of all are decoded together. What finished sentences and
        dropped hypotheses have left is not copied, so that merging with no others compacts a cache.
        """
        caches, lengths_of_parts = [self, *others], []
        for cache in caches:
            columns = torch.full((cache.memory.valid.shape[0],), cache.length, device=cache.slots.device)
            lengths_of_parts.append(columns if cache.starts is None else columns - cache.starts)
        slots, lengths = [cache.slots for cache in caches], torch.cat(lengths_of_parts)
        own = [cache._own_memory() for cache in caches]
        merged = self._with_memory(
            Memory.concatenate([cache.memory for cache in caches]),
            {block: KeysValues.concatenate([each[block] for each in own]) for block in self._memory_kv},
        )
        merged.length = int(lengths.max())
        starts = merged.length - lengths
        merged._latest_start = int(starts.max())
        merged.starts = starts if merged._latest_start else None
        merged._slots.append(sum(each.shape[0] for each in slots), merged.length, starts.device)
        for step in self._steps:
            parts = [cache._steps[step] for cache in caches]
            merged._steps[step] = _StepCache.merge(parts, slots, merged.length, self._buffers)
        merged.states = {step: torch.cat([cache.states[step] for cache in caches]) for step in self.states}
        return merged
