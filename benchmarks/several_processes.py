"""Two processes of one thread each against one process: training, `prepare` and `decode`.

    python benchmarks/several_processes.py [ddp_train] [prepare_processes] [decode_processes]

    ddp_train           target tokens/s of two processes that share every update (gloo) over one process of two threads
    prepare_processes   speed of `prepare --processes 2` over `prepare --processes 1`
    decode_processes    1 if two processes write the bytes that one writes, otherwise 0; the speed is printed

Both sides of a ratio do the same work in turns. The training batches are those of Multi30k, in the directory that the
environment variable SPARSENMT_DATA names, or in ``data/`` of the checkout; the text of the others is synthetic. Ends
with one JSON line; the exit code is 0 if every bar is reached.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import Case, Side, command_line, compare, parse, verdict
from multi30k import write_batches
from synthetic import write_corpus
from train_vs_transformers import SMALL

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "runs" / "benchmarks" / "several_processes"
RECIPE = """\
name: several
directory: {folder}/model
model: {{preset: tiny}}
data:
  directory: {folder}/prepared
  train: [{{name: synthetic, source: {source}, target: {target}}}]
  dev: {{source: {dev_source}, target: {dev_target}}}
  tokenizer: {{vocabulary_size: 8000, max_training_lines: 20000}}
training: {{max_updates: 1, batch_tokens: 1024, average_last: 1, validation: {{every: 1, metric: loss}}, device: cpu}}
decoding: {{beam_size: 4, max_length_factor: 1.0, max_length_offset: 2}}
"""
BARS = {"ddp_train": 0.95, "prepare_processes": 1.7, "decode_processes": 1.0}
# An update of two batches: of one process, or of one batch in each of two.
TRAIN = SMALL | {"batches_per_update": 2, "steps": 8}


def write_recipe(pairs: int) -> Path:
    """Write a recipe for synthetic text; returns its path."""
    (source, target), dev = write_corpus(FOLDER / "text", pairs), write_corpus(FOLDER / "text", 1000)
    text = RECIPE.format(folder=FOLDER, source=source, target=target, dev_source=dev[0], dev_target=dev[1])
    path = FOLDER / f"{pairs}.yaml"
    path.write_bytes(text.encode())
    return path


def case_of(name: str, pairs: int) -> Case:
    """Return the two sides of a ratio of speeds."""
    if name == "ddp_train":
        script = "workers/train_processes.py"
        ours = Side(script, work={"processes": 2, "threads": 1})
        return Case(name, ours, Side(script, work={"processes": 1}), TRAIN, BARS[name], write_batches)
    script, work = "workers/prepare.py", {"threads": 1, "folder": str(FOLDER), "pairs": pairs}
    work |= {"recipe": str(write_recipe(pairs))}
    sides = [Side(script, work={"processes": count}) for count in (2, 1)]
    return Case(name, sides[0], sides[1], work, BARS[name])


def sparsenmt(*arguments: str, rank: int | None = None, port: int = 0) -> subprocess.Popen[bytes]:
    """Start a command; with a rank, as one of two processes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if rank is not None:
        places = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment |= places
    return subprocess.Popen([sys.executable, "-P", "-m", "sparsenmt", "--quiet", *arguments], env=environment)


def finish(*processes: subprocess.Popen[bytes]) -> None:
    """Wait for commands; SystemExit if one fails."""
    if any([process.wait() for process in processes]):
        raise SystemExit("a command has failed; its message is above")


def decoding(lines: int, repeats: int) -> float:
    """Decode a text in one process and in two, in turns; returns 1 if the bytes are the same, otherwise 0."""
    recipe = str(write_recipe(20_000))
    if not (FOLDER / "model" / "weights.safetensors").exists():
        finish(sparsenmt("prepare", recipe))
        finish(sparsenmt("train", recipe))
    source = write_corpus(FOLDER / "text", lines)[0]
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for count, taken in seconds.items():
            output = FOLDER / f"decoded-{count}"
            output.unlink(missing_ok=True)
            command = ["decode", str(FOLDER / "model"), "-i", str(source), "-o", str(output)]
            command += ["--window", "256", "--threads", "1"]
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
            began = time.perf_counter()
            ranks: list[int | None] = [None] if count == 1 else [0, 1]
            finish(*(sparsenmt(*command, rank=rank, port=port) for rank in ranks))
            taken.append(time.perf_counter() - began)
    one, two = min(seconds[1]), min(seconds[2])
    same = (FOLDER / "decoded-1").read_bytes() == (FOLDER / "decoded-2").read_bytes()
    print(f"\ndecode_processes: {lines:,} lines, start of the program included, fastest of {repeats}, taking turns")
    print(f"  one process of one thread {one:.1f} s, two {two:.1f} s: {one / two:.2f} times as fast")
    print(f"  the outputs are {'the same bytes' if same else 'different'}", flush=True)
    return float(same)


def main() -> int:
    parser = command_line(__doc__, 3)
    parser.add_argument("--pairs", type=int, default=600_000, help="pairs to prepare (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=4096, help="lines to decode (default: %(default)s)")
    given, changes = parse(parser, list(BARS))
    if changes:
        parser.error("--set: the script has no table of cases")
    ratios: dict[str, float] = {}
    for name in given.cases or BARS:
        if name == "decode_processes":
            ratios[name] = decoding(given.lines, given.repeats)
        else:
            ratios[name] = compare(case_of(name, given.pairs), given.repeats)
    result: dict[str, Any] = verdict("several_processes", ratios, {name: BARS[name] for name in ratios})
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
