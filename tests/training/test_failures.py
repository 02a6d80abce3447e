"""Updates that fail: whose lines they were is told, some are left out if the recipe says so, nothing else is lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsenmt.data.batching import Batch, IndexBatch
from sparsenmt.data.dataset import Dataset
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.training import checkpoints, sentence_pairs
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.failures import describe_lines, nonfinite_batches
from sparsenmt.training.gradients import BatchLosses, BatchResult
from sparsenmt.training.loop import Trainer
from tests.examples import examples
from tests.training.interrupting import Killed, Moments, Runs, assert_same, kill, outcome, terminate
from tests.training.support import (
    dataset_of,
    make_trainer,
    pairs,
    plan_of,
    small_model,
    training_options,
    write_dataset,
)


def batch_of(*chosen: tuple[int, int]) -> IndexBatch:
    """Pairs of (corpus, index)."""
    numbers = np.array(chosen, dtype=np.int64).reshape(-1, 2)
    return IndexBatch(numbers[:, 0], numbers[:, 1])


@pytest.fixture
def corpora(tmp_path: Path) -> list[Dataset]:
    """Of the second one every other line was left out when it was prepared."""
    rows = pairs(60)
    return [
        dataset_of(tmp_path / "one", rows, name="one"),
        dataset_of(tmp_path / "two", rows, name="two", lines=range(1, 3000, 50)),
    ]


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([batch_of((0, 0))], "one, lines 1 (1 in all)"),
        ([batch_of((0, 3), (0, 5), (0, 4))], "one, lines 4-6 (3 in all)"),
        ([batch_of((0, 7), (0, 9)), batch_of((0, 8), (0, 0))], "one, lines 1, 8-10 (4 in all)"),
        ([batch_of((0, 2), (0, 2))], "one, lines 3 (1 in all)"),  # a corpus with weight 2 has every pair twice
        ([batch_of((1, 0), (1, 1))], "two, lines 2, 52 (2 in all)"),
        ([batch_of((1, 59), (0, 1))], "one, lines 2 (1 in all); two, lines 2,952 (1 in all)"),
        ([], ""),
        ([batch_of()], ""),
    ],
)
def test_the_lines_of_batches(corpora: list[Dataset], batches: list[IndexBatch], told: str) -> None:
    assert describe_lines(corpora, batches) == told


def test_many_lines_are_not_all_told(corpora: list[Dataset]) -> None:
    told = describe_lines(corpora, [batch_of(*((0, i) for i in range(0, 60, 2)))])
    assert told.startswith("one, lines 1, 3, 5, ") and told.endswith(", 39, ... (30 in all)")
    assert describe_lines(corpora, [batch_of(*((0, i) for i in range(40)))]) == "one, lines 1-40 (40 in all)"


def test_the_batch_with_the_loss_is_suspected_first() -> None:
    batches = [batch_of((0, 0)), batch_of((0, 1)), batch_of((0, 2))]
    results = [BatchResult(loss, 1.0, {}) for loss in (1.0, math.nan, math.inf)]
    assert nonfinite_batches(batches, results) == batches[1:]
    assert nonfinite_batches(batches, [BatchResult(1.0, 1.0, {})] * 3) == batches, "only the gradient: any of them"


# --- in a run ----------------------------------------------------------------------------------------------------


@dataclass
class Poison:
    """Makes every batch that holds a certain pair give a loss, or a gradient, that is not finite."""

    pair: int
    value: float = math.nan
    gradient_only: bool = False

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        clean = sentence_pairs.accumulate_gradients

        def poisoned(model: torch.nn.Module, batch: Batch, *arguments: Any) -> BatchLosses:
            result = clean(model, batch, *arguments)  # type: ignore[arg-type]
            if self.pair not in batch.indices:
                return result
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(self.value)
            return result if self.gradient_only else dataclasses.replace(result, loss=torch.tensor(self.value))

        patch.setattr(sentence_pairs, "accumulate_gradients", poisoned)


class PlanWithout:
    """A plan whose epochs lack the updates that hold a certain pair."""

    def __init__(self, plan: Any, pair: int, batches_per_update: int) -> None:
        self.plan, self.pair, self.size = plan, pair, batches_per_update

    def batches(self, *arguments: int, **named: Any) -> list[IndexBatch]:
        every = self.plan.batches(*arguments, **named)
        updates = [every[start : start + self.size] for start in range(0, len(every), self.size)]
        return [
            batch for update in updates if not any(self.pair in batch.index for batch in update) for batch in update
        ]


PAIR = 17


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data")


def lines_with_pair(trainer: Trainer, epoch: int) -> list[int]:
    """Numbers, from 1, of the lines of the batch that holds the pair."""
    (found,) = [batch for batch in plan_of(trainer).batches(epoch) if PAIR in batch.index]
    return sorted(int(index) + 1 for index in found.index)


def numbers(told: str) -> list[int]:
    """The lines of a message back as numbers."""
    text = told.split("lines ")[1].split(" (")[0]
    runs = [part.split("-") for part in text.split(", ")]
    return [number for run in runs for number in range(int(run[0]), int(run[-1]) + 1)]


def metrics(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_bytes().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@examples(
    ("poison", "accumulate", "dtype"),
    [
        (Poison(PAIR), 1, torch.float32),
        (Poison(PAIR, math.inf), 3, torch.float32),
        (Poison(PAIR), 3, torch.bfloat16),
        (Poison(PAIR, gradient_only=True), 1, torch.bfloat16),
        (Poison(PAIR, gradient_only=True), 3, torch.float32),
    ],
)
def test_an_update_is_left_out(
    tmp_path: Path, dataset: Dataset, poison: Poison, accumulate: int, dtype: torch.dtype
) -> None:
    """As if the plan had never had it: the same weights, moments and validations."""
    options = training_options(
        max_updates=8 if accumulate == 3 else 20,
        batch_tokens=60,
        accumulate_tokens=60 * accumulate,
        skip_nonfinite=99,
        log_every=1,
        validation={"every": 4, "metric": "loss"},
    )

    def trainer(name: str) -> Trainer:
        model = small_model(dtype=torch.float32)
        return make_trainer(tmp_path / name, dataset, options, model=model, validate=Moments().validate, dtype=dtype)

    without = trainer("without")
    without.task.plan = PlanWithout(plan_of(without), PAIR, accumulate)  # type: ignore[attr-defined]
    without.run()
    skipping = trainer("skipping")
    with pytest.MonkeyPatch.context() as patch:
        poison.apply(patch)
        skipping.run()
    assert skipping.progress.skipped >= 2, "choose more updates: an epoch has one that is left out"
    assert without.progress.skipped == 0
    found, wanted = (find_checkpoints(tmp_path / name)[-1] for name in ("skipping", "without"))
    for one, other in ((found.weights(), wanted.weights()), (found.optimizer(), wanted.optimizer())):
        assert all(torch.isfinite(value).all() for value in one.values())
        assert [name for name in other if not torch.equal(one[name], other[name])] == []
    assert skipping.progress.validated == without.progress.validated
    assert skipping.progress.target_tokens == without.progress.target_tokens
    losses = [[line["loss"] for line in metrics(tmp_path / name, "train")] for name in ("skipping", "without")]
    assert losses[0] == losses[1]
    assert [line["skipped"] for line in metrics(tmp_path / "skipping", "skipped")] == list(
        range(1, skipping.progress.skipped + 1)
    )


@pytest.mark.parametrize("tolerated", [0, 1, 2])
def test_one_too_many(tmp_path: Path, dataset: Dataset, tolerated: int, capsys: pytest.CaptureFixture[str]) -> None:
    """An epoch holds the pair once: epoch N+1 is the last. Its batch is named, and the checkpoints before it stay."""
    options = training_options(max_updates=999, batch_tokens=60, skip_nonfinite=tolerated, save_every=3)
    trainer = make_trainer(tmp_path / "model", dataset, options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as caught:
        Poison(PAIR).apply(patch)
        trainer.run()
    error = caught.value
    assert error.where is not None and error.where.startswith("toy, lines ")
    assert numbers(error.where) == lines_with_pair(trainer, tolerated)
    assert f"the loss is nan and the gradient's norm nan at update {trainer.progress.update + 1}" in error.message
    assert ("after" in error.message) == (tolerated > 0)
    assert f"after {tolerated} skipped updates" in error.message or not tolerated
    assert error.hint is not None and "training.skip_nonfinite" in error.hint
    assert (trainer.progress.skipped, trainer.progress.epoch) == (tolerated, tolerated)
    for epoch, line in enumerate(metrics(tmp_path / "model", "skipped")):
        assert numbers(line["lines"]) == lines_with_pair(trainer, epoch)
    shown = capsys.readouterr().err
    assert shown.count("whose loss or gradient is not finite") == tolerated
    for checkpoint in find_checkpoints(tmp_path / "model"):
        checkpoint.check()
        assert all(torch.isfinite(value).all() for value in checkpoint.weights().values())


def test_of_an_accumulation_only_the_batch_is_named(tmp_path: Path, dataset: Dataset) -> None:
    def stopped(gradient_only: bool) -> tuple[Trainer, list[int]]:
        options = training_options(batch_tokens=60, accumulate_tokens=9999)
        trainer = make_trainer(tmp_path / str(gradient_only), dataset, options)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError) as caught:
            Poison(PAIR, gradient_only=gradient_only).apply(patch)
            trainer.run()
        assert caught.value.where is not None
        return trainer, numbers(caught.value.where)

    trainer, told = stopped(gradient_only=False)
    assert told == lines_with_pair(trainer, 0)
    assert len(stopped(gradient_only=True)[1]) == len(dataset), "any batch may have given the gradient"


@examples(("place", "number"), [("batch", 13), ("step", 9), ("validation", 2)])
@pytest.mark.parametrize("act", [terminate, kill])
def test_a_run_that_leaves_updates_out_is_resumed_as_one(
    tmp_path: Path, dataset: Dataset, place: str, number: int, act: Callable[[], None]
) -> None:
    """What was left out stays counted, and is reported once."""
    options = training_options(
        max_updates=13,
        batch_tokens=60,
        skip_nonfinite=9,
        save_every=4,
        keep_last=2,
        keep_best=0,
        log_every=2,
        validation={"every": 3, "metric": "loss"},
    )
    runs = Runs(dataset, options)
    with pytest.MonkeyPatch.context() as patch:
        Poison(PAIR).apply(patch)
        runs.start(tmp_path / "whole")
        with pytest.raises((Killed, Interrupted)):
            runs.start(tmp_path / "stopped", Moments(place, number, act))
        runs.start(tmp_path / "stopped")
    assert find_checkpoints(tmp_path / "whole")[-1].progress().skipped >= 2
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "whole"))


@examples("pair", [3, 17, 30])
def test_a_signal_after_each_update_that_is_left_out(tmp_path: Path, dataset: Dataset, pair: int) -> None:
    """The checkpoint of the same update is written again, now after what was left out; a regular one stays regular."""
    options = training_options(
        max_updates=9,
        batch_tokens=60,
        skip_nonfinite=9,
        save_every=100,
        keep_last=9,
        keep_best=0,
        validation={"every": 1, "metric": "loss"},
    )
    runs = Runs(dataset, options)
    with pytest.MonkeyPatch.context() as patch:
        Poison(pair).apply(patch)
        runs.start(tmp_path / "whole")
        whole = outcome(tmp_path / "whole")
        entries = [entry for entry in whole["metrics"] if entry["kind"] == "skipped" and entry["update"]]
        assert entries
        for entry in entries:
            stopped = tmp_path / f"stopped-{entry['update']}"
            with pytest.raises(Interrupted):
                runs.start(stopped, Moments("step", entry["update"] + entry["skipped"]))
            newest = find_checkpoints(stopped)[-1]
            assert (newest.update, newest.progress().skipped) == (entry["update"], entry["skipped"])
            runs.start(stopped)
            found = outcome(stopped)
            for part in ("metrics", "checkpoints", "interim"):
                assert found[part] == whole[part]
            assert [tensors[:2] for tensors in found["tensors"]] == [tensors[:2] for tensors in whole["tensors"]]
            assert (found["progress"][-1], found["tensors"][-1]) == (whole["progress"][-1], whole["tensors"][-1])


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_out_of_memory_names_the_batch_and_the_key(
    tmp_path: Path, dataset: Dataset, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path / "model", dataset, training_options(save_every=2, max_updates=99))
    clean, seen = sentence_pairs.accumulate_gradients, []

    def accumulate(model: Any, batch: Batch, *arguments: Any) -> BatchLosses:
        seen.append(batch)
        if len(seen) == 6:
            raise error
        return clean(model, batch, *arguments)

    monkeypatch.setattr(sentence_pairs, "accumulate_gradients", accumulate)
    with pytest.raises(UserError) as caught:
        trainer.run()
    rows, source, target = seen[-1].sentences, seen[-1].source.shape[1], seen[-1].target_input.shape[1]
    shape = f"out of memory in a batch of {rows} sentences, {source} source and {target} target tokens"
    assert (caught.value.message, caught.value.where) == (shape, "training.batch_tokens")
    assert caught.value.hint is not None and "accumulate_tokens" in caught.value.hint
    assert find_checkpoints(tmp_path / "model")[-1].update == 4


def test_other_errors_are_not_taken_for_it(tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def accumulate(*arguments: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(sentence_pairs, "accumulate_gradients", accumulate)
    with pytest.raises(RuntimeError, match="multiplied"):
        make_trainer(tmp_path / "model", dataset, training_options()).run()


def test_a_full_disk_keeps_the_checkpoints_before(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run goes on from them, to the same end."""
    runs = Runs(dataset, training_options(max_updates=9, save_every=2, keep_last=2))
    runs.start(tmp_path / "whole")
    real, calls = checkpoints.save_tensors, []

    def full(*arguments: Any, **named: Any) -> str:
        calls.append(arguments)
        if len(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(checkpoints, "save_tensors", full)
    with pytest.raises(OSError, match="No space left") as caught:
        runs.start(tmp_path / "model")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC and "update-00000006" in str(caught.value.filename)
    folder = tmp_path / "model/checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["update-00000002", "update-00000004"]
    runs.start(tmp_path / "model")
    assert_same(outcome(tmp_path / "model"), outcome(tmp_path / "whole"))
