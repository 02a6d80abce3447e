"""The old import path of the types that plugins use, kept for plugins that were written before these modules."""

from __future__ import annotations

from sparsenmt.model.depth_plan import DepthPlan, DepthPolicy
from sparsenmt.model.memory import Memory
from sparsenmt.model.sites import SITES, SiteName
from sparsenmt.model.sockets import FixedHeads, Gates, Keys, MemoryFilter, Pattern, Transform

GivenHeads = FixedHeads

__all__ = [
    "SITES",
    "DepthPlan",
    "DepthPolicy",
    "FixedHeads",
    "Gates",
    "GivenHeads",
    "Keys",
    "Memory",
    "MemoryFilter",
    "Pattern",
    "SiteName",
    "Transform",
]
