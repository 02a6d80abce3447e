"""The tables of what is registered: methods, decoding strategies, metrics, reports, commands, each by name.

What is built in and what plugins register stand in one table of each kind. Names of plugins are looked for when one is
not there, or when all are listed; then a module that was not imported before is imported.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sparsenmt.plugins import modules
from sparsenmt.plugins.failure import note_plugin
from sparsenmt.plugins.modules import Kind

T = TypeVar("T")
_OWN = __package__.partition(".")[0]
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Registrant:
    """The module that registers something.

    Args:
        module: its name; ``__main__`` in a notebook or a script.
        file: of the code that registers it.
    """

    module: str
    file: str

    @property
    def outside(self) -> bool:
        """True for plugins."""
        return self.module.partition(".")[0] != _OWN


def calling_module() -> Registrant:
    """Return the module that calls the function which calls this one."""
    frame = sys._getframe(2)
    return Registrant(str(frame.f_globals.get("__name__")), frame.f_code.co_filename)


@dataclass(frozen=True)
class Registered(Generic[T]):
    """An entry of a table.

    Args:
        made_by: qualified name of the class or function that was registered.
    """

    entry: T
    origin: Registrant
    made_by: str = ""


class EntryTable(Mapping[str, T]):
    """The entries of one kind by name.

    Args:
        built_in: the entries that the package has.
        title: makes the name for messages of a name.
        module: the module of the table.
        names_in: modules of the package that register entries when they are imported.
    """

    def __init__(
        self,
        kind: Kind,
        built_in: Mapping[str, T],
        module: str,
        title: Callable[[str], str],
        names_in: Sequence[str] = (),
    ) -> None:
        self.kind, self.title = kind, title
        own = Registrant(module, module)
        self._entries = {name: Registered(entry, own) for name, entry in built_in.items()}
        self._waiting = list(names_in)
        modules.WITHDRAW.append(self._withdraw)

    def register(self, name: str, entry: T, made: Callable[..., Any], origin: Registrant) -> None:
        """Add an entry; one that the same module made of a class or function of this name before is replaced.

        Raises:
            ValueError: the name has other signs than letters, digits, ``_``, ``-`` and ``.``, or is taken.
        """
        if not all(map(_NAME.fullmatch, name.split(" ") if self.kind == "method" else [name])):
            raise ValueError(f"{self.title(name)}: write its name in letters, digits, '_', '-' and '.'")
        code = getattr(made, "func", made)  # of a partial function, too
        made_by = getattr(code, "__qualname__", type(code).__qualname__)
        if origin.outside:
            self._import_built_in()
        known = self._entries.get(name)
        if known is not None and (known.origin.module, known.made_by) != (origin.module, made_by):
            by = f"{known.origin.module} ({known.origin.file})" if known.origin.outside else "this program"
            raise ValueError(f"{self.title(name)} is registered already, by {by}: choose another name")
        self._entries[name] = Registered(entry, origin, made_by)
        if origin.outside:
            files = {origin.file, getattr(getattr(code, "__code__", None), "co_filename", origin.file)}
            note_plugin(self.title(name), origin.module, *sorted(files))
            modules.forgive(origin.module)

    def __getitem__(self, name: str) -> T:
        """Return an entry; KeyError if there is none, UserError if the plugin of this name cannot be loaded."""
        if name not in self._entries:
            self._import_built_in()
            modules.load_named()
            modules.load_entries(self.kind, None if self.kind == "method" else name, self._entries.__contains__)
        if (failed := self._failure(name)) is not None:
            raise failed.error
        return self._entries[name].entry

    def _failure(self, name: str) -> modules.PluginFailure | None:
        """Return the failure of an entry point of this name, also if another package has registered the name."""
        found = self._entries.get(name)
        return None if found is not None and not found.origin.outside else modules.failure_of(self.kind, name)

    def _withdraw(self) -> None:
        """Take out what is registered by modules that are not there: their import failed afterwards."""
        for name, each in list(self._entries.items()):
            if each.origin.outside and each.origin.module not in sys.modules:
                del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._import_built_in()
        modules.load_named()
        modules.load_entries(self.kind, None, self._entries.__contains__)
        return iter([name for name in self._entries if self._failure(name) is None])

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    def names(self) -> dict[str, str]:
        """Return the names, without importing the modules of entry points; of these, with package and version."""
        self._import_built_in()
        modules.load_named()
        own = dict.fromkeys(self._entries, "")
        packages = {} if self.kind == "method" else modules.entry_packages(self.kind)
        return own | {name: package for name, package in packages.items() if name not in own}

    def known(self, name: str) -> T | None:
        """Return an entry if it is there without loading a plugin."""
        found = self._entries.get(name)
        return None if found is None else found.entry

    def origin(self, name: str) -> Registrant | None:
        """Return the module that registered a name; None: it is not there."""
        found = self._entries.get(name)
        return None if found is None else found.origin

    def _import_built_in(self) -> None:
        while self._waiting:
            importlib.import_module(self._waiting.pop(0))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Unregister at the end what is registered inside, and forget which plugins were loaded inside."""
        self._import_built_in()
        before = dict(self._entries)
        with modules.loading_scope():
            try:
                yield
            finally:
                self._entries.clear()
                self._entries.update(before)
