"""What step-by-step decoding remembers (design rule 5).

Self-attention keys and values belong to an execution step; those of the memory belong to (block, memory) and are
projected once a sentence, never per hypothesis.
Shapes: B sentences, R hypotheses a sentence, K positions so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sparsenmt.model.attention import KeysValues
from sparsenmt.model.interfaces import Memory


class Cache:
    """Implements `interfaces.DecoderCache`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._own: dict[int, KeysValues] = {}
        self._memory_kv: dict[int, KeysValues] = {}
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

    def memory_keys_values(self, block: int, project: Callable[[Tensor], KeysValues]) -> KeysValues:
        """The memory's keys and values for a block, projected at the first call."""
        if block not in self._memory_kv:
            self._memory_kv[block] = project(self._memory.states)
        return self._memory_kv[block]

    def reorder(self, hypotheses: Tensor) -> None:
        self._own = {step: kv.select(hypotheses) for step, kv in self._own.items()}

    def keep_sentences(self, sentences: Tensor) -> None:
        def select(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.index_select(0, sentences)

        memory = self._memory
        self._memory = replace(
            memory,
            states=memory.states.index_select(0, sentences),
            valid=memory.valid.index_select(0, sentences),
            positions=memory.positions.index_select(0, sentences),
            counts=select(memory.counts),
            features={name: value.index_select(0, sentences) for name, value in memory.features.items()},
            gates=select(memory.gates),
            entries=select(memory.entries),
        )
        self._memory_kv = {block: kv.select(sentences) for block, kv in self._memory_kv.items()}
