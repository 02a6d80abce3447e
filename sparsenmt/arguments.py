"""The arguments of functions that Python programs call: requests by their fields, strings as paths, names in messages.

The same functions serve the command line, whose options have the names of the arguments: ``--beam-size`` is
``beam_size``.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from sparsenmt.errors import UserError

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
R_contra = TypeVar("R_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_ARGUMENTS = {
    "disable_heads": "disabled_heads",
    "metric": "metrics",
    "reference": "references",
    "depth": "select_depth",
    "ensemble_depth": "ensemble_depths",
}
"""Option -> argument, where the names differ in more than their hyphens."""


class RequestFunction(Protocol, Generic[P, Q, R_contra, T_co]):
    """A function of a request, or of the fields of one."""

    @overload
    def __call__(self, request: R_contra, /, *args: Q.args, **kwargs: Q.kwargs) -> T_co: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


def from_fields(
    kind: type[R], make: Callable[P, R]
) -> Callable[[Callable[Concatenate[R, Q], T]], RequestFunction[P, Q, R, T]]:
    """Let a function of a request take the fields of the request in its place: ``decode("model", input="text")``.

    Args:
        kind: the class of requests.
        make: makes one of its fields.
    """

    def decorate(function: Callable[Concatenate[R, Q], T]) -> RequestFunction[P, Q, R, T]:
        own = function.__code__.co_varnames[1 : function.__code__.co_argcount]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> T:
            if "request" in kwargs or (args and isinstance(args[0], kind)):
                return function(*args, **kwargs)
            beside = {name: kwargs.pop(name) for name in own if name in kwargs}
            return function(make(*args, **kwargs), **beside)  # type: ignore[call-arg]

        return call

    return decorate


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError if the name of a keyword argument is none of those that are known."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(sorted(known))}"
            raise TypeError(f"unknown keyword argument '{name}': {meant}")


def strings_to_paths(request: Any) -> None:
    """Replace strings by paths in those fields of a frozen dataclass that are paths, or lists of paths."""
    for each in fields(request):
        value = getattr(request, each.name)
        if not re.search(r"\bPath\b", str(each.type)):
            continue
        if isinstance(value, str):
            object.__setattr__(request, each.name, Path(value))
        elif isinstance(value, list | tuple):
            paths = tuple(Path(one) if isinstance(one, str) else one for one in value)
            object.__setattr__(request, each.name, paths)


@contextmanager
def arguments_in_errors() -> Iterator[None]:
    """Name the arguments of a function in place of the options of commands in a `UserError` of the block."""
    try:
        yield
    except UserError as error:
        error.where, error.hint = _with_arguments(error.where), _with_arguments(error.hint)
        error.args = (str(error),)
        raise


def _with_arguments(text: str | None) -> str | None:
    """Replace options by arguments; those of whole commands, which stand in backquotes, stay."""
    if text is None:
        return None
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _OPTION.sub(_argument, part) for part in parts)


def _argument(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return _ARGUMENTS.get(name, name)
