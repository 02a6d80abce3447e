"""Training on segments: gradients, the memory of the streams, and what is carried from one update to the next."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.streams import StreamPlan
from sparsenmt.data.text_dataset import TextDataset, TextWriter
from sparsenmt.data.tokenizers.tokenizer import Tokenizer
from sparsenmt.errors import UserError
from sparsenmt.model.segment_memory import SegmentMemory
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.schema import AuxiliaryLoss, Training
from sparsenmt.training import segments
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.failures import describe_ranges
from sparsenmt.training.gradients import BatchLosses, Objective, UpdateTotals
from sparsenmt.training.loop import Trainer, Validate
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.segments import LanguageModelTask, accumulate_segment_gradients
from tests.examples import examples
from tests.model.support import TARGET_SIZE, random_model
from tests.training.interrupting import Killed, Moments, Runs, assert_same, kill, outcome
from tests.training.support import Script, gradients, training_options
from tests.training.threads import Meeting, run_threads

STREAMS, LENGTH, SEGMENTS = 4, 6, 5
SPAN = {"name": "adaptive_span", "maximum": 7, "ramp": 3, "init": 0.3}
SITE = {"position": {"name": "transformer_xl"}, "span": SPAN, "transform": {"name": "topk", "k": 4}}
ROUTING = {
    "pattern": {"name": "routing", "clusters": 3, "local": 2, "window": 3},
    "position": {"name": "transformer_xl"},
}
LOSSES = {"span": AuxiliaryLoss(weight=0.05)}
OPTIONS = training_options(
    streams=STREAMS,
    segment_length=LENGTH,
    batch_tokens=3 * LENGTH,  # batches of three streams and of one
    max_updates=13,  # two epochs and a half
    save_every=4,
    keep_last=99,
    schedule="constant",
    validation={"every": 3, "metric": "loss"},
)


class Numbers:
    """A tokenizer whose tokens are numbers."""

    size = TARGET_SIZE

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in lines]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextDataset:
    """A few tokens more than five segments of four streams, in short lines."""
    draw, directory = random.Random(1), tmp_path_factory.mktemp("text")
    tokenizer: Tokenizer = Numbers()  # type: ignore[assignment]
    with TextWriter(directory, name="books", tokenizer=tokenizer) as writer:
        while writer.counts.tokens < SEGMENTS * STREAMS * LENGTH:
            writer.append([LinePart(" ".join(str(draw.randrange(4, TARGET_SIZE)) for _ in range(draw.randrange(4))))])
    return TextDataset(directory)


def language_model(
    seed: int = 1, dtype: torch.dtype = torch.float32, site: dict[str, Any] = SITE, dropout: float = 0.0, **keys: Any
) -> Transformer:
    shape = {"encoder_layers": 0, "tie_embeddings": "all", "positions": "none", "segment_memory": 9}
    parts = {"residual": dropout, "attention": dropout, "activation": dropout}
    model = random_model(dtype, seed, attention={"decoder_self": site}, dropout=parts, **{**shape, **keys})
    with torch.no_grad():
        for name, (low, high) in model.bounds().items():
            model.get_parameter(name).clamp_(low, high)
    return model


def make_trainer(
    directory: Path,
    text: TextDataset,
    options: Training = OPTIONS,
    *,
    model: Transformer | None = None,
    validate: Validate | None = None,
    workers: Workers | None = None,
    dtype: torch.dtype = torch.float32,
) -> Trainer:
    directory.mkdir(parents=True, exist_ok=True)
    model, workers, device = model or language_model(), workers or Workers(), torch.device("cpu")
    plan = StreamPlan([text], [1.0], options.streams, options.segment_length, options.seed)
    return Trainer(
        model,
        MasterWeights(model, dtype),
        LanguageModelTask(model, plan, options, workers, device),
        options,
        losses=LOSSES if model.parameter_losses() else {},
        directory=directory,
        validate=validate or Script([1.0]),
        workers=workers,
        device=device,
    )


def task_of(trainer: Trainer) -> LanguageModelTask:
    assert isinstance(trainer.task, LanguageModelTask)
    return trainer.task


@dataclass(frozen=True)
class StreamRuns(Runs):
    """`Runs` of a language model."""

    text: TextDataset | None = None

    def trainer(self, directory: Path, moments: Moments, seed: int = 1, **options: object) -> Trainer:
        assert self.text is not None
        torch.manual_seed(seed)
        return make_trainer(
            directory,
            self.text,
            Training.model_validate({**self.options.model_dump(), **options}),
            model=language_model(seed, dropout=0.2),
            validate=moments.validate,
            dtype=self.dtype,
        )


def runs_of(text: TextDataset, options: Training = OPTIONS, dtype: torch.dtype = torch.float32) -> StreamRuns:
    return StreamRuns(None, options, dtype, text=text)  # type: ignore[arg-type]


def lines(directory: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_bytes().splitlines()]
    return [line for line in found if line["kind"] == kind]


# --- gradients ---------------------------------------------------------------------------------------------------


def tokens(rows: int, seed: int) -> Tensor:
    return torch.randint(4, TARGET_SIZE, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("depth", [{}, {"name": "tied_multi"}])
@pytest.mark.parametrize("normalization", ["tokens", "sentences"])
def test_gradients_are_those_of_the_definition(normalization: Any, depth: dict[str, str]) -> None:
    """The mean over tokens, and over pairs of exits, of the smoothed cross-entropy; also in two batches."""
    keys: dict[str, Any] = {"depth": depth} if depth else {}
    model = language_model(dtype=torch.float64, **keys).train()
    first, inputs, targets = tokens(3, 1), tokens(3, 2), tokens(3, 3)
    _, before = model.read_segment(first)
    exits = model.plan.decoder_exits
    assert len(exits) == (2 if depth else 1)
    hidden, _ = model.read_segment(inputs, before, exits=exits)
    losses = [
        F.cross_entropy(model.project(hidden[m]).flatten(0, 1), targets.flatten(), label_smoothing=0.1) for m in exits
    ]
    expected = torch.stack(losses).mean()
    expected.backward()
    wanted = gradients(model)
    model.zero_grad()
    totals = UpdateTotals(3 * LENGTH, 0, 3)
    objective = Objective(0.1, normalization, {})
    results = []
    for rows in (slice(0, 2), slice(2, 3)):
        result, _ = accumulate_segment_gradients(
            model, inputs[rows], targets[rows], before.select(rows), objective, totals
        )
        results.append(result)
    assert sum(result.loss for result in results) == pytest.approx(float(expected.detach()), rel=1e-12)
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        nll = [F.cross_entropy(model.project(hidden[m]).flatten(0, 1), targets.flatten()) for m in exits]
    assert sum(result.nll for result in results) == pytest.approx(3 * LENGTH * float(torch.stack(nll).mean()))


def test_memory_passes_no_gradient() -> None:
    model = language_model(dtype=torch.float64).train()
    totals, objective = UpdateTotals(2 * LENGTH, 0, 2), Objective(0.0, "tokens", {})
    _, before = accumulate_segment_gradients(model, tokens(2, 1), tokens(2, 2), None, objective, totals)
    leaves = tuple(each.clone().requires_grad_() for each in before.states)
    assert not any(each.requires_grad for each in before.states) and all(each.shape[1] for each in leaves)
    _, after = accumulate_segment_gradients(
        model, tokens(2, 3), tokens(2, 4), SegmentMemory(leaves, LENGTH), objective, totals
    )
    assert all(each.grad is not None for each in leaves), "this one asked for it"
    assert not any(each.requires_grad for each in after.states)


def test_batches_do_not_change_an_update(tmp_path: Path, text: TextDataset) -> None:
    """In float64: one batch of all streams, and batches of three and one; the memory, too, with a loss of spans."""
    trainers = []
    for name, rows in (("one", STREAMS), ("two", 3), ("four", 1)):
        options = OPTIONS.model_copy(update={"batch_tokens": rows * LENGTH, "max_updates": 9, "log_every": 1})
        trainers.append(make_trainer(tmp_path / name, text, options, model=language_model(dtype=torch.float64)))
        trainers[-1].run()
    one, *others = trainers
    assert len(task_of(one).memory) == 1 and [len(task_of(other).memory) for other in others] == [2, 4]
    for other in others:
        for name, value in one.weights.state().items():
            torch.testing.assert_close(other.weights.state()[name], value, rtol=1e-7, atol=1e-9)
        found, wanted = task_of(other).state(), task_of(one).state()
        assert found.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-7, atol=1e-9)
        for mine, theirs in zip(lines(other.directory, "train"), lines(one.directory, "train"), strict=True):
            for key in ("loss", "nll", "span", "gradient_norm"):
                assert mine[key] == pytest.approx(theirs[key], rel=1e-9)


# --- memory ------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_streams(tmp_path: Path, text: TextDataset) -> None:
    """With weights that stay: after every update it is what reading the streams from the epoch's beginning leaves."""
    options = OPTIONS.model_copy(update={"learning_rate": 1e-30, "schedule": "constant", "max_updates": 8})
    model = language_model(dtype=torch.float64).train()
    trainer = make_trainer(tmp_path, text, options, model=model)
    task, seen = task_of(trainer), []
    complete = segments.SegmentBatches.complete

    def look(self: segments.SegmentBatches, *, skipped: bool) -> None:
        complete(self, skipped=skipped)
        seen.append(task.state())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments.SegmentBatches, "complete", look)
        trainer.run()
    for update, state in enumerate(seen):
        epoch, number = divmod(update, SEGMENTS)
        if number == SEGMENTS - 1:
            assert state == {}, "an epoch begins without memory"
            continue
        memory: SegmentMemory | None = None
        for segment in task.plan.batches(epoch)[: number + 1]:
            _, memory = model.read_segment(segment.read()[0], memory)
        assert memory is not None and state["length"] == (number + 1) * LENGTH
        for name, value in memory.tensors().items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-12)


