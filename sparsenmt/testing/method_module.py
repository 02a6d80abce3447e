"""The methods that a module registers, found by its name or file."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from sparsenmt.errors import UserError
from sparsenmt.plugins.failure import failure
from sparsenmt.plugins.modules import line_of
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method


def load_methods(named: str) -> list[Method]:
    """Import a module, and return the methods that it registers.

    Args:
        named: ``MODULE`` or ``MODULE:NAME``; a module is a name for `import`, or the path of a Python file or package.
            Its folder, or the working directory, is added to the path of modules, as by `python FILE`.

    Raises:
        UserError: it cannot be imported, or registers no method, or none of this name.
    """
    place, _, name = named.rpartition(":") if ":" in named and not Path(named).is_file() else (named, "", "")
    before = {(each.socket, each.name) for each in registry.all_methods()}
    module = _load_module(place)
    found = [each for each in registry.all_methods() if (each.socket, each.name) not in before or _is_of(each, module)]
    if not found:
        hint = "Decorate a class or function of it with @register(SOCKET, NAME)."
        raise UserError("the module registers no method", where=place, hint=hint)
    chosen = [each for each in found if name in ("", each.name)]
    if not chosen:
        names = ", ".join(sorted(each.name for each in found))
        raise UserError(f"the module registers no method '{name}'", where=place, hint=f"It registers {names}.")
    return chosen


def _is_of(method: Method, module: ModuleType) -> bool:
    """Return True if a method was registered by a module, or by one below it."""
    own = getattr(method.build, "func", method.build).__module__
    return own == module.__name__ or own.startswith(f"{module.__name__}.")


def _load_module(place: str) -> ModuleType:
    """Import a module by its name, or by the path of its file."""
    path, name, folder = Path(place), place, os.getcwd()
    is_file = place.endswith(".py") or os.sep in place
    if is_file:
        path = path / "__init__.py" if path.is_dir() else path
        if not path.is_file():
            hint = "Name a Python file, or a module as `import` names it."
            raise UserError("there is no such file", where=place, hint=hint, missing=path)
        named = path.resolve().parent if path.name == "__init__.py" else path.resolve()  # a package by its folder
        name, folder = named.stem, str(named.parent)
        if not name.isidentifier():
            raise UserError("the name of the file is no name of a module", where=place, hint="Rename it.")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        hint = "Name a Python file, put the module's folder on PYTHONPATH, or install what it imports."
        raise UserError(f"there is no module '{error.name}'", where=place, hint=hint) from None
    except Exception as error:
        raise failure(f"the module {name}", error, line_of(error, name) or place, "Correct the module.") from None
    own = getattr(module, "__file__", None)
    if is_file and (own is None or Path(own).resolve() != path.resolve()):
        hint = "Rename the file: another module with its name comes first."
        raise UserError(f"`import {name}` finds {own or 'a built-in module'}", where=place, hint=hint)
    return module
