"""Length penalties, length limits, and what may not come next."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch

from sparsenmt.data.vocabulary import EOS
from sparsenmt.decoding.scores import forbid, length_penalty, maximum_length, next_rules
from sparsenmt.engine.torch_engine import candidates, log_normalizer
from sparsenmt.native.kernels import kernels
from sparsenmt.recipe.schema import Decoding
from tests.decoding.support import banned


def options(**values: object) -> Decoding:
    return Decoding.model_validate(values)


def test_length_penalties() -> None:
    assert length_penalty(7, options(length_penalty="gnmt", alpha=1.0)) == pytest.approx(2.0)
    assert length_penalty(1, options(length_penalty="gnmt", alpha=0.6)) == pytest.approx(1.0)
    assert length_penalty(9, options(length_penalty="average", alpha=0.5)) == pytest.approx(3.0)
    assert length_penalty(9, options(length_penalty="none", alpha=0.5)) == 1.0


@pytest.mark.parametrize(
    ("pieces", "values", "positions", "expected"),
    [
        (10, {}, 1024, 60),
        (10, {"max_length_factor": 1.5, "max_length_offset": 2}, 1024, 17),
        (10, {"max_length_factor": 0, "max_length_offset": 0}, 1024, 1),
        (1000, {}, 64, 64),
        (1, {"max_length_factor": 0, "max_length_offset": 0, "min_length": 5}, 1024, 6),
        (1, {"min_length": 500}, 64, 64),  # positions are a hard limit
    ],
)
def test_longest_output(pieces: int, values: dict[str, float], positions: int, expected: int) -> None:
    assert maximum_length(pieces, options(**values), positions) == expected


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("min_length", [0, 3, 50])
@pytest.mark.parametrize("unknown", ["allow", "forbid"])
def test_forbidden_pieces_equal_plain_loops(n: int, min_length: int, unknown: str) -> None:
    draw, vocabulary = random.Random(n), 8
    chosen = options(no_repeat_ngram=n, min_length=min_length, unknown=unknown)
    for length, _ in itertools.product(range(9), range(10)):
        rows = [[draw.choice([1, 4, 5, 6, 7]) for _ in range(length)] for _ in range(3)]
        before = torch.randn(3, vocabulary, dtype=torch.float64)
        after = forbid(before.clone(), torch.tensor(rows, dtype=torch.long).view(3, length), chosen)
        for row, old, new in zip(rows, before.tolist(), after.tolist(), strict=True):
            gone = banned(row, vocabulary, chosen)
            assert new == [-math.inf if piece in gone else value for piece, value in enumerate(old)]


def test_normalizer_needs_no_softmax() -> None:
    logits = 100 * torch.randn(5, 9, dtype=torch.float64)
    torch.testing.assert_close(logits - log_normalizer(logits), logits.log_softmax(-1))


def test_a_hypothesis_can_end_where_every_other_token_is_forbidden() -> None:
    after = forbid(torch.zeros(2, 4), torch.empty(2, 0, dtype=torch.long), options(min_length=3, unknown="forbid"))
    assert after.tolist() == [[-math.inf, -math.inf, -math.inf, 0.0]] * 2


def test_the_shortest_output_forbids_the_end_of_the_last_line_only() -> None:
    rows = torch.tensor([[5, EOS], [5, 6]])  # in the second line, in the first
    for values in ({}, {"no_repeat_ngram": 2}):
        after = forbid(torch.zeros(2, 8), rows, options(min_length=3, max_lines=2, **values))
        assert after[:, EOS].tolist() == [-math.inf, 0.0]
        assert forbid(torch.zeros(2, 8), rows, options(min_length=3, max_lines=0, **values))[:, EOS].tolist() == [0, 0]


@pytest.mark.parametrize("values", [{}, {"min_length": 4}, {"no_repeat_ngram": 2}, {"unknown": "forbid"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocabulary", [7, 29])
@pytest.mark.parametrize("native", [False, True])
def test_candidates_equal_plain_loops(
    values: dict[str, Any], dtype: torch.dtype, vocabulary: int, native: bool
) -> None:
    torch.manual_seed(0)
    logits, scores = torch.randn(6, vocabulary, dtype=dtype), torch.randn(3, 2, dtype=dtype)
    scores[1, 1] = -math.inf
    chosen, row = options(**values), [5, 6, 5]
    rules = next_rules(torch.tensor([row] * 6), chosen)
    best, parents, pieces = candidates(
        logits.clone(),
        scores,
        lambda own: rules.forbid(own, rules.tokens),
        rules.never,
        8,
        kernels() if native else None,
    )
    gone = banned(row, vocabulary, chosen)
    for b, mine in enumerate(zip(best.tolist(), parents.tolist(), pieces.tolist(), strict=True)):
        expected = sorted(
            (
                (float(logits[2 * b + j].log_softmax(-1)[piece] + scores[b, j]), j, piece)
                for j in range(2)
                for piece in set(range(vocabulary)) - set(gone)
                if scores[b, j] > -math.inf
            ),
            reverse=True,
        )[:8]
        there = [each for each in zip(*mine, strict=True) if each[0] > -math.inf]
        assert [each[1:] for each in there] == [each[1:] for each in expected]
        assert [each[0] for each in there] == pytest.approx([each[0] for each in expected], abs=1e-5)
