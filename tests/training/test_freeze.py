"""Frozen parts: no gradient, no optimizer state, the same bits after training; the others train as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsenmt.errors import UserError
from sparsenmt.model.freeze import freeze, in_part
from sparsenmt.training.checkpoints import average_weights, find_checkpoints
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
from tests.training.support import make_batch, make_trainer, pairs, small_model, training_options, write_dataset


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [["encoder"], ["decoder"], ["encoder", "embeddings"], ["*.feed_forward"]])
def test_only_the_other_parameters_change(tmp_path: Path, parts: list[str], dtype: torch.dtype) -> None:
    dataset, model = write_dataset(tmp_path / "data"), small_model(dtype=torch.float32)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    frozen = freeze(model, parts)
    options = training_options(optimizer={"weight_decay": 0.1}, max_updates=4, save_every=2)
    trainer = make_trainer(tmp_path / "run", dataset, options, model=model, dtype=dtype)
    trainer.run()
    checkpoints = find_checkpoints(tmp_path / "run")
    after = average_weights(checkpoints)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == set(frozen) and len(checkpoints) > 1
    states = {name.rpartition("/")[0] for name in checkpoints[-1].optimizer()}
    assert states == before.keys() - set(frozen)
    assert all(model.get_parameter(name).grad is None for name in frozen)


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    for name, lengths in (("whole", [6]), ("parts", [3, 6])):
        for updates in lengths:
            model = small_model(dtype=torch.float32)
            freeze(model, ["encoder", "embeddings"])
            trainer = make_trainer(tmp_path / name, dataset, training_options(max_updates=updates), model=model)
            if found := find_checkpoints(tmp_path / name):
                trainer.restore(found[-1])
            trainer.run()
    whole, parts = (find_checkpoints(tmp_path / name)[-1] for name in ("whole", "parts"))
    assert all(torch.equal(each, parts.weights()[name]) for name, each in whole.weights().items())
    assert all(torch.equal(each, parts.optimizer()[name]) for name, each in whole.optimizer().items())


@pytest.mark.parametrize("parts", [["encoder"], ["decoder"], ["embeddings"], ["encoder", "embeddings"]])
def test_gradients_of_the_rest_are_those_of_full_training(parts: list[str]) -> None:
    batch, found = make_batch(pairs(3)), []
    for each in ([], parts):
        model = small_model()
        freeze(model, each)
        accumulate_gradients(model, batch, Objective(0.1, "tokens", {}), UpdateTotals.of([batch]))
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    full, rest = found
    assert rest.keys() == {name for name in full if not any(in_part(name, part) for part in parts)}
    for name, gradient in rest.items():
        torch.testing.assert_close(gradient, full[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("parts", "where", "words"),
    [
        (["encoder", "coder"], "training.freeze.1", "no part 'coder'"),
        (["encoder", "decoder", "embeddings"], "training.freeze", "every parameter is frozen"),
    ],
)
def test_impossible_lists_are_refused(parts: list[str], where: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        freeze(small_model(), parts)
    assert raised.value.where == where