def test_a_run_that_takes_over_begins_without_memory(tmp_path: Path, text: TextDataset) -> None:
    make_trainer(tmp_path / "first", text).run()
    checkpoint = find_checkpoints(tmp_path / "first")[-1]
    assert checkpoint.streams() and checkpoint.progress().batches_done
    other = make_trainer(tmp_path / "second", text, OPTIONS.model_copy(update={"max_updates": 15}))
    other.take_over(checkpoint)
    assert task_of(other).state() == {} and other.progress.batches_done == 0
    other.run()
    assert find_checkpoints(tmp_path / "second")[-1].update == 15


# --- interruptions -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, dict[str, Any]]:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        directory = tmp_path_factory.mktemp("undisturbed")
        progress = runs_of(text, dtype=dtype).start(directory).progress
        assert progress.epoch == 2 and progress.batches_done
        found[dtype] = outcome(directory)
    return found


def test_the_cases_are_hard_enough(undisturbed: dict[torch.dtype, dict[str, Any]]) -> None:
    """Most checkpoints are in the middle of the streams; one is at the end of an epoch."""
    found = undisturbed[torch.float32]
    places = [each["batches_done"] for each in found["progress"]]
    assert [len(tensors) for tensors in found["tensors"]] == [4 if place else 3 for place in places]
    assert len(places) > 4 and sum(map(bool, places)) > 3


