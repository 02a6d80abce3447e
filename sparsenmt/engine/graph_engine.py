"""The engine for CUDA that records each step of a search once, as a CUDA graph, and then repeats it.

A step of a small batch is a few hundred launches, for which a device waits longer than it computes. Recorded, it is one
launch. Methods that read numbers back from the device cannot be recorded: their steps run as before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsenmt.engine.fixed_cache import Buckets, FixedCache, FixedRows
from sparsenmt.engine.search_cache import Product, SearchCache
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.embeddings import Positions
from sparsenmt.model.kv_cache import KVCache
from sparsenmt.model.transformer import Transformer

SWITCH = "SPARSENMT_CUDA_GRAPHS"


def wanted(device: torch.device) -> bool:
    """Return True on a CUDA device, where the environment has SPARSENMT_CUDA_GRAPHS=1."""
    return device.type == "cuda" and os.environ.get(SWITCH) == "1"


Step = Callable[[], Tensor]
"""A step, whose result stays at one address where it is recorded."""


class GraphEngine(TorchEngine):
    """An engine whose searches run recorded steps; implements `contract.Engine`.

    Language models, speculative searches and exits for each token have steps of changing shapes, and attention by
    distance or content counts on keys that end with the query's: these run as in `TorchEngine`.

    Args:
        model, output: as for `TorchEngine`.
        record: makes the recorded step of a step, which it calls once; None: it cannot be recorded.
    """

    def __init__(
        self, model: Transformer, output: Product | None = None, record: Callable[[Step], Step | None] | None = None
    ) -> None:
        super().__init__(model, output)
        self._record = CudaGraphs() if record is None else record
        self._buckets = Buckets()
        steps = [each for each in model.modules() if isinstance(each, AttentionStep) and each.site == "decoder_self"]
        self._fixes = bool(model.plan.encoder) and not any(each.special for each in steps)

    def _searched(self, kept: KVCache) -> KVCache:
        weight = self._positions.weight
        return FixedCache.of(kept, self._buckets, None if weight is None else len(weight)) if self._fixes else kept

    @property
    def _positions(self) -> Positions:
        found = self.model.positions["target"]
        assert isinstance(found, Positions)
        return found

    def step(self, tokens: Tensor, cache: SearchCache) -> Tensor:
        kept = cache.kept
        if not isinstance(kept, FixedCache):
            return super().step(tokens, cache)
        if kept.fixed is None:
            changes = kept.length > 0 or kept.shrinks or cache.rule is not None or self.model.observed
            if changes or not torch.is_inference_mode_enabled():
                return super().step(tokens, cache)
            kept.fix()
        rows, count = tokens.shape
        own = kept.prepare(rows, count)
        if count == 1:
            own.tokens[:rows] = tokens
            states = self._run(own, kept, cache.exits)
        else:
            given = tokens.new_zeros(own.rows, count)
            given[:rows] = tokens
            states = self._decode(given, own, kept, cache.exits)
        kept.length += count
        return states[:rows]

    def _decode(self, tokens: Tensor, own: FixedRows, kept: FixedCache, exits: Sequence[int]) -> Tensor:
        """tokens (N, T) -> (N, T, D), whose last operation moves the position."""
        assert kept.fixed is not None
        found = self.model.decode(tokens, kept.fixed.memory, cache=kept, exits=exits)[exits[0]]
        own.position.add_(tokens.shape[1])
        return found

    def _run(self, own: FixedRows, kept: FixedCache, exits: Sequence[int]) -> Tensor:
        """(N, 1, D) after the tokens of ``own``; the first step like this one is recorded behind it."""

        def step() -> Tensor:
            return self._decode(own.tokens, own, kept, exits)

        if self.model.observed:
            return step()
        known: Step | None = own.graphs.get(_key(own, kept, exits))
        if known is not None:
            return known()
        found, key = step(), _key(own, kept, exits)
        if kept.length > 0 and key not in own.graphs:  # in the first one tensors get their addresses
            own.position.sub_(1)  # it is recorded where it was run
            own.graphs[key] = self._record(step)
            own.position.add_(1)
            own.held.append(None if self._positions.none else self._positions.table(own.capacity, found))
        return found

    def release(self) -> None:
        super().release()
        self._buckets = Buckets()


def _key(own: FixedRows, kept: FixedCache, exits: Sequence[int]) -> Hashable:
    """Everything that decides a recorded step, but the numbers in its tensors."""
    assert kept.fixed is not None
    return own.version, kept.fixed.version, tuple(exits), kept.identity, frozenset(kept.fixed.present)


class CudaGraphs:
    """Records steps as CUDA graphs, which share their memory."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                found = step()
        except RuntimeError:  # something waits for the device, or is not allowed
            return None

        def repeat() -> Tensor:
            graph.replay()
            return found

        return repeat
