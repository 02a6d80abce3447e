"""What the conformance kit runs: every registered method at every place, alone, in pairs and in random mixes.

A method joins by being registered. It is tried with its ``examples`` (options as in a recipe; default: none), at every
site of its socket, or at both places of a memory filter. Source features that it requires are made up here.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sparsenmt.assemble.model import build_model
from sparsenmt.model.bands import band_layout
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Encoded, Source
from sparsenmt.model.sites import SITES
from sparsenmt.model.sockets import Keys
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe import schema
from sparsenmt.recipe.method_choice import Site
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method
from tests.toys import TOYS, registered

Norm = Literal["pre", "post"]
NORMS: tuple[Norm, ...] = ("pre", "post")
PLACES = {
    **{
        socket: tuple(f"{site}.{socket}" for site in SITES)
        for socket in ("pattern", "transform", "position", "span", "heads")
    },
    "recurrence": ("recurrence",),
    "memory": ("memory.output", "memory.between"),
    "depth": ("depth",),
}
# What stands at a place without a method: it is in every case, and no plug of its own.
DEFAULTS = {
    "pattern": Site().pattern.name,
    "transform": Site().transform.name,
    "depth": schema.Model().depth.name,
}

# Keys of the engine that no method brings, as imported models have them; the final norm is the unusual one.
ENGINE_KEYS: dict[str, dict[str, Any]] = {
    "bart": {
        **{"embedding_norm": True, "embedding_scale": "none", "output_bias": True, "positions": "learned"},
        **{"activation": "gelu_tanh", "decoder_feed_forward": 40},
    },
    "m2m": {"tie_embeddings": "inputs", "sinusoids": "paper", "first_position": 2, "norm_epsilon": 0.01},
}

FAST_PAIRS, THOROUGH_PAIRS = 60, 250  # pairs beyond these are marked thorough, and slow
MIXES = 24
HYPOTHESES = 2
VOCABULARY = 20
REFUSED = Path(__file__).with_name("refused.txt")

# Source features of sentences of these lengths, padded to the longest: name -> (B, S). Others are small random numbers.
FEATURES: Mapping[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "word_id": lambda shape, rng: _words(torch.rand(tuple(shape), generator=rng) < 0.6),
}


def _words(starts: Tensor) -> Tensor:
    """Word ids, from 0 in every sentence."""
    ids = starts.long().cumsum(1)
    return ids - ids[:, :1]


@dataclass(frozen=True)
class Plug:
    """A method, its options, and the place where it is plugged in."""

    place: str
    method: Method
    options: Mapping[str, Any]

    def __str__(self) -> str:
        options = ",".join(f"{key}={json.dumps(value)}" for key, value in self.options.items())
        return f"{self.place}={self.method.name}" + (f"({options})" if options else "")


@dataclass(frozen=True)
class Case:
    """A model with some plugs; everything else is plain."""

    plugs: tuple[Plug, ...]
    norm: Norm
    keys: str = ""  # of `ENGINE_KEYS`

    def __str__(self) -> str:
        return f"{self.norm}-" + ("+".join(map(str, self.plugs)) or self.keys or "plain")

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())

    def has(self, place: str) -> bool:
        return any(plug.place == place for plug in self.plugs)

    @property
    def has_first_examples(self) -> bool:
        return all(plug.options == plug.method.examples[0] for plug in self.plugs)

    @property
    def is_first(self) -> bool:
        """True if methods have their first examples, and the norm is that which falls to them."""
        return self.has_first_examples and (not self.plugs or self.norm == norm_of(*self.plugs))


@dataclass(frozen=True)
class Bench:
    """A built case with sentences to run it on; the first sentence is the longest."""

    case: Case
    model: Transformer
    source: Source
    target: Tensor  # (B * R, T)

    def encode(self, *, compact: bool = False, source: Source | None = None) -> Encoded:
        return self.model.encode(source or self.source, exits=self.model.plan.encoder_exits, compact=compact)

    def decode(self, memory: Memory, target: Tensor | None = None) -> dict[int, Tensor]:
        tokens = self.target if target is None else target
        return self.model.decode(tokens, memory, exits=self.model.plan.decoder_exits)

    def outputs(self, *, compact: bool = False) -> dict[tuple[int, int], Tensor]:
        """Hidden states (B * R, T, D) of every pair of exits."""
        memories = self.encode(compact=compact).memories
        return {(n, m): hidden for n, memory in memories.items() for m, hidden in self.decode(memory).items()}

    def alone(self, sentence: int) -> tuple[Source, Tensor]:
        """One sentence without padding, and its hypotheses."""
        length = int(self.source.valid[sentence].sum())

        def cut(x: Tensor) -> Tensor:
            return x[sentence : sentence + 1, :length]

        features = {name: cut(feature) for name, feature in self.source.features.items()}
        rows = slice(sentence * HYPOTHESES, (sentence + 1) * HYPOTHESES)
        return Source(cut(self.source.tokens), cut(self.source.valid), features), self.target[rows]


def norm_of(*chosen: Plug) -> Norm:
    """Return one of the norms, about as often as the other."""
    return NORMS[zlib.crc32("+".join(map(str, chosen)).encode()) % 2]


def methods() -> tuple[Method, ...]:
    return (*registry.all_methods(), *TOYS)


def plugs(*, examples: int | None = None) -> list[Plug]:
    """Every method but the defaults at every place, with its first ``examples`` examples."""
    return [
        Plug(place, method, options)
        for method in methods()
        if DEFAULTS.get(method.socket) != method.name
        for place in PLACES[method.socket]
        for options in method.examples[:examples]
    ]


def accepted(chosen: list[Plug]) -> list[Plug]:
    """Those that are not refused by themselves: `alone` shows that the others are."""
    listed = refused()
    return [plug for plug in chosen if str(plug) not in listed]


def alone() -> list[Case]:
    chosen = ((), *((plug,) for plug in plugs()))
    engine = [Case((), norm, keys) for keys in ENGINE_KEYS for norm in NORMS]
    return [*(Case(each, norm) for each in chosen for norm in NORMS), *engine]


def replaced(chosen: tuple[Plug, ...]) -> bool:
    """Return True if a method is at the decoder's self-attention, which a recurrent layer replaces."""
    places = {plug.place for plug in chosen}
    return "recurrence" in places and any(place.startswith("decoder_self.") for place in places)


