"""Small models whose outputs end at different times, and searches in the plainest loops.

The naive searches keep no cache: they run the decoder on every prefix, of one sentence at a time, without padding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from sparsenmt.data.batching import pad
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.engine.build import build
from sparsenmt.engine.contract import Engine
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.memory import Memory
from sparsenmt.model.protocol import Source
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import PositionOptions, Transformer, Vocabulary
from sparsenmt.recipe.choices import LongLines
from sparsenmt.recipe.schema import Decoding
from sparsenmt.recipe.schema import TokenizerSection as TokenizerOptions
from sparsenmt.sparsity.softmax import Softmax

DIMENSION = 16


def tiny_model(
    seed: int,
    *,
    vocabulary: int = 14,
    ending: float = 0.0,
    sharpness: float = 3.0,
    dtype: torch.dtype = torch.float64,
    max_positions: int = 64,
) -> Transformer:
    """A random Transformer, ready for decoding.

    Args:
        ending: added to the logit of EOS at every step.
        sharpness: scale of the output table: larger, and the distributions have clearer peaks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        site = SiteModules(SiteHeads(2), lambda *place: Softmax())
        model = Transformer(
            BlockOptions(DIMENSION, 32, "pre", "relu", 0.0, 0.0, 0.0),
            Vocabulary(vocabulary, vocabulary, "none"),
            PositionOptions("learned", max_positions),
            DepthPlan((0, 1), (0, 1), (2,), (2,)),
            (site, site, site),
        )
        direction = torch.ones(DIMENSION) / DIMENSION**0.5
        with torch.no_grad():
            for parameter in model.parameters():  # away from zero biases
                parameter.add_(0.1 * torch.randn_like(parameter))
            norm = model.decoder.norm
            assert isinstance(norm, torch.nn.LayerNorm) and norm.bias is not None
            output = model.embeddings["output"]
            # LayerNorm's output is orthogonal to the ones-vector: along it lies a constant that only EOS looks at.
            norm.weight.fill_(1.0)
            norm.bias.copy_(direction)
            output.mul_(sharpness)
            output.sub_((output @ direction)[:, None] * direction)
            output[EOS] += ending * direction
    return model.to(dtype).eval()


def sources(seed: int, lengths: Sequence[int], vocabulary: int = 14) -> list[list[int]]:
    """Random source sentences, each ended by EOS; lengths include it."""
    generator = random.Random(seed)
    return [[generator.randrange(4, vocabulary) for _ in range(length - 1)] + [EOS] for length in lengths]


@torch.inference_mode()
def encode(model: Transformer, rows: Sequence[Sequence[int]]) -> Memory:
    tokens, valid = pad([list(row) for row in rows])
    (memory,) = model.encode(Source(tokens, valid), compact=True).memories.values()
    return memory


@torch.inference_mode()
def next_log_probabilities(model: Transformer, memory: Memory, prefix: Sequence[int]) -> list[float]:
    """Of every piece after a prefix, from the whole prefix at once."""
    (states,) = model.decode(torch.tensor([[BOS, *prefix]]), memory).values()
    logits: list[float] = model.project(states)[0, -1].double().log_softmax(-1).tolist()
    return logits


def banned(prefix: Sequence[int], vocabulary: int, options: Decoding) -> set[int]:
    """Pieces that may not follow a prefix."""
    pieces, n = list(prefix), options.no_repeat_ngram
    seen = {tuple(pieces[i : i + n]) for i in range(len(pieces) - n + 1)} if n else set()
    forbidden = {PAD, BOS} | ({UNK} if options.unknown == "forbid" else set())
    for piece in range(vocabulary):
        if n and piece != EOS and tuple([*pieces, piece][len(pieces) + 1 - n :]) in seen:
            forbidden.add(piece)
    nothing_else = forbidden >= set(range(vocabulary)) - {EOS}
    if len(pieces) < options.min_length and not nothing_else:
        forbidden.add(EOS)
    return forbidden


def divisor(length: int, options: Decoding) -> float:
    if options.length_penalty == "gnmt":
        return float(((5 + length) ** options.alpha) / (6**options.alpha))
    return float(length**options.alpha) if options.length_penalty == "average" else 1.0


@dataclass(frozen=True)
class Found:
    """A hypothesis: pieces without EOS, log-probability, score, and whether it ended."""

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


def finished(pieces: Sequence[int], total: float, options: Decoding) -> Found:
    ended = pieces[-1] == EOS
    return Found(list(pieces[:-1] if ended else pieces), total, total / divisor(len(pieces), options), ended)


def naive_beam(model: Transformer, source: Sequence[int], limit: int, options: Decoding) -> list[Found]:
    """Beam search over one sentence, with the stopping rule that `sparsenmt.decoding.beam` states."""
    memory, k = encode(model, [source]), options.beam_size
    beam: list[tuple[list[int], float]] = [([], 0.0)]
    ended: list[Found] = []
    for _ in range(limit):
        candidates = []
        for prefix, score in beam:
            values = next_log_probabilities(model, memory, prefix)
            for piece in set(range(len(values))) - banned(prefix, len(values), options):
                candidates.append(([*prefix, piece], score + values[piece]))
        candidates.sort(key=lambda each: -each[1])
        ended += [finished(pieces, score, options) for pieces, score in candidates[:k] if pieces[-1] == EOS]
        beam = [each for each in candidates if each[0][-1] != EOS][:k]
        if len(ended) >= k or not beam:
            beam = []
            break
    ended.sort(key=lambda each: -each.score)
    return (ended + [finished(pieces, score, options) for pieces, score in beam])[:k]


