"""Hard concrete gates against their closed forms, a Monte Carlo estimate and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparsenmt.model.compaction import apply_gates
from sparsenmt.model.memory import Memory
from sparsenmt.model.sockets import Gates
from sparsenmt.sparsity.l0drop import L0Drop, L0DropOptions, p_open, sample_gate, test_gate

evaluated = test_gate  # pytest would take a name that begins with test for a test
del test_gate

EDGE = 2.3978952727983707  # ln(1.1 / 0.1): where sigmoid(x) * 1.2 - 0.1 leaves [0, 1]


def filter_of(dimension: int = 4, **options: object) -> L0Drop:
    return L0Drop(L0DropOptions.model_validate(options), dimension).double()


def memory_of(states: Tensor, lengths: list[int]) -> Memory:
    at = torch.arange(states.shape[1])
    return Memory(states, at < torch.tensor(lengths)[:, None], at.expand(states.shape[:2]))


def test_the_gate_of_evaluation_is_that_of_equation_13() -> None:
    values = torch.tensor([-5.0, -EDGE - 1e-9, -EDGE + 1e-6, -1.0, 0.0, EDGE - 1e-6, EDGE + 1e-9], dtype=torch.float64)
    expected = [min(max(1.2 / (1 + math.exp(-float(x))) - 0.1, 0.0), 1.0) for x in values]
    torch.testing.assert_close(evaluated(values), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    exact = evaluated(torch.tensor([-EDGE - 1e-6, EDGE + 1e-6], dtype=torch.float64))
    assert exact.tolist() == [0.0, 1.0]  # exactly: an almost closed gate would be attended to
    assert evaluated(torch.zeros(1)).item() == pytest.approx(0.5)


def test_p_open_is_the_published_value_at_zero_and_the_share_of_open_samples() -> None:
    """0.832 at log alpha = 0 follows from beta = 2/3, epsilon = 0.1. 200,000 samples: within 4 standard errors."""
    assert p_open(torch.zeros(1)).item() == pytest.approx(0.8318, abs=1e-4)
    torch.manual_seed(0)
    for value in (-3.0, -1.5, 0.0, 2.0):
        log_alpha = torch.full((200_000,), value, dtype=torch.float64)
        wanted = p_open(log_alpha[:1]).item()
        error = math.sqrt(wanted * (1 - wanted) / len(log_alpha))
        assert (sample_gate(log_alpha) > 0).double().mean().item() == pytest.approx(wanted, abs=4 * error + 1e-6)


def test_samples_have_the_stretched_concrete_distribution() -> None:
    """P(gate <= x) = sigmoid(beta * logit((x + eps) / (1 + 2 eps)) - log alpha) (Louizos et al. 2018, Eq. 11, 12)."""
    torch.manual_seed(1)
    log_alpha = torch.full((200_000,), 0.7, dtype=torch.float64)
    samples = sample_gate(log_alpha)
    assert samples.min() >= 0 and samples.max() <= 1
    for x in (0.0, 0.25, 0.5, 0.9):
        inner = torch.logit(torch.tensor((x + 0.1) / 1.2, dtype=torch.float64))
        wanted = torch.sigmoid(inner * 2 / 3 - 0.7).item()
        assert (samples <= x).double().mean().item() == pytest.approx(wanted, abs=4e-3)


def test_gradients_by_finite_differences() -> None:
    inner = torch.tensor([-2.0, -0.5, 0.0, 0.9, 2.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(evaluated, (inner,))
    assert torch.autograd.gradcheck(p_open, (inner,))

    def sampled(log_alpha: Tensor) -> Tensor:
        torch.manual_seed(5)
        return sample_gate(log_alpha)

    assert torch.autograd.gradcheck(sampled, (inner,))
    states = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    gates = filter_of().eval()
    gates.requires_grad_(True)

    def whole(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            gates.weight.copy_(weight)
            gates.bias.copy_(bias)
        values = {"weight": weight, "bias": bias}
        found = torch.func.functional_call(gates, values, (memory_of(x, [3, 2]),))
        return found.values, found.losses["l0"]

    weight = (0.3 * torch.randn(4, dtype=torch.float64)).requires_grad_()
    bias = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(whole, (states, weight, bias))


def test_closed_gates_have_a_gradient_of_the_penalty_only() -> None:
    log_alpha = torch.tensor([-4.0, 4.0], dtype=torch.float64, requires_grad=True)
    evaluated(log_alpha).sum().backward()
    assert log_alpha.grad is not None and log_alpha.grad.tolist() == [0.0, 0.0]
    log_alpha.grad = None
    p_open(log_alpha).sum().backward()
    assert bool((log_alpha.grad > 0).all())


def test_the_penalty_is_the_mean_over_real_positions_with_their_counts() -> None:
    torch.manual_seed(2)
    states, gates = torch.randn(2, 5, 4, dtype=torch.float64), filter_of(init_log_alpha=-1.0).eval()
    memory = memory_of(states, [5, 3])
    found = gates(memory).losses["l0"]
    for row, length in enumerate((5, 3)):
        each = [p_open(states[row, i] @ gates.weight + gates.bias).item() for i in range(length)]
        assert found[row].item() == pytest.approx(sum(each) / length, rel=1e-12)
    counts = torch.tensor([[3.0, 1, 1, 1, 1], [2.0, 1, 1, 0, 0]]).double()
    counted = gates(replace(memory, counts=counts)).losses["l0"]
    each = [p_open(states[1, i] @ gates.weight + gates.bias).item() for i in range(3)]
    assert counted[1].item() == pytest.approx((2 * each[0] + each[1] + each[2]) / 4, rel=1e-12)


def test_training_samples_and_evaluation_does_not() -> None:
    torch.manual_seed(3)
    memory, gates = memory_of(torch.randn(1, 50, 4, dtype=torch.float64), [50]), filter_of()
    first, second = gates.train()(memory), gates(memory)
    assert not torch.equal(first.values, second.values)
    assert first.evaluated is not None and torch.equal(first.evaluated, gates.eval()(memory).values)
    assert torch.equal(gates(memory).values, gates(memory).values)


def test_the_first_bias_sets_where_gates_begin() -> None:
    memory = memory_of(torch.zeros(1, 1, 4, dtype=torch.float64), [1])
    values = [filter_of(init_log_alpha=bias).eval()(memory).values.item() for bias in (-3.0, 0.0, 2.4)]
    assert values == pytest.approx([0.0, 0.5, 1.0], abs=1e-6)


def test_cumulative_gates_stay_closed() -> None:
    memory = memory_of(torch.zeros(1, 3, 4, dtype=torch.float64), [3])
    before = torch.tensor([[1.0, 0.0, 0.3]], dtype=torch.float64)
    memory = replace(memory, gates=before)
    literal, cumulative = (filter_of(cumulative=c).eval()(memory) for c in (False, True))
    applied = [apply_gates(memory, gates, compact=False).gates for gates in (literal, cumulative)]
    assert [gates.tolist() for gates in applied if gates is not None] == [[[0.5, 0.5, 0.5]], [[0.5, 0.0, 0.5]]]
    assert cumulative.losses["l0"].item() == pytest.approx(2 / 3 * literal.losses["l0"].item())


def test_the_penalty_counts_masked_positions_as_closed() -> None:
    """Three of four positions are masked: the last has a quarter of the penalty, not all of it."""
    memory = memory_of(torch.zeros(1, 4, 4, dtype=torch.float64), [4])
    left = replace(memory, valid=torch.tensor([[False, True, False, False]]), source=memory.valid)
    penalties = [filter_of().eval()(each).losses["l0"].item() for each in (memory, left)]
    assert penalties[1] == pytest.approx(penalties[0] / 4)


def test_zero_vectors_of_the_same_place_have_no_penalty() -> None:
    """A position that a rule closed at the same place cannot be closed again; after a layer it can."""
    memory = memory_of(torch.zeros(1, 4, 4, dtype=torch.float64), [4])
    after = apply_gates(memory, Gates(torch.tensor([[0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)), compact=False)
    alone, beside, later = (
        filter_of().eval()(each).losses["l0"].item() for each in (memory, after, replace(after, gated=False))
    )
    assert (beside, later) == (pytest.approx(alone / 2), pytest.approx(alone))


def test_how_much_weight_moves_a_gate() -> None:
    """The figures of docs/reference/methods/l0drop.md: how likelihood (G a unit of the gate) and penalty (lambda) pull.

    E[gate] = integral of P(gate > x) over x in (0, 1); in the tails both pulls fade alike.
    """
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    threshold = torch.log((x + 0.1) / (1.1 - x)) * 2 / 3

    def slopes(value: float) -> tuple[float, float]:
        log_alpha = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        mean = torch.trapezoid(torch.sigmoid(log_alpha - threshold), x)
        return (
            torch.autograd.grad(mean, log_alpha)[0].item(),
            torch.autograd.grad(p_open(log_alpha), log_alpha)[0].item(),
        )

    for value, ratio in ((12.0, 6.6), (0.0, 1.6), (-12.0, 1 / 3.7)):
        of_gate, of_penalty = slopes(value)
        assert of_gate / of_penalty == pytest.approx(ratio, rel=0.03)
    open_gate, open_penalty = slopes(12.0)
    assert open_gate * math.exp(12) == pytest.approx(1.34, abs=0.01)
    assert open_penalty * math.exp(12) == pytest.approx(0.20, abs=0.01)
