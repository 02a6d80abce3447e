"""The numerics of a run: everything but its inputs that decides the last digits of its sums.

Floating-point sums are rounded in another order by another version of PyTorch, number of threads, device, library of
compiled kernels, or choice between a kernel and PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from sparsenmt.native.build import SWITCH, origins, wanted
from sparsenmt.native.choice import ALWAYS, AS_FAST, CLEARLY, kept_ratios, known_ratios

Choices = dict[str, dict[str, float]]
"""The kernel's time over PyTorch's, by library, machine and number of threads, and by class of problems."""


def numerics(device: torch.device, *libraries: str) -> dict[str, Any]:
    """Return the numerics of this process as JSON, except the choices, which are made when they are first needed.

    Args:
        libraries: names of the compiled libraries that the run uses, which are loaded by now if they will be.
    """
    on_cpu = torch.backends.cpu.get_cpu_capability
    files = {name: origins[name].path if wanted() and name in origins else None for name in libraries}
    return {
        "threads": torch.get_num_threads(),
        "device": f"{device.type} {torch.cuda.get_device_name(device) if device.type == 'cuda' else on_cpu()}",
        "torch": torch.__version__,
        "kernels": {
            **{name: None if path is None else path.stem for name, path in files.items()},
            "used": "always" if os.environ.get(SWITCH) == ALWAYS else "where measured faster",
        },
    }


def changed_choices(old: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the classes of problems for which a run would choose otherwise than `known_ratios` were, or anew."""
    changed = []
    for record, ratios in old.items():
        kept = kept_ratios(record) | known_ratios().get(record, {})
        changed += [name for name, ratio in ratios.items() if name not in kept or _sides(kept[name]) != _sides(ratio)]
    return changed


def _sides(ratio: float) -> tuple[bool, bool]:
    return ratio < CLEARLY, ratio < AS_FAST
