"""Training with BPE-dropout beside training without it: target tokens a second, the sampling off the critical path.

    python benchmarks/subword_regularization.py

The model and text of recipes/multi30k-en-de.yaml (SPARSENMT_DATA; see ``benchmarks/multi30k.py``), dropout 0.1 on both
sides; runs take turns, the fastest of each counts. Sampled sentences have more tokens, so that tokens are compared, not
updates. The ratio is the speed with sampling over that without: at least 0.95 is wanted. Ends with one JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sparsenmt
from common import command_line, parse, verdict
from multi30k import ROOT

WORK: dict[str, Any] = {"updates": 40, "batch_tokens": 4096, "lines": 10_000, "dimension": 256}
SIDES: dict[str, dict[str, Any]] = {"without": {}, "with": {side: {"dropout": 0.1} for side in ("source", "target")}}


def speed(work: dict[str, Any], folder: Path, sampling: dict[str, Any], name: str) -> float:
    """Return the target tokens a second of the second half of a run."""
    half = work["updates"] // 2
    recipe = sparsenmt.load_recipe(
        ROOT / "recipes" / "multi30k-en-de.yaml",
        {
            "directory": str(folder / name),
            "model.dimension": work["dimension"],
            "data.directory": str(folder / "data"),
            "data.train.0.lines": work["lines"],
            "data.tokenizer.vocabulary_size": 4000,
            **({"data.subword_regularization": sampling} if sampling else {}),
            "training.max_updates": 2 * half,
            "training.batch_tokens": work["batch_tokens"],
            "training.log_every": half,
            "training.average_last": 0,
            "training.validation": {"every": 10_000, "metric": "loss", "max_sentences": 20},
        },
    )
    sparsenmt.prepare(recipe)
    directory = sparsenmt.train(recipe)
    entries = map(json.loads, (directory / "metrics.jsonl").read_bytes().decode().rstrip("\n").split("\n"))
    return float([entry["tokens_per_second"] for entry in entries if entry["kind"] == "train"][-1])


def main(arguments: list[str] | None = None) -> int:
    given, changes = parse(command_line(__doc__, 3), ["subword_regularization"], arguments)
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(given.repeats):
            for name, sampling in SIDES.items():
                found[name].append(speed(WORK | changes, Path(folder), sampling, f"{name}-{repeat}"))
    plain, sampled = (max(found[name]) for name in SIDES)
    print(f"subword_regularization: {sampled:,.0f} target tokens/s, without {plain:,.0f}")
    ratio = {"subword_regularization": sampled / plain}
    result = verdict("subword_regularization", ratio, {} if changes else {"subword_regularization": 0.95})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
