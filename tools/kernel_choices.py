"""Measure the table of choices between compiled kernels and PyTorch, `sparsenmt/native/choices.json`.

    python -m tools.kernel_choices [--set NAME]... [--seconds S] [--output FILE]

Builds the kernels of every instruction set that this processor has into build/choices, and measures each with one
thread and with two, in a process of its own in which PyTorch's libraries are limited to the same instructions. The
machine should have nothing else to do. Columns of sets that are not measured stay as they are. A ratio is a kernel's
time over PyTorch's, with two digits: review which have crossed 0.95, where the choice changes, before committing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from sparsenmt.engine.kernel_trials import every_class, measured_ratio
from sparsenmt.engine.numerics import processor_name
from sparsenmt.native.build import build_here
from sparsenmt.native.choice import MOST_THREADS, TABLE, VERSION, ChoiceTable, class_parts, read_table
from sparsenmt.native.instruction_sets import INSTRUCTION_SETS, usable_sets

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "choices"
ROUNDS = 3
LIMITS = {
    **{"avx2": ("avx2", "AVX2", "AVX2"), "avx_vnni": ("avx2", "AVX2_VNNI", "AVX2")},
    **{"avx512": ("avx512", "AVX512_CORE", "AVX512"), "avx512_vnni": ("avx512", "AVX512_CORE_VNNI", "AVX512")},
    "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512"),
}
"""Instruction set -> limits of PyTorch's own operators, of oneDNN and of MKL."""
NEAREST = {
    **{"avx512_bf16": ("amx",), "avx512_vnni": ("avx512_bf16", "amx"), "avx512": ("avx512_vnni", "avx512_bf16", "amx")},
    **{"avx_vnni": ("avx2",), "neon_dotprod": ("avx2",), "neon": ("avx2",)},
}
"""Instruction set -> those whose ratios it takes where it was not measured itself: the first that was."""


def environment(made_for: str, threads: int) -> dict[str, str]:
    """The environment of a process that measures a column."""
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
    limits = zip(names, LIMITS[made_for], strict=True) if made_for in LIMITS else ()
    ours = {"SPARSENMT_NATIVE_ISA": made_for, "SPARSENMT_NATIVE_FOLDER": str(FOLDER), "SPARSENMT_NATIVE": "always"}
    return {**os.environ, **ours, **dict(limits), "OMP_NUM_THREADS": str(threads)}


def column(seconds: float) -> dict[str, float]:
    """Measure the ratios of this process in a few rounds: class -> median."""
    found: dict[str, list[float]] = {}
    for number in range(1, ROUNDS + 1):
        for name, trials in every_class():
            found.setdefault(name, []).append(measured_ratio(trials, seconds))
        print(f"round {number} of {ROUNDS}", file=sys.stderr, flush=True)
    return {name: max(round(statistics.median(ratios), 2), 0.01) for name, ratios in found.items()}


def machine() -> dict[str, str]:
    """The processor, PyTorch and date of a measurement."""
    date = datetime.datetime.now(datetime.UTC).date()
    return {"processor": processor_name(), "torch": torch.__version__, "date": f"{date}"}


def merge(old: ChoiceTable, found: dict[str, dict[str, float]], made_with: dict[str, str]) -> str:
    """The text of the table with new columns: a line a class, so that a change is a line of the difference."""
    sets = [each.name for each in INSTRUCTION_SETS]
    columns = sorted({*old.columns, *found}, key=lambda each: (sets.index(each.split(" ")[0]), each))
    before = {name: dict(zip(old.columns, ratios, strict=True)) for name, ratios in old.ratios.items()}
    names = sorted({*before, *(name for each in found.values() for name in each)}, key=class_parts)
    known = {name: before.get(name, {}) | {each: new.get(name) for each, new in found.items()} for name in names}
    rows = [[known[name].get(each) for each in columns] for name in names]
    measured = {**old.measured, **{each.split(" ")[0]: made_with for each in found}}
    same = {name: next((each for each in near if each in measured), "") for name, near in NEAREST.items()}
    same = {name: near for name, near in same.items() if near and name not in measured}
    head = {"version": VERSION, "measured": measured, "same": same, "columns": columns}
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in zip(names, rows, strict=True)]
    return json.dumps(head, indent=1)[:-2] + ',\n "ratios": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_choices", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--set", action="append", dest="sets", metavar="NAME", help="only this set; repeatable")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a measurement, at least")
    parser.add_argument("--output", type=Path, default=TABLE, help="the table")
    parser.add_argument("--column", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.column:
        json.dump(column(options.seconds), sys.stdout)
        return 0
    os.environ["SPARSENMT_NATIVE_FOLDER"] = str(FOLDER)
    chosen = [each for each in usable_sets() if options.sets is None or each.name in options.sets]
    build_here(print, chosen)
    found: dict[str, dict[str, float]] = {}
    for made_for in [each.name for each in chosen]:
        for threads in range(1, MOST_THREADS + 1):
            print(f"{made_for}, {threads} threads", flush=True)
            command = [sys.executable, "-m", "tools.kernel_choices", "--column", "--seconds", str(options.seconds)]
            done = subprocess.run(
                command, cwd=ROOT, env=environment(made_for, threads), stdout=subprocess.PIPE, check=True
            )
            found[f"{made_for} {threads}"] = json.loads(done.stdout)
            options.output.write_text(merge(read_table(), found, machine()), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
