"""The cases that rules are tried on: methods at places of a small model that is otherwise plain."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsenmt.errors import UserError
from sparsenmt.model.sites import SITES
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import Site
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method

Norm = Literal["pre", "post"]
NORMS: tuple[Norm, ...] = ("pre", "post")
PLACES: Mapping[str, tuple[str, ...]] = {
    **{
        socket: tuple(f"{site}.{socket}" for site in SITES)
        for socket in ("pattern", "transform", "position", "span", "heads")
    },
    "recurrence": ("recurrence",),
    "memory": ("memory.output", "memory.between"),
    "depth": ("depth",),
}
"""Socket -> the places in a model where a method of it can be plugged in."""
DEFAULTS = {
    "pattern": Site().pattern.name,
    "transform": Site().transform.name,
    "depth": schema.ModelSection().depth.name,
}
"""Socket -> the method that stands there without a choice: it is in every case, and no plug of its own."""


@dataclass(frozen=True)
class Plug:
    """A method, its options, and the place where it is plugged in."""

    place: str
    method: Method
    options: Mapping[str, Any]

    @staticmethod
    def of(place: str, name: str, options: Mapping[str, Any] | None = None) -> Plug:
        """Find a registered method.

        Args:
            place: one of `PLACES`, such as ``cross.transform`` or ``memory.output``.
            options: as in a recipe; None: its first example.

        Raises:
            UserError: there is no such place or method.
        """
        socket = next((socket for socket, places in PLACES.items() if place in places), None)
        if socket is None:
            places = ", ".join(itertools.chain.from_iterable(PLACES.values()))
            raise UserError(f"there is no place '{place}'", where=f"{place}={name}", hint=f"Write one of {places}.")
        method = next((each for each in registry.all_methods() if (each.socket, each.name) == (socket, name)), None)
        if method is None:
            hint = "Import the module that registers it."
            raise UserError(f"no {socket} method '{name}' is registered", where=f"{place}={name}", hint=hint)
        return Plug(place, method, method.examples[0] if options is None else options)

    @property
    def refused(self) -> bool:
        """True if the method declares that it has no meaning at this place."""
        site, _, rest = self.place.partition(".")
        return self.method.refuses_place(rest if site == "memory" else site, self.options)

    def __str__(self) -> str:
        options = ",".join(f"{key}={json.dumps(value)}" for key, value in self.options.items())
        return f"{self.place}={self.method.name}" + (f"({options})" if options else "")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a case's model and sentences. `SMALLEST` has the order in which a failing case is made smaller."""

    head_size: int = 4
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    sources: tuple[int, ...] | None = None
    """Lengths of the source sentences, the longest first; None: three, as long as the patterns of the case need."""
    target: int | None = None
    """Length of the targets; None: as the patterns of the case need."""
    hypotheses: int = 2


@dataclass(frozen=True)
class Case:
    """A model with some plugs; everything else is plain.

    Args:
        name: of a case without plugs.
        model: further keys of the recipe's ``model`` section.
    """

    plugs: tuple[Plug, ...]
    norm: Norm = "pre"
    sizes: Sizes = Sizes()
    name: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.norm}-" + ("+".join(map(str, self.plugs)) or self.name or "plain")

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    def has(self, place: str) -> bool:
        return any(plug.place == place for plug in self.plugs)

    def has_socket(self, *sockets: str) -> bool:
        return any(plug.method.socket in sockets for plug in self.plugs)


def norm_of(*chosen: Plug) -> Norm:
    """Return one of the norms, about as often as the other."""
    return NORMS[zlib.crc32("+".join(map(str, chosen)).encode()) % 2]


def plugs_of(methods: Iterable[Method], *, examples: int | None = None) -> list[Plug]:
    """Every method but the defaults at every place, with its first ``examples`` examples."""
    return [
        Plug(place, method, options)
        for method in methods
        if DEFAULTS.get(method.socket) != method.name
        for place in PLACES[method.socket]
        for options in method.examples[:examples]
    ]


def accepted(chosen: Iterable[Plug]) -> list[Plug]:
    """Those that are not refused by themselves."""
    return [plug for plug in chosen if not plug.refused]


def replaced(chosen: Sequence[Plug]) -> bool:
    """Return True if a method is at the decoder's self-attention, which a recurrent layer replaces."""
    places = {plug.place for plug in chosen}
    return "recurrence" in places and any(place.startswith("decoder_self.") for place in places)


def fit_together(a: Plug, b: Plug) -> bool:
    """Return True if a recipe can name both: at two places, or two filters at one."""
    return (a.place != b.place or a.method.socket == "memory") and not replaced((a, b))


def pairs_of(pairs: Iterable[tuple[Plug, Plug]]) -> list[Case]:
    """The pairs that fit together, in an order that does not change when a method is added."""
    cases = [Case(pair, norm_of(*pair)) for pair in pairs if fit_together(*pair)]
    return sorted(cases, key=lambda case: case.seed)


def _common_keys(case: Case) -> dict[str, Any]:
    """The keys of the ``model`` section that translation and language models share."""
    sizes = case.sizes
    return {
        **{"dimension": sizes.head_size * sizes.heads, "feed_forward": 24, "heads": sizes.heads},
        **{"decoder_layers": sizes.decoder_layers, "norm": case.norm, "dropout": {"residual": 0.0}},
    }


def recipe_section(case: Case) -> schema.ModelSection:
    """The ``model`` section of a recipe for ``case``."""
    sizes = case.sizes
    section: dict[str, Any] = {
        **_common_keys(case),
        # Stand-ins must be gated again, and meet others: three places between layers.
        "encoder_layers": 2 * sizes.encoder_layers if case.has("memory.between") else sizes.encoder_layers,
        "attention": {site: {} for site in SITES},
        "memory": [],
        **case.model,
    }
    for plug in case.plugs:
        choice = {"name": plug.method.name, **plug.options}
        match plug.place.split("."):
            case ["memory", place]:
                section["memory"].append({**choice, "at": place})
            case [("depth" | "recurrence") as key]:
                section[key] = choice
            case [site, "heads"]:
                section["attention"][site]["heads"] = {"given": choice}
            case [site, socket]:
                section["attention"][site][socket] = choice
    return schema.ModelSection.model_validate(section)


def language_model_section(case: Case) -> schema.ModelSection:
    """The ``model`` section of a language model with the plugs of ``case`` at its self-attention."""
    choices = {plug.place.split(".")[-1]: {"name": plug.method.name, **plug.options} for plug in case.plugs}
    recurrence = choices.pop("recurrence", None)
    return schema.ModelSection.model_validate(
        {
            **_common_keys(case),
            **{"encoder_layers": 0, "positions": "none", "segment_memory": 64},
            **{"attention": {"decoder_self": choices}, "recurrence": recurrence},
        }
    )


def fits_language_model(case: Case) -> bool:
    """Return True for methods of the decoder's self-attention that read no source; fixed heads know a text's end."""
    return bool(case.plugs) and all(
        plug.place.startswith(("decoder_self.", "recurrence"))
        and plug.method.socket != "heads"
        and not plug.method.requires
        for plug in case.plugs
    )
