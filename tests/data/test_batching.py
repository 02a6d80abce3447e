"""Batches: every example as often as its weight says, none too large, the same for the same seed."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsenmt.data.batching import Batch, EpochPlan, IndexBatch, collate, length_batches, pad
from sparsenmt.data.dataset import Dataset, DatasetWriter, write_features
from sparsenmt.data.vocabulary import BOS, EOS, PAD


def make(directory: Path, count: int, seed: int = 0, *, longest: int = 30, name: str = "x") -> Dataset:
    """A split of random sentences, with features `place` (1, 2, ...) and `double` (twice the id)."""
    generator = random.Random(seed)
    sides = [
        [[generator.randint(4, 99) for _ in range(generator.randint(0, longest))] for _ in range(count)]
        for _ in range(2)
    ]
    with DatasetWriter(directory, name=name, source_size=100, target_size=100) as writer:
        writer.append(sides[0], sides[1], range(count))
    dataset = Dataset(directory)
    sources = [dataset.source(number).astype(np.int64) for number in range(count)]
    rows = ({"double": 2 * ids, "place": np.arange(1, len(ids) + 1)} for ids in sources)
    write_features(directory, ["double", "place"], rows)
    return Dataset(directory)


def examples(batches: Sequence[IndexBatch]) -> Counter[tuple[int, int]]:
    return Counter(pair for batch in batches for pair in zip(batch.dataset.tolist(), batch.index.tolist(), strict=True))


def contents(batches: Sequence[IndexBatch]) -> list[list[tuple[int, int]]]:
    return [list(zip(b.dataset.tolist(), b.index.tolist(), strict=True)) for b in batches]


def cost(batch: Batch) -> int:
    return batch.sentences * max(batch.source.shape[1], batch.target_output.shape[1])


@pytest.mark.parametrize("batch_tokens", [20, 100, 5000])
def test_every_example_once_in_batches_that_fit(tmp_path: Path, batch_tokens: int) -> None:
    datasets = [make(tmp_path / "a", 400), make(tmp_path / "b", 150, 1)]
    batches = EpochPlan(datasets, [1.0, 1.0], batch_tokens, seed=7).batches(0)
    assert examples(batches) == {(0, i): 1 for i in range(400)} | {(1, i): 1 for i in range(150)}
    for index_batch in batches:
        batch = collate(datasets, index_batch)
        assert cost(batch) <= batch_tokens or batch.sentences == 1


def test_no_batch_could_take_in_its_successor(tmp_path: Path) -> None:
    """Within a pool batches are as full as sorted order allows."""
    dataset = make(tmp_path, 300)
    batches = EpochPlan([dataset], [1.0], 200, seed=7).batches(0)
    longer = np.maximum(dataset.source_lengths, dataset.target_lengths)
    ordered = sorted((sorted(longer[batch.index].tolist()) for batch in batches), key=lambda row: (row[0], row[-1]))
    for row, following in pairwise(ordered):
        assert row[-1] <= following[0]
        assert (len(row) + 1) * following[0] > 200


def test_weights(tmp_path: Path) -> None:
    datasets = [make(tmp_path / str(number), 100, number) for number in range(4)]
    plan = EpochPlan(datasets, [2.0, 0.5, 1.0, 2.25], 300, seed=1)
    counts = [examples(plan.batches(epoch)) for epoch in range(6)]
    for count in counts:
        assert all(count[0, i] == 2 and count[2, i] == 1 and count[3, i] in (2, 3) for i in range(100))
        assert sum(count[1, i] for i in range(100)) == 50
        assert max(count[1, i] for i in range(100)) == 1
        assert sum(count[3, i] for i in range(100)) == 225
    halves = {frozenset(i for i in range(100) if count[1, i]) for count in counts}
    assert len(halves) == 6, "every epoch takes a fresh half"


def test_a_pure_function_of_seed_and_epoch(tmp_path: Path) -> None:
    datasets = [make(tmp_path, 300)]

    def batches(seed: int, epoch: int) -> list[list[tuple[int, int]]]:
        return contents(EpochPlan(datasets, [1.0], 100, seed).batches(epoch))

    plan = EpochPlan(datasets, [1.0], 100, 3)
    plan.batches(0)
    assert contents(plan.batches(5)) == batches(3, 5), "what was asked before does not matter"
    assert len({str(batches(*key)) for key in ((3, 5), (3, 6), (4, 5), (5, 3))}) == 4


def test_batch_order_is_not_sorted_by_length(tmp_path: Path) -> None:
    dataset = make(tmp_path, 500)
    lengths = [
        int(dataset.source_lengths[batch.index].max()) for batch in EpochPlan([dataset], [1.0], 100, 1).batches(0)
    ]
    rises = sum(a < b for a, b in pairwise(lengths))
    assert 0.3 < rises / len(lengths) < 0.6


def test_the_order_of_recorded_runs(tmp_path: Path) -> None:
    """Golden: another order would make the runs that docs/records/experiments.md records impossible to repeat."""
    datasets = [make(tmp_path / "a", 400), make(tmp_path / "b", 150, 1)]
    digest = hashlib.sha256()
    for weights in ([1.0, 1.0], [2.25, 0.5]):
        for epoch in (0, 3):
            for batch in EpochPlan(datasets, weights, 300, 7).batches(epoch):
                digest.update(batch.dataset.tobytes() + b"|" + batch.index.tobytes() + b"\n")
    assert digest.hexdigest() == "8ae75300bf1693669558905a489fc61c4595fb7d47ea3ce6870648a60a8ab22a"


def test_an_epoch_is_a_sequence(tmp_path: Path) -> None:
    epoch = EpochPlan([make(tmp_path, 300)], [1.0], 150, seed=3).batches(0)
    whole = contents(list(epoch))
    assert contents(epoch[3:7]) == whole[3:7] and contents([epoch[-1]]) == whole[-1:]


def test_nothing_to_plan(tmp_path: Path) -> None:
    assert list(EpochPlan([make(tmp_path, 0)], [1.0], 100, seed=1).batches(0)) == []
    with pytest.raises(ValueError, match="weights"):
        EpochPlan([Dataset(tmp_path)], [], 100, seed=1)


def test_collated_tensors_equal_naive_padding(tmp_path: Path) -> None:
    datasets = [make(tmp_path / "a", 60, name="first"), make(tmp_path / "b", 60, 1, name="second")]
    for index_batch in EpochPlan(datasets, [1.0, 1.0], 400, seed=1).batches(0):
        batch = collate(datasets, index_batch)
        rows = list(zip(index_batch.dataset.tolist(), index_batch.index.tolist(), strict=True))
        sources = [datasets[d].source(i).tolist() for d, i in rows]
        targets = [datasets[d].target(i).tolist() for d, i in rows]

        def padded(lists: list[list[int]]) -> list[list[int]]:
            longest = max(map(len, lists))
            return [row + [PAD] * (longest - len(row)) for row in lists]

        assert batch.source.tolist() == padded(sources)
        assert batch.source_valid.tolist() == [[id_ != PAD for id_ in row] for row in padded(sources)]
        assert batch.target_output.tolist() == padded(targets)
        assert batch.target_valid.tolist() == [[id_ != PAD for id_ in row] for row in padded(targets)]
        assert batch.target_input.tolist() == padded([[BOS, *row[:-1]] for row in targets])
        assert batch.features["double"].tolist() == padded([[2 * id_ for id_ in row] for row in sources])
        assert batch.features["place"].tolist() == padded([list(range(1, len(row) + 1)) for row in sources])
        assert batch.source_tokens == sum(map(len, sources))
        assert batch.target_tokens == sum(map(len, targets))
        assert batch.corpus == tuple(datasets[d].name for d, _ in rows)
        assert batch.indices == tuple(i for _, i in rows)
        tensors = (batch.source, batch.target_input, batch.target_output, *batch.features.values())
        assert all(tensor.dtype == torch.int64 for tensor in tensors)
        assert batch.source_valid.dtype == batch.target_valid.dtype == torch.bool


def test_moving_keeps_everything(tmp_path: Path) -> None:
    dataset = make(tmp_path, 10)
    batch = collate([dataset], EpochPlan([dataset], [1.0], 1000, 1).batches(0)[0])
    moved = batch.to(torch.device("meta"))
    assert {moved.source.device.type, moved.features["place"].device.type, moved.target_valid.device.type} == {"meta"}
    assert (moved.target_tokens, moved.source_tokens) == (batch.target_tokens, batch.source_tokens)
    assert (moved.sentences, moved.indices) == (batch.sentences, batch.indices)


def test_padding() -> None:
    values, valid = pad([[5, 6], np.array([7], dtype=np.uint16), []])
    assert values.tolist() == [[5, 6], [7, PAD], [PAD, PAD]]
    assert valid.tolist() == [[True, True], [True, False], [False, False]]
    assert values.dtype == torch.int64
    assert pad([])[0].shape == (0, 0)
    assert pad([[EOS]])[0].tolist() == [[EOS]]


@given(st.lists(st.integers(0, 60)), st.integers(1, 200))
def test_length_batches(lengths: list[int], batch_tokens: int) -> None:
    batches = length_batches(lengths, batch_tokens)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    tops = []
    for batch in batches:
        top = max(lengths[number] for number in batch)
        assert len(batch) * top <= batch_tokens or len(batch) == 1
        tops.append(top)
    assert tops == sorted(tops, reverse=True)
