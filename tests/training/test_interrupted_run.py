"""A run that was stopped, wherever it stood, and went on is the run that nobody disturbed: to the last bit."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.data.dataset import Dataset
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import Training
from sparsenmt.training.checkpoints import average_weights, clean_checkpoints, find_checkpoints
from sparsenmt.training.sentence_pairs import TranslationTask
from tests.examples import examples
from tests.training.interrupting import Killed, Moments, Runs, assert_same, kill, outcome, terminate
from tests.training.support import training_options, write_dataset

UPDATES = 17  # of three batches each; two epochs and a half
OPTIONS = training_options(
    max_updates=UPDATES,
    batch_tokens=40,
    accumulate_tokens=120,
    log_every=2,
    save_every=4,
    keep_last=99,
    keep_best=1,
    schedule="constant",
    validation={"every": 3, "metric": "loss"},
)
FEW = OPTIONS.model_copy(update={"keep_last": 2})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Not enough for an update of three whole batches at the end of an epoch."""
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def runs(dataset: Dataset) -> Runs:
    return Runs(dataset, OPTIONS)


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, dict[str, Any]]:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        directory = tmp_path_factory.mktemp("undisturbed")
        trainer = Runs(dataset, OPTIONS, dtype).start(directory)
        assert trainer.progress.epoch >= 2 and trainer.progress.batches_done
        found[dtype] = outcome(directory)
    return found


def test_the_cases_are_hard_enough(undisturbed: dict[torch.dtype, dict[str, Any]]) -> None:
    """Checkpoints because of the interval, of a validation, and of the end."""
    found = undisturbed[torch.float32]
    updates = [int(name[-8:]) for name in found["checkpoints"]]
    assert {4, 8, 12, 16, 17} < set(updates) and {3, 6, 9, 15} & set(updates) and found["interim"] == []
    assert [entry["update"] for entry in found["metrics"] if entry["kind"] == "validation"] == [3, 6, 9, 12, 15, 17]
    losses = [entry["loss"] for entry in found["metrics"]]
    assert len(set(losses)) == len(losses)


@examples(
    ("place", "number", "dtype"),
    [
        ("batch", 1, torch.float32),  # nothing was done: it begins anew
        ("batch", 2, torch.float32),
        ("step", 3, torch.float32),  # in the last batch: the update is finished first
        ("batch", 14, torch.float32),  # inside an accumulation
        ("batch", 14, torch.bfloat16),
        ("step", 14, torch.float32),
        ("validation", 1, torch.float32),
        ("validation", 4, torch.float32),  # where a checkpoint is due, too
        ("validation", 4, torch.bfloat16),
        ("validation", 6, torch.float32),  # the one after the last update
        ("save", 1, torch.float32),
        ("file", 5, torch.float32),
        ("rename", 2, torch.bfloat16),
        ("saved", 3, torch.float32),
    ],
    fast={
        ("batch", 14, torch.bfloat16),
        ("step", 14, torch.float32),
        ("validation", 4, torch.float32),
        ("file", 5, torch.float32),
    },
)
def test_a_signal_at_a_chosen_moment(
    tmp_path: Path,
    dataset: Dataset,
    undisturbed: dict[torch.dtype, dict[str, Any]],
    place: str,
    number: int,
    dtype: torch.dtype,
) -> None:
    runs = Runs(dataset, OPTIONS, dtype)
    with pytest.raises(Interrupted) as caught:
        runs.start(tmp_path, Moments(place, number))
    found = find_checkpoints(tmp_path)
    assert (caught.value.number, caught.value.resumable) == (signal.SIGTERM, True)
    saved = f"saved after update {found[-1].update}" if found else "no update was completed"
    assert saved in caught.value.note
    runs.start(tmp_path)
    assert_same(outcome(tmp_path), undisturbed[dtype])


