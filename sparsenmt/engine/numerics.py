"""The numerics of a run: everything but its inputs that decides the last digits of its sums.

Floating-point sums are rounded in another order by another version of PyTorch, number of threads, device, processor,
library of compiled kernels, or choice between a kernel and PyTorch.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from sparsenmt.engine import graph_engine
from sparsenmt.native.choice import table_digest
from sparsenmt.native.instruction_sets import cpu_info, usable_sets
from sparsenmt.native.library import ALWAYS, SWITCH, candidates, wanted
from sparsenmt.native.sources import LIBRARIES, is_intact
from sparsenmt.storage.kept_work import changed_values, describe_change, joined

Numerics = dict[str, Any]
"""The identity of a run's numerics, as JSON."""


def numerics(device: torch.device) -> Numerics:
    """The numerics of this process on a device. Nothing is loaded for it.

    Raises:
        UserError: SPARSENMT_NATIVE_ISA names no instruction set.
    """
    on_cpu, name = device.type == "cpu", torch.backends.cpu.get_cpu_capability()
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": f"{device.type} {torch.cuda.get_device_name(device) if device.type == 'cuda' else name}",
        "processor": processor_name() if on_cpu else None,
        "kernels": _kernels() if on_cpu and wanted() else None,
        **({"CUDA graphs": True} if graph_engine.wanted(device) else {}),  # of other shapes
    }


def _kernels() -> dict[str, Any]:
    """Library -> its file, without suffix, or None; the instruction set; the hash of the table, or "always"."""
    best = {each.name: next((path.stem for path in candidates(each) if is_intact(path)), None) for each in LIBRARIES}
    return {
        **best,
        "instructions": next((each.name for each in usable_sets()), None),
        "choices": ALWAYS if os.environ.get(SWITCH) == ALWAYS else table_digest(),
    }


def processor_name() -> str:
    """The name of the processor as Linux gives it."""
    return cpu_info("model name") or platform.processor() or platform.machine()


def numerics_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences between two numerics as text; empty if they are the same."""
    return joined([_describe(*change) for change in changed_values(json.loads(json.dumps(old)), new)])


def _describe(key: str, old: Any, new: Any) -> str:
    """A change of the value of a key, such as "threads" or "kernels.decoding", as text, without hashes."""
    if key == "kernels":
        return f"compiled kernels are {'not in use now' if new is None else 'in use now'}"
    kind = key.removeprefix("kernels.")
    if kind == "choices":
        return "the choices between kernels and PyTorch are others"
    if kind != key and kind != "instructions":
        state = "are others" if old and new else "are not in use now" if old else "were not in use"
        return f"the compiled kernels ({kind}) {state}"
    return describe_change(kind, old, new)
