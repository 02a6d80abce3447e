"""Resident memory of training in bf16, with and without the return of free memory to the system.

Forty updates of the small model on Multi30k, one process per variant; prints megabytes every ten updates. Ends with one
JSON line; the ratio is the resident memory without the return over that with it. There is no bar.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from multi30k import write_batches
from train_vs_transformers import SMALL

STEPS, EVERY = 40, 10


def resident() -> int:
    """Return the resident megabytes of this process (Linux)."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * 4096 // 2**20


def measure(work: dict[str, object], give_back: bool) -> list[int]:
    """Train; returns the resident megabytes every `EVERY` updates, after the return of free memory if requested."""
    import torch

    from protocol import training_batches
    from sparsenmt.engine.training_operators import use_training_operators
    from sparsenmt.process.runtime import trim_heap
    from sparsenmt.recipe.schema import Optimizer
    from sparsenmt.training.gradients import Objective
    from sparsenmt.training.precision import MasterWeights
    from sparsenmt.training.state import make_optimizer
    from workers.model import random_model
    from workers.train import as_batch, update

    torch.set_num_threads(2)
    model = random_model(work)
    use_training_operators(model.train(), torch.device("cpu"))
    weights = MasterWeights(model, torch.bfloat16)
    optimizer = make_optimizer(weights, Optimizer())
    seen = []
    for step, ids in enumerate(training_batches(work), start=1):
        update(model, weights, optimizer, as_batch(*ids), Objective(0.1, "tokens", {}))
        if step % EVERY == 0:
            if give_back:
                trim_heap()
            seen.append(resident())
    return seen


def main() -> None:
    if len(sys.argv) == 3:  # one variant, in a process of its own
        print(json.dumps(measure(json.loads(sys.argv[2]), sys.argv[1] == "with")))
        return
    work = write_batches(SMALL | {"steps": STEPS})
    found = {}
    for variant in ("without", "with"):
        command = [sys.executable, __file__, variant, json.dumps(work)]
        found[variant] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        print(f"{variant:8} giving back, MB after every {EVERY} updates: {found[variant]}")
    ratio = round(found["without"][-1] / found["with"][-1], 3)
    print(json.dumps({"name": "training_memory", "ratios": {"bf16_resident": ratio}, "bars": {}, "ok": True}))


if __name__ == "__main__":
    main()
