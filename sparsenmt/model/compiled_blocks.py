"""Blocks of a model that PyTorch compiles (`torch.compile`): fused kernels for what stands around matrix products.

Each part of a block is compiled by itself, for tensors of any size, so that blocks of the same kind share a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sparsenmt.model.layers import TransformerBlock

_PARTS = ("add_self", "add_cross", "add_recurrence", "add_feed_forward")
_COMPILERS = ("torch._dynamo.", "torch._inductor.", "torch._functorch.")


def compile_blocks(model: nn.Module, warn: Callable[[str], None], *, backend: str = "inductor") -> None:
    """Compile the blocks of a model when they are called first; a part that cannot be compiled runs as it is.

    Args:
        warn: gets a message, once, if there is such a part.
        backend: as of `torch.compile`.
    """
    told: list[str] = []

    def tell(reason: str) -> None:
        if not told:
            told.append(reason)
            warn(f"a part of the model is not compiled: {reason}")

    for block in model.modules():
        if isinstance(block, TransformerBlock):
            for name in _PARTS:
                setattr(block, name, _Compiled(getattr(block, name), tell, backend))


class _Compiled:
    """A compiled function, or the function itself where the compiler has failed."""

    def __init__(self, plain: Callable[..., Any], tell: Callable[[str], None], backend: str) -> None:
        self._plain, self._tell = plain, tell
        self._compiled: Callable[..., Any] | None = torch.compile(plain, dynamic=True, backend=backend)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._compiled is not None:
            try:
                return self._compiled(*arguments, **named)
            except RuntimeError as error:
                if not f"{type(error).__module__}.".startswith(_COMPILERS):
                    raise
                self._compiled = None
                reason, _, _ = str(error).strip().partition("\n")
                self._tell(f"{self._plain.__qualname__}: {reason}")
        return self._plain(*arguments, **named)
