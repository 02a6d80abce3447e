"""The import paths that plugins use: the present ones, and those of plugins that were written before."""

from __future__ import annotations

from sparsenmt.model import depth_plan, interfaces, memory, sites, sockets
from sparsenmt.sparsity import registry


def test_the_old_path_has_the_same_types() -> None:
    modules = (depth_plan, memory, sites, sockets)
    for name in set(interfaces.__all__) - {"GivenHeads"}:
        (found,) = {id(getattr(module, name)) for module in modules if hasattr(module, name)}
        assert found == id(getattr(interfaces, name))
    assert interfaces.GivenHeads is sockets.FixedHeads and registry.Place is registry.MethodPlace
