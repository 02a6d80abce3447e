"""SSRU against a loop over positions, forward and backward; in a decoder, with and without a compiled step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparsenmt.analysis.density import measure_density
from sparsenmt.analysis.session import AnalysisSession
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.methods import chosen_methods, load_resolved_recipe
from sparsenmt.decoding.disabled_heads import read_disabled_heads
from sparsenmt.errors import UserError
from sparsenmt.sparsity.registry import Options
from sparsenmt.sparsity.ssru import SSRU, build
from sparsenmt.workflows.evaluation.analyze import analyze
from tests.assemble.test_model_directory import make_recipe, write_model
from tests.model.support import assert_same_function, random_model, random_source, random_target, section
from tests.recipe.support import MINIMAL, write


def naive(candidate: Tensor, forget: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The formulas, position by position."""
    c = torch.zeros_like(candidate[:, 0]) if state is None else state
    outputs = []
    for t in range(candidate.shape[1]):
        f = torch.sigmoid(forget[:, t])
        c = f * c + (1 - f) * candidate[:, t]
        outputs.append(torch.relu(c))
    return torch.stack(outputs, 1), c


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 64])
@pytest.mark.parametrize("begun", [False, True])
def test_a_loop_gives_the_same_and_the_same_gradients(length: int, begun: bool) -> None:
    rng = torch.Generator().manual_seed(length)
    leaves = [torch.randn(3, length, 5, dtype=torch.float64, generator=rng) * 2 for _ in range(2)]
    if begun:
        leaves.append(torch.randn(3, 5, dtype=torch.float64, generator=rng))
    for leaf in leaves:
        leaf.requires_grad_()
    state = leaves[2] if begun else None
    found, expected = build(Options(), dimension=5)(leaves[:2], state), naive(leaves[0], leaves[1], state)
    ours, theirs = (torch.cat([outputs, after[:, None]], 1) for outputs, after in (found, expected))
    assert_same_function(ours, theirs, leaves)


def test_a_state_is_never_rounded() -> None:
    parts = [torch.randn(2, 9, 4).bfloat16() for _ in range(2)]
    outputs, state = SSRU()(parts, None)
    assert (outputs.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(state, naive(parts[0].float(), parts[1].float(), None)[1])


def test_closed_gates_keep_and_open_gates_replace_the_state() -> None:
    z, state = torch.randn(1, 3, 4), torch.randn(1, 4)
    assert torch.equal(SSRU()([z, torch.full_like(z, 200.0)], state)[1], state)
    assert torch.equal(SSRU()([z, torch.full_like(z, -200.0)], state)[1], z[:, -1])


def test_the_decoder_has_no_self_attention() -> None:
    model = random_model(recurrence={"name": "ssru"})
    assert model.head_names("decoder_self") == () and model.head_names("cross")
    seen = []
    with model.listen(lambda found: seen.append(found.site)), torch.no_grad():
        memory = model.encode(random_source()).memories[2]
        model.decode(random_target(3, 4), memory)
    assert seen == ["encoder_self"] * 2 + ["cross"] * 2
    keys = [key for key, _, _ in chosen_methods(section(recurrence={"name": "ssru"}))]
    assert "model.recurrence" in keys and not any("decoder_self" in key for key in keys)


def test_keys_of_the_self_attention_are_refused_beside_it(tmp_path: Path) -> None:
    recurrence = "model: {recurrence: {name: ssru}%s}\n"
    recipe = load_recipe(write(tmp_path, MINIMAL + recurrence % ""))
    assert "decoder_self" not in recipe.model_dump()["model"]["attention"]
    assert load_resolved_recipe(recipe.model_dump(mode="json", by_alias=True)) == recipe
    with pytest.raises(UserError, match="in the place of the decoder's self-attention"):
        load_recipe(write(tmp_path, MINIMAL + recurrence % ", attention: {decoder_self: {transform: {name: topk}}}"))


def test_heads_that_are_not_there_cannot_be_disabled(tmp_path: Path) -> None:
    write_model(tmp_path / "model", make_recipe(recurrence={"name": "ssru"}))
    with pytest.raises(UserError, match="the decoder has no self-attention"):
        read_disabled_heads(tmp_path / "model", ["decoder_self:1"])
    session = AnalysisSession([tmp_path / "model"], sentences=["a b"])
    with pytest.raises(UserError, match="no attention at decoder_self"):
        analyze(session, measure_density, sites=["decoder_self"])
