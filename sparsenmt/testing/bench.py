"""A case that is built: a model with random weights in float64, and sentences to run it on.

Shapes: B sentences, R hypotheses a sentence, S source positions, T target positions, D model dimension, K keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsenmt.assemble.methods import declared_refusal
from sparsenmt.assemble.model import build_model
from sparsenmt.model.attention import AttentionStep
from sparsenmt.model.bands import band_layout
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Encoded, Source
from sparsenmt.model.transformer import Transformer
from sparsenmt.plugins.table import Registrant
from sparsenmt.recipe.schema import ModelSection
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.registry import Method
from sparsenmt.testing.cases import Case, recipe_section

VOCABULARY = 20
_ATTEMPTS = 20


def _feature(name: str, shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """The values (B, S) of a source feature: word ids, from 0 in every sentence; of others small random numbers."""
    if name != "word_id":
        return torch.randint(0, 5, shape, generator=rng)
    ids = (torch.rand(shape, generator=rng) < 0.6).long().cumsum(1)
    return ids - ids[:, :1]


@dataclass(frozen=True)
class Bench:
    """A built case with sentences to run it on; the first sentence is the longest."""

    case: Case
    model: Transformer
    source: Source
    target: Tensor  # (B * R, T)
    seed: int

    def again(self) -> Bench:
        """Build it once more: a model that has run on nothing."""
        return build_with(self.case, self.seed)

    @property
    def hypotheses(self) -> int:
        """R."""
        return self.case.sizes.hypotheses

    def copy(self) -> Bench:
        """Copy the model, so that a check may change it."""
        return replace(self, model=copy.deepcopy(self.model))

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
        rows = slice(sentence * self.hypotheses, (sentence + 1) * self.hypotheses)
        return Source(cut(self.source.tokens), cut(self.source.valid), features), self.target[rows]


@contextmanager
def registered(methods: Iterable[Method]) -> Iterator[None]:
    """Register those methods that are not, while the context is open."""
    with registry.scope():
        for each in methods:
            key = registry.method_key(each.socket, each.name)
            if key not in registry.METHODS:
                registry.METHODS.register(key, each, each.build, each.origin or Registrant(__name__, __file__))
        yield


def model_of(case: Case, section: Callable[[Case], ModelSection], seed: int) -> Transformer:
    """Build the model of a case, by its section of a recipe, with the weights of a seed."""
    with registered(plug.method for plug in case.plugs):
        return build_model(section(case), source_size=VOCABULARY, target_size=VOCABULARY, seed=seed)


def is_refused(case: Case) -> bool:
    """Return True if a method declares that it has no meaning in a case."""
    with registered(plug.method for plug in case.plugs):
        return declared_refusal(recipe_section(case)) is not None


def build(case: Case, first: Bench | None = None) -> Bench:
    """The case with random weights in float64, in evaluation mode; UserError if the combination is refused.

    Filters that drop everything or nothing show little: a few seeds are tried.

    Args:
        first: the case with the first seed; None: it is built.
    """
    bench = build_with(case, case.seed) if first is None else first
    for attempt in range(1, _ATTEMPTS):
        if decides(bench):
            break
        bench = build_with(case, case.seed + attempt)
    return bench


def decides(bench: Bench) -> bool:
    """Return True if filters, where there are any, drop some real positions and keep some, at every exit."""
    with torch.no_grad():
        gates = [memory.gates for memory in bench.encode().memories.values()]
    valid = bench.source.valid
    return all(found is None or 0 < int((found[valid] > 0).sum()) < int(valid.sum()) for found in gates)


def randomise(model: Transformer, rng: torch.Generator) -> Transformer:
    """Move all parameters, in float64: zero biases and unit norms would hide mistakes."""
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return model


def build_with(case: Case, seed: int) -> Bench:
    """The case with the random weights and sentences of a seed."""
    rng = torch.Generator().manual_seed(seed)
    model = randomise(model_of(case, recipe_section, seed), rng)
    width, steps = lengths(model, case.sizes.hypotheses)
    real = torch.tensor(case.sizes.sources or (width, width // 2, width - 2))
    shape = len(real), int(real[0])
    tokens = torch.randint(4, VOCABULARY, shape, generator=rng)
    valid = torch.arange(shape[1]) < real[:, None]
    required = {name for plug in case.plugs for name in plug.method.requires}
    features = {name: _feature(name, shape, rng) * valid for name in sorted(required)}
    target = torch.randint(
        4, VOCABULARY, (len(real) * case.sizes.hypotheses, case.sizes.target or steps), generator=rng
    )
    return Bench(case, model, Source(tokens * valid, valid, features), target, seed)


def lengths(model: Transformer, hypotheses: int) -> tuple[int, int]:
    """Source and target positions: few, but as many as it takes to gather bands where there are any."""
    source, target = 9, 7
    for site, step in attention_steps(model):
        cut = None if step.pattern is None else band_layout(step.pattern, step.causal)
        if cut is None:
            continue
        if site == "decoder_self":
            target = max(target, cut.shortest + 3)
        else:
            source = max(source, cut.shortest + 3)
        if site == "cross":
            # As many queries (of all hypotheses) as keys: they must not be taken for the same positions.
            target = max(target, -(-source // hypotheses))
            source = hypotheses * target
    return source, target


def attention_steps(model: Transformer) -> Iterator[tuple[str, AttentionStep]]:
    """(site, sockets) of every execution step."""
    for stack in (model.encoder, model.decoder):
        for step in stack.steps.modules():
            if isinstance(step, AttentionStep):
                yield step.site, step