@examples(
    ("place", "number", "dtype"),
    [
        ("batch", 2, torch.float32),  # nothing was done: it begins anew
        ("batch", 6, torch.float32),  # between the batches of an update
        ("batch", 6, torch.bfloat16),
        ("step", 7, torch.float32),
        ("step", 10, torch.float32),  # in the last update of an epoch
        ("batch", 11, torch.float32),  # in the first one of the next
        ("validation", 3, torch.float32),
        ("file", 7, torch.float32),
    ],
)
def test_a_signal_at_a_chosen_moment(
    tmp_path: Path,
    text: TextDataset,
    undisturbed: dict[torch.dtype, dict[str, Any]],
    place: str,
    number: int,
    dtype: torch.dtype,
) -> None:
    runs = runs_of(text, dtype=dtype)
    with pytest.raises(Interrupted):
        runs.start(tmp_path, Moments(place, number))
    runs.start(tmp_path)
    assert_same(outcome(tmp_path), undisturbed[dtype])


@examples(("place", "number"), [("batch", 14), ("file", 7), ("rename", 2)])
def test_a_kill_at_a_chosen_moment(
    tmp_path: Path, text: TextDataset, undisturbed: dict[torch.dtype, dict[str, Any]], place: str, number: int
) -> None:
    runs = runs_of(text)
    with pytest.raises(Killed):
        runs.start(tmp_path, Moments(place, number, kill))
    runs.start(tmp_path)
    assert_same(outcome(tmp_path), undisturbed[torch.float32])


