"""Train a model on prepared data: the run directory, the trainer with its validation, and the final weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import starting_weights
from sparsenmt.assemble.checks import (
    check_frozen_losses,
    check_losses,
    check_training_memory,
    filters_without_loss,
    load_recipe,
)
from sparsenmt.assemble.estimates import without_gain
from sparsenmt.assemble.model import build_model, choose_trained
from sparsenmt.assemble.model_card import write_model_card
from sparsenmt.data.batching import EpochPlan
from sparsenmt.data.corpus_mixture import CorpusMixture
from sparsenmt.data.prepared_data import PreparedData, PreparedText
from sparsenmt.data.streams import StreamPlan
from sparsenmt.data.text import StrPath
from sparsenmt.data.text_sides import TextSides
from sparsenmt.data.tokenizers.frame import NO_FRAMES, FramePair
from sparsenmt.data.tokenizers.sampled_division import SampledDivision
from sparsenmt.engine.entmax_kernel import use_kernel
from sparsenmt.engine.numerics import numerics, numerics_changes
from sparsenmt.engine.training_operators import kept_kernels, use_training_operators
from sparsenmt.errors import UserError
from sparsenmt.evaluation.metrics import check_tokenizer
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.model.attention import record_cross_head
from sparsenmt.model.compiled_blocks import compile_blocks
from sparsenmt.model.first_batch import check_first_batch
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import deterministic_algorithms, pick_device, use_threads
from sparsenmt.process.interrupts import resumable
from sparsenmt.process.progress import notify
from sparsenmt.process.runtime import limit_kernel_caches
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.load import RecipeLike
from sparsenmt.recipe.resolve import Overrides
from sparsenmt.recipe.schema import Recipe
from sparsenmt.storage.files import directory_lock
from sparsenmt.storage.kept_work import describe_change
from sparsenmt.storage.tensors import read_header
from sparsenmt.training.checkpoints import Checkpoint, average_weights, clean_checkpoints, find_checkpoints
from sparsenmt.training.guided_alignment import GuidedHead
from sparsenmt.training.loop import Trainer, Validate
from sparsenmt.training.merge import merge_adapters
from sparsenmt.training.precision import MasterWeights, pick_dtype
from sparsenmt.training.segments import LanguageModelTask
from sparsenmt.training.sentence_pairs import TranslationTask
from sparsenmt.training.state import Progress
from sparsenmt.training.task import TrainingTask
from sparsenmt.training.trackers import check_installed
from sparsenmt.training.training_log import truncate_log
from sparsenmt.training.validation import limit_reached, losses_without_target
from sparsenmt.workflows.training.checkpoint_choice import CheckpointChoice, choose, mean_sizes, warn_of_damage
from sparsenmt.workflows.training.prepare import open_data, sides_of, warn_of_missing_words
from sparsenmt.workflows.training.run_checks import (
    check_lengths,
    check_same_run,
    check_start,
    same_vocabularies,
    with_batch_size,
)
from sparsenmt.workflows.training.validation import make_validator, recorded_tokenizer, validation_scoring


@dataclass(frozen=True)
class StartingPoint:
    """The beginning of a run: the final weights of a model, or the whole state in a ``checkpoint`` of it."""

    directory: Path
    checkpoint: Checkpoint | None = None

    def record(self) -> dict[str, str]:
        """Return path and hash of the weights, for the manifest of the new model."""
        model_directory.read_manifest(self.directory)
        if self.checkpoint is None:
            return {"path": str(self.directory), "sha256": model_directory.weights_digest(self.directory)}
        path = self.checkpoint.path
        hint = "Take the checkpoint from a copy, or name another model."
        return {"path": str(path), "sha256": read_header(path / model_directory.WEIGHTS, hint=hint)[0]}


@dataclass(frozen=True)
class _RunDirectory:
    """A model directory that this process may write to.

    Args:
        newest: checkpoint to resume from; None: the run begins.
        changed: key, old and new value of what the recipe changes without making it another run.
        started_from: `StartingPoint.record` of the run.
    """

    path: Path
    newest: Checkpoint | None
    changed: list[tuple[str, Any, Any]]
    started_from: dict[str, str] | None

    def is_complete(self, recipe: Recipe) -> bool:
        """Return True if the recipe's last update is reached and the final weights are written."""
        if self.newest is None:
            return False
        progress = self.newest.progress()
        over = progress.finished and limit_reached(progress, recipe.training, recipe.losses)
        return bool(over) and model_directory.weights_after(self.path) == self.newest.update