def naive_greedy(model: Transformer, source: Sequence[int], limit: int, options: Decoding) -> Found:
    """The most probable piece, step by step."""
    memory, pieces, total = encode(model, [source]), [], 0.0
    while len(pieces) < limit and (not pieces or pieces[-1] != EOS):
        values = next_log_probabilities(model, memory, pieces)
        best = max(set(range(len(values))) - banned(pieces, len(values), options), key=lambda piece: values[piece])
        pieces, total = [*pieces, best], total + values[best]
    return finished(pieces, total, options)


def kept_pieces(values: Sequence[float], allowed: set[int], options: Decoding) -> list[tuple[int, float]]:
    """(piece, probability) after temperature, top-k and top-p, the most probable first."""
    order = sorted(allowed, key=lambda piece: -values[piece])
    if options.top_k:
        order = order[: options.top_k]
    weights = [math.exp(values[piece] / options.temperature) for piece in order]
    kept, mass = [], 0.0
    for piece, weight in zip(order, weights, strict=True):
        if mass / sum(weights) >= options.top_p:
            break
        kept.append((piece, weight))
        mass += weight
    return [(piece, weight / mass) for piece, weight in kept]


def naive_sample(model: Transformer, source: Sequence[int], limit: int, options: Decoding, draws: list[float]) -> Found:
    """One piece after the other, by inverting the cumulative distribution at the draws."""
    memory, pieces, total = encode(model, [source]), [], 0.0
    while len(pieces) < limit and (not pieces or pieces[-1] != EOS):
        values = next_log_probabilities(model, memory, pieces)
        kept = kept_pieces(values, set(range(len(values))) - banned(pieces, len(values), options), options)
        mass, chosen = 0.0, kept[-1][0]
        for piece, probability in kept:
            mass += probability
            if draws[len(pieces)] < mass:
                chosen = piece
                break
        pieces, total = [*pieces, chosen], total + values[chosen]
    return finished(pieces, total, options)


WORDS = ("alte", "Haus", "steht", "am", "Fluss", "und", "sieht", "zwei", "Katzen", "nie", "spielen", "dort")


def invented_lines(count: int, seed: int) -> list[str]:
    """Lines of 1 to 9 words."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(count)]


@dataclass(frozen=True)
class TinyBundle:
    """The part of `Bundle` that decoding reads, with a model that no recipe describes."""

    model: Transformer
    tokenizers: Tokenizers
    features: FeatureSet
    max_positions: int
    device: torch.device
    chosen_depth: tuple[int, int] | None = None
    cuts_by_choice: bool = False
    separator: str | None = None
    """The word between the sentences of a block; None: single sentences are read."""
    frames: FramePair = NO_FRAMES
    given_shortlist: Shortlist | None = None
    built: Engine | None = None
    others: tuple[Any, ...] = ()
    longest: tuple[int, int] | None = None
    """`Bundle.whole_lengths`; None: what the positions hold."""
    source_language: str = "de"

    @cached_property
    def engine(self) -> Engine:
        return TorchEngine(self.model) if self.built is None else self.built

    def shortlist(self, options: Decoding) -> Shortlist | None:
        return self.given_shortlist

    @property
    def recipe(self) -> Any:
        documents = None if self.separator is None else SimpleNamespace(separator=self.separator)
        data = SimpleNamespace(documents=documents, source_language=self.source_language, is_language_model=False)
        return SimpleNamespace(data=data)

    @property
    def depth(self) -> tuple[int, int]:
        return self.chosen_depth or self.model.plan.deepest

    @property
    def max_source_length(self) -> int:
        return self.max_positions - 1 - self.frames.source.size

    def long_lines(self, options: Decoding) -> LongLines:
        return options.long or "split"

    @property
    def whole_lengths(self) -> tuple[int, int]:
        return self.longest or (self.max_source_length, self.max_source_length)

    @property
    def max_target_length(self) -> int:
        return self.max_positions - 1 - self.frames.target.size


def packed(bundle: TinyBundle, dtype: torch.dtype) -> TinyBundle:
    """The same with the engine of packed weights, which takes its model."""
    return replace(bundle, built=build(bundle.model, dtype))


def tiny_bundle(
    seed: int = 1,
    *,
    ending: float = 1.0,
    dtype: torch.dtype = torch.float64,
    max_positions: int = 64,
    kind: str = "char",
) -> TinyBundle:
    """A random model with a tokenizer of the invented language."""
    options = TokenizerOptions.model_validate({"kind": kind, "vocabulary_size": 60})
    tokenizer = train_tokenizer(options, invented_lines(200, 1))
    size = tokenizer.size
    model = tiny_model(seed, vocabulary=size, ending=ending, dtype=dtype, max_positions=max_positions)
    return TinyBundle(model, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), max_positions, torch.device("cpu"))
