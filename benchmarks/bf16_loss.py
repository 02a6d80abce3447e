"""The loss of training in bf16 and in fp32: three runs of a thousand updates on Multi30k.

    python benchmarks/bf16_loss.py [--directory DIR]

`sparsenmt train recipes/multi30k-en-de.yaml` in fp32, in fp32 from another seed, and in bf16 from the first seed, in
batches of 1,024 tokens, with the batch loss (label-smoothed, per token) averaged over the last 100 updates.
Interrupted runs are resumed, complete runs are read. Ends with one JSON line. The ratio is the distance of the two fp32
runs over that of bf16 from fp32: at least 1 means that the precision matters no more than the seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from common import verdict
from multi30k import ROOT

RECIPE = ROOT / "recipes" / "multi30k-en-de.yaml"
RUNS = {"fp32": ("fp32", 1), "fp32-other-seed": ("fp32", 2), "bf16": ("bf16", 1)}
LAST = 100  # updates that are averaged


def train(directory: Path, dtype: str, seed: int, updates: int) -> None:
    """Run `sparsenmt train` to the end."""
    overrides = {
        "directory": directory,
        "training.compute_dtype": dtype,
        "training.seed": seed,
        "training.max_updates": updates,
        "training.batch_tokens": 1024,
        "training.warmup_updates": 400,
        "training.log_every": LAST // 2,
        "training.save_every": 100,
        "training.validation.every": updates,
        "training.validation.max_sentences": 50,
        "training.keep_last": 1,
        "training.average_last": 1,
    }
    settings = [f"{key}={value}" for key, value in overrides.items()]
    command = [sys.executable, "-m", "sparsenmt", "train", str(RECIPE), *settings]
    subprocess.run(command, check=True, cwd=ROOT)


def final_loss(directory: Path) -> float:
    """Return the mean loss of the last updates, from the run's log."""
    entries = [json.loads(line) for line in (directory / "metrics.jsonl").read_bytes().split(b"\n") if line]
    losses = {entry["update"]: entry["loss"] for entry in entries if entry["kind"] == "train"}
    last = max(losses)
    chosen = [loss for update, loss in losses.items() if update > last - LAST]
    return float(sum(chosen) / len(chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "runs" / "bf16-loss", help="default: %(default)s")
    parser.add_argument("--updates", type=int, default=1000, help="for a quick look; default: %(default)s")
    arguments = parser.parse_args()
    subprocess.run([sys.executable, "-m", "sparsenmt", "prepare", str(RECIPE)], check=True, cwd=ROOT)
    found = {}
    for name, (dtype, seed) in RUNS.items():
        train(arguments.directory / name, dtype, seed, arguments.updates)
        found[name] = final_loss(arguments.directory / name)
        print(f"{name}: mean loss of the last {LAST} updates {found[name]:.5f}", flush=True)
    seeds, precision = abs(found["fp32"] - found["fp32-other-seed"]), abs(found["fp32"] - found["bf16"])
    print(f"two seeds: {seeds:.5f}; bf16 and fp32: {precision:.5f}")
    result = verdict("bf16_loss", {"bf16_loss": seeds / max(precision, 1e-9)}, {"bf16_loss": 1.0})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
