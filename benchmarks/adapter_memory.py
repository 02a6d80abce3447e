"""Peak resident memory of training with adapters of rank 8, and of full training.

Ten updates on Multi30k, one process per variant: of a small model with large batches, whose activations are most of the
memory, and of a base model with small batches, whose gradients and moments are. Prints the parameters that are trained,
the bytes of gradients and of the optimizer's state, and the peak of resident memory. The C library is told to return
every large block at once (``MALLOC_MMAP_THRESHOLD_``): otherwise the peak is that of its fragmented heap, which differs
more from run to run than the two variants do. Ends with one JSON line; the ratios are full training over adapters.
There is no bar.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any

from multi30k import write_batches
from train_vs_transformers import SMALL

STEPS, RANK = 10, 8
BASE = {"dimension": 512, "feed_forward": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6}
CASES: dict[str, dict[str, Any]] = {
    "small, 4,096 tokens": SMALL,
    "base, 1,024 tokens": SMALL | BASE | {"batch_tokens": 1024},
}
VARIANTS = ("full", "adapters")


def measure(work: dict[str, Any], variant: str) -> dict[str, int]:
    """Train; return counts and bytes."""
    import torch

    from protocol import training_batches
    from sparsenmt.engine.training_operators import use_training_operators
    from sparsenmt.model.adapters import add_adapters
    from sparsenmt.recipe.schema import Optimizer
    from sparsenmt.training.gradients import Objective
    from sparsenmt.training.precision import MasterWeights
    from sparsenmt.training.state import make_optimizer
    from workers.model import random_model
    from workers.train import as_batch, update

    torch.set_num_threads(2)
    model = random_model(work)
    use_training_operators(model.train(), torch.device("cpu"))
    if variant == "adapters":
        add_adapters(model, rank=RANK, alpha=2.0 * RANK, dropout=0.0, targets=["q", "v"], seed=1)
    weights = MasterWeights(model, torch.float32)
    optimizer = make_optimizer(weights, Optimizer())
    for ids in training_batches(work):
        update(model, weights, optimizer, as_batch(*ids), Objective(0.1, "tokens", {}))
    trained = [each for each in weights.named.values() if each.requires_grad]
    states = [each for state in optimizer.state.values() for each in state.values()]
    return {
        "parameters": sum(each.numel() for each in trained),
        "gradient_and_optimizer_bytes": sum(each.nbytes for each in (*trained, *states)),
        "peak_resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def compare(work: dict[str, Any]) -> dict[str, float]:
    """Train both variants, print their rows, and return full training over adapters."""
    found = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, variant, json.dumps(work)]
        settings = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=settings)
        found[variant] = one = json.loads(done.stdout)
        sizes = (one["gradient_and_optimizer_bytes"] / 2**20, one["peak_resident"] / 2**20)
        print(f"{variant:10} {one['parameters']:12,} {sizes[0]:25.1f} {sizes[1]:9.0f}")
    full, adapters = (found[variant] for variant in VARIANTS)
    return {name: round(full[name] / adapters[name], 3) for name in full}


def main() -> None:
    if len(sys.argv) == 3:  # one variant, in a process of its own
        print(json.dumps(measure(json.loads(sys.argv[2]), sys.argv[1])))
        return
    ratios: dict[str, float] = {}
    for name, sizes in CASES.items():
        print(f"{name}\n{'':10} {'trained':>12} {'gradients, optimizer MB':>25} {'peak MB':>9}")
        found = compare(write_batches(sizes | {"steps": STEPS}))
        ratios |= {f"{name.partition(',')[0]}_{key}": value for key, value in found.items()}
    print(json.dumps({"name": "adapter_memory", "ratios": ratios, "bars": {}, "ok": True}))


if __name__ == "__main__":
    main()
