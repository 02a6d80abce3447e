"""``python -m tests.faults.pairs [--pairs N]``: two processes at once write one output, and what is there afterwards.

Each pair starts at the same moment, give or take some milliseconds. A process that ends well must leave what a lone one
leaves; where the output must be new, only one may end well; the other is refused.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model import build_model
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.tokenizers.tokenizer import Tokenizers, train_tokenizer
from sparsenmt.errors import UserError
from sparsenmt.export.model_export import export_model
from sparsenmt.recipe.load import load_resolved
from sparsenmt.recipe.schema import Recipe
from sparsenmt.sparsity.registry import methods
from sparsenmt.training.checkpoints import write_checkpoint
from sparsenmt.training.state import Progress
from sparsenmt.workflows.conversion.slice import slice_model
from sparsenmt.workflows.training.average import average
from sparsenmt.workflows.training.prepare import prepare

MODEL, OUTPUT = Path("../model"), Path("out")
LINES = [f"{a} {b} ." for a in ("one", "two", "three") for b in ("fish", "bird", "cat", "dog")]
DONE, REFUSED, FAILED = 0, 2, 1


def _export() -> None:
    export_model(open_model(MODEL, dtype=None, device=torch.device("cpu")), OUTPUT, "safetensors-hf")


WRITERS: Mapping[str, Callable[[], object]] = {
    "average": lambda: average(MODEL, output=OUTPUT),
    "slice": lambda: slice_model(MODEL, OUTPUT, decoder_layers=1),
    "export": _export,
    "prepare": lambda: prepare(recipe(OUTPUT)),
}
REPLACE = ("prepare",)
"""Writers that may both end well: the second finds what it would write."""


def recipe(data: Path) -> Recipe:
    """A very small model's, with prepared data in a directory."""
    corpus = {"source": "../text.en", "target": "../text.de"}
    mapping = {
        "name": "pairs",
        "directory": "unused",
        "model": {
            **{"preset": "tiny", "dimension": 16, "feed_forward": 32, "heads": 2},
            **{"encoder_layers": 1, "decoder_layers": 2, "max_positions": 40},
        },
        "data": {
            **{"directory": str(data), "train": [corpus], "dev": corpus},
            "tokenizer": {"kind": "char", "vocabulary_size": 40},
        },
    }
    return load_resolved(mapping, methods())


def make_world(folder: Path) -> None:
    """A model with two checkpoints, and a text."""
    options = recipe(OUTPUT)
    for side in ("en", "de"):
        (folder / f"text.{side}").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="\n")
    tokenizer = train_tokenizer(options.data.tokenizer, LINES)
    directory = folder / "model"
    model_directory.initialise(
        directory, options, Tokenizers(tokenizer, tokenizer, True), FeatureSet({}), "fingerprint"
    )
    for update in (1, 2):
        sizes = {"source_size": tokenizer.size, "target_size": tokenizer.size}
        weights = build_model(options.model, **sizes, seed=update).state_dict()
        write_checkpoint(directory, Progress(update=update), weights=weights, optimizer={}, random={})
    model_directory.write_weights(directory, weights, after=2, made_of=[2])


def tree(folder: Path) -> dict[str, bytes]:
    """All files with their contents."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def start(name: str, folder: Path, at: float) -> int:
    """Fork a process that writes at a time of the monotonic clock; returns its number."""
    process = os.fork()
    if process:
        return process
    code = FAILED
    try:
        os.chdir(folder)
        signal.alarm(60)
        time.sleep(max(0.0, at - time.monotonic()))
        with open("log", "a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 2)
            try:
                WRITERS[name]()
                code = DONE
            except UserError as error:
                log.write(f"refused: {error}\n")
                code = REFUSED
            except BaseException as error:  # anything else is a finding
                log.write(f"failed: {error!r}\n")
    finally:
        os._exit(code)


def run_pair(world: Path, name: str, delays: tuple[float, ...], wanted: Mapping[str, bytes] | None) -> list[str]:
    """Let writers of one output run at once; returns what is wrong.

    Args:
        wanted: what a lone writer leaves; None: not compared.
    """
    with tempfile.TemporaryDirectory(dir=world) as place:
        folder = Path(place)
        at = time.monotonic() + 0.03
        started = [start(name, folder, at + delay) for delay in delays]
        codes = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in started]
        found = tree(folder)
        log = found.pop("log", b"").decode()
        left = {each.removeprefix("out/"): content for each, content in found.items()}
        findings = []
        if DONE in codes and wanted is not None and left != wanted:
            findings.append(f"{name}: incomplete, or more than the output: {sorted(left.keys() ^ wanted.keys())[:3]}")
        if codes.count(DONE) > 1 and name not in REPLACE:
            findings.append(f"{name}: both ended well, though one replaced the other's output")
        if not set(codes) <= {DONE, REFUSED} or DONE not in codes:
            findings.append(f"{name}: ended with {codes}: {log[-300:]}")
        return findings


def campaign(pairs: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run pairs; returns how many of each writer, and what was wrong."""
    make_world(folder)
    draw = random.Random(seed)
    expected: dict[str, dict[str, bytes]] = {}
    counts: Counter[str] = Counter()
    findings: list[str] = []
    for number in range(pairs):
        name = list(WRITERS)[number % len(WRITERS)]
        if name not in expected:
            expected[name] = lone(folder, name)
        delays = (0.0, draw.choice((0.0, 0.001, 0.004, 0.016)) * draw.random())
        findings += run_pair(folder, name, delays, expected[name])
        counts[name] += 1
    return counts, findings


def lone(world: Path, name: str) -> dict[str, bytes]:
    """The files that one writer leaves."""
    with tempfile.TemporaryDirectory(dir=world) as place:
        process = start(name, Path(place), 0.0)
        assert os.waitpid(process, 0)[1] == 0, (Path(place) / "log").read_text(encoding="utf-8")
        return tree(Path(place) / "out")


def main() -> int:
    """Returns the exit code: 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.pairs", description=__doc__)
    parser.add_argument("--pairs", type=int, default=300, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, findings = campaign(arguments.pairs, arguments.seed, Path(folder))
    kinds = Counter(finding.split(" [")[0].split(": ended with")[0] for finding in findings)
    for text, count in kinds.items():
        print(f"{count:4} {text}")
    for finding in findings[:3]:
        print(finding)
    print(f"{dict(counts)}: {len(findings)} findings; {time.monotonic() - began:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
