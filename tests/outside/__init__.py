"""Five plugins, written from `docs/guides/extending.md` alone as their authors would: they are no part of the package.

Four methods and a decoding strategy. A user names their modules in SPARSENMT_PLUGINS; tests register them for a while.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparsenmt.sparsity import registry
from sparsenmt.strategy import STRATEGIES

PLUGINS = ("longformer", "softmax_sink", "sigmoid_attention", "norm_quantile", "diverse_beam")


def _import() -> None:
    for name in PLUGINS:
        sys.modules.pop(f"{__name__}.{name}", None)  # what a module registers, it registers when it is imported
        importlib.import_module(f"{__name__}.{name}")


@contextmanager
def registered() -> Iterator[None]:
    """While the context is open, recipes may name them."""
    with registry.scope(), STRATEGIES.scope():
        _import()
        yield


with registered():  # a test that imports one of them registers nothing
    pass
