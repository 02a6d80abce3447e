"""The smallest case in which a rule still does not hold, and a script of a few lines that shows it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sparsenmt.sparsity.registry import Method
from sparsenmt.testing.cases import Case, Sizes
from sparsenmt.testing.rules import BUILT, Rule, broken, build_or_refuse, run_case

_LEAST_DIMENSION = 4  # of a model: narrower layers are normalised to constants


def failure(rule: Rule, case: Case) -> str | None:
    """Say why a rule does not hold in a case; None: it holds, or the case is refused."""
    bench, message = run_case(case)
    if bench is None:
        return message if rule is BUILT else None
    return broken(rule, bench)[1]


def smallest(rule: Rule, case: Case, method: Method, seconds: float = 10.0) -> tuple[Case, str]:
    """Find a case with fewer plugs, smaller sizes and shorter sentences in which a rule fails in the same way.

    Args:
        case: where it does not hold.
        method: which stays plugged in.
        seconds: that the search takes at most.

    Returns:
        the case, and why the rule does not hold in it.
    """
    message = failure(rule, case) or ""
    if rule is not BUILT:
        case = replace(case, sizes=_written_sizes(case))
    kind, end = _kind(message), time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for each in _smaller_cases(case, method):
            found = failure(rule, each)
            if found is not None and _kind(found) == kind and failure(rule, replace(each, plugs=())) is None:
                case, message, smaller = each, found, True
                break
    return case, message


def _kind(message: str) -> str:
    """A message without its numbers and places."""
    return re.sub(r"-?[\d.]+(e[+-]\d+)?", "#", re.sub(r"\(.*?\)", "", message))


def _written_sizes(case: Case) -> Sizes:
    """The sizes of a case with the lengths that the patterns need."""
    bench = build_or_refuse(case)
    assert bench is not None
    real = tuple(int(each) for each in bench.source.valid.sum(1))
    return replace(case.sizes, sources=real, target=bench.target.shape[1])


def _smaller_cases(case: Case, method: Method) -> Iterator[Case]:
    """Cases that are smaller in one way, the greatest steps first."""
    for plug in case.plugs:
        if (plug.method.socket, plug.method.name) != (method.socket, method.name):
            yield replace(case, plugs=tuple(each for each in case.plugs if each is not plug))
    sizes = case.sizes
    changes: list[dict[str, Any]] = [{"hypotheses": 1}, {"encoder_layers": 1}, {"decoder_layers": 1}]
    changes += [{"heads": heads} for heads in (1, 2)] + [{"head_size": size} for size in (1, 2)]
    if sizes.sources is not None and sizes.target is not None:
        few = [sizes.sources[:count] for count in (1, 2)]
        short = [tuple(max(each * part // 4, 1) for each in sizes.sources) for part in (1, 2, 3)]
        shorter = tuple(max(each - 1, 1) for each in sizes.sources)
        changes += [{"sources": lengths} for lengths in (*few, *short, shorter)]
        changes += [{"target": target} for target in (1, 2, sizes.target // 2, sizes.target - 1) if target > 0]
    for change in changes:
        smaller = replace(sizes, **change)
        wide = smaller.head_size * smaller.heads >= _LEAST_DIMENSION
        if smaller != sizes and wide and _total(smaller) < _total(sizes):
            yield replace(case, sizes=smaller)


def _total(sizes: Sizes) -> int:
    numbers = [sizes.head_size, sizes.heads, sizes.encoder_layers, sizes.decoder_layers, sizes.hypotheses]
    return sum(numbers) + sum(sizes.sources or ()) + (sizes.target or 0)


def script(rule: Rule, case: Case, message: str) -> str:
    """Write the lines of Python that try a rule on a case; they run where the methods' modules can be imported."""
    imports = [line for plug in case.plugs if plug.method.outside for line in _import(plug.method)]
    plugs = ", ".join(f"({plug.place!r}, {plug.method.name!r}, {dict(plug.options)!r})" for plug in case.plugs)
    usual = Sizes()
    own = [(each.name, getattr(case.sizes, each.name)) for each in fields(Sizes)]
    sizes = [f"{name}={value!r}" for name, value in own if value != getattr(usual, name)]
    lines = [
        *dict.fromkeys(sorted(imports, key=lambda line: not line.startswith("import sys"))),
        "from sparsenmt.testing import check_rule",
        "",
        f"# {' '.join(message.split())}",
        f"check_rule({rule.name!r}, [{plugs}], {', '.join([f'norm={case.norm!r}', *sizes])})",
    ]
    return "\n".join(lines) + "\n"


def _import(method: Method) -> list[str]:
    """The lines that import a method's module, with its folder on the path if it is not installed."""
    name = getattr(method.build, "func", method.build).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return [f"# register {method.name} here, as {name} does"]
    path = Path(file).resolve()
    root = path.parents[name.count(".") + (path.name == "__init__.py")]
    if "-packages" in str(root):
        return [f"import {name}"]
    return ["import sys", f"sys.path.insert(0, {str(root)!r})", f"import {name}"]
