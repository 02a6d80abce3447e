"""A KV cache whose tensors keep their shapes and addresses, so that a CUDA graph can repeat the steps of a search.

Sizes are rounded up to buckets: sentences, entries of the memory and positions. Rows and sentences beyond the real ones
are computed and never read; positions beyond the present one are hidden. A search that becomes smaller or longer moves
to tensors of another bucket, and those of a finished search serve the next one of the same buckets.

Shapes: B sentences of a bucket, R hypotheses each, N = B * R rows, P positions of a bucket, S entries of a memory,
T new positions, H heads, E head size, D model dimension.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from sparsenmt.model.attend import AttentionMask
from sparsenmt.model.attention import KeysValues, SlottedKeysValues
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.memory import Memory

_ENTRIES = 16  # entries of a memory are rounded up to multiples
_POSITIONS = 16  # of the smallest bucket
_KEPT = 48  # sets of tensors that wait for a later search


def power_of_two(count: int, least: int = 1) -> int:
    """Round up to a power of two, at least ``least``."""
    return max(1 << (count - 1).bit_length(), least)


_versions = count(1)


class FixedTensors:
    """Tensors by name, at addresses that stay.

    Attributes:
        version: another number wherever any address is another one.
    """

    def __init__(self) -> None:
        self.named: dict[Hashable, Tensor] = {}
        self.version = next(_versions)

    def place(self, name: Hashable, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the tensor of a name, zeros at first; a new one if its shape or dtype was another one."""
        own = self.named.get(name)
        if own is None or own.shape != torch.Size(shape) or own.dtype != like.dtype:
            own = self.named[name] = like.new_zeros(shape)
            self.version = next(_versions)
        return own

    def put(self, name: Hashable, value: Tensor) -> Tensor:
        """Copy a value to the address that its name has."""
        return self.place(name, value.shape, value).copy_(value)


class FixedMemory(FixedTensors):
    """The memory of a bucket of sentences, with its cross-attention keys, values and masks.

    Sentences beyond the real ones have one valid entry of zeros, so that no row of theirs sees nothing.
    """

    def __init__(self, sentences: int, entries: int) -> None:
        super().__init__()
        self.sentences, self.entries = sentences, entries
        self.present: set[Hashable] = set()
        """Names of the tensors that belong to the present search."""

    def write(self, name: Hashable, value: Tensor) -> None:
        """Do as `put`, for the present search."""
        self.present.add(name)
        self.put(name, value)

    def get(self, name: Hashable) -> Tensor | None:
        """Return a tensor of the present search; None: it has none of that name."""
        return self.named[name] if name in self.present else None

    def read(self, memory: Memory) -> None:
        """Copy the memory (B' sentences, S' entries) of a new search."""
        self.present.clear()
        fields: Mapping[Hashable, Tensor | None] = {
            "states": memory.states,
            "valid": memory.valid,
            "positions": memory.positions,
            "counts": memory.counts,
            **{("feature", name): value for name, value in memory.features.items()},
        }
        for name, value in fields.items():
            if value is None:
                continue
            entries = self.entries if value.shape[1] == memory.valid.shape[1] else _rounded(value.shape[1])
            padded = value.new_zeros(self.sentences, entries, *value.shape[2:])
            padded[: value.shape[0], : value.shape[1]] = value
            if name in ("valid", "counts"):
                padded[value.shape[0] :, 0] = 1
            self.write(name, padded)

    def take(self, other: FixedMemory, sentences: Tensor) -> None:
        """Copy sentences (B') of another memory, or of this one, to the first places."""
        if other is not self:
            self.present.clear()
        for name in list(other.present):
            old = other.named.get(name)
            if old is None:  # it is known that there is no mask
                self.present.add(name)
            elif len(old) == 1 < other.sentences:  # the same of all sentences
                self.write(name, old)
            else:
                chosen = old.index_select(0, sentences)
                own = self.place(name, (self.sentences, *old.shape[1:]), old)
                own[: len(chosen)] = chosen
                own[len(chosen) :] = chosen[:1]  # any sentence will do
                self.present.add(name)

    @property
    def memory(self) -> Memory:
        """The memory as the decoder reads it."""
        own = self.named
        features = {name[1]: own[name] for name in self.present if isinstance(name, tuple) and name[0] == "feature"}
        return Memory(own["states"], own["valid"], own["positions"], self.get("counts"), features)


