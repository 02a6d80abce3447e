"""Applying gates to a memory: scale, or scale, gather and count (design rule 3).

Shapes: B sentences, S source positions, S' entries of a memory, K kept entries of the fullest sentence, D dimension.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates


def apply_gates(memory: Memory, gates: Gates, *, compact: bool) -> Memory:
    """Apply a filter's gates to a memory.

    Kept entries are scaled by their gates. Closed ones become zero vectors (``on_closed = "zero"``) or are masked
    (``"mask"``). With ``compact``, one zero vector with a count replaces them. That is exact if every reader sees every
    dropped position, which the caller must check.

    The zero vectors that an earlier filter of the same place has left are closed, whatever this filter says of them.
    """
    values, masking = gates.values * memory.valid, gates.on_closed == "mask"
    if gates.cumulative or (memory.gated and not masking):
        values = values.masked_fill(~memory.open_entries(), 0)
    source_gates = memory.on_source(values)
    if memory.gated and memory.gates is not None:
        source_gates = source_gates * memory.gates
    factors = values.unsqueeze(-1).to(memory.states.dtype)
    unnormed = None if memory.unnormed is None else memory.unnormed * factors
    memory = replace(memory, states=memory.states * factors, gates=source_gates, gated=True, unnormed=unnormed)
    if compact:
        kept = memory.valid & (values != 0)
        dropped = bool((kept != memory.valid).any())
        if not dropped and int(kept.sum(1).max()) == kept.shape[1]:  # an earlier filter may have masked some
            return memory
        return _compact(memory, kept, stand_in=dropped and not masking)
    return replace(memory, valid=memory.valid & (values != 0)) if masking else memory


def _compact(memory: Memory, kept: Tensor, *, stand_in: bool) -> Memory:
    """Gather the kept entries in order, after one zero vector that stands for all others."""
    exact = memory.valid.to(torch.promote_types(memory.states.dtype, torch.float32))  # bf16 counts to 256 only
    old = exact if memory.counts is None else memory.counts * exact
    width = max(int(kept.sum(1).max()), 0 if stand_in else 1)  # without any key, fused kernels differ
    order = kept.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # (B, K)
    valid = kept.gather(1, order)

    def pick(states: Tensor) -> Tensor:
        """(B, S', D) -> (B, K, D), or (B, 1 + K, D) with the zero vector."""
        picked = states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[-1])) * valid.unsqueeze(-1)
        return F.pad(picked, (0, 0, int(stand_in), 0))

    states, unnormed = pick(memory.states), None if memory.unnormed is None else pick(memory.unnormed)
    positions = memory.positions.gather(1, order)
    counts = old.gather(1, order) * valid
    entries = torch.where(kept, kept.cumsum(1) - 1 + stand_in, -1)
    if stand_in:
        entries = entries.masked_fill(memory.valid & ~kept, 0)
        dropped = (old * (memory.valid & ~kept)).sum(1, keepdim=True)  # (B, 1)
        valid = torch.cat([dropped > 0, valid], 1)
        positions = torch.cat([torch.full_like(memory.positions[:, :1], -1), positions], 1)
        counts = torch.cat([dropped, counts], 1)
    if memory.entries is not None:
        entries = entries.gather(1, memory.entries.clamp_min(0)).masked_fill(memory.entries < 0, -1)
    memory = replace(memory, states=states, valid=valid, positions=positions, counts=counts, entries=entries)
    return replace(memory, unnormed=unnormed)
