"""What step-by-step decoding remembers (design rule 5).

Self-attention keys and values belong to an execution step; those of the memory belong to (block, memory) and are
projected once a sentence, never per hypothesis.
Shapes: B sentences, R hypotheses a sentence, N = B * R rows, T positions, K of them kept, S slots, H heads, E head
size.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.attend import Mask
from sparsenmt.model.attention import KeysValues, Stored
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import DecoderCache
from sparsenmt.native.kernels import kernels

_ROOM = 16  # positions that there is room for at first
_RESERVE = 128  # the same on a CPU, where memory that nobody has written to takes no place


@functools.cache
def _lazy() -> bool:
    """Whether the system gives out memory that takes no place before somebody writes to it."""
    try:
        import resource

        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        return not limited and Path("/proc/sys/vm/overcommit_memory").read_bytes().strip() != b"2"
    except (ImportError, OSError):  # not Linux
        return False


class BufferPool:
    """Memory that one search leaves to the next: what comes fresh from the system costs a fault a page."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # flat

    def take(self, size: int, like: Tensor) -> Tensor:
        """An empty tensor (at least ``size``), with dtype and device of ``like``."""
        if not torch.is_inference_mode_enabled():  # what was made in it cannot be written to outside of it
            return like.new_empty(size)
        ours = [i for i, x in enumerate(self._free) if x.dtype == like.dtype and x.device == like.device]
        fitting = [i for i in ours if self._free[i].shape[0] >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].shape[0]))
        if ours:  # as much is held as a search has needed, not more
            self._free.pop(max(ours, key=lambda i: self._free[i].shape[0]))
        return like.new_empty(size)

    def give(self, rooms: list[Tensor]) -> None:
        """Take back what `take` gave and nobody reads any more."""
        self._free += [room for room in rooms if room.is_inference()]
        rooms.clear()


