"""The conformance kit: proves that a sparsity method keeps the rules of the engine, for methods from outside, too.

In a test file of a method's package::

    from my_package import Sink
    from sparsenmt.testing import method_checks

    test_sink = method_checks(Sink)

On the command line, ``sparsenmt check-method my_package``. The names in `__all__` are public; each is imported at first
use, so that pytest loads the plugin without PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# __init__.pyi holds the same names for type checkers.
_NAMES = {
    "bench": ("Bench",),
    "cases": ("Case", "Plug", "Sizes"),
    "checks": ("BrokenRule",),
    "kit": ("CheckPlan", "CheckResult", "RuleOutcome", "check_method", "find_method"),
    "pytest_plugin": ("method_checks",),
    "rules": ("RULES", "Rule", "check_rule", "rule_of"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
