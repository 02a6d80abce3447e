"""Training sentences are divided anew in every epoch: by seed, epoch and line, ahead of the updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sparsenmt.data.batching import Batch, EpochPlan, collate
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.tokenizers.frame import NO_FRAMES
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.data.tokenizers.subword_sampler import MergeDropout
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import (
    Data,
    Filters,
    ModelSection,
    Recipe,
    SubwordRegularization,
    SubwordSampling,
    TokenizerSection,
)
from sparsenmt.training.sentence_pairs import PairBatches, TranslationTask
from sparsenmt.workflows.training.train import _division
from tests.examples import examples
from tests.training.interrupting import Moments, Runs, assert_same, outcome
from tests.training.support import PIECES, dataset_of, pairs, small_model, training_options

LETTERS = "abcdefgh"
MERGES = ["ab", "cd", "abcd", "ef", "gh"]
NAMES = ["", "", "", "", *LETTERS, *MERGES]
LONG, FIRST = NAMES.index("abcd"), 4
OPTIONS = training_options(
    max_updates=15,
    batch_tokens=40,
    accumulate_tokens=80,
    log_every=2,
    save_every=4,
    schedule="constant",
    validation={"every": 5, "metric": "loss"},
)


def division(seed: int = 1, **others: int) -> SampledDivision:
    scores = [-float(MERGES.index(name)) if name in MERGES else 0.0 for name in NAMES]
    sampler = MergeDropout(NAMES, scores, 0.5)
    return SampledDivision((sampler, sampler), seed, **others)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    assert len(NAMES) == PIECES
    rows = [([LONG, *source], target) for source, target in pairs(60, longest=6)]
    return dataset_of(tmp_path_factory.mktemp("data"), rows)


def text(ids: Sequence[int]) -> str:
    return "".join(NAMES[id_] or f"<{id_}>" for id_ in ids)


def task_of(dataset: Dataset, workers: Workers, sampled: SampledDivision | None) -> TranslationTask:
    model = small_model(dtype=torch.float32)
    plan = EpochPlan([dataset], [1.0], OPTIONS.batch_tokens, OPTIONS.seed)
    return TranslationTask(model, [dataset], plan, OPTIONS, workers, torch.device("cpu"), division=sampled)


def rows_of(batches: Sequence[Batch]) -> dict[int, tuple[list[int], list[int]]]:
    found = {}
    for batch in batches:
        for row, index in enumerate(batch.indices):
            source = batch.source[row][batch.source_valid[row]].tolist()
            target = batch.target_output[row][batch.target_valid[row]].tolist()
            found[index] = source, target
    return found


def epoch_of(task: TranslationTask, epoch: int) -> list[PairBatches]:
    step, count = task.batches_per_update, task.count_batches(epoch)
    return [task.read(epoch, first, min(first + step, count)) for first in range(0, count, step)]


def test_sentences_keep_their_text_and_change_their_tokens_in_every_epoch(dataset: Dataset) -> None:
    task = task_of(dataset, Workers(), division())
    found = [rows_of([batch for read in epoch_of(task, epoch) for batch in read._batches]) for epoch in (0, 1, 0)]
    assert found[0] == found[2] != found[1] and len(found[0]) == len(dataset)
    for index, sides in found[0].items():
        for ids, own in zip(sides, (dataset.source(index), dataset.target(index)), strict=True):
            assert ids[-1] == EOS and text(ids) == text(own.tolist())
    other = rows_of(
        [batch for read in epoch_of(task_of(dataset, Workers(), division(2)), 0) for batch in read._batches]
    )
    assert other != found[0]
    plain = rows_of([batch for read in epoch_of(task_of(dataset, Workers(), None), 0) for batch in read._batches])
    assert all(plain[i][0] == dataset.source(i).tolist() for i in plain)


def test_processes_agree_on_the_tokens_of_a_line(dataset: Dataset) -> None:
    alone = task_of(dataset, Workers(), division())
    together = [task_of(dataset, Workers(rank, 3), division()) for rank in range(3)]
    own = rows_of([batch for read in epoch_of(alone, 2) for batch in read._batches])
    shared: dict[int, tuple[list[int], list[int]]] = {}
    for task in together:
        shared |= rows_of([batch for read in epoch_of(task, 2) for batch in read._batches])
    assert shared == own


def test_what_was_read_ahead_is_what_would_be_read_now(dataset: Dataset) -> None:
    """Whatever order the updates are read in, as after a signal, which repeats one."""
    task = task_of(dataset, Workers(), division())
    step = task.batches_per_update
    wanted = [rows_of(read._batches) for read in epoch_of(task, 0)]
    for number in (0, 1, 1, 3, 0, 1):
        read = task.read(0, number * step, min((number + 1) * step, task.count_batches(0)))
        assert rows_of(read._batches) == wanted[number]


@examples(("place", "number"), [("batch", 14), ("validation", 2), ("saved", 2)])
def test_a_stopped_run_continues_with_the_same_tokens(
    tmp_path: Path, dataset: Dataset, place: str, number: int
) -> None:
    runs = Runs(dataset, OPTIONS, division=division())
    whole = runs.start(tmp_path / "whole")
    assert whole.progress.epoch >= 1
    with pytest.raises(Interrupted):
        runs.start(tmp_path / "stopped", Moments(place, number))
    runs.start(tmp_path / "stopped")
    assert_same(outcome(tmp_path / "stopped"), outcome(tmp_path / "whole"))
    Runs(dataset, OPTIONS).start(tmp_path / "plain")
    assert outcome(tmp_path / "plain")["tensors"] != outcome(tmp_path / "whole")["tensors"]


def test_a_batch_that_grows_beyond_its_limit_is_divided_and_loses_nothing(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, [([LONG] * 4, [LONG] * 4)] * 24)
    task = task_of(dataset, Workers(), division())
    reads = epoch_of(task, 0)
    plain = epoch_of(task_of(dataset, Workers(), None), 0)
    for read, before in zip(reads, plain, strict=True):
        assert sorted(rows_of(read._batches)) == sorted(rows_of(before._batches))
        assert len(read._batches) > len(before._batches) and read.totals.sentences == before.totals.sentences
        for batch in read._batches:
            size = batch.sentences * max(batch.source.shape[1], batch.target_output.shape[1])
            assert batch.sentences == 1 or size <= 1.25 * OPTIONS.batch_tokens


def test_sources_are_cut_and_long_sentences_keep_their_tokens(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, [([LONG] * 4, [LONG] * 4)] * 20)
    batch = EpochPlan([dataset], [1.0], 1000, 1).batches(0)[0]
    cut = collate([dataset], batch, division=dataclasses.replace(division(), cut=5))
    assert cut.source.shape[1] == 6 < cut.target_output.shape[1]
    kept = collate([dataset], batch, division=dataclasses.replace(division(), longest=4))
    assert kept.source.tolist() == [dataset.source(0).tolist()] * 20


def test_what_cannot_be_sampled_is_refused_before_training(tmp_path: Path) -> None:
    """A method that reads a feature of each source token, and a tokenizer without subwords."""
    chosen = SubwordRegularization(source=SubwordSampling(dropout=0.1))
    data = Data.model_construct(subword_regularization=chosen, filters=Filters(max_source_length=9))
    recipe = Recipe.model_construct(data=data, model=ModelSection(positions="learned", max_positions=30))
    recipe = recipe.model_copy(update={"training": OPTIONS})
    options = TokenizerSection(kind="char", vocabulary_size=20)
    tokenizers = Tokenizers(*[train_tokenizer(options, iter(["abc"]))] * 2, shared=True)
    prepared = SimpleNamespace(features=SimpleNamespace(names=("word_id",)), tokenizers=tokenizers)
    with pytest.raises(UserError, match="read word_id of the source's tokens") as caught:
        _division(recipe, prepared, NO_FRAMES)  # type: ignore[arg-type]
    assert caught.value.where == "data.subword_regularization.source"
    prepared.features.names = ()
    with pytest.raises(UserError, match="no SentencePiece model of BPE, but of another kind"):
        _division(recipe, prepared, NO_FRAMES)  # type: ignore[arg-type]
    options = TokenizerSection(kind="bpe", vocabulary_size=12)
    prepared.tokenizers = Tokenizers(*[train_tokenizer(options, iter(["abc ab abc cab"]))] * 2, shared=True)
    made = _division(recipe, prepared, NO_FRAMES)  # type: ignore[arg-type]
    assert made is not None and (made.longest, made.cut, made.samplers[1]) == (29, 9, None)
    plain = recipe.model_copy(update={"data": data.model_copy(update={"subword_regularization": None})})
    assert _division(plain, prepared, NO_FRAMES) is None  # type: ignore[arg-type]