def train(recipe: RecipeLike, overrides: Overrides = (), *, start: StartingPoint | StrPath | None = None) -> Path:
    """Train a model and write its final weights; resume a run that was interrupted.

    Args:
        recipe: its file, its keys and values, or what `load_recipe` returned: its `directory` becomes the model
            directory, its `data.directory` holds the prepared data.
        overrides: as for `load_recipe`: ``{"training.max_updates": 100}``.
        start: the model directory to begin with, or a point of its training; None: random weights.

    Returns:
        the model directory, for `load`.

    Raises:
        UserError: the data are not prepared as the recipe says, the directory belongs to another run, or training
            fails.
    """
    recipe = load_recipe(recipe, overrides)
    if start is not None and not isinstance(start, StartingPoint):
        start = StartingPoint(Path(start))
    use_threads(recipe.training.threads)
    device = pick_device(recipe.training.device)
    recipe = with_batch_size(recipe, device)
    options = recipe.training
    with resumable(), deterministic_algorithms(options.deterministic):
        workers = Workers.join(device)
        with workers.checked_together(device):
            data = _checked_data(recipe, workers, device)
        with workers.checked_together(device):
            check_same_run(
                recipe, data.fingerprint, None if start is None else start.record()["sha256"], workers, device
            )
        with _open_run(recipe, data.fingerprint, start, workers) as run:
            progress = None if run.newest is None else run.newest.progress()
            tell = notify if workers.is_main_process else lambda message: None
            scoring = validation_scoring(recipe, data, progress, tell)
            if run.newest is not None and run.is_complete(recipe):
                notify(f"{run.path}: the run ended after update {run.newest.update:,}; nothing is left to do")
                return run.path
            torch.manual_seed(options.seed + workers.rank)
            trainer = make_trainer(recipe, data, run.path, device, workers, None if run.newest else start, scoring)
            # Before the recipe is written: a faulty one would keep the directory from a corrected one.
            with workers.checked_together(device):
                if workers.is_main_process and not (run.newest and run.newest.progress().finished):
                    _try_validation(recipe, data, trainer, scoring)
            _begin_or_resume(run, recipe, data, trainer, start)
            workers.barrier()
            if not trainer.progress.finished:
                trainer.run()
                limit = limit_reached(trainer.progress, options, recipe.losses)
                if limit not in (None, "max_updates"):
                    tell(f"{run.path}: ends after update {trainer.progress.update:,}: training.{limit} is reached")
            if workers.is_main_process:
                finish(recipe, run.path, trainer.progress, trainer.validate)
            workers.barrier()  # the weights exist when the function returns, in every process
    return Path(recipe.directory)


def _try_validation(
    recipe: Recipe, data: PreparedData | PreparedText, trainer: Trainer, scoring: ScoringOptions
) -> None:
    """Validate a few sentences with the weights at hand: faults of a validation show before hours of training.

    What only a validation loads is then loaded before the memory of the first update. Random states do not change.
    """
    device = trainer.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        validate = make_validator(recipe, data, device, scoring, tried=True)
        validate(merge_adapters(trainer.weights.state()))


def _checked_data(recipe: Recipe, workers: Workers, device: torch.device) -> PreparedData | PreparedText:
    """Open the prepared data; UserError if the recipe cannot be trained on them."""
    check_installed(recipe.training.trackers if workers.is_main_process else ())
    data = open_data(recipe)
    if isinstance(data, PreparedData):
        check_lengths(recipe, data)
        _division(recipe, data, NO_FRAMES)  # refused before anything is written
        _mixture(recipe, data)
        if recipe.training.validation.tokenize is not None:
            check_tokenizer(recipe.training.validation.tokenize, "training.validation.tokenize")
    else:
        _streams(recipe, data).batches(0, workers.rank, workers.size)  # refused before anything is written
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    check_training_memory(recipe, **sizes, device=device)
    return data


@contextmanager
def _open_run(
    recipe: Recipe, fingerprint: str, start: StartingPoint | None, workers: Workers
) -> Iterator[_RunDirectory]:
    """Check, lock and yield the model directory, with the checkpoint to resume from; ``fingerprint``: of the data."""
    directory = Path(recipe.directory)
    record = None if start is None else start.record()
    digest = None if record is None else record["sha256"]

    check = partial(check_start, directory, recipe, fingerprint, digest)
    check(_newest_progress(directory))
    workers.barrier()  # every process has checked the directory before the first one writes to it
    with ExitStack() as stack:
        if workers.is_main_process:
            model_directory.make_directory(directory)
            stack.enter_context(directory_lock(directory, "trains in this directory"))
            for message in clean_checkpoints(directory):
                notify(f"warning: {message}")
        workers.barrier()
        changed = check(_newest_progress(directory))  # again: now no other run can write
        checkpoints = find_checkpoints(directory)
        yield _RunDirectory(directory, checkpoints[-1] if checkpoints else None, changed, record)


def _newest_progress(directory: Path) -> Progress | None:
    """Return the progress of the newest sound checkpoint, None if there is none, empty if all are damaged."""
    found = find_checkpoints(directory)
    for checkpoint in reversed(found):
        with suppress(UserError):
            return checkpoint.progress()
    return Progress() if found else None


