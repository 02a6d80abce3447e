"""Mixed precision: fp32 master weights for the optimizer, and a model that computes in fp32 or bf16.

In bf16 the model's own weights are rounded copies of the master weights, refreshed after every update: no operator
casts anything.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from sparsenmt.model.sockets import WIDE


def pick_dtype(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of that name; ``auto`` is bf16 if the processor or GPU multiplies it natively, otherwise fp32."""
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


class MasterWeights:
    """The fp32 parameters that the optimizer updates.

    With fp32 arithmetic they are the model's own parameters. Otherwise they are copies: `collect` moves the gradients
    from the model's parameters to them, and `publish` copies them back, rounded, after the optimizer's step.

    Args:
        model: its parameters are cast to ``dtype`` in place, except those of transforms and filters.
        dtype: the dtype that the model computes in.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        names = {id(p): name for name, p in model.named_parameters()}
        methods = (m for m in model.modules() if isinstance(m, WIDE))
        wide = {id(p) for module in methods for p in module.parameters()}
        self.named: dict[str, nn.Parameter] = {}  # name -> master weight
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # (model parameter, master weight)
        for parameter in model.parameters():
            master = parameter
            if dtype != torch.float32 and id(parameter) not in wide:
                master = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
                parameter.data = parameter.data.to(dtype)
                self._pairs.append((parameter, master))
            self.named[names[id(parameter)]] = master

    def trained(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return (model parameter, master weight) of everything that gets gradients, in the model's order."""
        models = {id(master): parameter for parameter, master in self._pairs}
        return [(models.get(id(each), each), each) for each in self.named.values() if each.requires_grad]

    def collect(self) -> None:
        """Add the model's gradients of a batch to the gradients of the master weights, and clear them."""
        pairs = [(parameter, master) for parameter, master in self._pairs if parameter.grad is not None]
        at_once = bool(pairs) and pairs[0][1].device.type != "cpu"
        # On a device all in one call; on a CPU one by one, so that few gradients exist twice.
        for part in [pairs] if at_once else [[pair] for pair in pairs]:
            wide = [torch.empty_like(master) for _, master in part]
            torch._foreach_copy_(wide, [parameter.grad for parameter, _ in part if parameter.grad is not None])
            for gradient, (parameter, master) in zip(wide, part, strict=True):
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the master weights into the model's parameters."""
        if self._pairs:
            torch._foreach_copy_([p for p, _ in self._pairs], [m for _, m in self._pairs])

    def state(self) -> dict[str, Tensor]:
        """The master weights by name."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set the master weights and the model's parameters; names and shapes must fit."""
        for name, parameter in self.named.items():
            parameter.copy_(state[name])
        self.publish()
