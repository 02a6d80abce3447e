"""The record of plugins in model directories and journals: module, package, version, and the hash of the source."""

from __future__ import annotations

import hashlib
import linecache
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsenmt.plugins.modules import VARIABLE, Kind, failures, package_of
from sparsenmt.plugins.table import EntryTable, Registrant


@dataclass(frozen=True)
class PluginRecord:
    """The record of a plugin; the names of the fields are those in manifests.

    Args:
        package, version: None for a module of no package.
        sha256: `source_digest`; None where the source is not known, as in a console.
        registers: what is used of it: names, each behind its kind.
    """

    module: str
    package: str | None
    version: str | None
    sha256: str | None
    registers: list[str]

    @property
    def release(self) -> str:
        """Package and version as text."""
        return " ".join(part for part in (self.package, self.version) if part is not None) or "no package"


_recorded: ContextVar[Sequence[PluginRecord]] = ContextVar("recorded", default=())


def plugin_records(used: Iterable[tuple[EntryTable[Any], str]]) -> list[PluginRecord]:
    """Return the records of plugins, by module.

    Args:
        used: tables, and names in them, also of what is built in.
    """
    origins: dict[str, Registrant] = {}
    registers: dict[str, list[str]] = {}
    for table, name in used:
        origin = table.origin(name)
        if origin is not None and origin.outside:
            origins[origin.module] = origin
            names = registers.setdefault(origin.module, [])
            names.extend({f"{table.kind} {name}"}.difference(names))
    return [
        PluginRecord(module, *package_of(module), source_digest(origin), sorted(registers[module]))
        for module, origin in sorted(origins.items())
    ]


def source_digest(origin: Registrant) -> str | None:
    """Return the hash of a plugin's source: all Python files of its package, or its module's file, or a cell.

    None: the source is not known.
    """
    files, digest = source_files(origin), hashlib.sha256()
    try:
        for name, path in files:
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return None
    lines = [] if files else linecache.getlines(origin.file)
    digest.update("".join(lines).encode("utf-8", "surrogatepass"))
    return digest.hexdigest() if files or lines else None


def source_files(origin: Registrant) -> list[tuple[str, Path]]:
    """Return the files of a plugin's source, each with its name below the folder of its package."""
    parts = origin.module.split(".")
    for count in range(1, len(parts)):  # the outermost package that has a file of its own
        file = getattr(sys.modules.get(".".join(parts[:count])), "__file__", None)
        if file is not None:
            folder = Path(file).parent
            inner = [path for path in sorted(folder.rglob("*.py")) if path.is_file()]
            return [(path.relative_to(folder).as_posix(), path) for path in inner]
    path = Path(origin.file)
    return [(path.name, path)] if path.is_file() else []


def plugin_changes(old: Sequence[PluginRecord], new: Sequence[PluginRecord]) -> list[str]:
    """Return the differences between the plugins of two records as text, one for each plugin."""
    before, now = ({each.module: each for each in records} for records in (old, new))
    return [
        f"the plugin {module} {what}"
        for module in sorted({*before, *now})
        if (what := _difference(before.get(module), now.get(module)))
    ]


def _difference(old: PluginRecord | None, new: PluginRecord | None) -> str:
    if old is None or new is None:
        return "is used now" if old is None else "is not used any more"
    parts = [f"is of {new.release} instead of {old.release}"] if old.release != new.release else []
    parts += ["has another source"] if old.sha256 != new.sha256 else []
    return " and ".join(parts)


@contextmanager
def recorded(records: Sequence[PluginRecord]) -> Iterator[None]:
    """Explain by a model's record, inside, what is missing; see `explain_missing`."""
    token = _recorded.set(records)
    try:
        yield
    finally:
        _recorded.reset(token)


def explain_missing(kind: Kind, name: str) -> str:
    """Return sentences on why a name is not registered: a model's plugin is not there, or one could not be loaded.

    Each ends with a space. Empty: nothing is known.
    """
    found = [
        f"It is of the plugin {each.module} ({each.release}), which this model was made with: install it, or name the "
        f"module in {VARIABLE}."
        for each in _recorded.get()
        if f"{kind} {name}" in each.registers
    ]
    found += [f"A plugin that may have it could not be loaded: {each.told}" for each in failures(kind)]
    return "".join(f"{each} " for each in found)
