"""This project: training steps. A worker of ``benchmarks/train_vs_transformers.py``."""

from __future__ import annotations

import itertools
from typing import Any

import torch

import sparsenmt
from protocol import PAD, Ids, serve, training_batches, work_from_arguments
from sparsenmt.data.batching import Batch
from sparsenmt.engine.training_operators import use_training_operators
from sparsenmt.model.depth_plan import DepthPlan
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device
from sparsenmt.process.runtime import keep_freed_memory
from sparsenmt.recipe.schema import Optimizer
from sparsenmt.training.gradients import (
    ExitPairs,
    Objective,
    UpdateTotals,
    accumulate_gradients,
    fill_missing_gradients,
)
from sparsenmt.training.precision import MasterWeights, pick_dtype
from sparsenmt.training.state import make_optimizer
from sparsenmt.workflows.evaluation.benchmark.flops import synchronize
from workers.model import random_model


def as_batch(source: Ids, target_input: Ids, target_output: Ids) -> Batch:
    ids = torch.from_numpy(source)
    output = torch.from_numpy(target_output)
    return Batch(
        source=ids,
        source_valid=ids != PAD,
        features={},
        target_input=torch.from_numpy(target_input),
        target_output=output,
        target_valid=output != PAD,
        corpus=None,
        indices=tuple(range(len(source))),
    )


def turns(plan: DepthPlan) -> list[ExitPairs]:
    """The pairs of exits of each step, by turns: where a step draws one encoder exit, each of them once."""
    pairs = plan.pairs()
    if plan.drawn[0] is None:
        return [pairs]
    count = len(plan.encoder_exits)
    return [{pair: count * share for pair, share in pairs.items() if pair[0] == n} for n in plan.encoder_exits]


def set_up(work: dict[str, Any]) -> tuple[Transformer, MasterWeights, torch.optim.Optimizer]:
    """A model with random weights, its weights in the dtype of the work, and Adam."""
    torch.set_num_threads(work["threads"])
    torch.manual_seed(0)
    keep_freed_memory()
    device = pick_device(work.get("device", "cpu"))
    model = random_model(work).to(device)
    model.train()
    use_training_operators(model, device)
    weights = MasterWeights(model, pick_dtype(work["our_dtype"], device))
    optimizer = make_optimizer(weights, Optimizer())
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    return model, weights, optimizer


def update(
    model: Transformer, weights: MasterWeights, optimizer: torch.optim.Optimizer, batch: Batch, objective: Objective
) -> None:
    """One update of the weights by one batch."""
    accumulate_gradients(model, batch, objective, UpdateTotals.of([batch]))
    weights.collect()
    fill_missing_gradients(model.plan, (each for each in weights.named.values() if each.requires_grad))
    optimizer.step()
    optimizer.zero_grad()
    weights.publish()


def main() -> None:
    work = work_from_arguments()
    model, weights, optimizer = set_up(work)
    losses = {name: work["penalty"] for name in work.get("losses", ())}
    objectives = [Objective(work["label_smoothing"], "tokens", losses, pairs) for pairs in turns(model.plan)]
    batches = [as_batch(*batch) for batch in training_batches(work)]
    device = model.output_table.device

    def repeat() -> None:
        for objective, batch in zip(itertools.cycle(objectives), batches):
            update(model, weights, optimizer, batch.to(device), objective)
        synchronize(device)

    serve(
        what=f"sparsenmt {sparsenmt.__version__} {work['our_dtype']}{work.get('named', '')}",
        units=sum(batch.target_tokens for batch in batches),
        repeat=repeat,
    )


if __name__ == "__main__":
    main()