def _text_sides(recipe: Recipe, data: PreparedData | PreparedText, start: StartingPoint | None) -> TextSides | None:
    """Return the sides of the training text, and of that of the model it starts from; of a language model its segments.

    None: a language model whose positions have no end.
    """
    if isinstance(data, PreparedText):
        length = recipe.training.segment_length
        return None if recipe.model.positions == "none" else TextSides((length, length))
    learned = None if start is None else model_directory.text_sides(start.directory)
    return sides_of(recipe, data.train, data.dev, data.tokenizers).at_least(learned)


def _begin_or_resume(
    run: _RunDirectory,
    recipe: Recipe,
    data: PreparedData | PreparedText,
    trainer: Trainer,
    start: StartingPoint | None,
) -> None:
    """Write a new model directory; or restore the newest checkpoint and drop what was logged after it."""
    leads, own = trainer.workers.is_main_process, numerics(trainer.device)
    if run.newest is None:
        trainer.progress.numerics = own
        if leads:
            parts = (data.tokenizers, data.features, data.fingerprint)
            sides = _text_sides(recipe, data, start)
            model_directory.initialise(run.path, recipe, *parts, started_from=run.started_from, text=sides)
            if run.started_from is None and (recipe.training.freeze or recipe.training.lora is not None):
                notify("warning: what is frozen keeps its random initial weights: give a trained model with --from")
        return
    trainer.restore(run.newest)
    begun, trainer.progress.numerics = trainer.progress.numerics, own
    if not leads:
        return
    truncate_log(run.path, trainer.progress)
    notify(f"{run.path}: resumes after update {trainer.progress.update:,}")
    if begun is not None and (changes := numerics_changes(begun, own)):
        notify(f"warning: its last digits will differ from those of an undisturbed run: {changes}")
    if (before := trainer.progress.workers) != (now := trainer.workers.size):
        notify(f"it began with {before} processes and continues with {now}: updates keep their batches")
    if others := model_directory.update_plugins(run.path, recipe):
        notify(f"warning: the run continues with other code than it began with: {'; '.join(others)}")
    if run.changed:
        model_directory.write_recipe(run.path, recipe)
        notify("changed: " + "; ".join(describe_change(*change) for change in run.changed))


def make_trainer(
    recipe: Recipe,
    data: PreparedData | PreparedText,
    directory: Path,
    device: torch.device,
    workers: Workers,
    start: StartingPoint | None,
    scoring: ScoringOptions,
) -> Trainer:
    """Build the trainer of a recipe: model, weights, data, losses and validation.

    Args:
        start: as for `train`; None also where the trainer is restored from a checkpoint of its own.
        scoring: `validation_scoring`.
    """
    options = recipe.training
    sizes = {"source_size": data.tokenizers.source.size, "target_size": data.tokenizers.target.size}
    model = build_model(recipe.model, **sizes, seed=options.seed).to(device)
    check_first_batch(model)  # the two tokens of the next line, which find out the losses; and then that of training
    check_losses(recipe, model)
    for note in without_gain(recipe.model, model) if workers.is_main_process else ():
        notify(f"warning: {note}")
    if start is not None and start.checkpoint is None:
        _load_starting_weights(recipe, model, start.directory, report=workers.is_main_process)
    choose_trained(recipe, model)
    check_frozen_losses(recipe, model)
    for note in _notes_on_trained(recipe, model) if workers.is_main_process else ():
        notify(note)
    task: TrainingTask
    if isinstance(data, PreparedData):
        if workers.is_main_process:
            warn_of_missing_words(recipe, (source for source, _ in data.dev_lines))
        frames = data.tokenizers.frames.of(recipe.decoding)
        plan = EpochPlan(data.train, data.train_weights, options.batch_tokens, options.seed, frames)
        more = (_division(recipe, data, frames), _mixture(recipe, data), _guided(recipe, model, data))
        task = TranslationTask(model, data.train, plan, options, workers, device, frames, *more)
    else:
        task = LanguageModelTask(model, _streams(recipe, data), options, workers, device)
    if options.compile:  # of PyTorch's operators: it cannot look into others
        compile_blocks(model, lambda message: notify(f"warning: {message}"))
        use_kernel(model)
    else:
        use_training_operators(model, device)
    weights = MasterWeights(model, pick_dtype(options.compute_dtype, device))
    limit_kernel_caches(kept_kernels(model.output_table))
    trainer = Trainer(
        model,
        weights,
        task,
        options,
        losses=recipe.losses,
        filters=filters_without_loss(recipe, model),
        directory=directory,
        validate=make_validator(recipe, data, device, scoring),
        workers=workers,
        device=device,
    )
    if start is not None and start.checkpoint is not None:
        trainer.take_over(start.checkpoint)
    trainer.progress.tokenizer = recorded_tokenizer(scoring)
    check_first_batch(model)
    return trainer


