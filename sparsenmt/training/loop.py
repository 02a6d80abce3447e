"""The training loop: updates, validations and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import NoReturn

import torch

from sparsenmt.errors import UserError
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.model.sockets import content_patterns, nonfinite_method, start_options
from sparsenmt.process.allocator import HeapTrimmer
from sparsenmt.process.interrupts import Interrupted, Signals, listening
from sparsenmt.process.workers import Workers
from sparsenmt.recipe.auxiliary_loss import AuxiliaryLoss
from sparsenmt.recipe.schema import Training
from sparsenmt.training.checkpoints import Checkpoint, prune_checkpoints, write_checkpoint
from sparsenmt.training.failures import nonfinite_error, open_gates_warning
from sparsenmt.training.gradient_buckets import GradientBuckets
from sparsenmt.training.gradients import (
    BatchLosses,
    BatchResult,
    Objective,
    UpdateTotals,
    add_parameter_losses,
    clip_gradients,
    fill_missing_gradients,
    read_losses,
    sample_exit_pairs,
)
from sparsenmt.training.guided_alignment import NAME as GUIDED_ALIGNMENT
from sparsenmt.training.merge import has_adapters, merge_adapters
from sparsenmt.training.precision import MasterWeights
from sparsenmt.training.schedules import OpenGates, closed_shares, learning_rate, loss_weights, update_multipliers
from sparsenmt.training.state import (
    Progress,
    RunningSums,
    ValidationResult,
    load_optimizer_state,
    load_random_states,
    make_optimizer,
    optimizer_state,
    random_states,
)
from sparsenmt.training.task import TrainingTask, UpdateBatches
from sparsenmt.training.training_log import TrainingLog, head_values
from sparsenmt.training.validation import best_updates, limit_reached, scheduled_validations

Validate = Callable[[Mapping[str, torch.Tensor]], Mapping[str, float]]
"""Weights in fp32 -> values by metric name; among them ``loss`` and the recipe's validation metric."""


_NEW_STATES = 1_000_003
"""Factor of the update in the seed of a process that begins in the middle of a run."""


