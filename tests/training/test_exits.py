"""Many exits in one update: the loss and its gradient are the mean of those of models really cut to each depth.

The twins are cut here, weight by weight, and have a loss in the plainest loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsenmt.data.batching import Batch
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.transformer import Transformer
from sparsenmt.training.gradients import (
    Objective,
    UpdateTotals,
    accumulate_gradients,
    fill_missing_gradients,
    sample_exit_pairs,
)
from tests.examples import examples
from tests.model.support import random_model
from tests.training.support import PIECES, gradients, make_batch, naive_loss, pairs

Depth = tuple[int, int]
LAYERS = {"encoder_layers": 3, "decoder_layers": 2}
GATES = {"name": "l0drop"}
CASES: dict[str, dict[str, Any]] = {
    "tied": {},
    "weighted": {"depth": {"name": "tied_multi", "weights": [[0, 0], [1, 2.5], [0.5, 0]]}},
    "gates": {"memory": [GATES]},
    "gates of their own": {"memory": [{**GATES, "per": "exit"}]},
    "gates everywhere": {"memory": [GATES, {**GATES, "at": "between"}]},
    "sparse": {
        "attention": {
            "encoder_self": {"transform": {"name": "entmax", "alpha": "learned"}},
            "decoder_self": {"transform": {"name": "topk", "k": 3}},
            "cross": {"transform": {"name": "sparsemax"}},
        },
        "memory": [GATES],
    },
    "recurrent": {"depth": {"name": "tied_multi", "recurrent": "both"}},
    "recurrent decoder, alphas": {
        "depth": {"name": "tied_multi", "recurrent": "decoder"},
        "attention": {
            "decoder_self": {"transform": {"name": "entmax"}},
            "cross": {"transform": {"name": "entmax", "per": "application"}},
        },
    },
}


def tied(norm: str, **keys: Any) -> Transformer:
    section = {"depth": {"name": "tied_multi"}, **LAYERS, **keys}
    model = random_model(norm=norm, tie_embeddings="all", **section)
    assert model.embeddings["shared"].shape[0] >= PIECES
    return model


def origin(name: str, plan: DepthPlan, depth: Depth, weights: Mapping[str, Tensor]) -> str:
    """What the weight of a cut model is called in the whole one."""
    side, kind, number, *rest = [*name.split("."), "", "", ""]
    rest = [part for part in rest if part]
    if kind == "layers":
        return ".".join([side, kind, str(getattr(plan, side)[int(number)]), *rest])
    if name not in weights and kind == "steps":
        return ".".join([side, kind, "0", *rest])  # shared by all applications of the only layer
    return name if name in weights else ".".join(["memory.output", number, str(depth[0]), *rest])


def twin(model: Transformer, depth: Depth, norm: str, /, **keys: Any) -> tuple[Transformer, dict[str, str]]:
    """A plain model of ``depth``, with the weights of ``model``; and what they are called there."""
    memory = [{**choice, "per": "model"} for choice in keys.get("memory", [])]
    kept = [choice for choice in memory if depth[0] > 1 or choice.get("at") != "between"]
    layers = {"encoder_layers": depth[0], "decoder_layers": depth[1], "depth": {"name": "plain"}, "memory": kept}
    cut = random_model(norm=norm, tie_embeddings="all", seed=9, **{**keys, **layers})
    whole = model.state_dict()
    names = {name: origin(name, model.plan, depth, whole) for name in cut.state_dict()}
    cut.load_state_dict({name: whole[other] for name, other in names.items()})
    return cut, names


def batches() -> list[Batch]:
    return [make_batch(pairs(2, 1, longest=6)), make_batch(pairs(1, 2, longest=4))]


def accumulated(model: Transformer, objective: Objective, own: Sequence[Batch]) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    totals = UpdateTotals.of(own)
    loss = sum(float(accumulate_gradients(model, batch, objective, totals).loss) for batch in own)
    return loss, gradients(model)


@examples("norm", ["pre", "post"])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_the_mean_over_models_cut_to_each_depth(case: str, norm: str) -> None:
    keys = CASES[case]
    model, objective = tied(norm, **keys), Objective(0.1, "tokens", {"l0": 0.4} if "memory" in keys else {})
    expected_loss, expected = 0.0, {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    shares = model.plan.pairs()
    assert sum(shares.values()) == pytest.approx(1.0) and len(shares) == (3 if case == "weighted" else 6)
    for depth, share in shares.items():
        cut, names = twin(model, depth, norm, **keys)
        loss = naive_loss(cut, batches(), objective)
        loss.backward()
        expected_loss += share * float(loss.detach())
        for name, gradient in gradients(cut).items():
            expected[names[name]] += share * gradient
    loss, found = accumulated(model, objective, batches())
    assert loss == pytest.approx(expected_loss, rel=1e-9)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )
        assert bool(gradient.any()) or ".k.bias" in name or case == "weighted", f"{name} shows nothing"


def test_accumulating_small_batches_is_one_batch() -> None:
    model, objective = tied("pre", memory=[GATES]), Objective(0.1, "sentences", {"l0": 0.4})
    rows = pairs(6, 5)
    whole_loss, whole = accumulated(model, objective, [make_batch(rows)])
    loss, found = accumulated(model, objective, [make_batch(rows[:1]), make_batch(rows[1:4]), make_batch(rows[4:])])
    assert loss == pytest.approx(whole_loss, rel=1e-9)
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)


PLAN = DepthPlan((0, 1, 2), (0, 1), (1, 2, 3), (1, 2), weights=((1, 2), (3, 4), (5, 5)), drawn=(2, 1))


def test_what_is_drawn_is_all_exits_in_the_mean() -> None:
    draws = {tuple(sorted(sample_exit_pairs(PLAN, (7, 0, i)).items())) for i in range(300)}
    assert len(draws) == 3 * 2, "every choice of two of three and one of two"
    for pair, share in PLAN.pairs().items():
        assert sum(dict(draw).get(pair, 0.0) for draw in draws) / len(draws) == pytest.approx(share)
    counts = [
        sum(sample_exit_pairs(PLAN, (7, 0, i)).keys() >= {(1, 1)} for i in range(first, first + 600))
        for first in (0, 600)
    ]
    assert all(150 < count < 250 for count in counts), "each choice is as likely as the others: 1/3"


def test_the_gradient_of_a_draw_is_that_of_its_models() -> None:
    model = tied("pre", depth={"name": "tied_multi", "sample": {"encoder": 1}})
    drawn = sample_exit_pairs(model.plan, (1, 2, 3))
    ((n, _), _) = drawn
    objective = Objective(0.1, "tokens", {}, drawn)
    expected_loss = sum(
        share * float(naive_loss(twin(model, depth, "pre")[0], batches(), objective).detach())
        for depth, share in drawn.items()
    )
    loss, found = accumulated(model, objective, batches())
    assert loss == pytest.approx(expected_loss, rel=1e-9) and sum(drawn.values()) == pytest.approx(1.0)
    used = {name.split(".")[2] for name, g in found.items() if name.startswith("encoder.layers") and bool(g.any())}
    assert used == {str(i) for i in range(n)}, "the encoder runs to the drawn exit"


def test_draws_depend_on_their_place_alone() -> None:
    torch.manual_seed(1)
    first = [sample_exit_pairs(PLAN, (3, 1, i)) for i in range(20)]
    torch.manual_seed(2)
    assert first == [sample_exit_pairs(PLAN, (3, 1, i)) for i in range(20)]
    assert first != [sample_exit_pairs(PLAN, (4, 1, i)) for i in range(20)]
    assert first != [sample_exit_pairs(PLAN, (3, 2, i)) for i in range(20)]


def test_parameters_that_no_drawn_exit_uses_have_the_gradient_zero() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    parameters[0].grad = torch.ones(2)
    fill_missing_gradients(DepthPlan((0,), (0,), (1,), (1,)), parameters)
    assert parameters[1].grad is None
    fill_missing_gradients(PLAN, parameters)
    assert parameters[1].grad is not None and not parameters[1].grad.any() and bool(parameters[0].grad.all())


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"weights": ((1.0, 1.0),)}, "3 rows of 2"),
        ({"weights": ((1.0,),) * 3}, "3 rows of 2"),
        ({"weights": ((1.0, -1.0),) * 3}, "at least 0"),
        ({"weights": ((1.0, float("nan")),) * 3}, "at least 0"),
        ({"weights": ((1.0, 0.0),) * 3}, "may not all be 0"),
        ({"weights": ((0.0, 0.0), (1.0, 1.0), (1.0, 1.0))}, "may not all be 0"),
        ({"weights": ((0.0, 1.0), (1.0, 1.0), (1.0, 1.0)), "drawn": (1, 1)}, "no pair may have the weight 0"),
        ({"drawn": (4, None)}, "4 exits cannot be drawn of 3"),
        ({"drawn": (None, 0)}, "0 exits cannot be drawn of 2"),
    ],
)
def test_plans_that_have_no_meaning(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        DepthPlan((0, 1, 2), (0, 1), (1, 2, 3), (1, 2), **keys)