def test_a_chain_of_stops(tmp_path: Path, text: TextDataset, undisturbed: dict[torch.dtype, dict[str, Any]]) -> None:
    stops = [Moments("batch", 8), Moments("step", 5, kill), Moments("batch", 4), Moments("save", 1, kill)]
    _, stopped = runs_of(text).chain(tmp_path, stops)
    assert stopped == 4
    assert_same(outcome(tmp_path), undisturbed[torch.float32])


@dataclass
class BadBatch:
    """Makes batches of some numbers, counted from 1 over runs, give a loss that is not finite."""

    numbers: frozenset[int]
    seen: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        clean = segments.accumulate_segment_gradients

        def poisoned(model: Transformer, inputs: Tensor, *rest: Any) -> tuple[BatchLosses, SegmentMemory]:
            key = tuple(inputs.flatten().tolist())  # the same batch when it is repeated
            number = self.seen.setdefault(key, len(self.seen) + 1)
            result, after = clean(model, inputs, *rest)
            if number not in self.numbers:
                return result, after
            states = tuple(torch.full_like(each, math.nan) for each in after.states)
            return dataclasses.replace(result, loss=torch.tensor(math.nan)), SegmentMemory(states, after.length)

        patch.setattr(segments, "accumulate_segment_gradients", poisoned)


@examples("number", [4, 3, 5, 6, 7])
def test_a_skipped_update_leaves_no_memory(tmp_path: Path, text: TextDataset, number: int) -> None:
    """The next segment does not follow the one before; and wherever the run is stopped around, it goes on the same."""
    runs = runs_of(text, OPTIONS.model_copy(update={"skip_nonfinite": 9, "save_every": 1, "seed": 2}))
    with pytest.MonkeyPatch.context() as patch:
        BadBatch(frozenset({5})).watch(patch)
        trainer = runs.start(tmp_path / "whole")
    assert trainer.progress.skipped == 1
    assert all(torch.isfinite(value).all() for value in trainer.weights.state().values())
    (line,) = lines(tmp_path / "whole", "skipped")
    assert re.fullmatch(r"books, lines [\d, -]+ \(\d+ in all\)", line["lines"])
    third = next(each for each in find_checkpoints(tmp_path / "whole") if each.update == 3)
    assert int(third.streams()["0/length"]) == LENGTH, "the third update is the fourth segment"
    with pytest.MonkeyPatch.context() as patch:
        BadBatch(frozenset({5})).watch(patch)
        with pytest.raises(Interrupted):
            runs.start(tmp_path / "stopped", Moments("batch", number))
        runs.start(tmp_path / "stopped")
    stopped, whole = outcome(tmp_path / "stopped"), outcome(tmp_path / "whole")
    for part in ("metrics", "checkpoints", "interim"):
        assert stopped[part] == whole[part]
    # A checkpoint after a skipped update replaces the one before, which has the same weights.
    assert [tensors[:2] for tensors in stopped["tensors"]] == [tensors[:2] for tensors in whole["tensors"]]
    assert stopped["progress"][2:] == whole["progress"][2:] and stopped["tensors"][2:] == whole["tensors"][2:]


