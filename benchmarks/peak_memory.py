"""Peak memory of decoding and training relative to the peers, with the work of the speed benchmarks.

The same workers, with the same sizes, batches and threads as `decode_vs_ctranslate2.py` and `train_vs_transformers.py`:
each is a process that builds its model, does its work once to warm up and then ``--repeats`` times. Peaks of resident
memory are compared (``VmHWM`` of /proc; Linux only): interpreter, libraries, model and work. The memory of the
libraries alone is printed, too: PyTorch is larger than CTranslate2.

Ends with one JSON line. The ratios are the peer's peak over ours: at least 1 is wanted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import decode_vs_ctranslate2
import train_vs_transformers
from common import Side, Worker, command_line, parse, peak_megabytes, verdict
from multi30k import write_batches


@dataclass(frozen=True)
class Memory:
    """The same work on both sides; ``imports`` are the modules of each side."""

    ours: Side
    peer: Side
    work: dict[str, Any]
    imports: tuple[str, str]
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict


def _decoding(**changes: Any) -> Memory:
    sides = decode_vs_ctranslate2.OURS, decode_vs_ctranslate2.CTRANSLATE2
    return Memory(*sides, decode_vs_ctranslate2.BASE | changes, ("torch, sparsenmt.assemble.bundle", "ctranslate2"))


def _training(**changes: Any) -> Memory:
    sides, work = (train_vs_transformers.OURS, train_vs_transformers.MARIAN), train_vs_transformers.SMALL | changes
    imports = "torch, sparsenmt.assemble.bundle", "torch, transformers.models.marian.modeling_marian"
    return Memory(*sides, work, imports, write_batches)


CASES = {
    "decoding_fp32": _decoding(),
    "decoding_int8": _decoding(our_dtype="int8", peer_compute_type="int8"),
    "decoding_400_fp32": _decoding(source_length=399, target_length=60, batch_sentences=10, sentences=20),
    "training_fp32": _training(),
    "training_bf16": _training(our_dtype="bf16", peer_dtype="bf16"),
}


def of_worker(side: Side, work: dict[str, Any], repeats: int) -> tuple[str, int]:
    """Return the worker's name, and its peak after the work."""
    with Worker(side, work) as worker:
        for _ in range(repeats):
            worker.repeat()
        return worker.what, worker.peak()


def of_imports(side: Side, modules: str) -> int:
    """Return the peak MiB of a process that only imports these modules."""
    code = f"import {modules}\nfor line in open('/proc/self/status', 'rb'):\n    print(line.decode(), end='')"
    done = subprocess.run([str(side.python()), "-c", code], stdout=subprocess.PIPE, check=True)
    return peak_megabytes(done.stdout.decode())


def compare(name: str, case: Memory, changes: dict[str, Any], repeats: int) -> float:
    """Print both sides; returns the peer's peak over ours."""
    work = case.prepare(case.work | changes)
    peaks = []
    print(f"\n{name}")
    for side, modules in zip((case.ours, case.peer), case.imports, strict=True):
        what, most = of_worker(side, work, repeats)
        libraries = of_imports(side, modules)
        peaks.append(most)
        print(f"  {what:<40} {most:>7} MiB at the peak, of which {libraries} MiB for libraries")
    ratio = peaks[1] / peaks[0]
    print(f"  ratio {ratio:.3f}, bar 1.0", flush=True)
    return ratio


def main() -> int:
    parser = command_line(__doc__, 2)
    arguments, changes = parse(parser, list(CASES))
    chosen = {name: case for name, case in CASES.items() if not arguments.cases or name in arguments.cases}
    ratios = {name: compare(name, case, changes, arguments.repeats) for name, case in chosen.items()}
    result = verdict("peak_memory", ratios, {} if changes else dict.fromkeys(chosen, 1.0))
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
