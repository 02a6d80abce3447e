"""One non-trivial method a socket, registered like a method from outside the package, but only while asked for.

They are what the sockets are for and no more: the conformance kit runs them beside the real methods, so that the engine
is held to its rules even where no real method goes yet.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method
from sparsenmt.testing import bench

_FILES = (
    *("tag_filter", "faint_filter", "temperature", "recency", "lookback", "scattered", "left_heads", "revisit"),
    *("slope", "fading_span", "moving_average"),
)


def _load() -> tuple[Method, ...]:
    with registry.scope():
        known = {(method.socket, method.name) for method in registry.all_methods()}
        for file in _FILES:
            importlib.import_module(f"tests.toys.{file}")
        return tuple(method for method in registry.all_methods() if (method.socket, method.name) not in known)


TOYS = _load()


@contextmanager
def registered() -> Iterator[None]:
    """While the context is open, recipes may name the toys."""
    with bench.registered(TOYS):
        yield