def pairs() -> list[Case]:
    """Two methods at two places, or two filters; in an order that does not change when a method is added."""
    chosen = [
        (a, b)
        for a, b in itertools.combinations_with_replacement(accepted(plugs(examples=1)), 2)
        if (a.place != b.place or a.method.socket == "memory") and not replaced((a, b))
    ]
    cases = [Case(pair, norm_of(*pair)) for pair in chosen]
    return sorted(cases, key=lambda case: case.seed)


def mixes() -> list[Case]:
    """Random methods at all places at once."""
    by_place: dict[str, list[Plug]] = {}
    for plug in accepted(plugs()):
        by_place.setdefault(plug.place, []).append(plug)
    recurrences = by_place.pop("recurrence")
    rng = random.Random(1)

    def mix() -> Iterator[Plug]:
        for chosen in by_place.values():
            if rng.random() < 0.45:
                yield rng.choice(chosen)

    cases = [Case(tuple(mix()), rng.choice(NORMS)) for _ in range(MIXES)]
    for i in range(0, MIXES, 5):  # drawn afterwards: the others stay as they were
        others = (plug for plug in cases[i].plugs if not plug.place.startswith("decoder_self."))
        cases[i] = Case((*others, rng.choice(recurrences)), cases[i].norm)
    return cases


def recipe_section(case: Case) -> schema.Model:
    """The ``model`` section of a recipe for ``case``."""
    section: dict[str, Any] = {
        **{"dimension": 16, "feed_forward": 24, "heads": 4, "decoder_layers": 2, "norm": case.norm},
        # Stand-ins must be gated again, and meet others: three places between layers.
        "encoder_layers": 4 if case.has("memory.between") else 2,
        "dropout": {"residual": 0.0},
        "attention": {site: {} for site in SITES},
        "memory": [],
    }
    if case.keys:
        section |= {**ENGINE_KEYS[case.keys], "final_norm": case.norm == "post"}
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
    return schema.Model.model_validate(section)


def build(case: Case) -> Bench:
    """The case with random weights in float64, in evaluation mode; UserError if the combination is refused.

    Filters that drop everything or nothing show little: a few seeds are tried.
    """
    for attempt in range(20):
        bench = build_with(case, case.seed + attempt)
        if decides(bench):
            break
    return bench


def decides(bench: Bench) -> bool:
    """Whether filters, where there are any, drop some real positions and let some go on, at every exit."""
    with torch.no_grad():
        gates = [memory.gates for memory in bench.encode().memories.values()]
    valid = bench.source.valid
    return all(found is None or 0 < int((found[valid] > 0).sum()) < int(valid.sum()) for found in gates)


def build_with(case: Case, seed: int) -> Bench:
    """The case with the random weights and sentences of a seed."""
    with registered():
        model = build_model(recipe_section(case), source_size=VOCABULARY, target_size=VOCABULARY, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # zero biases and unit norms would hide mistakes
            parameter += 0.15 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    width, steps = lengths(model)
    real = torch.tensor([width, width // 2, width - 2])
    shape = torch.tensor([len(real), width])
    tokens = torch.randint(4, VOCABULARY, tuple(shape), generator=rng)
    valid = torch.arange(width) < real[:, None]
    required = {name for plug in case.plugs for name in plug.method.requires}
    features = {name: FEATURES.get(name, _small_numbers)(shape, rng) * valid for name in sorted(required)}
    target = torch.randint(4, VOCABULARY, (len(real) * HYPOTHESES, steps), generator=rng)
    return Bench(case, model, Source(tokens * valid, valid, features), target)


def _small_numbers(shape: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randint(0, 5, tuple(shape), generator=rng)


def lengths(model: Transformer) -> tuple[int, int]:
    """Source and target positions: as few as show everything, so many that bands are gathered where there are any."""
    source, target = 9, 7
    for site, step in attention_steps(model):
        cut = None if step.pattern is None else band_layout(step.pattern, step.causal)
        if cut is None:
            continue
        if site == "decoder_self":
            target = max(target, cut.shortest + 3)
        else:
            source = max(source, cut.shortest + 3)
        if (
            site == "cross"
        ):  # as many queries (of all hypotheses) as keys: they must not be taken for the same positions
            target = max(target, -(-source // HYPOTHESES))
            source = HYPOTHESES * target
    return source, target


def attention_steps(model: Transformer) -> Iterator[tuple[str, Any]]:
    """(site, sockets) of every execution step."""
    for stack in (model.encoder, model.decoder):
        for sockets in stack.steps:
            for step in sockets.values():
                yield step.site, step


def refused() -> frozenset[str]:
    """Combinations that are known to have no meaning, by their plugs."""
    lines = REFUSED.read_bytes().decode().split("\n")
    return frozenset(line for line in lines if line and not line.startswith("#"))


def visible_keys(keys: Keys, weights: Tensor) -> Tensor:
    """`Keys.visible` of the last heads, (B, H, Q, K)."""
    return keys.visible()[:, -weights.shape[1] :].expand(weights.shape)
