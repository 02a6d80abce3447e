"""The time of a one-line translation from the shell, start-up included.

    python benchmarks/one_line.py [--model MODEL_DIR]

Runs `sparsenmt decode MODEL_DIR` in a new process, with one line on its standard input, and times it from the start of
the process to its end: the interpreter, PyTorch, reading and packing the weights, the search. Without a model, one of
the preset `small` with random weights and 8,000 tokens is made (its output has the maximum length). The fastest of
several runs counts; the first one, which may read files that are not in the page cache and build kernels, is printed,
too. The bar is 3 seconds. Ends with one JSON line; the ratio is 3 over the seconds: at least 1 is wanted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import command_line, parse, verdict
from multi30k import ROOT

BAR_SECONDS = 3.0
WORK: dict[str, Any] = {"line": "A man in an orange hat starring at something.", "threads": 2}


def random_model(directory: Path) -> None:
    """Write a model directory of the preset `small` with random weights and a vocabulary of invented words."""
    import random

    from sparsenmt.assemble import model_directory
    from sparsenmt.assemble.methods import load_resolved_recipe
    from sparsenmt.assemble.model import build_model
    from sparsenmt.data.features.feature_set import FeatureSet
    from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer

    random.seed(0)
    corpus = {"source": "none.source", "target": "none.target"}
    mapping = {
        "name": "random",
        "directory": "none",
        "model": {"preset": "small"},
        "data": {"directory": "none", "train": [corpus], "dev": corpus, "tokenizer": {"vocabulary_size": 8000}},
    }
    recipe = load_resolved_recipe(mapping)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 9))) for _ in range(20_000)]
    tokenizer = train_tokenizer(recipe.data.tokenizer, (" ".join(words[i : i + 10]) for i in range(0, len(words), 10)))
    model_directory.initialise(directory, recipe, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), "random")
    model = build_model(recipe.model, source_size=tokenizer.size, target_size=tokenizer.size, seed=0)
    model_directory.write_weights(directory, model.state_dict(), after=0, made_of=[])


def seconds(model: Path, work: dict[str, Any]) -> float:
    """Return the seconds of one process."""
    command = [sys.executable, "-m", "sparsenmt", "decode", str(model), "--threads", str(work["threads"])]
    threads = str(work["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    began = time.perf_counter()
    done = subprocess.run(
        command, input=f"{work['line']}\n".encode(), stdout=subprocess.PIPE, env=environment, check=True
    )
    taken = time.perf_counter() - began
    assert done.stdout.count(b"\n") == 1
    return taken


def main() -> int:
    parser = command_line(__doc__, 5)
    parser.add_argument("--model", type=Path, help="default: random weights")
    arguments, changes = parse(parser, ["one_line"])
    work = WORK | changes
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or Path(name) / "model"
        if arguments.model is None:
            random_model(model)
        first, *others = (seconds(model, work) for _ in range(arguments.repeats + 1))
    best, spread = min(others), max(others) / min(others) - 1
    every = " ".join(f"{s:.2f}" for s in others)
    print(
        f"one_line: {best:.2f} s, bar {BAR_SECONDS:g} s, spread {spread:.1%}, seconds: {every} (the first: {first:.2f})"
    )
    bars = {} if changes else {"one_line": 1.0}
    result = verdict("one_line", {"one_line": BAR_SECONDS / best}, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
