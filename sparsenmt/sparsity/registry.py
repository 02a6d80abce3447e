"""Every sparsity method by socket and name.

A method is one file in this package and one line in `_BUILT_IN`. Methods from outside the package register through
the entry point group ``sparsenmt.methods``, or by being named in the environment variable ``SPARSENMT_PLUGINS``
(modules, separated by commas): importing such a module calls `register`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict

from sparsenmt.errors import UserError, method_error, note_outside_method

Socket = Literal["pattern", "transform", "position", "span", "heads", "recurrence", "memory", "depth"]
SOCKETS: tuple[Socket, ...] = get_args(Socket)


class Options(BaseModel):
    """Options of a method: immutable, unknown keys forbidden. Derive from this; describe every field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    younger: ClassVar[frozenset[str]] = frozenset()
    """Options that are younger than recipes on disk: a recipe holds them only where they are not the default."""

    @property
    def reads_words(self) -> bool:
        """True if the method decides by words between spaces, so that it is of no use on text without spaces."""
        return False


@dataclass(frozen=True)
class Method:
    """A registered method.

    ``build(options, **context)`` makes the object that is plugged into the socket; `BUILD_CONTEXT` has the arguments.
    """

    socket: Socket
    name: str
    options: type[Options]
    build: Callable[..., Any]
    requires: frozenset[str] = frozenset()  # source features that it reads
    examples: tuple[Mapping[str, Any], ...] = ({},)  # options that the conformance kit tries, as in a recipe
    shares: bool = False  # `build` also takes `place`, to share parameters between execution steps
    per_step: bool = False  # a pattern that is built for each execution step, as a `ContentPattern`

    @property
    def outside(self) -> str | None:
        """The file of a method from outside the package; None: it is one of the package."""
        module = getattr(self.build, "func", self.build).__module__  # of a partial function, too
        return None if module.startswith(f"{__package__}.") else getattr(sys.modules.get(module), "__file__", module)

    @property
    def title(self) -> str:
        """The name in messages, with the socket."""
        return f"the {self.socket} method '{self.name}'"


@dataclass(frozen=True)
class MethodPlace:
    """The execution step that a transform is built for, and the parameters that it may share with others."""

    step: int
    block: int
    """The set of weights that the step executes; several steps may execute one."""
    shared: dict[Hashable, Any]
    """One dictionary for the whole model, empty at first. Keys begin with the method's name."""


BUILD_CONTEXT: Mapping[Socket, str] = {
    "pattern": "build(options, site: str) -> Pattern | None (None: everything is visible); with `per_step`, the "
    "arguments of a position, -> ContentPattern, for each execution step",
    "transform": "build(options, site: str, heads: int) -> Transform, for each execution step; heads: number of "
    "learned heads; with `shares`, also place: MethodPlace",
    "position": "build(options, site: str, heads: int, size: int, dimension: int, place: MethodPlace) -> ScoreTerm, "
    "for each execution step; heads: number of learned heads; size: of a head; dimension: of the model",
    "span": "build(options, site: str, heads: int) -> Span, for each execution step; heads: number of learned heads",
    "heads": "build(options, site: str, heads: int) -> FixedHeads; heads: number of all heads of the site",
    "recurrence": "build(options, dimension: int) -> Recurrence, for each block of the decoder",
    "memory": "build(options, dimension: int) -> MemoryFilter, for each place",
    "depth": "build(options, encoder_layers: int, decoder_layers: int) -> DepthPlan",
}

_BUILT_IN = (
    *("full", "window", "block", "dilated", "global_pattern", "random_pattern", "bigbird"),
    *("softmax", "sparsemax", "entmax15", "entmax", "topk", "topk_oow"),
    *("transformer_xl", "distance_vectors", "adaptive_span", "routing_transformer"),
    *("fixed_token", "fixed_word", "ssru", "plain", "recurrent", "tied_multi"),
    *("l0drop", "pos", "freq", "inv_freq", "group"),
)
_methods: dict[tuple[Socket, str], Method] = {}
_loaded = False


def register(
    socket: Socket,
    name: str,
    *,
    options: type[Options] = Options,
    requires: frozenset[str] = frozenset(),
    examples: Sequence[Mapping[str, Any]] = ({},),
    shares: bool = False,
    per_step: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a class or function to register it as a method; arguments as for `Method`.

    Raises:
        ValueError: another method of the socket has this name.
    """
    if socket not in SOCKETS:
        raise ValueError(f"no socket {socket!r}: there are {', '.join(SOCKETS)}")

    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        known = _methods.get((socket, name))
        if known is not None and known.build is not build:
            by = known.outside or "this program"
            raise ValueError(f"{socket} method {name!r} is registered already, by {by}")
        method = Method(socket, name, options, build, requires, tuple(examples), shares, per_step)
        _methods[socket, name] = method
        if method.outside is not None:
            note_outside_method(method.outside, method.title)
        return build

    return add


@contextmanager
def scope() -> Iterator[None]:
    """Unregister at the end the methods that are registered inside: for tests and notebooks."""
    _load()
    before = dict(_methods)
    try:
        yield
    finally:
        _methods.clear()
        _methods.update(before)


def all_methods() -> tuple[Method, ...]:
    """Every registered method; loads the built-in methods and the plugins first."""
    _load()
    return tuple(_methods.values())


def get(socket: Socket, name: str) -> Method:
    """The method of that name; KeyError if there is none."""
    _load()
    return _methods[socket, name]


def methods() -> Mapping[str, Mapping[str, type[BaseModel]]]:
    """Socket -> method name -> options type, for loading recipes."""
    return {socket: {m.name: m.options for m in all_methods() if m.socket == socket} for socket in SOCKETS}


def _load() -> None:
    global _loaded
    if _loaded:
        return
    _loaded = True
    for module in _BUILT_IN:
        importlib.import_module(f"sparsenmt.sparsity.{module}")
    for entry in importlib.metadata.entry_points(group="sparsenmt.methods"):
        try:
            entry.load()
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"the plugin cannot be loaded: {error}",
                where=f"entry point {entry.name} = {entry.value}",
                hint="Install its package again, or uninstall it.",
            ) from None
        except UserError:
            raise
        except Exception as error:
            raise _not_loaded(error, f"entry point {entry.name} = {entry.value}") from None
    for module in filter(None, map(str.strip, os.environ.get("SPARSENMT_PLUGINS", "").split(","))):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(
                f"there is no module '{error.name}'",
                where=f"SPARSENMT_PLUGINS={module}",
                hint="Put its folder on PYTHONPATH, install what it imports, or unset the variable.",
            ) from None
        except UserError:
            raise
        except Exception as error:
            raise _not_loaded(error, f"SPARSENMT_PLUGINS={module}") from None


def _not_loaded(error: Exception, where: str) -> UserError:
    """The message for a module of methods that fails when it is imported, with the line of it that did."""
    inner = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
    own = [each for each in inner if not each.filename.startswith(os.path.dirname(os.path.dirname(__file__)))]
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else where
    if isinstance(error, SyntaxError) and error.filename is not None:  # the code did not run: it has no frame
        place = f"{error.filename}:{error.lineno}"
    return method_error(f"the plugin {where}", error, place, "Correct the module, or unset the variable.")
