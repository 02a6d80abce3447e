"""Dropout on a CPU: what is kept, how it is scaled, what comes back, and that a seed fixes it."""

from __future__ import annotations

import pytest
import torch

from sparsenmt.model.dropout import Draws, dropout

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.9])
def test_zeros_come_with_the_probability_and_the_rest_is_scaled(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(501, 403, dtype=dtype)
    y = dropout(x, probability)
    assert y.dtype == dtype and y.shape == x.shape
    n = x.numel()
    dropped = int((y == 0).sum())
    assert abs(dropped - probability * n) < 5 * (probability * (1 - probability) * n) ** 0.5
    # Rounding the probability to 1 / 65,536 changes the scale by less than 1e-4 relative at these probabilities.
    tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-4
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - probability)), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_passes_where_the_value_did(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(64, 33, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.4)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    assert x.grad is not None
    scale = torch.where(y.detach() != 0, y.detach() / x.detach(), 0)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(x.grad, upstream * scale, rtol=tolerance, atol=1e-6)


def test_a_seed_fixes_it_for_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(7)
            results.append(dropout(torch.ones(1000, 257), 0.5))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)
    assert not torch.equal(results[0], dropout(torch.ones(1000, 257), 0.5))


def test_neighbours_and_repeats_are_independent() -> None:
    """A hash decides about each place: neighbours, and the same places under other keys, must not be correlated."""
    torch.manual_seed(3)
    kept = (dropout(torch.ones(1 << 18), 0.5) != 0).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        correlation = float((kept[:-distance] * kept[distance:]).mean()) * 4
        assert abs(correlation) < 5 / (1 << 18) ** 0.5
    for key in (0, 1, 1 << 31, 1 << 32, -1):  # keys that differ by one bit from the next
        one, other = ((Draws(each, 1 << 18).bits >= 0).double() - 0.5 for each in (key, key ^ 1))
        assert abs(float((one * other).mean()) * 4) < 5 / (1 << 18) ** 0.5


def test_bits_are_those_of_the_hash() -> None:
    """Against whole numbers of Python, all bits of which count."""
    word, places = 1 << 32, [*range(100), *range((1 << 17) - 3, (1 << 17) + 3)]
    for key in (0, 5, -1, 0x123456789ABCDEF, -(1 << 63)):
        expected = []
        for place in places:
            x = (place // 2 * 0x9E3779B1 ^ key) % word
            x = ((x ^ x >> 16) * 0x7FEB352D + (key >> 32)) % word
            x = (x ^ x >> 15) * 0x846CA68B % word
            half = (x ^ x >> 16) >> 16 * (place % 2) & 0xFFFF
            expected.append(half - (1 << 16) * (half >> 15))
        assert Draws(key, (1 << 17) + 3).bits[places].tolist() == expected


def test_nothing_or_everything() -> None:
    x = torch.randn(8)
    assert dropout(x, 0.0) is x
    assert torch.equal(dropout(x, 1.0), torch.zeros(8))
    assert dropout(torch.empty(0, 4), 0.5).shape == (0, 4)


def test_a_non_contiguous_input() -> None:
    x = torch.ones(6, 8).t()
    y = dropout(x, 0.5)
    assert set(y.unique().tolist()) <= {0.0, 2.0}
