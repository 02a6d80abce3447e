"""Time the workers of two checkouts in turns: how fast is one revision beside another, without a peer's noise?

    python -m tools.pair_revisions OLD NEW decode '{"our_dtype": "fp32"}' --repeats 15

The work is that of `benchmarks/decode_vs_ctranslate2.py`, case base_fp32, with the given keys changed. Training needs
the key "batches", a file that `benchmarks/train_vs_transformers.py` writes. Ends with one JSON line: the median over
the pairs, and the ratio of the fastest, of old seconds over new seconds; above 1 the new revision is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "decode": {
        **{"dimension": 512, "feed_forward": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
        **{"vocabulary": 32000, "max_positions": 2048, "beam_size": 4, "length_penalty": 0.6},
        **{"batch_sentences": 32, "sentences": 64, "source_length": 15, "target_length": 16},
    },
    "train": {
        **{"dimension": 256, "feed_forward": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3},
        **{"vocabulary": 8000, "max_positions": 512, "dropout": 0.1, "label_smoothing": 0.1},
        **{"batch_tokens": 4096, "steps": 6, "peer_dtype": "fp32"},
    },
}


def start(checkout: Path, kind: str, work: dict[str, Any]) -> subprocess.Popen[str]:
    """Start the worker of a checkout, and wait until it is ready."""
    benchmarks = checkout.resolve() / "benchmarks"
    environment = {**os.environ, "PYTHONPATH": f"{checkout.resolve()}:{benchmarks}"}
    command = [sys.executable, str(benchmarks / "workers" / f"{kind}.py"), json.dumps(work)]
    worker = subprocess.Popen(
        command, text=True, cwd=benchmarks, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert worker.stdout is not None and worker.stdout.readline(), f"{checkout}: the worker did not start"
    return worker


def repeat(worker: subprocess.Popen[str]) -> float:
    """Let a worker do its work once; returns the seconds."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(json.loads(worker.stdout.readline())["seconds"])


def main() -> None:
    """Time both in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("kind", choices=list(SIZES))
    parser.add_argument("changes", nargs="?", default="{}")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    work = {**SIZES[given.kind], "threads": 2, "our_dtype": "fp32", **json.loads(given.changes)}
    workers = [start(checkout, given.kind, work) for checkout in (given.old, given.new)]
    pairs = []
    for number in range(given.repeats):
        order = (0, 1) if number % 2 else (1, 0)
        seconds = {side: repeat(workers[side]) for side in order}
        pairs.append((seconds[0], seconds[1]))
    for worker in workers:
        worker.communicate()
    old, new = zip(*pairs, strict=True)
    ratios = {"median": median(a / b for a, b in pairs), "fastest": min(old) / min(new)}
    print(json.dumps({"name": "pair_revisions", "ratios": {key: round(each, 4) for key, each in ratios.items()}}))


if __name__ == "__main__":
    main()
