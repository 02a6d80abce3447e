"""Stages of the mixture of corpora, and the limit of hours."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsenmt.data.corpus_mixture import CorpusMixture
from sparsenmt.data.dataset import Dataset
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.schema import Recipe
from sparsenmt.training import loop
from sparsenmt.training.state import Progress
from sparsenmt.training.validation import limit_reached
from sparsenmt.workflows.training.run_checks import _is_harmless
from tests.training.interrupting import Moments, Runs, assert_same, outcome
from tests.training.support import make_trainer, training_options, write_dataset

OPTIONS = training_options(max_updates=14, batch_tokens=40, save_every=3, schedule="constant")
MIXTURE = CorpusMixture((0, 5, 7), ((1.0,), (3.0,), (0.5,)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("data"))


def test_a_stage_begins_a_new_epoch_at_its_update(tmp_path: Path, dataset: Dataset) -> None:
    trainer = make_trainer(tmp_path, dataset, OPTIONS, mixture=MIXTURE)
    seen = []
    read = trainer.task.read

    def watched(epoch: int, first: int, last: int) -> object:
        seen.append((trainer.progress.update, epoch, first, trainer.task.count_batches(epoch)))
        return read(epoch, first, last)

    trainer.task.read = watched  # type: ignore[method-assign, assignment]
    trainer.run()
    plain = make_trainer(tmp_path / "plain", dataset, OPTIONS).task
    counts = {update: count for update, _, _, count in seen}
    begins = [(update, epoch) for update, epoch, first, _ in seen if first == 0]
    assert {(5, 1), (7, 2)} <= set(begins)
    assert counts[0] == plain.count_batches(0) and counts[5] > 2.5 * counts[0] and counts[7] < 0.7 * counts[0]


@pytest.mark.parametrize("number", [5, 6, 8])
def test_a_run_stopped_near_a_stage_is_the_undisturbed_one(tmp_path: Path, dataset: Dataset, number: int) -> None:
    runs = Runs(dataset, OPTIONS, mixture=MIXTURE)
    runs.start(tmp_path / "whole")
    with pytest.raises(Interrupted):
        runs.start(tmp_path / "stopped", Moments("batch", number))
    runs.start(tmp_path / "stopped")
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "whole"))


def test_a_run_ends_after_its_hours_and_counts_those_before_an_interruption(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is one minute later at every update."""
    clock = itertools.count(0, 60)
    watch = SimpleNamespace(monotonic=lambda: float(next(clock)), perf_counter=time.perf_counter)
    monkeypatch.setattr(loop, "time", watch)
    options = OPTIONS.model_copy(update={"max_hours": 0.1, "max_updates": 1000})
    trainer = make_trainer(tmp_path / "whole", dataset, options)
    progress = trainer.run()
    assert progress.finished and progress.elapsed >= 360 and progress.update == 6
    runs = Runs(dataset, options)
    with pytest.raises(Interrupted):
        runs.start(tmp_path / "stopped", Moments("batch", 4))
    assert runs.start(tmp_path / "stopped").progress.update == 5, "the time of the interrupted update counts"


def test_a_longer_limit_extends_a_run_and_one_that_has_passed_does_not() -> None:
    options = OPTIONS.model_copy(update={"max_hours": 1.0})
    done = Progress(update=10, elapsed=3600.0)
    assert limit_reached(done, options, {}) and not limit_reached(Progress(update=10, elapsed=3599.0), options, {})
    recipe = Recipe.model_construct(training=options)
    harmless = [_is_harmless("training.max_hours", 1.0, new, recipe, done) for new in (2.0, None, 1.0, 0.5)]
    assert harmless == [True, True, True, False]
