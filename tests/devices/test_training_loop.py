"""Training on the fake CUDA device: an update waits for the device once, and the next batch is on its way before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.data.batching import Batch
from sparsenmt.data.dataset import Dataset
from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss
from sparsenmt.recipe.schema import Training
from sparsenmt.testing.device import without_kernels
from sparsenmt.testing.fake_device import CUDA, FakeDevice
from sparsenmt.training import sentence_pairs
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.loop import Trainer
from sparsenmt.training.uploads import Uploads
from tests.examples import examples
from tests.training.support import (
    EXITS,
    PLAIN,
    make_batch,
    make_trainer,
    pairs,
    small_model,
    training_options,
    write_dataset,
)

OPTIONS = training_options(max_updates=6, accumulate_tokens=120, log_every=1000, save_every=3)


class AtOnce:
    """A reader that reads where it is asked: tensors of other threads are unknown to the fake device."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


class Stream:
    """A stream of the device, with the streams that it has waited for."""

    def __init__(self, *_: object) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The stream that computes."""
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _: torch.get_rng_state())
    monkeypatch.setattr(sentence_pairs, "ThreadPoolExecutor", AtOnce)
    return stream


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", 180)


@contextmanager
def on_the_device(fake: FakeDevice) -> Iterator[None]:
    with without_kernels(), fake.running():
        yield


def trainer_of(directory: Path, dataset: Dataset, fake: FakeDevice | None, options: Training, **named: Any) -> Trainer:
    """A trainer with two filters' losses, or several exits, on the CPU if there is no fake device."""
    model = small_model(**named)  # in float64: a gradient of 0 is no noise, which Adam would scale up
    if fake is not None:
        with fake.unrecorded():
            model.to(CUDA)
    trainer = make_trainer(directory, dataset, options, model=model, device=None if fake is None else CUDA)
    if named.get("filtered"):
        trainer.losses = {"open": AuxiliaryLoss(target=0.5), "mass": AuxiliaryLoss(weight=0.1)}
        trainer._of_gates = ["mass", "open"]
    return trainer


@examples("clip", ["total", "tensor", "step"])
@pytest.mark.parametrize("named", [{"plan": PLAIN}, {"plan": PLAIN, "filtered": True}, {"plan": EXITS}], ids=str)
def test_an_update_waits_once(
    tmp_path: Path,
    dataset: Dataset,
    computing: Stream,
    named: dict[str, Any],
    clip: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reads do not grow with the number of batches, and the results are those of the CPU."""
    adagrad = {"optimizer": {"name": "adagrad"}} if clip == "step" else {}
    options = OPTIONS.model_copy(update=training_options(clip=clip, **adagrad).model_dump(include={"clip"}))
    options = options.model_copy(update={"optimizer": training_options(**adagrad).optimizer})
    plain = trainer_of(tmp_path / "cpu", dataset, None, options, **named)
    plain.run()
    fake, reads = FakeDevice(), []
    update = Trainer._update

    def watched(trainer: Trainer, end: int) -> bool:
        fake.events.clear()
        done = update(trainer, end)
        reads.append(Counter(event.where for event in fake.events if event.kind == "read"))
        return done

    monkeypatch.setattr(Trainer, "_update", watched)
    with on_the_device(fake):
        trainer = trainer_of(tmp_path / "gpu", dataset, fake, options, **named)
        trainer.run()
    assert reads == [Counter({"training/gradients.py: read_losses": 1})] * 6
    for name, value in plain.weights.state().items():
        torch.testing.assert_close(trainer.weights.state()[name], value, rtol=1e-5, atol=1e-8)


def test_the_next_batch_is_on_its_way(
    tmp_path: Path, dataset: Dataset, computing: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first of a run and of an epoch, every batch is copied beside the one before."""
    copied: list[tuple[int, ...]] = []
    begin = Uploads.begin

    def watched(uploads: Uploads, batch: Batch) -> None:
        copied.append(batch.indices)
        begin(uploads, batch)

    monkeypatch.setattr(Uploads, "begin", watched)
    taken: list[tuple[int, ...]] = []
    real = sentence_pairs.accumulate_gradients

    def accumulate(model: Any, batch: Batch, *rest: Any) -> Any:
        taken.append(batch.indices)
        return real(model, batch, *rest)

    monkeypatch.setattr(sentence_pairs, "accumulate_gradients", accumulate)
    fake = FakeDevice()
    with on_the_device(fake):
        trainer = trainer_of(tmp_path / "model", dataset, fake, OPTIONS.model_copy(update={"max_updates": 3}))
        assert trainer.task.count_batches(0) > 6
        trainer.run()
    assert len(taken) == 6 and copied[:5] == taken[1:]
    assert len(computing.waited) == 5


def test_what_was_read_ahead_is_not_done(tmp_path: Path, dataset: Dataset, computing: Stream) -> None:
    """A checkpoint holds the place of the last batch that was computed, and the run goes on after it."""
    fake = FakeDevice()
    with on_the_device(fake):
        whole = trainer_of(tmp_path / "whole", dataset, fake, OPTIONS)
        whole.run()
        found = find_checkpoints(tmp_path / "whole")
        assert [(each.update, each.progress().batches_done) for each in found] == [(3, 6), (6, 12)]
        part = trainer_of(tmp_path / "part", dataset, fake, OPTIONS)
        part.restore(found[0])
        part.run()
        for name, value in whole.weights.state().items():
            assert torch.equal(part.weights.state()[name], value), name


def test_another_batch_than_the_one_begun_is_copied_when_it_is_taken(computing: Stream) -> None:
    one, other = make_batch(pairs(2, 1)), make_batch(pairs(3, 2))
    fake = FakeDevice()
    with on_the_device(fake):
        uploads = Uploads(CUDA)
        uploads.begin(one)
        assert uploads.take(other).source.shape == other.source.shape and not computing.waited
        uploads.begin(one)
        assert fake.device_of(uploads.take(one).source) == CUDA and len(computing.waited) == 1


def test_on_a_cpu_a_batch_stays(computing: Stream) -> None:
    batch, uploads = make_batch(pairs(2, 1)), Uploads(torch.device("cpu"))
    uploads.begin(batch)
    assert uploads.take(batch).source is batch.source and not computing.waited
