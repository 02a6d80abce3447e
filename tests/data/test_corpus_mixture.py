"""Weights of corpora by temperature, and the stages of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsenmt.data.batching import EpochPlan
from sparsenmt.data.corpus_mixture import CorpusMixture, tempered_weights
from sparsenmt.errors import UserError
from sparsenmt.recipe.schema import Corpus, CorpusStage, Data
from tests.training.support import dataset_of

CORPORA = [Corpus(name=name, source=f"{name}.en", target=f"{name}.de") for name in ("large", "small")]


def data_of(**keys: object) -> Data:
    return Data.model_validate({"directory": "prepared", "train": CORPORA, "dev": CORPORA[0], **keys})


def test_a_temperature_gives_the_shares_of_the_paper() -> None:
    """p_i^(1/T) over their sum, with p_i the shares at temperature 1; the epoch keeps its size."""
    pairs, weights = [900_000, 90_000, 10_000], [1.0, 2.0, 0.5]
    sizes = np.array(pairs) * weights
    for temperature in (1.0, 2.0, 5.0, 1000.0):
        found = np.array(pairs) * tempered_weights(pairs, weights, temperature)
        powers = (sizes / sizes.sum()) ** (1 / temperature)
        np.testing.assert_allclose(found, sizes.sum() * powers / powers.sum(), rtol=1e-12)
    assert tempered_weights(pairs, weights, 1.0) == weights
    assert tempered_weights([10, 20], [0.0, 1.0], 3.0) == [0.0, 1.0]


def test_a_plan_without_mixture_is_that_of_its_weights(tmp_path: Path) -> None:
    datasets = [
        dataset_of(tmp_path / str(i), [([4] * (1 + j % 5), [5]) for j in range(n)]) for i, n in enumerate((50, 9))
    ]
    plan = EpochPlan(datasets, [1.0, 2.5], 40, 3)
    mixture = CorpusMixture.of(data_of(), {"large": 50, "small": 9}, [1.0, 2.5])
    assert mixture == CorpusMixture((0,), ((1.0, 2.5),))
    for epoch in range(3):
        own, mixed = plan.batches(epoch), plan.batches(epoch, weights=mixture.weights[0])
        assert [(b.dataset.tolist(), b.index.tolist()) for b in own] == [
            (b.dataset.tolist(), b.index.tolist()) for b in mixed
        ]
    counts = [sum(int((b.dataset == i).sum()) for b in plan.batches(0, weights=[0.0, 4.0])) for i in (0, 1)]
    assert counts == [0, 36]


def test_stages_follow_the_updates() -> None:
    stages = [CorpusStage(after=100, weights={"large": 0}), CorpusStage(after=200, weights={}, temperature=1000)]
    mixture = CorpusMixture.of(data_of(stages=stages), {"large": 900, "small": 100}, [1.0, 1.0])
    assert mixture.weights[:2] == ((1.0, 1.0), (0.0, 1.0))
    np.testing.assert_allclose(mixture.weights[2], (500 / 900, 5), rtol=0.01)
    assert [mixture.stage(update) for update in (0, 99, 100, 199, 200, 10**6)] == [0, 0, 1, 1, 2, 2]


def test_a_stage_without_a_pair_is_refused() -> None:
    stages = [CorpusStage(after=100, weights={"large": 0, "small": 0.001})]
    with pytest.raises(UserError) as caught:
        CorpusMixture.of(data_of(stages=stages), {"large": 900, "small": 100}, [1.0, 1.0])
    assert caught.value.where == "data.stages.0.weights"
