"""The training loop: updates, validations, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sparsenmt.data.batching import Batch, EpochPlan, IndexBatch, collate
from sparsenmt.data.store import Dataset
from sparsenmt.errors import UserError
from sparsenmt.model.interfaces import TranslationModel
from sparsenmt.recipe.schema import AuxiliaryLoss, Ramp, Training
from sparsenmt.training.checkpoints import Checkpoint, prune, write_checkpoint
from sparsenmt.training.distribution import Workers
from sparsenmt.training.gradients import BatchResult, Objective, Totals, accumulate
from sparsenmt.training.memory import release_free_memory
from sparsenmt.training.precision import Weights
from sparsenmt.training.reporting import Reporter
from sparsenmt.training.schedules import learning_rate, ramp
from sparsenmt.training.state import (
    Progress,
    Validated,
    load_optimizer,
    load_random,
    make_optimizer,
    optimizer_tensors,
    random_tensors,
)

Validate = Callable[[Weights], Mapping[str, float]]
"""Weights -> values by metric name; always with ``loss``, and with the metric that the recipe names."""

LOWER_IS_BETTER = frozenset({"loss", "ter"})


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
        self.progress = Progress()
        self._recent = _Recent()
        constants = options.optimizer
        self.optimizer = make_optimizer(
            weights,
            betas=(constants.beta1, constants.beta2),
            epsilon=constants.epsilon,
            weight_decay=constants.weight_decay,
        )
        wanted = options.accumulate_tokens or options.batch_tokens
        self._batches_per_update = math.ceil(wanted / options.batch_tokens)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this run."""
        self.weights.load(checkpoint.weights())
        load_optimizer(self.optimizer, self.weights, checkpoint.optimizer())
        load_random(checkpoint.random(), self.device)
        self.progress = checkpoint.progress()
        if not self.workers.leads:
            # The checkpoint has the first process's random states: the others draw their own dropout, from new ones.
            torch.manual_seed(self.options.seed + self.workers.rank + 1_000_003 * self.progress.update)

    def run(self) -> Progress:
        """Train until the recipe's end, and leave the last checkpoint."""
        options, progress = self.options, self.progress
        first = self._epoch(progress.epoch)
        total = options.max_updates
        if options.max_epochs is not None:
            total = min(total, options.max_epochs * math.ceil(len(first) / self._batches_per_update))
        reporter = Reporter(self.directory if self.workers.leads else None, total=total, initial=progress.update)
        try:
            while not self._done():
                batches = self._epoch(progress.epoch)
                while progress.batches_done < len(batches) and not self._done():
                    end = min(progress.batches_done + self._batches_per_update, len(batches))
                    self._update(batches[progress.batches_done : end], reporter)
                    progress.batches_done = end
                    self._after_update(reporter)
                if progress.batches_done >= len(batches):
                    progress.epoch, progress.batches_done = progress.epoch + 1, 0
            self._finish(reporter)
        finally:
            reporter.close()
        return progress

    def _epoch(self, epoch: int) -> Sequence[IndexBatch]:
        """This rank's batches. One that has a batch less than the first takes part in the last update without any."""
        plan, workers = self.data.plan, self.workers
        own = plan.batches(epoch, workers.rank, workers.size)
        if workers.size == 1:
            return own
        none = np.zeros(0, dtype=np.int64)
        return own + [IndexBatch(none, none)] * (len(plan.batches(epoch, 0, workers.size)) - len(own))

    def _done(self) -> bool:
        progress, options = self.progress, self.options
        patience = options.validation.patience
        return (
            progress.update >= options.max_updates
            or (options.max_epochs is not None and progress.epoch >= options.max_epochs)
            or (patience is not None and progress.stale >= patience)
        )

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
        def now(weight: float | Ramp) -> float:
            if isinstance(weight, Ramp):
                return ramp(self.progress.update, start=weight.from_, end=weight.to, steps=weight.steps)
            return weight

        options = self.options
        auxiliary = {name: now(loss.weight) for name, loss in self.losses.items()}
        return Objective(options.label_smoothing, options.loss_normalization, auxiliary)

    def _update(self, index_batches: Sequence[IndexBatch], reporter: Reporter) -> None:
        """Forward, backward and step over the batches of one update."""
        began = time.perf_counter()
        cpu_batches = [collate(self.data.datasets, each) for each in index_batches if len(each)]
        own = Totals.of(cpu_batches)
        sums = self.workers.sum([own.target_tokens, own.source_tokens, own.sentences], self.device)
        totals = Totals(*(int(x) for x in sums))
        objective = self._objective()
        self.model.train()
        results = []
        for batch in cpu_batches:
            results.append(self._accumulate(batch.to(self.device), objective, totals))
            self.weights.collect()
        parameters: list[nn.Parameter] = list(self.weights.named.values())
        self.workers.sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.options.clip_norm or math.inf)
        result = self._sum(results)
        if not (math.isfinite(result.loss) and math.isfinite(float(norm))):
            raise UserError(
                f"the loss is {result.loss} and the gradient's norm {float(norm)} at update {self.progress.update + 1}",
                hint="Lower training.learning_rate or lengthen training.warmup_updates; the last checkpoint is kept.",
            )
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.weights.publish()
        self.progress.update += 1
        self.progress.target_tokens += totals.target_tokens
        seconds = time.perf_counter() - began
        self.progress.seconds += seconds
        self._recent.add(result, float(norm), totals.target_tokens, seconds)
        reporter.advance(self._recent.mean_loss(), self._recent.tokens_per_second())
        if self.progress.update % self.options.log_every == 0:
            reporter.record(
                "train", self.progress.update, epoch=self.progress.epoch, rate=rate, **self._recent.values()
            )
            self._recent = _Recent()
            release_free_memory()

    def _accumulate(self, batch: Batch, objective: Objective, totals: Totals) -> BatchResult:
        try:
            return accumulate(self.model, batch, objective, totals)
        except torch.OutOfMemoryError:
            shape = f"{batch.sentences} sentences, source {batch.source.shape[1]}, target {batch.target_input.shape[1]}"
            raise UserError(f"out of memory ({shape})", hint="Lower training.batch_tokens.") from None

    def _sum(self, results: Sequence[BatchResult]) -> BatchResult:
        """The losses of an update, over all its batches and all processes."""
        names = sorted(self.losses)
        shares = [sum(result.loss for result in results), sum(result.nll for result in results)]
        shares += [sum(result.auxiliary[name] for result in results) for name in names]
        loss, nll, *auxiliary = self.workers.sum(shares, self.device)
        return BatchResult(loss, nll, dict(zip(names, auxiliary, strict=True)))

    def _after_update(self, reporter: Reporter) -> None:
        update, options = self.progress.update, self.options
        kept = max(options.keep_best, 1)
        best = self.best(kept)
        if update % options.validation.every == 0:
            self._validate(reporter)
        if update % options.save_every == 0 or self.best(kept) != best:
            self._save()

    def _measure(self) -> dict[str, float]:
        """The first process validates, so that all decide alike what is best and when to stop."""
        names = list(dict.fromkeys(["loss", self.options.validation.metric]))
        values = self.validate(self.weights) if self.workers.leads else dict.fromkeys(names, 0.0)
        return dict(zip(names, self.workers.sum([values[name] for name in names], self.device), strict=True))

    def _validate(self, reporter: Reporter) -> None:
        progress = self.progress
        if progress.validated and progress.validated[-1].update == progress.update:
            return
        began = time.perf_counter()
        values = self._measure()
        reporter.record("validation", progress.update, seconds=time.perf_counter() - began, **values)
        reporter.say(f"update {progress.update}: " + ", ".join(f"{k} {v:.3f}" for k, v in values.items()))
        before = self.best()
        progress.validated.append(Validated(progress.update, values))
        progress.stale = 0 if self.best() != before else progress.stale + 1

    def best(self, count: int = 1) -> list[int]:
        """Updates of the best validations, best first; of equal ones that of the lower loss, then the earlier."""
        metric = self.options.validation.metric
        sign = 1.0 if metric in LOWER_IS_BETTER else -1.0

        def rank(validated: Validated) -> tuple[bool, float, float, int]:
            value = validated.values[metric]
            return math.isnan(value), sign * value, validated.values["loss"], validated.update

        ranked = sorted(self.progress.validated, key=rank)
        return [each.update for each in ranked[:count]]

    def _save(self) -> None:
        if self.workers.leads:
            write_checkpoint(
                self.directory,
                self.progress,
                weights=self.weights.state(),
                optimizer=optimizer_tensors(self.optimizer, self.weights),
                random=random_tensors(self.device),
            )
            best = self.best(self.options.keep_best)
            prune(self.directory, keep_last=self.options.keep_last, keep=best)
        self.workers.wait()

    def _finish(self, reporter: Reporter) -> None:
        if self.progress.update == 0:
            raise UserError("nothing was trained: no update fits into the recipe's limits")
        self._validate(reporter)
        self.progress.finished = True
        self._save()


class _Recent:
    """Means since the last line of the log."""

    def __init__(self) -> None:
        self.updates, self.tokens = 0, 0
        self.loss, self.nll, self.norm, self.seconds = 0.0, 0.0, 0.0, 0.0
        self.auxiliary: dict[str, float] = {}

    def add(self, result: BatchResult, norm: float, tokens: int, seconds: float) -> None:
        self.updates += 1
        self.tokens += tokens
        self.loss += result.loss
        self.nll += result.nll
        self.norm += norm
        self.seconds += seconds
        for name, value in result.auxiliary.items():
            self.auxiliary[name] = self.auxiliary.get(name, 0.0) + value

    def mean_loss(self) -> float:
        return self.loss / max(self.updates, 1)

    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def values(self) -> dict[str, float]:
        return {
            "loss": self.mean_loss(),
            "nll": self.nll / max(self.tokens, 1),
            "gradient_norm": self.norm / max(self.updates, 1),
            "tokens_per_second": self.tokens_per_second(),
            **{name: value / max(self.updates, 1) for name, value in self.auxiliary.items()},
        }
