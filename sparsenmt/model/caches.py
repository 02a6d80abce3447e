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


class Cache:
    """Implements `interfaces.DecoderCache`.

    Args:
        stepwise: it will be read many times, by few queries.
    """

    def __init__(self, memory: Memory, *, stepwise: bool = True) -> None:
        self._memory = memory
        self._stepwise = stepwise
        self._own: dict[int, KeysValues] = {}
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
        old = self._own.get(step)
        if old is not None:
            start = 0 if keep is None else max(old.values.shape[2] - keep, 0)
            keys = new.keys
            if old.keys is not None and new.keys is not None:
                keys = torch.cat([old.keys[:, :, start:], new.keys], 2)
            new = KeysValues(keys, torch.cat([old.values[:, :, start:], new.values], 2))
        self._own[step] = new
        return new, self.length - new.values.shape[2]

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
        self._own = {step: kv.select(hypotheses) for step, kv in self._own.items()}

    def keep_sentences(self, sentences: Tensor) -> None:
        self._memory = self._memory.select(sentences)
        self._memory_kv = {block: kv.select(sentences) for block, kv in self._memory_kv.items()}
        self._memory_masks = {step: mask and mask.select(sentences) for step, mask in self._memory_masks.items()}
