"""Errors in the code of plugins, as messages that name what was registered, and the place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from sparsenmt.errors import UserError

_MARK = "plugged_method"
_BUILT_AS = "of_method"
TITLES: dict[str, list[str]] = {}
"""The titles of what was registered, by the file of its code, and by the top-level package of its module."""


@dataclass(frozen=True)
class PluggedMethod:
    """A method from outside the package at its place in a model, for messages.

    Args:
        title: its name with its socket.
        file: of its code.
        key: of the recipe.
        layer: number from 1; of a filter between encoder layers, that of the layer before; None: not of a single one.
    """

    title: str
    file: str
    key: str
    layer: int | None = None

    @property
    def place(self) -> str:
        """Key and layer."""
        return self.key if self.layer is None else f"{self.key}, layer {self.layer}"

    @property
    def where(self) -> str:
        """File, key and layer."""
        return f"{self.file}, {self.place}"


def mark(built: object, method: PluggedMethod) -> None:
    """Keep with an object that was built by a method from outside what messages call it."""
    with suppress(TypeError):  # objects with slots have no dictionary: the file of their code names them
        vars(built)[_MARK] = method


def plugged(built: object) -> PluggedMethod | None:
    """Return what `mark` has kept; None for methods of the package."""
    found = getattr(built, "__dict__", {}).get(_MARK)
    return found if isinstance(found, PluggedMethod) else None


def note_plugin(title: str, module: str, *files: str) -> None:
    """Keep the files and the package of something that is registered from outside, and its name in messages."""
    root = module.partition(".")[0]
    for key in (*files, *([] if root == "__main__" else [root])):
        if title not in TITLES.setdefault(key, []):
            TITLES[key].append(title)


def plugin_titles() -> list[str]:
    """Return the names of what plugins have registered, each with a file."""
    return list(dict.fromkeys(f"{title} ({key})" for key, titles in TITLES.items() for title in titles if "/" in key))


def build_error(error: BaseException, method: PluggedMethod, built_as: str) -> None:
    """Keep with an error, for `plugin_error`, which method was built when it was raised, and how it is built."""
    vars(error)[_BUILT_AS] = (method, built_as)


def plugin_error(error: BaseException) -> UserError | None:
    """Return the message for an error that the code of a plugin raised; None: it was other code."""
    found: UserError | None = None
    method, built_as = vars(error).get(_BUILT_AS, (None, ""))
    hint = f"Correct the method. It is built as {built_as}." if built_as else "Correct the method."
    layer, trace = None, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        method, layer = plugged(frame.f_locals.get("self")) or method, _layer(frame) or layer
        root = str(frame.f_globals.get("__name__")).partition(".")[0]
        if titles := TITLES.get(frame.f_code.co_filename) or TITLES.get(root):  # the last one: where its own code was
            place = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
            if method is None:
                found = failure(" or ".join(titles), error, place)
            else:
                known = replace(method, file=place, layer=method.layer or layer)
                found = failure(known.title, error, known.where, hint)
        trace = trace.tb_next
    if found is None and built_as:  # a call with wrong arguments never gets into its code
        found = failure(method.title, error, method.where, hint)
    cause = error.__cause__ or error.__context__
    return found or (None if cause is None else plugin_error(cause))


def _layer(frame: FrameType) -> int | None:
    """Return the layer of the attention that a frame computes, from 1, for sockets that all layers of a site share."""
    step: Any = getattr(frame.f_locals.get("step"), "step", None)
    return step + 1 if isinstance(step, int) else None


def failure(title: str, error: BaseException, place: str, hint: str = "Correct the plugin.") -> UserError:
    """Return the message for an error of a plugin, at a place."""
    what = " ".join(str(error).split())[:300]
    return UserError(f"{title} failed: {type(error).__name__}{f': {what}' if what else ''}", where=place, hint=hint)