class _Store:
    """Keys or values of a step, (T, S, H, E), with room for more positions.

    What a row brings stays where it was put, position after position: a search that reorders its rows copies nothing
    but the numbers of slots.
    """

    def __init__(self, rooms: BufferPool) -> None:
        self._rooms = rooms
        self._flat: list[Tensor] = []  # what ``_room`` lies in
        self._room: Tensor | None = None
        self._first = self._end = 0

    @property
    def content(self) -> Tensor:
        """(K, S, H, E)."""
        assert self._room is not None
        return self._room[self._first : self._end]

    def append(self, new: Tensor, keep: int | None) -> Tensor:
        """Add new (N, H, T, E), row n in slot n, after the last ``keep`` positions; after all of them if it is None."""
        upright = new.permute(2, 0, 1, 3)
        count, rows = upright.shape[:2]
        if keep is not None:
            self._first = max(self._end - keep, self._first)
        if torch.is_grad_enabled() and (new.requires_grad or (self._room is not None and self._room.requires_grad)):
            slots = rows if self._room is None else max(rows, self._room.shape[1])
            parts = [upright] if self._room is None else [self.content, upright]
            self._room = torch.cat([F.pad(part, (0, 0, 0, 0, 0, slots - part.shape[1])) for part in parts])
            self._first, self._end = 0, self._room.shape[0]
            return self.content
        content = self.extend(upright)
        content[-count:, :rows] = upright
        return content

    def extend(self, like: Tensor) -> Tensor:
        """Room for the positions and rows of ``like`` (T, N, H, E) after all others, which are not written yet."""
        count, rows = like.shape[:2]
        if self._room is None or self._end + count > self._room.shape[0] or rows > self._room.shape[1]:
            self._make_room(like)
        self._end += count
        return self.content

    def _make_room(self, new: Tensor) -> None:
        kept, slots = self._end - self._first, new.shape[1]
        if self._room is not None:
            slots = max(slots, self._room.shape[1])
        flat, larger = self._take(2 * (kept + new.shape[0]), slots, new)
        if kept:
            larger[:kept, : self.content.shape[1]] = self.content
        self.leave()
        self._flat, self._room, self._first, self._end = [flat], larger, 0, kept

    def _take(self, positions: int, slots: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Room for so many positions and slots, or more, and what it lies in."""
        if like.device.type == "cpu" and positions < _RESERVE and _lazy():
            size = _RESERVE * slots * math.prod(like.shape[2:])
            try:
                flat = self._rooms.take(1 << (size - 1).bit_length(), like)  # a later batch of more rows fits, too
                return flat, flat[:size].view(_RESERVE, slots, *like.shape[2:])
            except RuntimeError:  # not even that much
                pass
        shape = (max(_ROOM, positions), slots, *like.shape[2:])
        size = math.prod(shape)
        flat = self._rooms.take(size, like)
        return flat, flat[:size].view(shape)

    def leave(self) -> None:
        """Give back the room."""
        self._rooms.give(self._flat)

    @staticmethod
    def join(stores: Sequence[_Store], slots: Sequence[Tensor], length: int, rooms: BufferPool) -> _Store:
        """What the rows of several stores still read of the last ``length`` positions; zeros where they read nothing.

        slots: for each store, (N, T) as `_Slots` has them. In the result, row n lies in slot n.
        """
        joined, kept = _Store(rooms), min(length, max(each.content.shape[0] for each in stores))
        flat, room = joined._take(2 * kept, sum(each.shape[0] for each in slots), stores[0].content)
        row = 0
        for store, own in zip(stores, slots, strict=True):
            content = store.content[-kept:]
            count, rows = content.shape[0], own.shape[0]
            steps = torch.arange(count, device=own.device) * content.shape[1]
            places = own[:, own.shape[1] - count :].T + steps[:, None]  # (K, N)
            here = room[:kept, row : row + rows]
            here[: kept - count] = 0.0  # what is hidden, but multiplied: it must be a number
            here[kept - count :] = content.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)
            row += rows
        joined._flat, joined._room, joined._end = [flat], room, kept
        return joined


class _Slots:
    """Where the rows that there are lie at every position, for all steps: (N, T) int32."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._end = 0
        self.straight = True  # row n has always been in slot n

    def last(self, count: int) -> Tensor:
        """(N, count)."""
        assert self._room is not None
        return self._room[:, self._end - count : self._end]

    def append(self, rows: int, count: int, device: torch.device) -> None:
        """So many more positions of so many rows."""
        if self._room is None or self._end + count > self._room.shape[1]:
            larger = torch.empty(rows, max(_ROOM, 2 * (self._end + count)), dtype=torch.int32, device=device)
            if self._room is not None:
                larger[:, : self._end] = self.last(self._end)
            self._room = larger
        self._room[:, self._end : self._end + count] = torch.arange(rows, device=device)[:, None]
        self._end += count

    def select(self, rows: Tensor) -> None:
        """Only these rows, in this order."""
        if self._room is not None:
            self._room = self._room.index_select(0, rows)
            self.straight = False


class _Own:
    """Keys and values of one step of self-attention; without keys where no head is learned."""

    def __init__(self, keys: _Store | None, values: _Store) -> None:
        self.keys, self.values = keys, values

    @staticmethod
    def join(parts: Sequence[_Own], slots: Sequence[Tensor], length: int, rooms: BufferPool) -> _Own:
        """As `_Store.join`."""
        keys = [part.keys for part in parts if part.keys is not None]
        values = _Store.join([part.values for part in parts], slots, length, rooms)
        return _Own(_Store.join(keys, slots, length, rooms) if keys else None, values)

    def leave(self) -> None:
        """Give back the room."""
        self.values.leave()
        if self.keys is not None:
            self.keys.leave()


def _leave(own: dict[int, _Own]) -> None:
    for each in own.values():
        each.leave()


class KVCache:
    """Implements `interfaces.DecoderCache`.

    Args:
        stepwise: it will be read many times, by few queries.
        rooms: where its memory comes from, and goes when nothing refers to the cache any more.
    """

    def __init__(self, memory: Memory, *, stepwise: bool = True, rooms: BufferPool | None = None) -> None:
        self._rooms = rooms or BufferPool()
        self._memory = memory
        self._stepwise = stepwise
        self._own: dict[int, _Own] = {}
        weakref.finalize(self, _leave, self._own)
        self._slots = _Slots()
        self._memory_kv: dict[int, KeysValues] = {}
        self._memory_rows: Tensor | None = None  # those of `_memory_kv` that are left, as long as nobody moved them
        self._memory_masks: dict[int, Mask | None] = {}
        self.compiled: tuple[int, bool] | None = None
        """Whether `compiled.CompiledDecoder` can read the memory to so many layers; None: nobody has asked."""
        self.length = 0
        self.starts: Tensor | None = None
        """(B) int64: of the positions so far, the first one that a sentence has, which is its position 0; None: 0."""

    @property
    def memory(self) -> Memory:
        return self._memory

    def advance(self, rows: int, count: int) -> None:
        """So many rows take so many more positions."""
        self._slots.append(rows, count, self._memory.states.device)
        self.length += count

    def append(self, step: int, new: KeysValues, keep: int | None) -> tuple[Stored, int]:
        """Add what step ``step`` projected; return all of it, and the position of the first.

        keep: positions before the new ones that are still of use (a pattern's reach); None: all.
        """
        if step not in self._own:
            self._own[step] = _Own(None if new.keys is None else _Store(self._rooms), _Store(self._rooms))
        own = self._own[step]
        keys = None if own.keys is None or new.keys is None else own.keys.append(new.keys, keep)
        values = own.values.append(new.values, keep)
        count = values.shape[0]
        return Stored(keys, values, self._slots.last(count), self._slots.straight), self.length - count

    def extend(self, step: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Room for what step ``step`` will project of one more position: keys and values (T, S, H, E).

        like: (1, N, H, E), not read.
        """
        if step not in self._own:
            self._own[step] = _Own(_Store(self._rooms), _Store(self._rooms))
        own = self._own[step]
        assert own.keys is not None
        return own.keys.extend(like), own.values.extend(like)

    @property
    def slots(self) -> Tensor:
        """(N, T) int32: where the keys and values of every row lie."""
        return self._slots.last(self.length)

    def row_starts(self, rows: int) -> Tensor | None:
        """(N, 1): `starts` of every row."""
        return None if self.starts is None else self.starts.repeat_interleave(rows // len(self.starts))[:, None]

    def next_positions(self, rows: int) -> int | Tensor:
        """The position that all rows have next, or that each has, (N)."""
        starts = self.row_starts(rows)
        return self.length if starts is None else self.length - starts.squeeze(1)

    def _select_memory(self) -> None:
        """Of sentences that have left, nothing."""
        if self._memory_rows is not None:
            rows, self._memory_rows = self._memory_rows, None
            self._memory_kv = {number: kv.select(rows) for number, kv in self._memory_kv.items()}

    def memory_keys_values(self, block: int, project: Callable[..., KeysValues]) -> KeysValues:
        """The memory's keys and values for a block, projected at the first call."""
        self._select_memory()
        if block not in self._memory_kv:
            memory = self._memory
            plain = memory.states.device.type == "cpu" and kernels() is None  # compiled ones read rows of keys
            upright = self._stepwise and memory.counts is not None and plain
            self._memory_kv[block] = project(memory.states, upright=upright)
        return self._memory_kv[block]

    def memory_as_it_lies(self, block: int) -> tuple[KeysValues, Tensor | None]:
        """What `memory_keys_values` once gave, with sentences that have left, and the rows (B) of those that are there.

        None: all, in order.
        """
        return self._memory_kv[block], self._memory_rows

    def memory_mask(self, step: int, make: Callable[[], Mask | None]) -> Mask | None:
        """The mask of the memory at a step, made at the first call."""
        if step not in self._memory_masks:
            self._memory_masks[step] = make()
        return self._memory_masks[step]

    def reorder(self, hypotheses: Tensor) -> None:
        self._slots.select(hypotheses)

    def keep_sentences(self, sentences: Tensor) -> None:
        self._memory = self._memory.select(sentences)
        if self.starts is not None:
            self.starts = self.starts[sentences]
        if self.compiled is not None and self.compiled[1]:  # the kernel finds them where they lie
            rows = self._memory_rows
            self._memory_rows = sentences if rows is None else rows[sentences]
        else:
            self._memory_kv = {block: kv.select(sentences) for block, kv in self._memory_kv.items()}
        self._memory_masks = {step: mask and mask.select(sentences) for step, mask in self._memory_masks.items()}

    @property
    def joins(self) -> bool:
        return self.compiled is not None and self.compiled[1]

    def join(self, others: Sequence[DecoderCache]) -> KVCache:
        parts = [self, *others]
        joined = KVCache(Memory.join([part.memory for part in parts]), stepwise=self._stepwise, rooms=self._rooms)
        lengths, slots, own, memory_kv = [], [], [], []
        for part in parts:
            assert isinstance(part, KVCache)
            part._select_memory()
            starts, sentences = part.starts, part.memory.valid.shape[0]
            whole = torch.full((sentences,), part.length, device=part.slots.device)
            lengths.append(whole if starts is None else whole - starts)
            slots.append(part.slots)
            own.append(part._own)
            memory_kv.append(part._memory_kv)
        joined.length = int(torch.cat(lengths).max())
        starts = joined.length - torch.cat(lengths)
        joined.starts = starts if bool(starts.any()) else None
        joined._slots.append(sum(each.shape[0] for each in slots), joined.length, starts.device)
        for step in self._own:
            joined._own[step] = _Own.join([each[step] for each in own], slots, joined.length, self._rooms)
        joined._memory_kv = {block: KeysValues.join([each[block] for each in memory_kv]) for block in self._memory_kv}
        return joined