def test_too_many_skipped_updates(tmp_path: Path, text: TextDataset) -> None:
    with pytest.MonkeyPatch.context() as patch:
        BadBatch(frozenset({2})).watch(patch)
        with pytest.raises(UserError, match="the loss is nan") as caught:
            make_trainer(tmp_path, text).run()
    assert caught.value.where is not None and caught.value.where.startswith("books, lines ")


# --- losses, bounds and patterns ---------------------------------------------------------------------------------


def test_losses_of_parameters_are_added_once_an_update(tmp_path: Path, text: TextDataset) -> None:
    options = OPTIONS.model_copy(
        update={"max_updates": 1, "log_every": 1, "clip_norm": None, "batch_tokens": LENGTH, "label_smoothing": 0.0}
    )
    found = {}
    for weight in (0.0, 3.0):
        model = language_model(dtype=torch.float64)
        trainer = make_trainer(tmp_path / str(weight), text, options, model=model)
        trainer.losses = {"span": AuxiliaryLoss(weight=weight)}
        seen: dict[str, Tensor] = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.optimizer, "step", lambda seen=seen, model=model: seen.update(gradients(model)))
            value = float(model.parameter_losses()["span"].detach())
            trainer.run()
        (line,) = lines(tmp_path / str(weight), "train")
        assert line["span"] == pytest.approx(value) and line["span_weight"] == weight
        assert line["loss"] == pytest.approx(line["nll"] + weight * value)
        assert not any(key.startswith(("span_closed", "span_open", "span_partial")) for key in line)
        found[weight] = seen
    for name, gradient in found[3.0].items():
        expected = found[0.0][name]
        if name.endswith("span.share"):
            expected = expected + 3.0 * SPAN["maximum"] / 4  # type: ignore[operator]
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [0.0, 30.0])
def test_bounded_parameters_stay_within_their_bounds(
    tmp_path: Path, text: TextDataset, weight: float, dtype: torch.dtype
) -> None:
    options = OPTIONS.model_copy(update={"learning_rate": 0.3, "warmup_updates": 0, "max_updates": 6})
    model = language_model()
    trainer = make_trainer(tmp_path, text, options, model=model, dtype=dtype)
    trainer.losses = {"span": AuxiliaryLoss(weight=weight)}
    trainer.run()
    shares = {name: value for name, value in trainer.weights.state().items() if name in model.bounds()}
    assert len(shares) == 2
    for name, value in shares.items():
        assert float(value.min()) >= 0.0 and float(value.max()) <= 1.0
        assert torch.equal(model.get_parameter(name).to(value.dtype), value), "the model has them too"
    assert any(float(value.min()) == 0.0 or float(value.max()) == 1.0 for value in shares.values())


def test_patterns_follow_complete_updates_only(tmp_path: Path, text: TextDataset) -> None:
    """Centroids have no gradient, no moments and no decay; a skipped update does not move them."""
    options = OPTIONS.model_copy(update={"skip_nonfinite": 9, "max_updates": 3, "save_every": 1, "log_every": 1})
    model = language_model(site=ROUTING)
    (first, *_) = names = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert len(names) == 2
    start = model.get_parameter(first).detach().clone()
    trainer = make_trainer(tmp_path, text, options, model=model)
    moved: list[Tensor] = []
    complete = segments.SegmentBatches.complete

    def look(self: segments.SegmentBatches, *, skipped: bool) -> None:
        complete(self, skipped=skipped)
        moved.append(model.get_parameter(first).detach().clone())

    with pytest.MonkeyPatch.context() as patch:
        BadBatch(frozenset({3})).watch(patch)
        patch.setattr(segments.SegmentBatches, "complete", look)
        trainer.run()
    assert [torch.equal(a, b) for a, b in zip([start, *moved], moved, strict=False)] == [False, True, False, False]
    last = find_checkpoints(tmp_path)[-1]
    assert torch.equal(last.weights()[first], model.get_parameter(first))
    assert not any(name.startswith(first) for name in last.optimizer())


