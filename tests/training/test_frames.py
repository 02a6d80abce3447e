"""Training in frames: batches, gradients, validation, and runs that go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sparsenmt.data.batching import EpochPlan, IndexBatch, collate, framed_feature
from sparsenmt.data.tokenizers.frame import Frame, FramePair
from sparsenmt.data.vocabulary import EOS, PAD
from sparsenmt.engine.torch_engine import TorchEngine
from sparsenmt.model.protocol import Source
from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
from sparsenmt.training.validation import validation_losses
from tests.training.support import dataset_of, gradients, pairs, small_model

FRAMES = FramePair(Frame((5,), (6,)), Frame((7, 8), start=9))


def everything(count: int) -> IndexBatch:
    return IndexBatch(np.zeros(count, dtype=np.int64), np.arange(count, dtype=np.int64))


def test_batches_are_framed(tmp_path: Path) -> None:
    rows = pairs(5)
    batch = collate([dataset_of(tmp_path, rows)], everything(5), FRAMES)
    for i, (source, target) in enumerate(rows):
        assert batch.source[i][batch.source_valid[i]].tolist() == [5, *source, EOS, 6]
        inputs = [9, 7, 8, *target]
        assert batch.target_input[i, : len(inputs)].tolist() == inputs
        assert batch.target_input[i, len(inputs) :].eq(PAD).all()
        assert batch.target_output[i][batch.target_valid[i]].tolist() == [*target, EOS]
    assert batch.target_tokens == sum(len(target) + 1 for _, target in rows)
    assert framed_feature(np.array([3, 4, 0]), FRAMES.source).tolist() == [0, 3, 4, 0, 0]


def test_batches_hold_their_frames(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, pairs(60))
    for batch in EpochPlan([dataset], [1.0], 80, 1, FRAMES).batches(0):
        made = collate([dataset], batch, FRAMES)
        assert max(made.source.numel(), made.target_input.numel()) <= 80


def test_gradients_are_those_of_the_sentences(tmp_path: Path) -> None:
    batch = collate([dataset_of(tmp_path, pairs(6))], everything(6), FRAMES)
    objective = Objective(0.1, "tokens", {})
    model, naive = small_model(), small_model()
    accumulate_gradients(model, batch, objective, UpdateTotals.of([batch]))
    # After a given prefix, the naive loss begins at its last token.
    total = torch.zeros((), dtype=torch.float64)
    for i in range(6):
        wanted = batch.target_output[i][batch.target_valid[i]]
        inputs = batch.target_input[i : i + 1, : len(wanted) + 2]
        length = int(batch.source_valid[i].sum())
        source = Source(batch.source[i : i + 1, :length], torch.ones(1, length, dtype=torch.bool))
        (memory,) = naive.encode(source).memories.values()
        (hidden,) = naive.decode(inputs, memory).values()
        logits = naive.project(hidden)[0, 2:]
        losses = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum", label_smoothing=0.1)
        total = total + losses / batch.target_tokens
    total.backward()
    expected = gradients(naive)
    for name, found in gradients(model).items():
        assert torch.allclose(found, expected[name], atol=1e-12), name


def test_validation_loss_is_that_of_the_sentences(tmp_path: Path) -> None:
    dev, model = dataset_of(tmp_path, pairs(9, 2)), small_model(4)
    batch = collate([dev], everything(9), FRAMES)
    result = accumulate_gradients(small_model(4), batch, Objective(0.0, "tokens", {}), UpdateTotals.of([batch]))
    engine = TorchEngine(model)
    found = validation_losses(engine, dev, device=torch.device("cpu"), batch_tokens=60, frames=FRAMES)
    assert found["loss"] == pytest.approx(float(result.loss), rel=1e-9)