class Trainer:
    """One training run in a model directory.

    Args:
        model: on its device; its parameters have the dtype that it computes in.
        weights: the model's master weights.
        task: the batches of every epoch, and their gradients.
        options: the recipe's ``training`` section.
        losses: weights and targets of the auxiliary losses.
        filters: names of the filters without a loss, whose closed shares are logged.
        directory: model directory.
        validate: computes the values of a validation.
    """

    def __init__(
        self,
        model: TranslationModel,
        weights: MasterWeights,
        task: TrainingTask,
        options: Training,
        *,
        losses: Mapping[str, AuxiliaryLoss],
        directory: Path,
        validate: Validate,
        workers: Workers,
        device: torch.device,
        filters: Sequence[str] = (),
    ) -> None:
        self.model, self.weights, self.task, self.options = model, weights, task, options
        self.losses, self.directory, self.validate = losses, directory, validate
        self.workers, self.device = workers, device
        self.progress = Progress(workers=workers.size)
        self._signals = Signals()
        self._saved: int | None = None  # update of the checkpoint that holds the current state
        self._clock = 0.0  # when the run would have begun without interruptions
        self._extended = False  # the run was finished before with lower limits
        self._heap = HeapTrimmer()
        self._open_gates = OpenGates()
        self.optimizer = make_optimizer(weights, options.optimizer)
        self._of_parameters = frozenset(model.parameter_losses())
        self._of_gates = sorted((losses.keys() - self._of_parameters) | set(filters))
        self._bounds = model.bounds()
        written_out = [each for each in (model.output_table, model.output_bias) if each is not None]
        self._buckets = GradientBuckets(weights.trained(), workers, last=written_out)
        self._mark_boundary()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of this run.

        With another number of processes than before, everything continues but the random numbers of dropout: batches
        of an update, weights, moments and memory are the same. A process that has no random state begins a new one.

        Raises:
            UserError: it is damaged, or of another model; or its updates have too few batches for the processes.
        """
        progress = checkpoint.progress()
        shapes = {name: tuple(parameter.shape) for name, parameter in self.weights.named.items()}
        self.weights.load(checkpoint.weights(shapes))
        load_optimizer_state(self.optimizer, self.weights, checkpoint.optimizer())
        if random := _of_rank(checkpoint.random(), self.workers.rank):
            load_random_states(random, self.device)
        else:
            torch.manual_seed(self.options.seed + self.workers.rank + _NEW_STATES * progress.update)
        streams = checkpoint.streams()
        ranks = sorted({int(name.partition("/")[0]) for name in streams})
        self.task.restore([_of_rank(streams, rank) for rank in ranks], progress.workers)
        self.progress, self._saved = progress, None if checkpoint.interim else checkpoint.update
        if progress.finished and not self._done():
            # The limits were raised: forget a validation that only took place because the run ended here.
            progress.finished, self._saved, self._extended = False, None, True
            progress.validated = scheduled_validations(progress, self.options)
        self._mark_boundary()
        if self._saved is not None:
            self._prune()  # the run may have been killed after writing this checkpoint and before removing older ones

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Continue another run: with its weights, moments and update counter, but new epochs.

        Parameters that the other run does not have keep their initial values, and start without moments.

        Raises:
            UserError: the checkpoint is damaged, or has parameters that this model does not have.
        """
        own, before = self.weights.state(), checkpoint.progress()
        shapes = {name: tuple(each.shape) for name, each in own.items()}
        found = checkpoint.weights_within(shapes, merged=not has_adapters(own))
        self.weights.load({**own, **found})
        load_optimizer_state(self.optimizer, self.weights, checkpoint.optimizer())
        self.progress = Progress(
            update=before.update, began=before.update, epoch=before.epoch + 1, workers=self.workers.size
        )

    def run(self) -> Progress:
        """Train until a limit of the recipe is reached, and save the last checkpoint.

        Raises:
            Interrupted: by a signal; the state after the last complete update is saved.
        """
        options, progress = self.options, self.progress
        self.task.enter_stage(progress.update)
        self._clock = time.monotonic() - progress.elapsed
        size, total = self.task.batches_per_update, options.max_updates
        if options.max_epochs is not None:
            total = min(total, options.max_epochs * math.ceil(self.task.count_batches(progress.epoch) / size))
        written = self.directory if self.workers.is_main_process else None
        self._log = TrainingLog(written, total=total, initial=progress.update, trackers=options.trackers)
        try:
            with listening() as self._signals, self._signals.deferred():
                if progress.update > progress.began:
                    self._after_update()  # a signal may have interrupted it
                    if self._extended:
                        self._save(interim=True)  # no checkpoint was due where the shorter run ended
                while not self._done():
                    epoch, batches = progress.epoch, self.task.count_batches(progress.epoch)
                    if not batches:
                        break
                    while progress.epoch == epoch and not self._done():
                        end = min(progress.batches_done + size, batches)
                        updated = self._update(end)
                        self._advance(end, batches)
                        if updated:
                            self._after_update()
                self._finish()
        finally:
            self._log.close()
        return progress

    def _advance(self, batches_done: int, batches: int) -> None:
        """Move to the boundary after an update: checkpoints hold the state at a boundary."""
        self.progress.batches_done = batches_done
        if self.task.enter_stage(self.progress.update) or batches_done >= batches:
            self.progress.epoch, self.progress.batches_done = self.progress.epoch + 1, 0
        self._saved = None
        self._mark_boundary()

    def _mark_boundary(self) -> None:
        """Save the random states: an interrupted update is repeated from here."""
        self._random = random_states(self.device)

    def _stop(self) -> NoReturn:
        """Save the state of the last boundary, and raise `Interrupted`."""
        number, progress = self._signals.number or SIGTERM, self.progress  # SIGTERM: another process received it
        for parameter in (*self.model.parameters(), *self.weights.named.values()):
            parameter.grad = None
        if progress.update == progress.began:
            raise Interrupted(number, "no update was completed", resumable=True)
        self._save(interim=True)
        note = f"{self.directory}: saved after update {progress.update:,}"
        raise Interrupted(number, note if self.workers.is_main_process else "", resumable=self.workers.is_main_process)

    def _done(self) -> bool:
        return limit_reached(self.progress, self.options, self.losses) is not None

    def _update(self, end: int) -> bool:
        """Do the update whose last batch comes before ``end``; False if it was skipped as not finite."""
        began, progress = time.perf_counter(), self.progress
        batches = self.task.read(progress.epoch, progress.batches_done, end)
        own, signalled = batches.totals, float(self._signals.number is not None)
        passed = time.monotonic() - self._clock if self.workers.is_main_process else 0.0
        counts = [own.target_tokens, own.source_tokens, own.sentences]
        *sums, progress.elapsed, stop = self.workers.sum([*counts, passed, signalled])
        if stop:
            self._stop()
        totals = UpdateTotals(*(int(x) for x in sums))
        losses = self._accumulate(batches, totals)
        parameters = [parameter for parameter in self.weights.named.values() if parameter.requires_grad]
        fill_missing_gradients(self.model.plan, parameters)
        # All that an update reads from the device: until here nothing has waited for it.
        clipped = clip_gradients(parameters, self.options.clip_norm, self.options.clip)
        results, (norm, *factors) = read_losses(losses, *clipped)
        result = self._sum(results)
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            lines = batches.describe(results[: len(batches)])
            if progress.skipped >= self.options.skip_nonfinite:
                # A method from outside the package may be the reason.
                wrong = nonfinite_method(self.model.modules(), lambda: self._accumulate(batches, totals))
                raise wrong or nonfinite_error(progress.update + 1, result.loss, norm, lines, progress.skipped)
            self._skip(lines)
            batches.complete(skipped=True)
            return False
        rate = learning_rate(progress.update + 1, self.options)
        self._step(rate, dict(zip(parameters, factors, strict=False)))
        batches.complete(skipped=False)
        self._report(result, rate, norm, totals, time.perf_counter() - began)
        return True

    def _accumulate(self, batches: UpdateBatches, totals: UpdateTotals) -> list[BatchLosses]:
        """Add the gradients of this process's batches, and sum them over all processes.

        Returns:
            the losses of the batches; in the first process also, at the end, those of parameters.
        """
        progress, losses = self.progress, []
        weights = loss_weights(self.losses, progress.multipliers, progress.update)
        options, auxiliary = self.options, {k: v for k, v in weights.items() if k not in self._of_parameters}
        pairs = sample_exit_pairs(self.model.plan, (options.seed, progress.update, progress.skipped))
        objective = Objective(options.label_smoothing, options.loss_normalization, auxiliary, pairs)
        for pattern in content_patterns(self.model.modules()):
            pattern.forget()
        self.model.train()
        self._buckets.begin_update()
        for number in range(len(batches)):
            if self.workers.size == 1 and self._signals.number is not None:
                self._stop()
            last = number == len(batches) - 1 and not self._of_parameters
            self._buckets.begin_batch(tuple(pairs), last=last)
            losses.append(batches.add_gradients(number, objective, totals))
            self._buckets.end_batch()
            self.weights.collect()
        if self._of_parameters and self.workers.is_main_process:
            losses.append(add_parameter_losses(self.model, weights))
            self.weights.collect()
        late = self._buckets.start_rest()
        self._buckets.finish(late=self.workers.sum([float(late)])[0] > 0)
        return losses

    def _step(self, rate: float, factors: Mapping[torch.nn.Parameter, float]) -> None:
        """Change the weights.

        Args:
            factors: of the learning rate of each parameter; one that is missing has 1.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate * factors.get(group["params"][0], 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, (low, high) in self._bounds.items():
                if self.weights.named[name].requires_grad:
                    self.weights.named[name].clamp_(low, high)
        for pattern in content_patterns(self.model.modules()):
            self.workers.sum_tensors(pattern.pending())
            pattern.update()
        self.weights.publish()

    def _report(self, result: BatchResult, rate: float, norm: float, totals: UpdateTotals, seconds: float) -> None:
        """Count an update, and log it."""
        progress = self.progress
        progress.update += 1
        progress.target_tokens += totals.target_tokens
        progress.seconds += seconds
        recent = progress.recent
        auxiliary = {**result.auxiliary, **update_multipliers(self.losses, progress, result, totals)}
        recent.add(result.loss, result.nll, auxiliary, norm=norm, tokens=totals.target_tokens, seconds=seconds)
        for name in self._open_gates.notice(self.losses, auxiliary, progress.update):
            self._log.notify(open_gates_warning(name, OpenGates.PATIENCE, start_options(self.model.modules())))
        closed = closed_shares(self.losses, recent.values(), progress.update)
        self._log.advance(recent.mean_loss(), recent.tokens_per_second(), closed)
        if progress.update % self.options.log_every == 0:
            extra = {"training_seconds": progress.seconds, **head_values(self.model)}
            self._log.record("train", progress.update, epoch=progress.epoch, rate=rate, **recent.values(), **extra)
            progress.recent = RunningSums()
        self._heap.after_update()

    def _skip(self, lines: str) -> None:
        """Skip an update whose loss or gradient is not finite."""
        progress = self.progress
        progress.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        self._log.record("skipped", progress.update, skipped=progress.skipped, lines=lines)
        self._log.notify(
            f"warning: skipped update {progress.update + 1}, whose loss or gradient is not finite; {lines}"
        )

    def _sum(self, results: Sequence[BatchResult]) -> BatchResult:
        """Sum the losses of an update over its batches and over all processes."""
        names = sorted({*self.losses, *([] if self.options.guided_alignment is None else [GUIDED_ALIGNMENT])})
        parts = [("auxiliary", name) for name in names]
        parts += [(part, name) for part in ("closed", "partial") for name in self._of_gates]
        shares = [sum(result.loss for result in results), sum(result.nll for result in results)]
        shares += [sum(getattr(result, part).get(name, 0.0) for result in results) for part, name in parts]
        loss, nll, *others = self.workers.sum(shares)
        found: dict[str, dict[str, float]] = {"auxiliary": {}, "closed": {}, "partial": {}}
        for (part, name), value in zip(parts, others, strict=True):
            found[part][name] = value
        return BatchResult(loss, nll, **found)

    def _after_update(self) -> None:
        update, options = self.progress.update, self.options
        if update % options.validation.every == 0:
            self._validate()
        due = update % options.save_every == 0 or update in self.best(max(options.keep_best, 1))
        if due and not self._done():
            self._save()

    def _measure(self) -> dict[str, float]:
        """Validate in the main process, and share the values so that all processes decide alike."""
        closed = [f"{name}_closed" for name in self._of_gates]
        names = list(dict.fromkeys(["loss", *closed, self.options.validation.metric]))
        values: Mapping[str, float] = dict.fromkeys(names, 0.0)
        if self.workers.is_main_process:
            try:
                with self._signals.raising():
                    values = self.validate(merge_adapters(self.weights.state()))
            except Interrupted:
                pass  # the values are not used
        signalled = float(self._signals.number is not None and self.workers.is_main_process)
        *sums, stop = self.workers.sum([*(values[name] for name in names), signalled])
        if stop:
            self._stop()
        return dict(zip(names, sums, strict=True))

    def _validate(self) -> None:
        progress = self.progress
        if progress.validated and progress.validated[-1].update == progress.update:
            return
        began = time.perf_counter()
        values = self._measure()
        self._heap.trim()
        times = {"seconds": time.perf_counter() - began, "training_seconds": progress.seconds}
        by = {} if progress.tokenizer is None else {"tokenizer": progress.tokenizer}
        self._log.record("validation", progress.update, **times, **values, **by, **head_values(self.model))
        metric = self.options.validation.metric
        labels = {metric: f"{metric} ({progress.tokenizer})"} if by else {}
        shown = ", ".join(f"{labels.get(name, name)} {value:.3f}" for name, value in values.items())
        self._log.notify(f"update {progress.update}: {shown}")
        progress.validated.append(ValidationResult(progress.update, values))
        if progress.update % self.options.validation.every == 0:
            self._mark_boundary()  # not after one at the end of the run: an extended run continues without it

    def best(self, count: int = 1) -> list[int]:
        """Updates of the best validations, best first."""
        return best_updates(self.progress.validated, self.options.validation.metric, count, self.losses)

    def _save(self, *, interim: bool = False) -> None:
        if self._saved == self.progress.update:
            return
        random, streams = (
            {
                f"{rank}/{key}": each
                for key, value in tensors.items()
                for rank, each in enumerate(self.workers.gather(value, self.device))
            }
            for tensors in (self._random, self.task.state())
        )
        if self.workers.is_main_process:
            self._log.sync()
            write_checkpoint(
                self.directory,
                self.progress,
                weights=self.weights.state(),
                optimizer=optimizer_state(self.optimizer, self.weights),
                random=random,
                streams=streams,
                interim=interim,
            )
            self._prune()
        self._saved = self.progress.update
        self.workers.barrier()

    def _prune(self) -> None:
        if self.workers.is_main_process:
            options, count = self.options, self.options.keep_best
            validated, metric = scheduled_validations(self.progress, options), options.validation.metric
            best = best_updates(validated, metric, count, self.losses)
            prune_checkpoints(self.directory, keep_last=options.keep_last, keep={*best, *self.best(count)})

    def _finish(self) -> None:
        if self.progress.update == self.progress.began:
            raise UserError(
                "nothing was trained: the recipe's limits allow no update",
                where="training",
                hint="Raise max_updates, max_epochs or max_hours.",
            )
        self._validate()
        self.progress.finished, self._saved = True, None
        self._save()


def _of_rank(tensors: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a process, whose names begin with its rank."""
    own = f"{rank}/"
    return {key.removeprefix(own): value for key, value in tensors.items() if key.startswith(own)}
