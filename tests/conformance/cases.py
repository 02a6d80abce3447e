"""Every registered method and toy at every place, alone, in pairs and in random mixes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method
from sparsenmt.testing.cases import NORMS, Case, Norm, Plug, accepted, pairs_of, plugs_of
from tests.toys import TOYS

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


def methods() -> tuple[Method, ...]:
    return (*registry.all_methods(), *TOYS)


def plugs(*, examples: int | None = None) -> list[Plug]:
    """Every method but the defaults at every place, with its first ``examples`` examples."""
    return plugs_of(methods(), examples=examples)


def engine_case(name: str, norm: Norm) -> Case:
    return Case((), norm, name=name, model={**ENGINE_KEYS[name], "final_norm": norm == "post"})


def alone() -> list[Case]:
    chosen = ((), *((plug,) for plug in plugs()))
    engine = [engine_case(name, norm) for name in ENGINE_KEYS for norm in NORMS]
    return [*(Case(each, norm) for each in chosen for norm in NORMS), *engine]


def pairs() -> list[Case]:
    """Two methods at two places, or two filters."""
    return pairs_of(itertools.combinations_with_replacement(accepted(plugs(examples=1)), 2))


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