class FixedRows(FixedTensors):
    """The rows of a search: keys and values by step, recurrent states, slots, the next position.

    Args:
        rows: N.
        capacity: P.
        device: of the tensors.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device) -> None:
        super().__init__()
        self.rows, self.capacity = rows, capacity
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.columns = torch.arange(capacity, device=device)
        self.own_slots = torch.arange(rows, dtype=torch.int32, device=device)[:, None]
        self.slots = self.own_slots.repeat(1, capacity)  # (N, P)
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.graphs: dict[Hashable, Any] = {}
        """Recorded steps, by what else they depend on."""
        self.held: list[object] = []
        """Other tensors whose addresses the graphs have."""

    def reset(self) -> None:
        """Begin another search. What is hidden is multiplied by 0, and must be finite."""
        for each in self.named.values():
            each.zero_()
        self.position.zero_()
        self.slots.copy_(self.own_slots.expand_as(self.slots))

    def storage(self, name: Hashable, like: Tensor) -> Tensor:
        """(P, N, H, E) of keys or values like (N, H, T, E)."""
        return self.place(name, (self.capacity, self.rows, like.shape[1], like.shape[3]), like)

    def take(self, other: FixedRows, slots: Tensor, length: int) -> bool:
        """Copy the first positions of other rows, but no recurrent states.

        Args:
            slots: (N', K >= length) those of the rows that are wanted, in the other tensors.

        Returns:
            True if row n is in slot n now.
        """
        self.reset()
        self.position.copy_(other.position)
        fits = other.rows <= self.rows
        places = slots[:, :length].T + torch.arange(length, device=slots.device)[:, None] * other.rows  # (length, N')
        for name, old in other.named.items():
            if isinstance(name, tuple) and name[0] == "state":
                continue
            new = self.place(name, (self.capacity, self.rows, *old.shape[2:]), old)
            if fits:
                new[:length, : other.rows] = old[:length]
            else:
                new[:length, : len(slots)] = old.flatten(0, 1)[places.flatten()].unflatten(0, places.shape)
        if fits:
            self.slots[: len(slots), :length] = slots[:, :length]
        return not fits


_Tensors = TypeVar("_Tensors", bound=FixedTensors)


class Buckets:
    """The tensors of finished searches, by their sizes; those that have waited longest go first."""

    def __init__(self) -> None:
        self._free: list[tuple[Hashable, FixedTensors]] = []

    def acquire(self, key: Hashable, make: Callable[[], _Tensors]) -> _Tensors:
        """Return tensors of these sizes: those that were used last, or new ones."""
        for number in range(len(self._free) - 1, -1, -1):
            if self._free[number][0] == key:
                return cast(_Tensors, self._free.pop(number)[1])
        return make()

    def release(self, tensors: Iterable[tuple[Hashable, FixedTensors]]) -> None:
        """Take back tensors with their sizes, which nothing reads any more."""
        self._free += tensors
        del self._free[:-_KEPT]


class _States(dict[int, Tensor]):
    """Recurrent states by step, at the addresses of the rows."""

    def __init__(self, rows: FixedRows) -> None:
        super().__init__()
        self._rows = rows

    def __setitem__(self, step: int, value: Tensor) -> None:
        super().__setitem__(step, self._rows.put(("state", step), value))


class FixedCache(KVCache):
    """A KV cache that is an ordinary one until `fix` is called, before the first step.

    Args:
        memory: of the sentences.
        buckets: where its tensors come from, and go to.
        most: positions that the model can encode; None: any number.
        rest: the other arguments of `KVCache`.
    """

    def __init__(self, memory: Memory, buckets: Buckets, most: int | None = None, **rest: Any) -> None:
        super().__init__(memory, **rest)
        self._buckets, self._most = buckets, most
        self._held: dict[str, tuple[Hashable, FixedTensors]] = {}
        weakref.finalize(self, _release, buckets, self._held)
        self._sentences: Tensor | None = None  # (B') of the fixed memory, that stay from the next step on
        self._chosen: Tensor | None = None  # (N', P) slots of the rows from the next step on
        self._moved: dict[int, Tensor] = {}  # (N', D) recurrent states from the next step on
        self._new: Tensor | None = None  # (T) the columns of the new positions
        self._at: Tensor | None = None  # `SlottedKeysValues.places` of the step
        self.identity = True
        """True if row n has always been in slot n."""
        self.shrinks = False
        """True if positions may be removed again: then it stays an ordinary cache."""
        self.fixed: FixedMemory | None = None
        self.own: FixedRows | None = None

    @classmethod
    def of(cls, kept: KVCache, buckets: Buckets, most: int | None) -> FixedCache:
        """Make one of a new ordinary cache."""
        return cls(kept.memory, buckets, most, buffers=kept._buffers, keep=kept._keep, first=kept._first)

    def fix(self) -> None:
        """Keep shapes and addresses from now on."""
        sentences, entries = self.memory.valid.shape
        self.fixed = self._memory_of(power_of_two(sentences), _rounded(entries))
        self.fixed.read(self.memory)

    def prepare(self, rows: int, count: int) -> FixedRows:
        """Apply what was chosen, and return tensors with ``count`` free positions for N' rows."""
        assert self.fixed is not None
        sentences = power_of_two(len(self.memory.valid))
        if self._sentences is not None:
            before = self.fixed
            self.fixed = before if sentences == before.sentences else self._memory_of(sentences, before.entries)
            self.fixed.take(before, self._sentences)
            self._sentences = None
        size, needed = sentences * (rows // len(self.memory.valid)), self.length + count
        own = self.own
        if own is None or own.rows != size or own.capacity < needed:
            bucket = power_of_two(needed, _POSITIONS)
            own = self._move(own, rows, size, bucket if self._most is None else max(min(bucket, self._most), needed))
        elif self._chosen is not None:
            own.slots[:rows] = self._chosen
        for step, state in self._moved.items():
            padded = state.new_zeros(size, *state.shape[1:])
            padded[: len(state)] = state
            self.states[step] = padded
        self.own, self._chosen, self._moved = own, None, {}
        return own

    def _move(self, old: FixedRows | None, rows: int, size: int, capacity: int) -> FixedRows:
        """Continue with tensors of other sizes."""
        device = self.memory.states.device
        found = self._acquire("rows", (size, capacity, device), lambda: FixedRows(size, capacity, device))
        if old is None:
            found.reset()
        else:
            slots = old.slots[:rows] if self._chosen is None else self._chosen
            in_order = found.take(old, slots, self.length)
            self.identity = in_order or (self.identity and self._chosen is None)
            self._moved = {step: state[:rows] for step, state in self.states.items()} | self._moved
        self.states = _States(found)
        return found

    def _memory_of(self, sentences: int, entries: int) -> FixedMemory:
        return self._acquire("memory", (sentences, entries), lambda: FixedMemory(sentences, entries))

    def _acquire(self, role: str, sizes: Hashable, make: Callable[[], _Tensors]) -> _Tensors:
        """Tensors in the place of those that had the role, which other searches may have when these are copied."""
        key = (role, sizes)
        found = self._buckets.acquire(key, make)
        if role in self._held:
            self._buckets.release([self._held[role]])
        self._held[role] = key, found
        return found

    # The cache as the decoder uses it

    def advance(self, rows: int, count: int) -> None:
        if self.own is None:
            return super().advance(rows, count)
        own, self._at = self.own, None
        self._new = own.position + own.columns[:count]
        if not self.identity:
            own.slots.index_copy_(1, self._new, own.own_slots.expand(-1, count))
        return None

    def append(self, step: int, new: KeysValues) -> tuple[SlottedKeysValues, int]:
        own = self.own
        if own is None or self._new is None:
            return super().append(step, new)
        keys = None if new.keys is None else own.storage(("keys", step), new.keys)
        values = own.storage(("values", step), new.values)
        for storage, value in ((keys, new.keys), (values, new.values)):
            if storage is not None and value is not None:
                storage.index_copy_(0, self._new, value.permute(2, 0, 1, 3))
        return SlottedKeysValues(keys, values, own.slots, self.identity, self._slot_places), 0

    def _slot_places(self) -> Tensor:
        """(N * P), the same for all steps."""
        own = self.own
        assert own is not None
        if self._at is None:
            self._at = (own.slots + own.columns * own.rows).flatten()
        return self._at

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes if self.own is None else sum(each.nbytes for each in self.own.named.values())

    @property
    def written(self) -> Tensor | None:
        return None if self.own is None or self._new is None else self.own.columns <= self._new[-1:]

    @property
    def position_bound(self) -> int | None:
        return None if self.own is None else self.own.capacity

    def next_positions(self, rows: int) -> int | Tensor:
        return super().next_positions(rows) if self.own is None else self.own.position.expand(rows)

    def memory_keys_values(self, block: int, project: Callable[..., KeysValues]) -> KeysValues:
        fixed = self.fixed
        if fixed is None:
            return super().memory_keys_values(block, project)
        if ("values", block) not in fixed.present:
            found = project(fixed.memory.states, transposed=False)
            fixed.write(("values", block), found.values)
            if found.keys is not None:
                fixed.write(("keys", block), found.keys)
        return KeysValues(fixed.get(("keys", block)), fixed.named["values", block])

    def memory_mask(self, step: int, make: Callable[[], AttentionMask | None]) -> AttentionMask | None:
        fixed = self.fixed
        if fixed is None:
            return super().memory_mask(step, make)
        if ("mask", step) not in fixed.present:
            fixed.present.add(("mask", step))
            mask = make()
            if mask is not None:
                fixed.write(("scores", step), mask.scores)
                if mask.fully_masked is not None:
                    fixed.write(("fully masked", step), mask.fully_masked)
        scores = fixed.get(("scores", step))
        return None if scores is None else AttentionMask(scores, fixed.get(("fully masked", step)))

    def reorder(self, hypotheses: Tensor) -> None:
        if self.own is None:
            return super().reorder(hypotheses)
        slots = self.own.slots if self._chosen is None else self._chosen
        self._chosen, self.identity = slots.index_select(0, hypotheses), False
        states = self.states | self._moved
        self._moved = {step: state.index_select(0, hypotheses) for step, state in states.items()}
        return None

    def allow_truncation(self, count: int) -> None:
        self.shrinks = True
        super().allow_truncation(count)

    def keep_sentences(self, sentences: Tensor) -> None:
        super().keep_sentences(sentences)
        if self.fixed is not None:
            self._sentences = sentences if self._sentences is None else self._sentences[sentences]


def _release(buckets: Buckets, held: dict[str, tuple[Hashable, FixedTensors]]) -> None:
    buckets.release(held.values())


def _rounded(entries: int) -> int:
    return -(-entries // _ENTRIES) * _ENTRIES
