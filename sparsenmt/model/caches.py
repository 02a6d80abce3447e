"""What step-by-step decoding remembers (design rule 5).

Self-attention keys and values belong to an execution step; those of the memory belong to (block, memory) and are
projected once a sentence, never per hypothesis.
Shapes: B sentences, R hypotheses a sentence, K positions so far.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sparsenmt.model.attend import Mask
from sparsenmt.model.attention import KeysValues
from sparsenmt.model.interfaces import Memory

_ROOM = 16  # positions that there is room for at first


class _Growing:
    """Keys or values (N, H, T, E) of a step, with room for more positions.

    They lie in one of two places of equal size, and are reordered from one into the other: a step of beam search, whose
    tensors are large, then allocates nothing and copies what it has once.
    """

    def __init__(self) -> None:
        self._here: Tensor | None = None
        self._there: Tensor | None = None
        self._rows = self._first = self._end = 0

    @property
    def content(self) -> Tensor:
        assert self._here is not None
        return self._here[: self._rows, :, self._first : self._end]

    def append(self, new: Tensor, keep: int | None) -> Tensor:
        """Add positions after the last ``keep``; all of them if it is None. Returns what there is then."""
        if self._here is None:
            self._rows = new.shape[0]
        elif keep is not None:
            self._first = max(self._end - keep, self._first)
        if torch.is_grad_enabled() and (new.requires_grad or (self._here is not None and self._here.requires_grad)):
            self._place(new if self._here is None else torch.cat([self.content, new], 2))
            return self.content
        count = new.shape[2]
        if self._here is None or self._end + count > self._here.shape[2]:
            self._make_room(new)
        assert self._here is not None
        self._here[: self._rows, :, self._end : self._end + count] = new
        self._end += count
        return self.content

    def _make_room(self, new: Tensor) -> None:
        kept = self._end - self._first
        size = list(new.shape)
        size[2] = max(_ROOM, 2 * (kept + new.shape[2]))
        larger = new.new_empty(size)
        if kept:
            larger[:, :, :kept] = self.content
        self._here, self._there, self._first, self._end = larger, None, 0, kept

    def select(self, rows: Tensor) -> None:
        """Only these rows, in this order."""
        content, count = self.content, rows.shape[0]
        assert self._here is not None
        if torch.is_grad_enabled() and content.requires_grad:
            self._place(content.index_select(0, rows))
            return
        if self._there is None or self._there.shape[0] < count:
            self._there = self._here.new_empty([count, *self._here.shape[1:]])
        torch.index_select(content, 0, rows, out=self._there[:count, :, self._first : self._end])
        self._here, self._there, self._rows = self._there, self._here, count

    def _place(self, content: Tensor) -> None:
        self._here, self._there, self._rows = content, None, content.shape[0]
        self._first, self._end = 0, content.shape[2]


class _Own:
    """Keys and values of one step of self-attention."""

    def __init__(self, has_keys: bool) -> None:
        self.keys = _Growing() if has_keys else None
        self.values = _Growing()

    def append(self, new: KeysValues, keep: int | None) -> KeysValues:
        keys = None if self.keys is None or new.keys is None else self.keys.append(new.keys, keep)
        return KeysValues(keys, self.values.append(new.values, keep))

    def select(self, rows: Tensor) -> None:
        if self.keys is not None:
            self.keys.select(rows)
        self.values.select(rows)


class Cache:
    """Implements `interfaces.DecoderCache`.

    Args:
        stepwise: it will be read many times, by few queries.
    """

    def __init__(self, memory: Memory, *, stepwise: bool = True) -> None:
        self._memory = memory
        self._stepwise = stepwise
        self._own: dict[int, _Own] = {}
        self._memory_kv: dict[int, KeysValues] = {}
        self._memory_masks: dict[int, Mask | None] = {}
        self.length = 0

    @property
    def memory(self) -> Memory:
        return self._memory

    def append(self, step: int, new: KeysValues, keep: int | None) -> tuple[KeysValues, int]:
        """Add what step ``step`` projected; return all of it, and the position of the first.

        keep: positions before the new ones that are still of use (a pattern's reach); None: all.
        """
        if step not in self._own:
            self._own[step] = _Own(new.keys is not None)
        kept = self._own[step].append(new, keep)
        return kept, self.length - kept.values.shape[2]

    def memory_keys_values(self, block: int, project: Callable[..., KeysValues]) -> KeysValues:
        """The memory's keys and values for a block, projected at the first call."""
        if block not in self._memory_kv:
            memory = self._memory
            upright = self._stepwise and memory.counts is not None and memory.states.device.type == "cpu"
            self._memory_kv[block] = project(memory.states, upright=upright)
        return self._memory_kv[block]

    def memory_mask(self, step: int, make: Callable[[], Mask | None]) -> Mask | None:
        """The mask of the memory at a step, made at the first call."""
        if step not in self._memory_masks:
            self._memory_masks[step] = make()
        return self._memory_masks[step]

    def reorder(self, hypotheses: Tensor) -> None:
        for own in self._own.values():
            own.select(hypotheses)

    def keep_sentences(self, sentences: Tensor) -> None:
        self._memory = self._memory.select(sentences)
        self._memory_kv = {block: kv.select(sentences) for block, kv in self._memory_kv.items()}
        self._memory_masks = {step: mask and mask.select(sentences) for step, mask in self._memory_masks.items()}
