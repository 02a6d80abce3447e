"""The training loop: it learns, validates, keeps and stops as the recipe says, and goes on where it was."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from sparsenmt.data.dataset import Dataset
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.errors import UserError
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.layers import BlockOptions, SiteHeads
from sparsenmt.model.sites import SITES
from sparsenmt.model.stacks import SiteModules
from sparsenmt.model.transformer import PositionOptions, Transformer, Vocabulary
from sparsenmt.recipe.schema import AuxiliaryLoss
from sparsenmt.sparsity.entmax import AdaptiveEntmax
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.gradients import Objective
from sparsenmt.training.loop import Trainer
from sparsenmt.training.validation import validation_losses
from tests.examples import examples
from tests.training.support import (
    DRAWN,
    EXITS,
    PIECES,
    PLAIN,
    Script,
    dataset_of,
    make_batch,
    make_trainer,
    naive_loss,
    pairs,
    plan_of,
    small_model,
    training_options,
    write_dataset,
)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data")


def lines(directory: Path, kind: str) -> list[dict[str, float]]:
    text = (directory / "metrics.jsonl").read_bytes().decode()
    assert text.endswith("\n")
    return [line for line in map(json.loads, text.removesuffix("\n").split("\n")) if line["kind"] == kind]


def updates(directory: Path) -> list[int]:
    return [checkpoint.update for checkpoint in find_checkpoints(directory)]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.weights.state().items()}


def assert_identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@examples("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_falls(tmp_path: Path, dataset: Dataset, dtype: torch.dtype) -> None:
    options = training_options(
        max_updates=120, learning_rate=1e-2, warmup_updates=10, log_every=10, label_smoothing=0.0
    )
    trainer = make_trainer(tmp_path / "model", dataset, options, dtype=dtype)
    progress = trainer.run()
    assert (progress.update, progress.finished) == (120, True)
    found = lines(tmp_path / "model", "train")
    assert [line["update"] for line in found] == list(range(10, 121, 10))
    losses = [line["loss"] for line in found]
    assert losses[0] > 2.0
    assert losses[-1] < 0.7 * losses[0]
    for line in found:
        assert line["nll"] == pytest.approx(line["loss"], rel=0.02)  # the mean of tokens, the mean of updates
        assert line["rate"] > 0 and line["tokens_per_second"] > 0 and line["gradient_norm"] > 0
    assert progress.target_tokens > 0 and progress.seconds > 0
    assert updates(tmp_path / "model") == [120]


def test_what_is_not_a_number_is_null(tmp_path: Path, dataset: Dataset) -> None:
    trainer = make_trainer(tmp_path / "model", dataset, training_options(), validate=Script([math.nan]))
    trainer.run()
    assert [line["loss"] for line in lines(tmp_path / "model", "validation")] == [None]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path, dataset: Dataset) -> None:
    found = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(seed)
        model = small_model(seed, dropout=0.2, dtype=torch.float32)
        trainer = make_trainer(tmp_path / str(number), dataset, training_options(seed=seed), model=model)
        trainer.run()
        found.append(weights(trainer))
    assert_identical(found[0], found[1])
    assert not torch.equal(found[0]["embeddings.shared"], found[2]["embeddings.shared"])


@examples("dtype", [torch.float32, torch.bfloat16])
@examples(("stop", "plan"), [(7, PLAIN), (7, EXITS), (3, PLAIN), (10, PLAIN), (7, DRAWN)], fast=2)
def test_goes_on_from_a_checkpoint(
    tmp_path: Path, dataset: Dataset, stop: int, plan: DepthPlan, dtype: torch.dtype
) -> None:
    """With dropout, within and across epochs: the same weights as without the interruption."""
    options = training_options(max_updates=20, save_every=stop, keep_last=99, validation={"every": 4, "metric": "loss"})

    def trainer(directory: Path, seed: int) -> Trainer:
        torch.manual_seed(seed)
        model = small_model(seed, plan=plan, dropout=0.2, dtype=torch.float32)
        return make_trainer(directory, dataset, options, model=model, validate=Script([3.0, 2.0, 4.0]), dtype=dtype)

    whole = trainer(tmp_path / "whole", 1)
    whole.run()
    (checkpoint,) = [each for each in find_checkpoints(tmp_path / "whole") if each.update == stop]
    assert checkpoint.progress().batches_done > 0
    place = tmp_path / "half" / "checkpoints" / checkpoint.path.name
    shutil.copytree(checkpoint.path, place)
    half = trainer(tmp_path / "half", 2)  # another seed: everything must come from the checkpoint
    half.restore(find_checkpoints(tmp_path / "half")[-1])
    assert half.progress.update == stop
    half.run()
    assert_identical(weights(half), weights(whole))
    for field in ("update", "epoch", "batches_done", "target_tokens"):
        assert getattr(half.progress, field) == getattr(whole.progress, field)
    last = [find_checkpoints(tmp_path / name)[-1] for name in ("half", "whole")]
    assert_identical(last[0].optimizer(), last[1].optimizer())
    assert_identical(last[0].random(), last[1].random())


def adaptive_model(seed: int) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        site = SiteModules(SiteHeads(2), lambda *place: AdaptiveEntmax(2, torch.randn(2)))
        options, positions = BlockOptions(16, 32, "pre", "relu", 0.1, 0.1, 0.1), PositionOptions("sinusoidal", 64)
        return Transformer(options, Vocabulary(PIECES, PIECES, "all"), positions, PLAIN, (site, site, site))


@examples("dtype", [torch.float32, torch.bfloat16])
def test_the_log_has_what_transforms_report(tmp_path: Path, dataset: Dataset, dtype: torch.dtype) -> None:
    """At every line the values after that update, to four decimals; and the same after a resume."""
    options = training_options(max_updates=9, save_every=3, keep_last=99, log_every=3, learning_rate=1e-2)

    def trainer(name: str, seed: int) -> Trainer:
        return make_trainer(tmp_path / name, dataset, options, model=adaptive_model(seed), dtype=dtype)

    whole = trainer("whole", 1)
    whole.run()
    logged = {int(line["update"]): line["heads"] for line in lines(tmp_path / "whole", "train")}
    assert list(logged) == [3, 6, 9]
    for checkpoint in find_checkpoints(tmp_path / "whole"):
        held = {name: tensor for name, tensor in checkpoint.weights().items() if name.endswith("transform.alpha")}
        whole.model.load_state_dict({**whole.model.state_dict(), **held})  # type: ignore[attr-defined]
        rounded = {
            site: [[round(value, 4) for value in heads] for heads in steps]
            for site, steps in whole.model.logged()["alpha"].items()
        }
        assert logged[checkpoint.update] == {"alpha": rounded}
        assert {site: len(steps) for site, steps in rounded.items()} == dict.fromkeys(SITES, 2)
    assert logged[3] != logged[6] != logged[9]
    shutil.copytree(tmp_path / "whole/checkpoints/update-00000003", tmp_path / "half/checkpoints/update-00000003")
    half = trainer("half", 2)
    half.restore(find_checkpoints(tmp_path / "half")[-1])
    half.run()
    assert {line["update"]: line["heads"] for line in lines(tmp_path / "half", "train")} == {6: logged[6], 9: logged[9]}
    times = [line["training_seconds"] for kind in ("train", "validation") for line in lines(tmp_path / "whole", kind)]
    assert max(times) == whole.progress.seconds > times[0] > 0


def test_stops_after_its_epochs(tmp_path: Path, dataset: Dataset) -> None:
    options = training_options(max_updates=1000, max_epochs=2)
    trainer = make_trainer(tmp_path / "model", dataset, options)
    length = len(plan_of(trainer).batches(0))
    progress = trainer.run()
    assert (progress.epoch, progress.batches_done) == (2, 0)
    assert progress.update == length + len(plan_of(trainer).batches(1))
    once = sum(int(n) for n in dataset.target_lengths)
    assert progress.target_tokens == 2 * once  # every token of every epoch, once


def test_accumulation_joins_batches(tmp_path: Path, dataset: Dataset) -> None:
    options = training_options(max_epochs=1, max_updates=1000, accumulate_tokens=130)
    trainer = make_trainer(tmp_path / "model", dataset, options)
    batches = len(plan_of(trainer).batches(0))
    assert trainer.run().update == math.ceil(batches / 3)  # 130 tokens are 3 batches of 60


def test_accumulated_batches_are_one_big_batch(tmp_path: Path, dataset: Dataset) -> None:
    """In float64: one update over all the data, as one batch and as many."""
    results = []
    for number, size in enumerate((50, 100_000)):
        model = small_model(dtype=torch.float64)
        options = training_options(batch_tokens=size, accumulate_tokens=100_000, max_updates=1)
        trainer = make_trainer(tmp_path / str(number), dataset, options, model=model)
        trainer.run()
        results.append(weights(trainer))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "patience", "last"),
    [([5.0, 4.0, 4.5, 4.6, 3.0], 2, 8), ([5.0], 1, 4), ([5.0, 5.0, 5.0], 2, 6), ([5, 4, 3, 2, 1, 0], 1, 12)],
)
def test_patience(tmp_path: Path, dataset: Dataset, values: list[float], patience: int, last: int) -> None:
    options = training_options(validation={"every": 2, "metric": "loss", "patience": patience})
    trainer = make_trainer(tmp_path / "model", dataset, options, validate=Script(values))
    assert trainer.run().update == last


def test_keeps_the_last_and_the_best(tmp_path: Path, dataset: Dataset) -> None:
    values = [9.0, 2.0, 5.0, 6.0, 4.0, 8.0]
    for keep_best, kept in ((0, [11, 12]), (1, [4, 11, 12]), (2, [4, 10, 11, 12]), (3, [4, 6, 10, 11, 12])):
        options = training_options(
            save_every=11, keep_last=2, keep_best=keep_best, validation={"every": 2, "metric": "loss"}
        )
        directory = tmp_path / str(keep_best)
        trainer = make_trainer(directory, dataset, options, validate=Script(values))
        trainer.run()
        assert updates(directory) == kept
        assert trainer.best(3) == [4, 10, 6]
        assert not [path for path in (directory / "checkpoints").iterdir() if path.name.startswith(".")]


def test_what_is_best(tmp_path: Path, dataset: Dataset) -> None:
    def best(metric: str, values: list[float], losses: tuple[float, ...] = (1.0,) * 4) -> list[int]:
        options = training_options(validation={"every": 3, "metric": metric})
        script, loss = Script(values), iter(losses)
        trainer = make_trainer(
            tmp_path / f"{metric}{values}{losses[0]}",
            dataset,
            options,
            validate=lambda w: {"loss": next(loss), metric: script(w)["loss"]},
        )
        trainer.run()
        return trainer.best(4)

    assert best("loss", [3.0, 1.0, 2.0, 1.0]) == [6, 12, 9, 3]
    assert best("ter", [3.0, 1.0, 2.0, 1.0]) == [6, 12, 9, 3]
    assert best("bleu", [3.0, 1.0, 2.0, 3.0]) == [3, 12, 9, 6]
    assert best("loss", [math.nan, 5.0, math.nan, 4.0]) == [12, 6, 3, 9]
    assert best("bleu", [0.0, 0.0, 1.0, 0.0], losses=(4.0, 2.0, 3.0, 2.0)) == [9, 6, 12, 3], "the loss breaks ties"


def test_a_finished_run_says_so(tmp_path: Path, dataset: Dataset) -> None:
    options = training_options(save_every=5)
    make_trainer(tmp_path / "model", dataset, options).run()
    found = [checkpoint.progress().finished for checkpoint in find_checkpoints(tmp_path / "model")]
    assert found == [False, False, True]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, dataset: Dataset, value: float) -> None:
    trainer = make_trainer(tmp_path / "model", dataset, training_options(save_every=1))
    trainer.run()
    model = small_model(dtype=torch.float32)
    with torch.no_grad():
        model.embeddings["shared"].fill_(value)
    with pytest.raises(UserError, match="the loss is nan"):
        make_trainer(tmp_path / "other", dataset, training_options(), model=model).run()
    assert updates(tmp_path / "other") == []


def test_a_corpus_too_small_for_its_weight(tmp_path: Path) -> None:
    """No epoch has a batch: the run ends and says so."""
    options = training_options(max_epochs=3)
    trainer = make_trainer(tmp_path / "model", dataset_of(tmp_path / "data", []), options)
    with pytest.raises(UserError, match="nothing was trained"):
        trainer.run()


def test_auxiliary_losses_are_trained_and_reported(tmp_path: Path, dataset: Dataset) -> None:
    found = {}
    for weight in (0.0, 5.0):
        model = small_model(dtype=torch.float32, filtered=True)
        options = training_options(max_updates=30, learning_rate=1e-2)
        trainer = make_trainer(tmp_path / str(weight), dataset, options, model=model)
        ramp = {"from": 0.0, "to": 0.0, "steps": 1}
        losses = {"open": {"weight": weight}, "mass": {"weight": ramp}}
        trainer.losses = {name: AuxiliaryLoss.model_validate(value) for name, value in losses.items()}
        trainer.run()
        found[weight] = lines(tmp_path / str(weight), "train")
    assert found[5.0][-1]["open"] < 0.5 * found[0.0][-1]["open"]
    first = found[5.0][0]
    assert first["loss"] > first["nll"] + 2 * first["open"]


def test_validation_loss_is_the_mean_of_a_token(tmp_path: Path) -> None:
    rows = pairs(20, 9)
    dev = dataset_of(tmp_path / "dev", rows)
    model = small_model(3)
    expected = float(naive_loss(model, [make_batch(rows)], Objective(0.0, "tokens", {})).detach())
    for size in (1, 40, 10_000):
        values = validation_losses(TorchEngine(model.eval()), dev, device=torch.device("cpu"), batch_tokens=size)
        assert values == {"loss": pytest.approx(expected, rel=1e-9)}
