"""Peak resident memory of training with adapters of rank 8, and of full training.

Ten updates of the small model on Multi30k, one process per variant; prints the parameters that are trained, the
bytes of the optimizer's state, and the peak of resident memory. Ends with one JSON line; the ratios are full
training over adapters. There is no bar.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from multi30k import write_batches
from train_vs_transformers import SMALL

STEPS, RANK = 10, 8
VARIANTS = ("full", "adapters")


def measure(work: dict[str, object], variant: str) -> dict[str, int]:
    """Train; return counts and bytes."""
    import torch

    from protocol import training_batches
    from sparsenmt.model.adapters import add_adapters
    from sparsenmt.recipe.schema import Optimizer
    from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
    from sparsenmt.training.precision import MasterWeights
    from sparsenmt.training.state import make_optimizer
    from workers.model import random_model
    from workers.train import as_batch

    torch.set_num_threads(2)
    model = random_model(work)
    model.train()
    if variant == "adapters":
        add_adapters(model, rank=RANK, alpha=2.0 * RANK, dropout=0.0, targets=["q", "v"], seed=1)
    weights = MasterWeights(model, torch.float32)
    optimizer = make_optimizer(weights, Optimizer())
    for ids in training_batches(work):
        batch = as_batch(*ids)
        accumulate_gradients(model, batch, Objective(0.1, "tokens", {}), UpdateTotals.of([batch]))
        weights.collect()
        optimizer.step()
        optimizer.zero_grad()
        weights.publish()
    states = [each for state in optimizer.state.values() for each in state.values()]
    return {
        "parameters": sum(each.numel() for each in weights.named.values() if each.requires_grad),
        "optimizer_bytes": sum(each.nbytes for each in states),
        "peak_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    if len(sys.argv) == 3:  # one variant, in a process of its own
        print(json.dumps(measure(json.loads(sys.argv[2]), sys.argv[1])))
        return
    work = json.dumps(write_batches(SMALL | {"steps": STEPS}))
    found = {}
    print(f"{'':10} {'trained':>12} {'optimizer MB':>13} {'peak MB':>9}")
    for variant in VARIANTS:
        command = [sys.executable, __file__, variant, work]
        found[variant] = one = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        sizes = (one["optimizer_bytes"] / 2**20, one["peak_resident"] / 2**20)
        print(f"{variant:10} {one['parameters']:12,} {sizes[0]:13.1f} {sizes[1]:9.0f}")
    full, adapters = (found[variant] for variant in VARIANTS)
    ratios = {name: round(full[name] / adapters[name], 3) for name in full}
    print(json.dumps({"name": "adapter_memory", "ratios": ratios, "bars": {}, "ok": True}))


if __name__ == "__main__":
    main()
