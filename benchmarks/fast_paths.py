"""The gain of each fast path, end to end: the same work with the path and without it.

    python benchmarks/fast_paths.py [PATH ...] [--on WORK] [--repeats N] [--every] [--tiny] [--set KEY=VALUE]

Random weights of real sizes. For each path and each work where it matters, one process has everything and another one
lacks the path; they take turns. Paths are switched off from outside (a function is replaced, a variable is set, a line
of C++ is left out of a copy): the package has no switches for them. What rests on a path goes with it: without compiled
steps no searches run side by side, without shortlist products there is no greedy search in one call. ``nothing`` shows
the noise.

Printed are the lines of each path, Python and C++ (those that would go with it), and for each work the seconds without
the path over those with it: of the fastest turn, and of the median. A path earns its lines if it gains 3% in one work
at least, which is its bar: in the works after that it is not measured, unless ``--every`` asks for all of them.
`instruction sets` are libraries held to one set, beside those of the set that would serve in its place.
``--tiny`` takes small models: it only shows that everything runs. Ends with one JSON line, whose ratios are the best of
each path, and of each path and work; the exit code is 0 if every path reaches its bar.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from common import FOLDER, Side, Timing, Worker, command_line, interleave, parse, verdict
from workers.fast_path import place_of

WORKER = "workers/fast_path.py"
PACKAGE = FOLDER.parent / "sparsenmt"
BAR = 1.03

BASE: dict[str, Any] = {
    "task": "decode",
    "threads": 2,
    "our_dtype": "fp32",
    # The model.
    **{"dimension": 512, "feed_forward": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    **{"vocabulary": 32000, "max_positions": 1024},
    # Decoding.
    **{"method": "beam", "beam_size": 4, "sentences": 128, "batch_tokens": 2048},
    **{"source_length": 20, "target_length": 18},
}
STUDENT = BASE | {
    **{"dimension": 256, "feed_forward": 1536, "decoder_layers": 2, "recurrence": {"name": "ssru"}, "shortlist": 200},
    **{"method": "greedy", "beam_size": 1, "sentences": 512},
}
TRAINING = BASE | {
    **{"task": "train", "dimension": 256, "feed_forward": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3},
    **{"vocabulary": 8000, "dropout": 0.1, "batch_tokens": 4096, "length": 24, "steps": 3},
}
LANGUAGE_MODEL = TRAINING | {
    **{"task": "language_model", "encoder_layers": 0, "decoder_layers": 6, "vocabulary": 260},
    **{"streams": 8, "segment_length": 256, "steps": 1, "max_positions": 256},
}


def everywhere(**section: Any) -> dict[str, Any]:
    """Return the attention section with these methods at the sites of self-attention."""
    return {site: section for site in ("encoder_self", "decoder_self")}


LONG = {"length": 384, "batch_tokens": 4096, "steps": 1}
WORKS: dict[str, dict[str, Any]] = {
    "base": BASE,
    "base_fast": BASE | {"our_dtype": "auto"},
    "student": STUDENT,
    "student_beam": STUDENT | {"method": "beam"},
    "student_fast": STUDENT | {"our_dtype": "auto"},
    "l0drop": BASE | {"dropped": 0.6, "source_length": 120, "target_length": 40, "sentences": 40, "batch_tokens": 4096},
    "entmax": BASE | {"attention": everywhere(transform={"name": "entmax15"})},
    "by_layers": BASE
    | {"attention": {"decoder_self": {"pattern": {"name": "window", "k": 8}}}, "no_repeat_ngram": 3, "sentences": 32},
    "train": TRAINING,
    "train_bf16": TRAINING | {"our_dtype": "bf16"},
    "train_entmax": TRAINING | {"attention": everywhere(transform={"name": "entmax15"})},
    "train_window": TRAINING | LONG | {"attention": everywhere(pattern={"name": "window", "k": 32})},
    "train_dilated": TRAINING | LONG | {"attention": everywhere(pattern={"name": "dilated", "k": 32, "rate": 2})},
    "lm": LANGUAGE_MODEL,
}
"""Decoding; training; a language model. ``student_beam`` is beam search with a beam of 1, in place of greedy search;
``by_layers`` has what the compiled step and the search of best tokens do not know, a pattern and forbidden n-grams."""

TINY: dict[str, Any] = {
    **{"dimension": 64, "feed_forward": 128, "heads": 2, "vocabulary": 300, "sentences": 12, "batch_tokens": 256},
    **{"steps": 1, "streams": 2, "segment_length": 32},
}

DECODING = ("base", "base_fast", "l0drop")
STUDENTS = ("student", "student_fast")
TRAININGS = ("train", "train_bf16", "lm")


@dataclass(frozen=True)
class FastPath:
    """A fast path, and how a process works without it.

    Args:
        works: those in which it may matter.
        lines: what would go with it, words apart: files of the package, ``file:function``, ``file:Class.method``.
        without: changes of the work; see `workers.fast_path`.
        environment: variables of the process without it.
        usual: variables of the process with it, where that is not the usual one.
        edits: file of the package -> (text, replacement), in a copy.
    """

    works: Sequence[str]
    lines: str = ""
    without: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def places(self) -> list[str]:
        """The attributes that are replaced."""
        named = [*self.without.get("replaced", {}), *self.without.get("answers", {})]
        return [*named, *(["sparsenmt.native.choice:Choices.prefers"] if "slower" in self.without else [])]


def answers(value: Any, *places: str) -> dict[str, Any]:
    return {"answers": {f"sparsenmt.{place}": value for place in places}}


def isa(name: str) -> dict[str, str]:
    return {"SPARSENMT_NATIVE_ISA": name}


PATHS: dict[str, FastPath] = {
    "nothing": FastPath(("base", "student", "train")),
    "training loss": FastPath(
        TRAININGS,
        "native/loss.cpp native/gradients.py:GradientKernels.loss engine/training_operators.py:TrainingOperators.solve",
        {"slower": ["loss"]},
    ),
    "training dropout": FastPath(
        TRAININGS,
        "native/dropout.cpp native/gradients.py:GradientKernels.drop "
        "engine/training_operators.py:TrainingOperators.drop",
        {"slower": ["dropout"]},
    ),
    "training attention": FastPath(
        TRAININGS,
        "engine/training_operators.py:TrainingOperators.attend",
        {"slower": ["trained attention"]},
    ),
    "training windows": FastPath(
        ("train_window",),
        "engine/training_operators.py:TrainingOperators.attend_window",
        {"slower": ["window attention"]},
    ),
    "training attention, all": FastPath(
        (*TRAININGS, "train_window"),
        "native/attention.cpp native/attention_head.h native/gradients.py:_Attention native/gradients.py:_problem "
        "native/gradients.py:GradientKernels.attend native/gradients.py:GradientKernels.attend_back "
        "engine/training_operators.py:TrainingOperators.attend "
        "engine/training_operators.py:TrainingOperators.attend_window",
        {"slower": ["trained attention", "window attention"]},
    ),
    "oneDNN products": FastPath(("train", "lm"), "native/onednn.py", answers(False, "native.onednn:_suits")),
    "best tokens": FastPath(
        DECODING,
        "native/next.cpp native/best.h native/kernels.py:Kernels.next native/kernels.py:_ContinuationBuffers",
        {"slower": ["next tokens"]},
    ),
    "compiled step": FastPath(
        (*DECODING, *STUDENTS),
        "engine/native_decoder.py native/steps.py native/step.cpp native/step.h native/layer_checks.py:step_error "
        "native/layer_checks.py:_step_error",
        {"slower": ["decoder step", "recurrent decoder step"]},
    ),
    "compiled encoder": FastPath(
        (*DECODING, *STUDENTS),
        "engine/native_encoder.py native/encoder.py native/encoder.cpp native/layer_checks.py:encoder_error "
        "native/layer_checks.py:_encoder_error",
        {"slower": ["encoder", "encoder of few"]},
    ),
    "greedy search": FastPath(
        STUDENTS,
        "native/greedy.py native/greedy.cpp native/layer_checks.py:search_error "
        "engine/native_engine.py:NativeEngine.search",
        {"replaced": {"sparsenmt.engine.native_engine:NativeEngine._whole_decoder": None}},
    ),
    "greedy search of a beam": FastPath(
        ("student_beam",), "decoding/beam.py:Beam._greedy_results", answers({}, "decoding.beam:Beam._greedy_results")
    ),
    "shortlist products": FastPath(
        STUDENTS,
        "native/listed.cpp native/kernels.py:Kernels.next_listed native/token_lists.py native/kernels.py:_listed_error",
        {"slower": ["next listed tokens"]},
    ),
    "searches side by side": FastPath(DECODING, "decoding/side_by_side.py", {"at_once": 1}),
    "encoding ahead": FastPath(("l0drop",), "decoding/ahead.py", {"replaced": {"sparsenmt.decoding.ahead:AHEAD": 1}}),
    "row pool": FastPath(
        DECODING,
        "decoding/beam.py:SearchPool decoding/beam.py:_run_until_few decoding/beam.py:Beam.merge "
        "model/kv_cache.py:KVCache.merge",
        {"replaced": {"sparsenmt.decoding.beam:SHARE": 1 << 30}},
    ),
    "panel read-ahead": FastPath(
        DECODING,
        edits={"native/product_arguments.h": ("__builtin_prefetch(line + i * kLine, 0, 2);", "(void)line;")},
    ),
    "attention by layers": FastPath(
        ("by_layers", "entmax"),
        "native/few.cpp native/few.h native/many.cpp native/kernels.py:Kernels.attend",
        {"slower": ["attention", "attention to slots"]},
    ),
    "vocabulary by layers": FastPath(
        ("by_layers",),
        "native/vocabulary.cpp native/vocabulary.h native/kernels.py:Kernels.log_sums native/kernels.py:Kernels.best "
        "native/kernels.py:Kernels.candidates native/kernels.py:_vocabulary_error",
        {"slower": ["log sums", "best tokens", "candidates"]},
    ),
    "all kernels": FastPath(
        ("base", "base_fast", "student", "train", "train_bf16"), environment={"SPARSENMT_NATIVE": "0"}
    ),
    "instruction set avx_vnni": FastPath(
        ("base", "base_fast", "student_fast"), environment=isa("avx2"), usual=isa("avx_vnni")
    ),
    "instruction set avx512": FastPath(
        ("base", "base_fast", "student_fast", "train"), environment=isa("avx2"), usual=isa("avx512")
    ),
    "instruction set avx512_vnni": FastPath(
        ("base_fast", "student_fast"), environment=isa("avx512"), usual=isa("avx512_vnni")
    ),
    "allocator": FastPath(
        ("base", "train", "train_bf16"),
        "process/allocator.py process/runtime.py:keep_freed_memory process/runtime.py:share_heap "
        "process/runtime.py:_set_heap",
        {"without": ["share_heap"], **answers(None, "process.runtime:_set_heap")},
    ),
    "few kept kernels": FastPath(
        ("base", "train", "train_bf16"), "process/runtime.py:limit_kernel_caches", {"without": ["limit_kernel_caches"]}
    ),
    "blocks of rows": FastPath(("train_bf16",), "native/row_blocks.py", answers(False, "native.row_blocks:_pays")),
    "threads that sleep early": FastPath(
        ("base", "student", "train"), "process/runtime.py:limit_thread_spinning", {"without": ["limit_thread_spinning"]}
    ),
    "bands": FastPath(
        ("train_window", "train_dilated"),
        "model/bands.py model/attend.py:attend_banded model/attend.py:_fused_bands",
        {"slower": ["window attention"], **answers(1 << 30, "model.bands:BandLayout.shortest")},
    ),
    "entmax kernels": FastPath(
        ("entmax", "train_entmax"),
        "engine/entmax_kernel.py sparsity/simplex/native.cpp sparsity/simplex/native_rows.h "
        "sparsity/simplex/native_tiles.h",
        answers(None, "engine.entmax_kernel:simplex_kernel"),
    ),
    "sums of bf16 rows": FastPath(("train_bf16",), "model/row_sums.py", answers(False, "model.row_sums:_sums_in_bf16")),
}
"""``sums of bf16 rows`` are for gradients that are right, not for speed: what they cost."""


def line_count(part: str) -> tuple[int, int]:
    """The lines of Python and of C++ of a file, or of one of its functions; (0, 0): this revision has none."""
    name, _, inner = part.partition(":")
    path = PACKAGE / name
    if not path.is_file():
        return 0, 0
    text = path.read_bytes().decode()
    if not inner:
        count = text.count("\n")
        return (count, 0) if path.suffix == ".py" else (0, count)
    nodes: list[ast.AST] = [ast.parse(text)]
    for wanted in inner.split("."):
        bodies = [each for node in nodes for each in getattr(node, "body", ())]
        nodes = [each for each in bodies if getattr(each, "name", None) == wanted]
    return sum((each.end_lineno or 0) - each.lineno + 1 for each in nodes), 0  # type: ignore[attr-defined]


@contextmanager
def edited(edits: Mapping[str, tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Variables of a process that imports a copy of the package with these changes."""
    if not edits:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="sparsenmt-fast-paths-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        for name, (old, new) in edits.items():
            text = (copy / name).read_bytes().decode()
            if old not in text:
                raise LookupError(name)
            (copy / name).write_bytes(text.replace(old, new).encode())
        command, building = [sys.executable, "-m", "sparsenmt.native.build"], {**os.environ, "PYTHONPATH": folder}
        subprocess.run(command, cwd=folder, env=building, check=True, capture_output=True)
        yield {"PYTHONPATH": os.pathsep.join([str(FOLDER), folder])}


