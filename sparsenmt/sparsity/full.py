"""Full attention: every query sees every key (Vaswani et al. 2017)."""

from __future__ import annotations

from sparsenmt.sparsity.registry import Options, register


@register("pattern", "full")
def build(options: Options, *, site: str) -> None:
    """No restriction; the engine may use its fused kernels."""
    return None