# --- several processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", [SITE, ROUTING], ids=["spans", "routing"])
def test_workers_share_the_streams(tmp_path: Path, text: TextDataset, site: dict[str, Any]) -> None:
    """In float64, as one process; and they go on from a checkpoint, each with its own memory."""
    options = OPTIONS.model_copy(update={"log_every": 1, "max_updates": 9, "batch_tokens": LENGTH})

    def trainer(name: str, workers: Workers) -> Trainer:
        model = language_model(dtype=torch.float64, site=site)
        return make_trainer(tmp_path / name, text, options, model=model, workers=workers)

    alone = trainer("alone", Workers())
    alone.run()
    together = [trainer("together", workers) for workers in Meeting.of(2)]
    run_threads(together)
    for other in together:
        assert other.progress.update == alone.progress.update == 9
        for name, value in alone.weights.state().items():
            torch.testing.assert_close(other.weights.state()[name], value, rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(lines(tmp_path / "together", "train"), lines(tmp_path / "alone", "train"), strict=True):
        for key in {"loss", "nll", "gradient_norm", "span"} & theirs.keys():
            assert mine[key] == pytest.approx(theirs[key], rel=1e-6)
    middle = next(each for each in find_checkpoints(tmp_path / "together") if each.update == 8)
    assert {name.partition("/")[0] for name in middle.streams()} == {"0", "1"}
    again = [trainer("again", workers) for workers in Meeting.of(2)]
    for each in again:
        each.restore(middle)
    own = [task_of(each).state()["states.1"] for each in again]
    assert own[0].shape[0] == own[1].shape[0] == STREAMS // 2 and not torch.equal(*own)
    run_threads(again)
    for each, other in zip(again, together, strict=True):
        for name, value in other.weights.state().items():
            assert torch.equal(each.weights.state()[name], value), name
    # Another number of processes: each takes over the memory of its streams.
    single = trainer("single", Workers())
    single.restore(middle)
    single.run()
    start = next(each for each in find_checkpoints(tmp_path / "alone") if each.update == 4)
    more = [trainer("more", workers) for workers in Meeting.of(4)]
    for each in more:
        each.restore(start)
    run_threads(more)
    for each in (single, *more):
        assert each.progress.update == 9
        for name, value in alone.weights.state().items():
            torch.testing.assert_close(each.weights.state()[name], value, rtol=1e-6, atol=1e-8)


def test_streams_that_the_processes_do_not_divide(tmp_path: Path, text: TextDataset) -> None:
    with pytest.raises(UserError, match="4 streams cannot be divided among 3 processes"):
        make_trainer(tmp_path, text, workers=Workers(1, 3))


# --- errors ------------------------------------------------------------------------------------------------------


def test_out_of_memory_names_the_batch_and_the_key(
    tmp_path: Path, text: TextDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accumulate(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(segments, "accumulate_segment_gradients", accumulate)
    with pytest.raises(UserError, match=r"out of memory in a batch of 3 segments of 6 tokens") as caught:
        make_trainer(tmp_path, text).run()
    assert caught.value.where == "training.batch_tokens"


def test_lines_of_a_segment_are_counted_in_its_text(text: TextDataset) -> None:
    plan = StreamPlan([text], [1.5], STREAMS, LENGTH, seed=3)
    ends = (text.ids == 3).cumsum()
    for segment in plan.batches(0):
        for row in range(STREAMS):
            _, targets = segment.read(row, row + 1)
            read = [list(range(first, last)) for _, first, last in segment.ranges(row, row + 1)]
            places = [place for part in read for place in part]
            assert text.ids[places].tolist() == targets[0].tolist()
            told = describe_ranges(segment.ranges(row, row + 1))
            wanted = {int(ends[place]) + (text.ids[place] != 3) for place in places}
            assert told.endswith(f"({len(wanted)} in all)")