def missing(path: FastPath) -> str | None:
    """The first place of a path that this revision does not have."""
    try:
        for place in path.places():
            place_of(place)
        for name, (old, _) in path.edits.items():
            if not (PACKAGE / name).is_file() or old not in (PACKAGE / name).read_bytes().decode():
                return name
    except LookupError as error:
        return str(error)
    unknown = [
        each["SPARSENMT_NATIVE_ISA"] for each in (path.usual, path.environment) if "SPARSENMT_NATIVE_ISA" in each
    ]
    if unknown:
        from sparsenmt.native.build import build_here
        from sparsenmt.native.instruction_sets import usable_sets

        there = {each.name: each for each in usable_sets()}
        if lacking := next((name for name in unknown if name not in there), None):
            return lacking
        for name in unknown:
            build_here(print, [there[name]])
    return None


def gains(work: str, paths: Mapping[str, FastPath], changes: Mapping[str, Any], repeats: int) -> dict[str, list[float]]:
    """Time a work with everything, and without each path; returns both ratios of each path."""
    found: dict[str, list[float]] = {}
    for name, path in paths.items():
        named = {"named": " ".join(("with", *path.usual.values()))}
        usual = Side(WORKER, work=named, environment=path.usual)
        with edited(path.edits) as variables:
            own = {**path.without, "named": f"without {name}"}
            lacking = Side(WORKER, work=own, environment={**path.environment, **variables})
            # Both begin anew: a process that has worked for minutes is some percent slower.
            with Worker(usual, {**WORKS[work], **changes}) as one, Worker(lacking, {**WORKS[work], **changes}) as other:
                both, without = interleave([one, other], repeats, pause=0.1)
        assert both.units == without.units
        found[name] = [without.best / both.best, middle(without) / middle(both)]
        print(f"  {work:<14}{name:<28}{found[name][0]:>7.3f}{found[name][1]:>8.3f}", flush=True)
    return found


