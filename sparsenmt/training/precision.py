"""fp32 weights for the optimizer, and the arithmetic in bf16 where that is wanted.

In bf16 the model's own weights are rounded copies, refreshed once an update: no operator casts anything.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.errors import UserError
from sparsenmt.model.sockets import MemoryFilter, Transform


def pick_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device of that name; ``auto`` is CUDA where there is one. UserError if there is none but it is wanted."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("PyTorch finds no CUDA device", where="training.device", hint="Set it to auto or cpu.")
    return torch.device(wanted)


def pick_dtype(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of that name; ``auto`` is bf16 where the processor multiplies it natively."""
    if wanted == "auto":
        wanted = "bf16" if _has_native_bf16(device) else "fp32"
    return torch.bfloat16 if wanted == "bf16" else torch.float32


def _has_native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    info = Path("/proc/cpuinfo")
    if platform.system() != "Linux" or not info.exists():
        return False
    flags = info.read_bytes()
    return b"avx512_bf16" in flags or b"amx_bf16" in flags


class Weights:
    """A model's parameters as the optimizer sees them.

    Args:
        model: its parameters are cast to ``dtype`` in place, those of transforms and filters excepted.
        dtype: of the arithmetic.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        names = {id(p): name for name, p in model.named_parameters()}
        methods = (m for m in model.modules() if isinstance(m, Transform | MemoryFilter))
        wide = {id(p) for module in methods for p in module.parameters()}
        self.named: dict[str, nn.Parameter] = {}  # name -> fp32 parameter
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # (of the model, fp32)
        for parameter in model.parameters():
            master = parameter
            if dtype != torch.float32 and id(parameter) not in wide:
                master = nn.Parameter(parameter.detach().clone())
                parameter.data = parameter.data.to(dtype)
                self._pairs.append((parameter, master))
            self.named[names[id(parameter)]] = master

    def collect(self) -> None:
        """Add the gradients of a batch to those of the fp32 weights."""
        for parameter, master in self._pairs:
            if parameter.grad is None:
                continue
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Give the model the new weights."""
        if self._pairs:
            torch._foreach_copy_([p for p, _ in self._pairs], [m for _, m in self._pairs])

    def state(self) -> dict[str, Tensor]:
        """The fp32 weights by name."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take these weights; names and shapes must fit."""
        for name, parameter in self.named.items():
            parameter.copy_(state[name])
        self.publish()