def _guided(recipe: Recipe, model: Transformer, data: PreparedData) -> GuidedHead | None:
    """Return the head of cross-attention that the recipe's alignments guide; None: none."""
    options = recipe.training.guided_alignment
    if options is None:
        return None
    if not any(dataset.is_aligned for dataset in data.train):
        raise UserError(
            "the prepared data have no word alignments",
            where="training.guided_alignment",
            hint="Name those of a corpus as data.train.N.alignments, and run `sparsenmt prepare`.",
        )
    fixed = sum(name != "learned" for name in model.head_names("cross"))
    return GuidedHead(record_cross_head(model.modules(), options.layer, options.head - 1 - fixed), options.weight)


def _notes_on_trained(recipe: Recipe, model: Transformer) -> list[str]:
    """Return notes on the parts that a run trains, after `choose_trained`; empty if it trains the whole model."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    count, trained = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
    if trained == count:
        return []
    notes = [f"{trained:,} of {count:,} parameters are trained"]
    tie, alone = recipe.model.tie_embeddings, recipe.training.lora is None  # with adapters all tables are frozen
    if alone and tie in ("all", "target") and not model.output_table.requires_grad:
        notes.append(
            f"the output shares its table with the embeddings (model.tie_embeddings: {tie}): it is frozen, too"
        )
    return notes


def _mixture(recipe: Recipe, data: PreparedData) -> CorpusMixture:
    """Return the weights of the corpora in each stage of the run."""
    sizes = {dataset.name: len(dataset) for dataset in data.train}
    return CorpusMixture.of(recipe.data, sizes, data.train_weights)


def _division(recipe: Recipe, data: PreparedData, frames: FramePair) -> SampledDivision | None:
    """Return the random divisions of the training text; None: it keeps its tokens.

    Raises:
        UserError: a tokenizer cannot be sampled, or a method reads a feature of each source token.
    """
    options, filters, most = recipe.data.subword_regularization, recipe.data.filters, recipe.model.max_positions
    if options is None:
        return None
    if options.source is not None and data.features.names:
        raise UserError(
            f"the recipe's methods read {', '.join(data.features.names)} of the source's tokens, which would change",
            where="data.subword_regularization.source",
            hint="Leave it out; the target may be sampled.",
        )
    packed = recipe.data.documents
    longest = filters.max_length if packed is None else packed.max_length - 1  # without `</s>`
    if recipe.model.positions == "learned":
        room = most - max(frames.source.size, frames.target.size) - 1
        longest = room if longest is None else min(longest, room)
    return SampledDivision.of(options, data.tokenizers, recipe.training.seed, longest, filters.max_source_length)


def _streams(recipe: Recipe, data: PreparedText) -> StreamPlan:
    """Return the streams of a language model's training; UserError if the text is too short for them."""
    options = recipe.training
    return StreamPlan(data.train, data.train_weights, options.streams, options.segment_length, options.seed)


def _load_starting_weights(recipe: Recipe, model: Transformer, directory: Path, *, report: bool) -> None:
    """Load the weights of the model in ``directory``; those that it does not have keep their initial values."""
    given, added = starting_weights(directory, model)
    model.load_state_dict(given)
    if report and added:
        notify(f"{directory} does not have {', '.join(added)}: initial values")
    if report and not same_vocabularies(Path(recipe.data.directory), directory):
        notify(f"warning: {directory} has other vocabularies: its embeddings belong to other tokens")


def finish(recipe: Recipe, directory: Path, progress: Progress, validate: Validate) -> None:
    """Write the final weights: the best on the validation text among means and single checkpoints, or a fixed mean.

    Args:
        progress: of the last checkpoint.
        validate: measures a mean.
    """
    found = find_checkpoints(directory)
    training = recipe.training
    last = min(training.average_last, len(found))
    # A language model has losses of parameters only, which do not compete with its quality on the validation text.
    free = [] if recipe.data.is_language_model else losses_without_target(recipe.losses)
    note = ""
    if last and (training.choose_average == "none" or free):
        choice = CheckpointChoice.of(found[-last:])
        if free and training.choose_average != "none":
            note = f"; quality does not choose, because {free[0]} has a weight and no target"
    else:
        validated = progress.validated
        choice = choose(found, mean_sizes(last), validated, recipe, validate, tokenizer=progress.tokenizer)
    model_directory.write_weights(
        directory,
        average_weights(choice.taken.checkpoints),
        after=found[-1].update,
        made_of=choice.taken.updates,
        warnings=warn_of_damage(directory, training.average_last, choice.best),
        average=choice.record(),
    )
    write_model_card(directory)
    notify(f"{directory / model_directory.WEIGHTS}: {choice.describe()}{note}")