@examples(("place", "number"), [("batch", 14), ("saved", 2), ("validation", 4)])
def test_a_run_that_is_ended_where_it_was_stopped(
    tmp_path: Path, dataset: Dataset, runs: Runs, place: str, number: int
) -> None:
    """The run whose limit was this update from the start; so is one that ends two updates later."""
    with pytest.raises(Interrupted):
        runs.start(tmp_path / "stopped", Moments(place, number))
    shutil.copytree(tmp_path / "stopped", tmp_path / "later")
    done = find_checkpoints(tmp_path / "stopped")[-1].update
    for name, updates in (("stopped", done), ("later", done + 2)):
        runs.start(tmp_path / name, max_updates=updates)
        whole = Runs(dataset, OPTIONS.model_copy(update={"max_updates": updates}))
        whole.start(tmp_path / f"whole {name}")
        assert_same(outcome(tmp_path / name), outcome(tmp_path / f"whole {name}"))


def test_a_signal_while_the_last_checkpoint_is_saved(
    tmp_path: Path, runs: Runs, undisturbed: dict[torch.dtype, dict[str, Any]]
) -> None:
    """There is nothing left to stop."""
    saves = Moments()
    runs.start(tmp_path / "counted", saves)
    trainer = runs.start(tmp_path / "run", Moments("save", saves.counts["save"]))
    assert trainer.progress.finished
    assert_same(outcome(tmp_path / "run"), undisturbed[torch.float32])


@examples(
    ("place", "number"),
    [("step", 20), ("file", 5), ("batch", 2), ("validation", 4), ("save", 2), ("rename", 2), ("renamed", 2)],
    fast=2,
)
def test_a_kill_at_a_chosen_moment(
    tmp_path: Path, runs: Runs, undisturbed: dict[torch.dtype, dict[str, Any]], place: str, number: int
) -> None:
    """It loses the updates since the last checkpoint; they are done again, and reported once."""
    with pytest.raises(Killed):
        runs.start(tmp_path, Moments(place, number, kill))
    runs.start(tmp_path)
    assert_same(outcome(tmp_path), undisturbed[torch.float32])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_stops(tmp_path: Path, dataset: Dataset, seed: int) -> None:
    """Signals and kills, in the same places again and again: every run gets a bit further, or does it again."""
    draw = random.Random(seed)
    places = {"batch": 12, "step": 12, "validation": 2, "save": 2, "file": 6, "rename": 2}
    stops = []
    for _ in range(8):
        place = draw.choice(list(places))
        stops.append(Moments(place, draw.randint(1, places[place]), draw.choice([terminate, terminate, kill])))
    runs = Runs(dataset, FEW if seed else OPTIONS)
    runs.start(tmp_path / "whole")
    _, stopped = runs.chain(tmp_path / "stopped", stops)
    assert stopped >= 5
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "whole"))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [OPTIONS, FEW], ids=lambda options: "all" if options is OPTIONS else "few")
def test_a_stop_after_every_update(tmp_path: Path, dataset: Dataset, options: Training) -> None:
    """Many interim checkpoints displace no regular one, and go."""
    runs = Runs(dataset, options)
    runs.start(tmp_path / "whole")
    for update in range(1, UPDATES):
        with pytest.raises(Interrupted):
            runs.start(tmp_path / "stopped", Moments("step", 3))
        found = find_checkpoints(tmp_path / "stopped")
        assert found[-1].update == update
        assert sum(checkpoint.interim for checkpoint in found) <= 1
    runs.start(tmp_path / "stopped")
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "whole"))


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [9, 8, 10, 12])
@pytest.mark.parametrize(("keep_last", "keep_best"), [(99, 0), (4, 1)])
def test_a_longer_run(tmp_path: Path, dataset: Dataset, stop: int, keep_last: int, keep_best: int) -> None:
    """`max_updates` raised after the end: the checkpoints, and so their mean, are those of a run of that length.

    Whether a checkpoint was due where the run ended (8), a validation (9), neither (10) or both (12).
    """
    runs = Runs(dataset, OPTIONS.model_copy(update={"keep_last": keep_last, "keep_best": keep_best}))
    runs.start(tmp_path / "whole")
    ended = runs.start(tmp_path / "longer", max_updates=stop)
    assert ended.progress.finished and ended.progress.update == stop
    longer = runs.start(tmp_path / "longer")
    assert longer.progress.finished and longer.progress.update == UPDATES
    assert_same(outcome(tmp_path / "longer"), outcome(tmp_path / "whole"))
    means = [average_weights(find_checkpoints(tmp_path / name)[-4:]) for name in ("whole", "longer")]
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[0])


