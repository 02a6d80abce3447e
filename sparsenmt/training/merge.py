"""Merge of low-rank adapters into the weights beside them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

_ADAPTER = ".adapter."


def has_adapters(weights: Mapping[str, Tensor]) -> bool:
    """Return True if some of the weights are those of adapters."""
    return any(_ADAPTER in name for name in weights)


def merge_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights without adapters: W + s B A in place of W, computed in float64; others as they are."""
    merged = {name: each for name, each in weights.items() if _ADAPTER not in name}
    for name in weights:
        layer, found, part = name.partition(_ADAPTER)
        if found and part == "up":
            up, down, scale = (weights[f"{layer}{_ADAPTER}{each}"].double() for each in ("up", "down", "scale"))
            base = merged[f"{layer}.weight"]
            merged[f"{layer}.weight"] = (base.double() + scale * (up @ down)).to(base.dtype)
    return merged