def middle(timing: Timing) -> float:
    return median(timing.seconds)


def show(paths: Mapping[str, FastPath], works: Sequence[str], found: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Print the table: a row for each path, a column for each work."""
    print(f"\n{'path':<28}{'Python':>7}{'C++':>6}" + "".join(f"{work:>17}" for work in works))
    for name, path in paths.items():
        lines = [sum(column) for column in zip((0, 0), *map(line_count, path.lines.split()), strict=True)]
        cells = (found[work].get(name) for work in works)
        shown = "".join(f"{'-' if each is None else f'{each[0]:.3f} ({each[1]:.3f})':>17}" for each in cells)
        print(f"{name:<28}{lines[0]:>7}{lines[1]:>6}{shown}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__doc__, repeats=5)
    parser.add_argument("--on", action="append", choices=list(WORKS), help="only this work; repeatable")
    parser.add_argument("--every", action="store_true", help="measure paths that have reached their bar, too")
    parser.add_argument("--tiny", action="store_true", help="small models, to see that everything runs")
    given, changes = parse(parser, list(PATHS), arguments)
    changes = (TINY if given.tiny else {}) | changes
    paths = {name: path for name, path in PATHS.items() if not given.cases or name in given.cases}
    for name, path in list(paths.items()):
        if place := missing(path):
            print(f"{name}: left out, as this revision or processor has no {place}")
            del paths[name]
    found: dict[str, dict[str, list[float]]] = {}
    for work in given.on or WORKS:
        kept = {name for own in found.values() for name in own if not given.every and own[name][0] >= BAR}
        chosen = {name: path for name, path in paths.items() if work in path.works and name not in kept}
        if chosen:
            found[work] = gains(work, chosen, changes, given.repeats)
    show(paths, list(found), found)
    ratios = {f"{name} / {work}": own[name][0] for work, own in found.items() for name in own}
    measured = [name for name in paths if name != "nothing" and any(name in own for own in found.values())]
    best = {name: max(own[name][0] for own in found.values() if name in own) for name in measured}
    bars = {} if changes else dict.fromkeys(measured, BAR)
    result = verdict("fast_paths", best | ratios, bars)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