def test_the_best_of_a_longer_run(tmp_path: Path, dataset: Dataset) -> None:
    """A validation that only the end of the shorter run brought about takes nothing from the longer one."""
    losses = {3: 1.0, 4: 0.5, 6: 2.0, 9: 3.0}  # the fourth update's is the best, and no validation is due there
    options = FEW.model_copy(update={"keep_last": 1, "save_every": 1000, "max_updates": 9})
    kept = {}
    for name, limits in (("whole", [9]), ("longer", [4, 9])):
        for limit in limits:
            trainer = Runs(dataset, options).trainer(tmp_path / name, Moments(), max_updates=limit)
            if found := find_checkpoints(tmp_path / name):
                trainer.restore(found[-1])
            trainer.validate = lambda weights, trainer=trainer: {"loss": losses[trainer.progress.update]}  # type: ignore[misc]
            trainer.run()
            assert trainer.best() == [4 if limit == 4 else 3]
            kept[name, limit] = [checkpoint.update for checkpoint in find_checkpoints(tmp_path / name)]
    assert kept == {("whole", 9): [3, 9], ("longer", 4): [3, 4], ("longer", 9): [3, 9]}


def test_more_patience(tmp_path: Path, dataset: Dataset) -> None:
    """A run that ended because it was not getting better goes on with more patience as if it had had it before."""
    values = OPTIONS.model_dump() | {"max_updates": 40}
    found: dict[int | None, dict[str, Any]] = {}
    for patience in (2, 4):
        values["validation"] = {"every": 3, "metric": "loss", "patience": patience}
        trainer = Runs(dataset, training_options(**values)).start(tmp_path / str(patience))
        found[patience] = outcome(tmp_path / str(patience))
        assert trainer.progress.update < 40, "choose another validation: patience did not end the run"
    assert len(found[2]["metrics"]) < len(found[4]["metrics"])
    Runs(dataset, training_options(**values)).start(tmp_path / "2")
    assert_same(outcome(tmp_path / "2"), found[4])


def test_a_finished_run_has_nothing_left_to_do(
    tmp_path: Path, runs: Runs, undisturbed: dict[torch.dtype, dict[str, Any]]
) -> None:
    runs.start(tmp_path)
    moments = Moments()
    runs.start(tmp_path, moments)
    assert not moments.counts.keys() & {"batch", "validation"}
    assert_same(outcome(tmp_path), undisturbed[torch.float32])


@examples("name", ["weights.safetensors", "random.safetensors", "progress.json", "manifest.json"])
def test_the_newest_checkpoint_is_damaged(
    tmp_path: Path, runs: Runs, undisturbed: dict[torch.dtype, dict[str, Any]], name: str
) -> None:
    with pytest.raises(Killed):
        runs.start(tmp_path, Moments("batch", 40, kill))
    *_, before, newest = find_checkpoints(tmp_path)
    content = (newest.path / name).read_bytes()
    (newest.path / name).write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
    (message,) = clean_checkpoints(tmp_path)
    assert f"{newest.path.name}/{name}" in message
    assert find_checkpoints(tmp_path)[-1].update == before.update
    runs.start(tmp_path)
    found = outcome(tmp_path)
    assert found["checkpoints"].pop(0) == f"damaged-{newest.path.name}"
    assert_same(found, undisturbed[torch.float32])


def test_more_processes_than_batches_of_an_update_are_refused(tmp_path: Path, runs: Runs) -> None:
    runs.start(tmp_path)
    trainer = runs.trainer(tmp_path, Moments())
    assert isinstance(trainer.task, TranslationTask)
    trainer.task._workers = Workers(0, 9)
    with pytest.raises(UserError, match=r"9 processes: an update of this run has . batches, fewer than there are"):
        trainer.restore(find_checkpoints(tmp_path)[-1])
