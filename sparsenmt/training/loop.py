"""The training loop: updates, validations, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import NoReturn

import torch
from torch import nn

from sparsenmt.data.batching import Batch, EpochPlan, IndexBatch, collate
from sparsenmt.data.store import Dataset
from sparsenmt.errors import UserError, is_out_of_memory
from sparsenmt.interrupts import Interrupted, Signals, listening
from sparsenmt.model.protocol import TranslationModel
from sparsenmt.recipe.schema import AuxiliaryLoss, Training
from sparsenmt.training.checkpoints import Checkpoint, prune, write_checkpoint
from sparsenmt.training.distribution import Workers
from sparsenmt.training.exits import complete_gradients, draw_pairs
from sparsenmt.training.failures import not_finite, out_of_memory, provenance, suspects
from sparsenmt.training.gradients import BatchResult, Objective, Totals, accumulate
from sparsenmt.training.memory import FreeMemory
from sparsenmt.training.multipliers import current_weights, steer
from sparsenmt.training.outcome import best_updates, is_over, regular
from sparsenmt.training.precision import Weights
from sparsenmt.training.reporting import Reporter
from sparsenmt.training.schedules import learning_rate
from sparsenmt.training.state import (
    Progress,
    Recent,
    Validated,
    load_optimizer,
    load_random,
    make_optimizer,
    optimizer_tensors,
    random_tensors,
)

Validate = Callable[[Weights], Mapping[str, float]]
"""Weights -> values by metric name; always with ``loss``, and with the metric that the recipe names."""


@dataclass(frozen=True)
class TrainingData:
    """What is trained on, and how an epoch is laid out."""

    datasets: Sequence[Dataset]
    plan: EpochPlan


class Trainer:
    """One training run in a model directory.

    Args:
        model: on its device; its parameters are cast to the dtype of the arithmetic.
        weights: the model's parameters as the optimizer sees them.
        data: batches of an epoch.
        options: the recipe's ``training`` section.
        losses: weights of auxiliary losses.
        directory: model directory.
        validate: what a validation is.
    """

    def __init__(
        self,
        model: TranslationModel,
        weights: Weights,
        data: TrainingData,
        options: Training,
        *,
        losses: Mapping[str, AuxiliaryLoss],
        directory: Path,
        validate: Validate,
        workers: Workers,
        device: torch.device,
    ) -> None:
        self.model, self.weights, self.data, self.options = model, weights, data, options
        self.losses, self.directory, self.validate = losses, directory, validate
        self.workers, self.device = workers, device
        self.progress = Progress(workers=workers.size)
        self._signals = Signals()
        self._saved: int | None = None  # update of the checkpoint that holds the present state
        self._longer = False  # goes on after what was its end
        constants = options.optimizer
        self.free_memory = FreeMemory()
        self.optimizer = make_optimizer(
            weights,
            betas=(constants.beta1, constants.beta2),
            epsilon=constants.epsilon,
            weight_decay=constants.weight_decay,
        )
        wanted = options.accumulate_tokens or options.batch_tokens
        self._batches_per_update = math.ceil(wanted / options.batch_tokens)
        self._mark_boundary()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this run.

        Raises:
            UserError: it is damaged, of another model, or of another number of processes.
        """
        progress = checkpoint.progress()
        if progress.workers != self.workers.size:
            raise UserError(
                f"the run had {progress.workers} processes, not {self.workers.size}",
                where=str(checkpoint.path),
                hint="Start as many, to go on: each has its share of the batches and its own random numbers.",
            )
        shapes = {name: tuple(parameter.shape) for name, parameter in self.weights.named.items()}
        self.weights.load(checkpoint.weights(shapes))
        load_optimizer(self.optimizer, self.weights, checkpoint.optimizer())
        own = f"{self.workers.rank}/"
        states = {key.removeprefix(own): value for key, value in checkpoint.random().items() if key.startswith(own)}
        load_random(states, self.device)
        self.progress, self._saved = progress, None if checkpoint.interim else checkpoint.update
        if progress.finished and not self._done():
            # The run is to be longer now: the validation at its former end is none that the longer run would have made.
            progress.finished, self._saved, self._longer = False, None, True
            progress.validated = regular(progress, self.options)
        self._mark_boundary()
        if self._saved is not None:
            self._prune()  # the run may have been killed between writing this checkpoint and removing older ones

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Begin where another run stands: with its weights, moments and updates, on new passes over the data.

        Parameters that the other run does not have keep their initial values, and begin without moments.

        Raises:
            UserError: the checkpoint is damaged, or has parameters that this model has not.
        """
        own, before = self.weights.state(), checkpoint.progress()
        found = checkpoint.part_of({name: tuple(each.shape) for name, each in own.items()})
        self.weights.load({**own, **found})
        load_optimizer(self.optimizer, self.weights, checkpoint.optimizer())
        self.progress = Progress(
            update=before.update, began=before.update, epoch=before.epoch + 1, workers=self.workers.size
        )

    def run(self) -> Progress:
        """Train until the recipe's end, and leave the last checkpoint.

        Raises:
            Interrupted: a signal came; the state of the last update is saved.
        """
        options, progress = self.options, self.progress
        first = self._epoch(progress.epoch)
        total = options.max_updates
        if options.max_epochs is not None:
            total = min(total, options.max_epochs * math.ceil(len(first) / self._batches_per_update))
        reporter = Reporter(self.directory if self.workers.leads else None, total=total, initial=progress.update)
        try:
            with listening() as self._signals, self._signals.deferred():
                if progress.update > progress.began:
                    self._after_update(reporter)  # a signal may have cut it short
                    if self._longer:
                        self._save(reporter, interim=True)  # no checkpoint is due where the shorter run ended
                while not self._done():
                    batches, epoch = self._epoch(progress.epoch), progress.epoch
                    if not batches:
                        break
                    while progress.epoch == epoch and not self._done():
                        end = min(progress.batches_done + self._batches_per_update, len(batches))
                        updated = self._update(batches[progress.batches_done : end], reporter)
                        self._advance(end, len(batches))
                        if updated:
                            self._after_update(reporter)
                self._finish(reporter)
        finally:
            reporter.close()
        return progress

    def _advance(self, batches_done: int, batches: int) -> None:
        """An update is over: the state here is what a checkpoint holds."""
        self.progress.batches_done = batches_done
        if batches_done >= batches:
            self.progress.epoch, self.progress.batches_done = self.progress.epoch + 1, 0
        self._saved = None
        self._mark_boundary()

    def _mark_boundary(self) -> None:
        """Remember the random states: what a signal cuts short is done again from here."""
        self._random = random_tensors(self.device)

    def _stop(self, reporter: Reporter) -> NoReturn:
        """Save the state of the last boundary, and leave."""
        number, progress = self._signals.number or SIGTERM, self.progress  # another process may have heard it
        for parameter in (*self.model.parameters(), *self.weights.named.values()):
            parameter.grad = None
        if progress.update == progress.began:
            raise Interrupted(number, "no update was finished", resumable=True)
        self._save(reporter, interim=True)
        note = f"{self.directory}: saved after update {progress.update:,}"
        raise Interrupted(number, note if self.workers.leads else "", resumable=self.workers.leads)

    def _epoch(self, epoch: int) -> Sequence[IndexBatch]:
        """This rank's batches. One that has a batch less than the first takes part in the last update without any."""
        plan, workers = self.data.plan, self.workers
        own = plan.batches(epoch, workers.rank, workers.size)
        return own if workers.rank == 0 else own.padded(len(plan.batches(epoch, 0, workers.size)))

    def _done(self) -> bool:
        return is_over(self.progress, self.options, self.losses)

    def _rate(self) -> float:
        options = self.options
        return learning_rate(
            self.progress.update + 1,
            peak=options.learning_rate,
            schedule=options.schedule,
            warmup=options.warmup_updates,
            last=options.max_updates,
        )

    def _objective(self) -> Objective:
        options, progress = self.options, self.progress
        auxiliary = current_weights(self.losses, progress.multipliers, progress.update)
        pairs = draw_pairs(self.model.plan, (options.seed, progress.update, progress.skipped))
        return Objective(options.label_smoothing, options.loss_normalization, auxiliary, pairs)

    def _update(self, index_batches: Sequence[IndexBatch], reporter: Reporter) -> bool:
        """Forward, backward and step over the batches of one update; False if it was left out as not finite."""
        began = time.perf_counter()
        real = [each for each in index_batches if len(each)]
        cpu_batches = [collate(self.data.datasets, each) for each in real]
        own = Totals.of(cpu_batches)
        heard = float(self._signals.number is not None)
        *sums, stop = self.workers.sum([own.target_tokens, own.source_tokens, own.sentences, heard], self.device)
        if stop:
            self._stop(reporter)
        totals = Totals(*(int(x) for x in sums))
        objective = self._objective()
        self.model.train()
        results = []
        for batch in cpu_batches:
            if self.workers.size == 1 and self._signals.number is not None:
                self._stop(reporter)
            results.append(self._accumulate(batch.to(self.device), objective, totals))
            self.weights.collect()
        parameters: list[nn.Parameter] = list(self.weights.named.values())
        complete_gradients(self.model.plan, parameters)
        self.workers.sum_gradients(parameters)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.options.clip_norm or math.inf))
        result = self._sum(results)
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            self._skip(real, results, result.loss, norm, reporter)
            return False
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.weights.publish()
        self._report(result, rate, norm, totals, time.perf_counter() - began, reporter)
        return True

    def _report(
        self, result: BatchResult, rate: float, norm: float, totals: Totals, seconds: float, reporter: Reporter
    ) -> None:
        """Count an update, and tell of it."""
        progress = self.progress
        progress.update += 1
        progress.target_tokens += totals.target_tokens
        progress.seconds += seconds
        recent = progress.recent
        auxiliary = {**result.auxiliary, **steer(self.losses, progress, result, totals)}
        recent.add(result.loss, result.nll, auxiliary, norm=norm, tokens=totals.target_tokens, seconds=seconds)
        reporter.advance(recent.mean_loss(), recent.tokens_per_second())
        if progress.update % self.options.log_every == 0:
            reporter.record("train", progress.update, epoch=progress.epoch, rate=rate, **recent.values())
            progress.recent = Recent()
        self.free_memory.after_update()

    def _skip(
        self,
        batches: Sequence[IndexBatch],
        results: Sequence[BatchResult],
        loss: float,
        norm: float,
        reporter: Reporter,
    ) -> None:
        """Leave out an update whose loss or gradient is not finite; UserError if too many were."""
        lines = provenance(self.data.datasets, suspects(batches, results))
        update, progress = self.progress.update + 1, self.progress
        if progress.skipped >= self.options.skip_nonfinite:
            raise not_finite(update, loss, norm, lines, progress.skipped)
        progress.skipped += 1
        self.optimizer.zero_grad(set_to_none=True)
        reporter.record("skipped", progress.update, skipped=progress.skipped, lines=lines)
        reporter.say(f"warning: the loss or gradient is not finite at update {update}: it is left out; {lines}")

    def _accumulate(self, batch: Batch, objective: Objective, totals: Totals) -> BatchResult:
        try:
            return accumulate(self.model, batch, objective, totals)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(batch) from None

    def _sum(self, results: Sequence[BatchResult]) -> BatchResult:
        """The losses of an update, over all its batches and all processes."""
        names = sorted(self.losses)
        shares = [sum(result.loss for result in results), sum(result.nll for result in results)]
        shares += [sum(result.auxiliary[name] for result in results) for name in names]
        shares += [sum(result.closed[name] for result in results) for name in names]
        shares += [sum(result.partial[name] for result in results) for name in names]
        loss, nll, *others = self.workers.sum(shares, self.device)
        n = len(names)
        auxiliary, closed, partial = (dict(zip(names, others[i * n : (i + 1) * n], strict=True)) for i in range(3))
        return BatchResult(loss, nll, auxiliary, closed, partial)

    def _after_update(self, reporter: Reporter) -> None:
        update, options = self.progress.update, self.options
        if update % options.validation.every == 0:
            self._validate(reporter)
        due = update % options.save_every == 0 or update in self.best(max(options.keep_best, 1))
        if due and not self._done():
            self._save(reporter)

    def _measure(self, reporter: Reporter) -> dict[str, float]:
        """The first process validates, so that all decide alike what is best and when to stop."""
        closed = [f"{name}_closed" for name in self.losses]
        names = list(dict.fromkeys(["loss", *closed, self.options.validation.metric]))
        values: Mapping[str, float] = dict.fromkeys(names, 0.0)
        if self.workers.leads:
            try:
                with self._signals.raising():
                    values = self.validate(self.weights)
            except Interrupted:
                pass  # the values do not count
        heard = float(self._signals.number is not None and self.workers.leads)
        *sums, stop = self.workers.sum([*(values[name] for name in names), heard], self.device)
        if stop:
            self._stop(reporter)
        return dict(zip(names, sums, strict=True))

    def _validate(self, reporter: Reporter) -> None:
        progress = self.progress
        if progress.validated and progress.validated[-1].update == progress.update:
            return
        began = time.perf_counter()
        values = self._measure(reporter)
        reporter.record("validation", progress.update, seconds=time.perf_counter() - began, **values)
        reporter.say(f"update {progress.update}: " + ", ".join(f"{k} {v:.3f}" for k, v in values.items()))
        progress.validated.append(Validated(progress.update, values))
        if progress.update % self.options.validation.every == 0:
            self._mark_boundary()  # not after one at the end only: a longer run goes on as if there had been none

    def best(self, count: int = 1) -> list[int]:
        """Updates of the best validations, best first."""
        return best_updates(self.progress.validated, self.options.validation.metric, count, self.losses)

    def _save(self, reporter: Reporter, *, interim: bool = False) -> None:
        if self._saved == self.progress.update:
            return
        states = {key: self.workers.gather(value, self.device) for key, value in self._random.items()}
        if self.workers.leads:
            reporter.sync()
            write_checkpoint(
                self.directory,
                self.progress,
                weights=self.weights.state(),
                optimizer=optimizer_tensors(self.optimizer, self.weights),
                random={f"{rank}/{key}": each for key, all_ in states.items() for rank, each in enumerate(all_)},
                interim=interim,
            )
            self._prune()
        self._saved = self.progress.update
        self.workers.wait()

    def _prune(self) -> None:
        if self.workers.leads:
            options, count = self.options, self.options.keep_best
            validated, metric = regular(self.progress, options), options.validation.metric
            best = best_updates(validated, metric, count, self.losses)
            prune(self.directory, keep_last=options.keep_last, keep={*best, *self.best(count)})

    def _finish(self, reporter: Reporter) -> None:
        if self.progress.update == self.progress.began:
            raise UserError(
                "nothing was trained: no update fits into the recipe's limits",
                where="training",
                hint="Raise max_updates or max_epochs.",
            )
        self._validate(reporter)
        self.progress.finished, self._saved = True, None
        self._save(reporter)
