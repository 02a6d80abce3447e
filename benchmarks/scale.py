"""The time, memory and training speed with ten times the data.

    python benchmarks/scale.py [--pairs 4500000] [--folder runs/benchmarks/scale]

Makes synthetic corpora of ``--pairs`` pairs and of a tenth of them (`synthetic.py`). On both it runs `sparsenmt
prepare` and the data loading of training, each in a process whose resident anonymous memory (RssAnon of
/proc/PID/status) is measured; the memory of a process that only imports the same modules is subtracted. Training
throughput is measured in one process, on both in turns. Linux only. Ends with one JSON line:

    prepare_time        seconds of the large corpus over those of the small one; at most 11
    memory_prepare_mb   of the large corpus, beyond Python and torch; at most 300
    memory_train_mb     the same for the data loading of training
    throughput          target tokens/s on the large corpus over those on the small one; at least 0.97
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import verdict
from synthetic import write_corpus

ROOT = Path(__file__).resolve().parent.parent
BATCH_TOKENS, UPDATES, ROUNDS = 4096, 6, 12
RECIPE = """\
name: scale
directory: model
model: {{preset: tiny}}
data:
  directory: {prepared}
  train: [{{name: synthetic, source: {source}, target: {target}}}]
  dev: {{source: {dev_source}, target: {dev_target}}}
  tokenizer: {{vocabulary_size: 32000}}
training: {{device: cpu}}
"""
IMPORTS = "import torch, sentencepiece, sparsenmt.commands.prepare, sparsenmt.commands.train, sparsenmt.assemble.checks"
IMPORTS += ", sparsenmt.data.prepare.pipeline, sparsenmt.training.loop, sparsenmt.sparsity.registry as r; r.methods()"


def anonymous_mb(pid: int | str = "self") -> float:
    """Return the resident anonymous memory of a process and its children, in MB."""
    total = 0.0
    for line in Path(f"/proc/{pid}/status").read_bytes().decode().split("\n"):
        if line.startswith("RssAnon:"):
            total += int(line.split()[1]) / 1024
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        total += sum(anonymous_mb(other.decode()) for other in child.read_bytes().split())
    return total


def watched(command: list[str]) -> tuple[float, float, str]:
    """Run a command; returns seconds, the peak of its anonymous memory in MB, and its standard output."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}
    began, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it or a child of it has just ended
            peak = max(peak, anonymous_mb(process.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return seconds, peak, output


def data_side(prepared: str) -> None:
    """Load data as training does: open, plan two epochs, read batches."""
    from sparsenmt.data.batching import EpochPlan, collate
    from sparsenmt.data.prepared_data import PreparedData

    data = PreparedData.open(prepared)
    plan = EpochPlan(data.train, data.train_weights, BATCH_TOKENS, 1)
    began = time.perf_counter()
    for epoch in range(2):
        batches = plan.batches(epoch)
        for batch in batches[:2000]:
            collate(data.train, batch)
    seconds = time.perf_counter() - began
    print(f"{len(batches):,} batches an epoch; two plans and 4,000 batches in {seconds:.1f} s", file=sys.stderr)


def throughput(folders: list[str]) -> None:
    """Train a small model on several prepared directories in turns; prints target tokens/s of every round as JSON."""
    import torch

    from sparsenmt.assemble.model import build_model
    from sparsenmt.data.batching import EpochPlan, collate
    from sparsenmt.data.prepared_data import PreparedData
    from sparsenmt.recipe.choices import PRESETS
    from sparsenmt.recipe.schema import ModelSection, Optimizer
    from sparsenmt.training.gradients import Objective, UpdateTotals, accumulate_gradients
    from sparsenmt.training.precision import MasterWeights
    from sparsenmt.training.state import make_optimizer

    torch.set_num_threads(2)
    opened = [PreparedData.open(folder) for folder in folders]
    model = build_model(ModelSection(**PRESETS["tiny"]), source_size=32000, target_size=32000, seed=1)
    weights = MasterWeights(model, torch.float32)
    optimizer = make_optimizer(weights, Optimizer())
    batches = [EpochPlan(data.train, data.train_weights, BATCH_TOKENS, 1).batches(0) for data in opened]
    rates: list[list[float]] = [[] for _ in folders]
    for number in range(ROUNDS + 1):
        for side, data in enumerate(opened):
            tokens, began = 0, time.perf_counter()
            for index in batches[side][number * UPDATES : (number + 1) * UPDATES]:
                batch = collate(data.train, index)
                accumulate_gradients(model, batch, Objective(0.1, "tokens", {}), UpdateTotals.of([batch]))
                optimizer.step()
                optimizer.zero_grad()
                tokens += batch.target_tokens
            if number:  # the first round warms up
                rates[side].append(tokens / (time.perf_counter() - began))
    print(json.dumps(rates))


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "data-side":
        return data_side(sys.argv[2])
    if len(sys.argv) > 2 and sys.argv[1] == "throughput":
        return throughput(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "benchmarks" / "scale")
    given = parser.parse_args()
    folder = given.folder.resolve()
    sizes = [given.pairs // 10, given.pairs]
    dev = write_corpus(folder / "text", 1000)
    _, baseline, _ = watched([sys.executable, "-c", f"{IMPORTS}; import time; time.sleep(0.5)"])
    print(f"imports alone: {baseline:.0f} MB")
    seconds, memory, prepared = [], {"prepare": 0.0, "train": 0.0}, []
    for size in sizes:
        source, target = write_corpus(folder / "text", size)
        prepared.append(str(folder / f"prepared-{size}"))
        shutil.rmtree(prepared[-1], ignore_errors=True)
        recipe = folder / f"{size}.yaml"
        text = RECIPE.format(prepared=prepared[-1], source=source, target=target, dev_source=dev[0], dev_target=dev[1])
        recipe.write_text(text, encoding="utf-8", newline="\n")
        taken, peak, _ = watched([sys.executable, "-m", "sparsenmt", "prepare", str(recipe)])
        seconds.append(taken)
        memory["prepare"] = peak - baseline
        print(f"{size:,} pairs: prepare {taken:.1f} s, {peak - baseline:.0f} MB beyond the imports", flush=True)
        _, peak, _ = watched([sys.executable, __file__, "data-side", prepared[-1]])
        memory["train"] = peak - baseline
        print(f"{size:,} pairs: data side of training {peak - baseline:.0f} MB beyond the imports", flush=True)
    _, _, output = watched([sys.executable, __file__, "throughput", *prepared])
    small, large = json.loads(output)
    for size, rates in zip(sizes, (small, large), strict=True):
        spread = max(rates) / min(rates) - 1
        print(f"{size:,} pairs: {statistics.median(rates):,.0f} target tokens/s (median; spread {spread:.0%})")
    ratios = {
        "prepare_time": round(seconds[1] / seconds[0], 2),
        "memory_prepare_mb": round(memory["prepare"]),
        "memory_train_mb": round(memory["train"]),
        "throughput": round(statistics.median(b / a for a, b in zip(small, large, strict=True)), 3),
    }
    bars = {"prepare_time": 11, "memory_prepare_mb": 300, "memory_train_mb": 300, "throughput": 0.97}
    print(json.dumps(verdict("scale", ratios, bars, most=bars.keys() - {"throughput"})))


if __name__ == "__main__":
    main()
