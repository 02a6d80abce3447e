"""Every sparsity method by socket and name.

A method is one file in this package and one line in `_BUILT_IN`. Methods from outside the package register through
the entry point group ``sparsenmt.methods``, or by being named in the environment variable ``SPARSENMT_PLUGINS``
(modules, separated by commas): importing such a module calls `register`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from sparsenmt.errors import check_lists
from sparsenmt.plugins.table import EntryTable, Registrant, calling_module

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


Refusal = str | tuple[str, Mapping[str, Any]]
"""A place where a method has no meaning: an attention site, ``output`` or ``between`` of a filter; with options: only
with these. `register` says what follows from it."""


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
    refuses: tuple[Refusal, ...] = ()  # places where it has no meaning
    origin: Registrant | None = None  # the module that registered it

    def refuses_place(self, place: str, options: Mapping[str, Any]) -> bool:
        """Return True if it declares that it has no meaning at a place, such as ``cross``, with these options."""
        named = [(each, {}) if isinstance(each, str) else each for each in self.refuses]
        return any(name == place and all(options.get(k) == v for k, v in some.items()) for name, some in named)

    @property
    def outside(self) -> str | None:
        """The file of a method from outside the package; None: it is one of the package."""
        return self.origin.file if self.origin is not None and self.origin.outside else None

    @property
    def title(self) -> str:
        """The name in messages, with the socket."""
        return _title(method_key(self.socket, self.name))


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
    *("transformer_xl", "distance_vectors", "distance_buckets", "adaptive_span", "routing_transformer"),
    *("fixed_token", "fixed_word", "ssru", "plain", "recurrent", "tied_multi"),
    *("l0drop", "pos", "freq", "inv_freq", "group"),
)


def method_key(socket: str, name: str) -> str:
    """Return the name of a method in the table of all methods: its socket and its own."""
    return f"{socket} {name}"


def _title(key: str) -> str:
    socket, _, name = key.partition(" ")
    return f"the {socket} method '{name}'"


METHODS: EntryTable[Method] = EntryTable(
    "method", {}, __name__, _title, [f"sparsenmt.sparsity.{name}" for name in _BUILT_IN]
)
"""By `method_key`, in the order of the built-in modules."""


def register(
    socket: Socket,
    name: str,
    *,
    options: type[Options] = Options,
    requires: frozenset[str] = frozenset(),
    examples: Sequence[Mapping[str, Any]] = ({},),
    shares: bool = False,
    per_step: bool = False,
    refuses: Sequence[Refusal] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a class or function to register it as a method; arguments as for ``Method`` there.

    What the same module registered under this name before, of a class or function of the same name, is replaced: a
    module that is reloaded, a cell of a notebook that is run again.

    A recipe that plugs it in at a place in ``refuses`` is refused. Where ``build`` raises ValueError at a place, whose
    message is the reason that the user reads, the place belongs there as well: ``sparsenmt check-method`` takes every
    other refusal for a mistake.

    Raises:
        ValueError: the socket is unknown, another method of it has this name, or an argument is not what it must be.
    """
    check_lists(examples=examples, refuses=refuses)
    if socket not in SOCKETS:
        raise ValueError(f"no socket {socket!r}: there are {', '.join(SOCKETS)}")
    title, origin = _title(method_key(socket, name)), calling_module()
    if not _are_options(options):
        raise ValueError(f"{title}: its options are no class derived from sparsenmt.sparsity.registry.Options")
    if isinstance(requires, str):
        raise ValueError(f"{title}: requires is one string: write frozenset({{{requires!r}}})")
    for example in examples:
        try:
            options.model_validate(dict(example))
        except (ValidationError, ValueError, TypeError) as error:
            what = " ".join(str(error).split())
            raise ValueError(f"{title}: the example {example!r} does not fit its options: {what}") from None

    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(build):
            raise ValueError(f"{title}: what is registered is no class or function, but {type(build).__name__}")
        method = Method(
            socket, name, options, build, frozenset(requires), tuple(examples), shares, per_step, tuple(refuses), origin
        )
        METHODS.register(method_key(socket, name), method, build, origin)
        return build

    return add


def _are_options(options: object) -> bool:
    return isinstance(options, type) and issubclass(options, Options)


@contextmanager
def scope() -> Iterator[None]:
    """Unregister at the end the methods that are registered inside: for tests and notebooks."""
    with METHODS.scope():
        yield


def all_methods() -> tuple[Method, ...]:
    """Every registered method; loads the built-in methods and the plugins first."""
    return tuple(METHODS.values())


def get(socket: Socket, name: str) -> Method:
    """The method of that name; KeyError if there is none."""
    return METHODS[method_key(socket, name)]


def methods() -> Mapping[str, Mapping[str, type[BaseModel]]]:
    """Socket -> method name -> options type, for loading recipes."""
    found = all_methods()
    return {socket: {m.name: m.options for m in found if m.socket == socket} for socket in SOCKETS}
