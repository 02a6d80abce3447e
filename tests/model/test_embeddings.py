"""Embedded tokens are table rows times sqrt(D), plus the encodings of their positions, by the formulas."""

from __future__ import annotations

import math

import pytest
import torch

from sparsenmt.model.embeddings import Positions, embed, keep_zero_start

TOKENS = torch.tensor([[3, 0, 4], [1, 3, 3]])


def in_loops(tokens: torch.Tensor, table: torch.Tensor, starts: list[int]) -> torch.Tensor:
    """Vaswani et al. 2017, 3.4 and 3.5, with the order of sines and cosines of tensor2tensor."""
    size = table.shape[1]
    found = torch.zeros(*tokens.shape, size, dtype=torch.float64)
    for row, start in enumerate(starts):
        for t, token in enumerate(tokens[row].tolist()):
            for i in range(size):
                half = size // 2
                wavelength = 10000 ** (i % half / (half - 1))  # times 2 pi: from 2 pi to 10000 * 2 pi
                angle = (start + t) / wavelength
                position = math.sin(angle) if i < half else math.cos(angle)
                found[row, t, i] = float(table[token, i]) * math.sqrt(size) + position
    return found


@pytest.mark.parametrize("starts", [[0, 0], [7, 7], [2, 5], [0, 300]], ids=str)
def test_sinusoidal_positions(starts: list[int]) -> None:
    table = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = starts[0] if starts[0] == starts[1] else torch.tensor(starts)
    found = embed(TOKENS, table, Positions("sinusoidal", 6, 10), start)
    torch.testing.assert_close(found, in_loops(TOKENS, table, starts), rtol=0, atol=1e-12)


def test_learned_positions() -> None:
    table, positions = torch.randn(5, 6), Positions("learned", 6, 4)
    assert positions.weight is not None
    expected = table[TOKENS] * math.sqrt(6) + positions.weight[1:4]
    torch.testing.assert_close(embed(TOKENS, table, positions, 1), expected)
    torch.testing.assert_close(embed(TOKENS, table, positions, torch.tensor([1, 1])), expected)
    with pytest.raises(ValueError, match="position 4 is beyond the 4 learned positions"):
        embed(TOKENS, table, positions, 2)


def test_a_start_of_zeros_gets_no_gradient() -> None:
    """Marian's models begin with zeros, and do so after further training; a trained start is trained on."""
    table = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    table[2] = 0
    for start, trained in ((2, False), (4, True)):
        weights = table.clone().requires_grad_()
        vectors = keep_zero_start(weights[torch.tensor([[start, 1, 3], [start, 3, 3]])])
        assert torch.equal(vectors, table[torch.tensor([[start, 1, 3], [start, 3, 3]])])
        vectors.sum().backward()
        assert weights.grad is not None
        assert bool(weights.grad[start].any()) is trained
        assert torch.equal(weights.grad[[1, 3]], torch.tensor([[1.0] * 4, [3.0] * 4]))
