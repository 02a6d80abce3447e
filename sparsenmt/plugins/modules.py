"""The modules of plugins: where they are named, their packages, and why some could not be loaded.

A plugin is a module that registers something when it is imported. It is named by an entry point of one of `GROUPS`, or
in the environment variable ``SPARSENMT_PLUGINS`` (modules, separated by commas). An entry point has the name of what
its module registers, so that names are known before a module is imported; of methods, which have a socket beside their
name, it may be any. What fails while it is imported is kept, and told where it may be missed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparsenmt.errors import UserError
from sparsenmt.plugins import failure

if TYPE_CHECKING:
    from importlib import metadata

Kind = Literal["method", "strategy", "metric", "report", "command"]
VARIABLE = "SPARSENMT_PLUGINS"
GROUPS: dict[Kind, str] = {
    "method": "sparsenmt.methods",
    "strategy": "sparsenmt.strategies",
    "metric": "sparsenmt.metrics",
    "report": "sparsenmt.reports",
    "command": "sparsenmt.commands",
}
"""Kind of what is registered -> group of entry points."""
_PACKAGE = Path(__file__).resolve().parents[1]
_OF_VARIABLE = "Correct the module, or take it out of the variable."
_OF_ENTRY = "Correct the module, or uninstall its package."


@dataclass(frozen=True)
class PluginFailure:
    """A plugin that could not be loaded.

    Args:
        source: where it is named: ``SPARSENMT_PLUGINS=module``, or ``entry point name = module``.
        kind: of what it was to register; None: it may have registered anything.
        name: of the entry point; None: it has none.
        error: the message, with file and line.
    """

    source: str
    module: str
    kind: Kind | None
    name: str | None
    error: UserError

    @property
    def told(self) -> str:
        """The message in one line."""
        where = f"{self.error.where}: " if self.error.where else ""
        return f"{where}{self.error.message}. {self.error.hint or ''}".strip()


_attempted: set[str] = set()
_failures: dict[str, PluginFailure] = {}
WITHDRAW: list[Callable[[], None]] = []
"""Functions that take out of the tables what a module registered before it failed."""


def load_named() -> None:
    """Import the modules that the environment variable names, once."""
    for module in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        _load(f"{VARIABLE}={module}", module, None, None, partial(importlib.import_module, module))


def load_entries(kind: Kind, name: str | None, has: Callable[[str], bool]) -> None:
    """Import the modules of a group's entry points, once.

    Args:
        name: of the entry points; None: all.
        has: returns True if a name is registered.
    """
    for entry in _entries(kind):
        if name in (None, entry.name):
            source = f"entry point {entry.name} = {entry.value}"
            if _load(source, entry.module, kind, entry.name, entry.load) and kind != "method" and not has(entry.name):
                message, hint = f"the plugin {source} registers no {kind} '{entry.name}'", _OF_ENTRY
                error = UserError(message, where=getattr(sys.modules[entry.module], "__file__", source), hint=hint)
                _failures[source] = PluginFailure(source, entry.module, kind, entry.name, error)


def entry_packages(kind: Kind) -> dict[str, str]:
    """Return the names of a group's entry points, each with its package and version, without importing a module."""
    return {e.name: "" if e.dist is None else f"{e.dist.name} {e.dist.version}" for e in _entries(kind)}


@cache
def _entries(kind: Kind) -> tuple[metadata.EntryPoint, ...]:
    from importlib import metadata

    return tuple(dict.fromkeys(metadata.entry_points(group=GROUPS[kind])))  # a package may be found twice


def _load(source: str, module: str, kind: Kind | None, name: str | None, load: Callable[[], object]) -> bool:
    """Import a module, if that was not tried before; returns True if it is imported now."""
    if source in _attempted:
        return False
    _attempted.add(source)
    try:
        load()
        return True
    except (Exception, SystemExit) as error:
        _failures[source] = PluginFailure(source, module, kind, name, _explained(error, source, module))
        for withdraw in WITHDRAW:
            withdraw()
        return False


def _explained(error: BaseException, source: str, module: str) -> UserError:
    """Return the message for a module that fails when it is imported, with the line of it that did."""
    place = line_of(error, module) or source
    hint = _OF_VARIABLE if source.startswith(VARIABLE) else _OF_ENTRY
    if isinstance(error, ModuleNotFoundError):
        return UserError(
            f"the plugin {source} cannot be loaded: there is no module '{error.name}'",
            where=place,
            hint="Put its folder on PYTHONPATH, install what it imports, or take it out of the variable."
            if hint == _OF_VARIABLE
            else "Install its package again, or uninstall it.",
        )
    return failure.failure(f"the plugin {source}", error, place, hint)


def line_of(error: BaseException, module: str) -> str | None:
    """Return the file and line of a module's package where an error was raised; None: it did not run."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    found, trace, root = None, error.__traceback__, module.partition(".")[0]
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == root:
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def failures(kind: Kind | None = None) -> list[PluginFailure]:
    """Return the plugins that could not be loaded so far, of those that may have registered something of a kind."""
    return [each for each in _failures.values() if None in (kind, each.kind) or each.kind == kind]


def failure_of(kind: Kind, name: str) -> PluginFailure | None:
    """Return the failure of the entry point that has this name; None: there is none."""
    return next((each for each in _failures.values() if (each.kind, each.name) == (kind, name)), None)


def forgive(module: str) -> None:
    """Forget that a module could not be loaded: it has registered something now, as from a notebook."""
    for source in [source for source, each in _failures.items() if each.module == module and each.kind is None]:
        del _failures[source]


def package_of(module: str) -> tuple[str | None, str | None]:
    """Return the installed package that a module belongs to, and its version; (None, None): it belongs to none."""
    from importlib import metadata

    root = module.partition(".")[0]
    if root == _PACKAGE.name:
        return root, str(vars(sys.modules[root])["__version__"])
    for entry in (entry for kind in GROUPS for entry in _entries(kind)):
        if entry.module.partition(".")[0] == root and entry.dist is not None:
            return entry.dist.name, entry.dist.version
    for name in metadata.packages_distributions().get(root, ()):
        return name, metadata.version(name)
    return None, None


@contextmanager
def loading_scope() -> Iterator[None]:
    """Forget at the end what was loaded and what failed inside."""
    attempted, failed = set(_attempted), dict(_failures)
    titles = {key: list(each) for key, each in failure.TITLES.items()}
    _entries.cache_clear()
    try:
        yield
    finally:
        _entries.cache_clear()
        _attempted.clear()
        _attempted.update(attempted)
        _failures.clear()
        _failures.update(failed)
        failure.TITLES.clear()
        failure.TITLES.update(titles)
