"""Greedy search and sampling equal plain loops; a sample depends on the seed and the sentence's number only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.greedy import GreedySearch
from sparsenmt.decoding.sampling import SamplingSearch
from sparsenmt.decoding.scores import Hypothesis
from sparsenmt.decoding.strategies import EncodedBatch, Strategy
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.transformer import Transformer
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import (
    Found,
    encode,
    kept_pieces,
    naive_greedy,
    naive_sample,
    next_log_probabilities,
    sources,
    tiny_model,
)

LENGTHS = (4, 8, 2, 6)
LIMITS = [9, 12, 5, 1]


def options(**values: object) -> Decoding:
    return Decoding.model_validate(values)


def assert_same(found: Hypothesis, expected: Found | Hypothesis) -> None:
    assert (found.tokens, found.ended) == (expected.tokens, expected.ended)
    assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-9)
    assert found.score == pytest.approx(expected.score, abs=1e-9)


def search(
    strategy: Strategy, model: Transformer, rows: list[list[int]], limits: Sequence[int], numbers: Sequence[int]
) -> list[Hypothesis]:
    """Search one batch; ``numbers`` are those of the lines in the input."""
    batch = EncodedBatch(encode(model, rows), torch.tensor(limits), list(range(len(rows))), list(numbers))
    (results,) = strategy.search(TorchEngine(model), [batch], lambda sentences: nullcontext())
    return [only for number in range(len(rows)) for only in results[number]]


def greedy(model: Transformer, rows: list[list[int]], limits: Sequence[int], chosen: Decoding) -> list[Hypothesis]:
    return search(GreedySearch(chosen), model, rows, limits, range(len(rows)))


def sample(
    model: Transformer, rows: list[list[int]], limits: Sequence[int], chosen: Decoding, numbers: Sequence[int]
) -> list[Hypothesis]:
    return search(SamplingSearch(chosen), model, rows, limits, numbers)


def draws(seed: int, number: int, length: int) -> list[float]:
    """The random numbers that `sampling.make_sampler` documents: by the seed and the line number."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    values: list[float] = torch.rand(length, generator=generator, dtype=torch.float64).tolist()
    return values


@pytest.mark.parametrize("ending", [-20.0, 1.0, 3.0])
@pytest.mark.parametrize(
    "extra",
    [{}, {"min_length": 3}, {"no_repeat_ngram": 1}, {"min_length": 2, "no_repeat_ngram": 2, "unknown": "forbid"}],
)
def test_greedy_equals_plain_loops(extra: dict[str, int], ending: float) -> None:
    model, rows, chosen = tiny_model(1, ending=ending), sources(1, LENGTHS), options(**extra, length_penalty="average")
    found = greedy(model, rows, LIMITS, chosen)
    for hypothesis, row, limit in zip(found, rows, LIMITS, strict=True):
        assert_same(hypothesis, naive_greedy(model, row, limit, chosen))


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "min_length": 2, "unknown": "forbid"},
        {"top_k": 1},
        {"top_k": 3},
        {"top_k": 500},
        {"top_p": 0.4},
        {"top_p": 0.9, "temperature": 2.0},
        {"top_k": 5, "top_p": 0.7, "no_repeat_ngram": 2},
        {"top_p": 1e-9},
    ],
)
@pytest.mark.parametrize("seed", [0, 17])
def test_sampling_equals_plain_loops(extra: dict[str, float], seed: int) -> None:
    model, rows, numbers = tiny_model(2, ending=1.0, sharpness=1.5), sources(2, LENGTHS), [0, 1, 2, 30]
    chosen = options(**extra, seed=seed)
    for hypothesis, row, limit, number in zip(
        sample(model, rows, LIMITS, chosen, numbers), rows, LIMITS, numbers, strict=True
    ):
        assert_same(hypothesis, naive_sample(model, row, limit, chosen, draws(seed, number, limit)))


def test_a_sample_does_not_see_its_batch() -> None:
    model, rows, numbers = tiny_model(3, ending=1.0, sharpness=1.5), sources(3, LENGTHS), [4, 5, 6, 7]
    chosen = options(seed=3)
    together = sample(model, rows, LIMITS, chosen, numbers)
    for i, hypothesis in enumerate(together):
        assert_same(hypothesis, sample(model, [rows[i]], [LIMITS[i]], chosen, [numbers[i]])[0])
    back = sample(model, rows[::-1], LIMITS[::-1], chosen, numbers[::-1])
    for hypothesis, other in zip(together, back[::-1], strict=True):
        assert_same(hypothesis, other)
    # Random numbers of a sentence do not depend on how many are drawn for the longest of its batch.
    for length in (1, 15, 16, 17, 100):
        assert draws(3, 4, 400)[:length] == draws(3, 4, length)


def test_seeds_and_sentences_differ() -> None:
    model = tiny_model(4, ending=0.0, sharpness=0.5)
    row = sources(4, [5])[0]
    found = {tuple(sample(model, [row], [12], options(seed=seed), [0])[0].tokens) for seed in range(5)}
    found |= {tuple(each.tokens) for each in sample(model, [row] * 5, [12] * 5, options(seed=9), range(5))}
    assert len(found) == 10
    assert sample(model, [row], [12], options(seed=1), [0]) == sample(model, [row], [12], options(seed=1), [0])
    sample(model, [row], [3], options(seed=2**32 - 1), [10**9])  # the largest do not overflow


@pytest.mark.parametrize("extra", [{}, {"top_k": 4}, {"top_p": 0.6}, {"temperature": 2.0}])
def test_pieces_are_as_frequent_as_they_are_probable(extra: dict[str, float]) -> None:
    model, chosen, count = tiny_model(5, ending=1.0, sharpness=1.5), options(**extra), 4000
    row = sources(5, [4])[0]
    found = sample(model, [row] * count, [1] * count, chosen, range(count))
    counts = Counter(each.tokens[0] if each.tokens else EOS for each in found)
    values = next_log_probabilities(model, encode(model, [row]), [])
    kept = dict(kept_pieces(values, set(range(14)) - {0, 2}, chosen))
    assert counts.keys() <= kept.keys()
    for piece, probability in kept.items():
        deviation = math.sqrt(probability * (1 - probability) / count)
        assert counts[piece] / count == pytest.approx(probability, abs=5 * deviation)


def test_all_forbidden_means_the_end() -> None:
    model = tiny_model(6, vocabulary=6)
    rows = sources(6, [3, 5], 6)
    chosen = options(min_length=20, no_repeat_ngram=1)
    for hypothesis in (*greedy(model, rows, [25, 30], chosen), *sample(model, rows, [25, 30], chosen, [0, 1])):
        assert hypothesis.ended
        assert sorted(hypothesis.tokens) == [1, 4, 5]
        assert math.isfinite(hypothesis.log_probability)
