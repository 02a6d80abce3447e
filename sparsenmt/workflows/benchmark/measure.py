"""Timing workloads, and what share of the machine's arithmetic they reach; see ``sparsenmt benchmark --help``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.report.tables import Column, Report, Table
from sparsenmt.store import DTYPES
from sparsenmt.workflows.benchmark.flops import SQUARE, Arithmetic, product_rate, square_rate, synchronize
from sparsenmt.workflows.benchmark.workloads import DecodingWorkload, Part, Sizes, Subject, TrainingWorkload

if TYPE_CHECKING:
    from sparsenmt.model.transformer import Transformer

_KINDS: dict[Part, type[DecodingWorkload] | type[TrainingWorkload]] = {
    "decoding": DecodingWorkload,
    "training": TrainingWorkload,
}


@dataclass(frozen=True)
class Case:
    """One line of the report."""

    part: Part
    dtype: str
    sizes: Sizes


@dataclass(frozen=True)
class BenchmarkResult:
    """What was measured of a case."""

    case: Case
    seconds: tuple[float, ...]
    work: Arithmetic
    product_rate: float
    """FLOP a second of the work's own products, alone."""
    square_rate: float
    """FLOP a second of a large square product."""

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def rate(self) -> float:
        """FLOP a second, in the fastest repeat."""
        return self.work.flop / self.best


def measure(
    subject: Subject, cases: Sequence[Case], device: torch.device, repeats: int, advance: Callable[[int], object]
) -> list[BenchmarkResult]:
    """Time every case ``repeats`` times, after one that does not count; the limit is measured right after it.

    Args:
        advance: told of every step: `steps_of` says how many there are.
    """
    found = []
    works: dict[tuple[Part, Sizes], Arithmetic] = {}
    squares: dict[str, float] = {}
    for case in cases:
        dtype = DTYPES[case.dtype]
        workload = _KINDS[case.part](subject, case.sizes, dtype, device)
        key = (case.part, case.sizes)
        if key not in works:
            works[key] = workload.count()
        advance(1)
        seconds = []
        for repeat in range(repeats + 1):
            synchronize(device)
            began = time.perf_counter()
            workload.run()
            synchronize(device)
            if repeat:
                seconds.append(time.perf_counter() - began)
                advance(1)
        del workload  # its weights, before the next one's
        gc.collect()
        if case.dtype not in squares:
            squares[case.dtype] = square_rate(dtype, device)
        limit = product_rate(works[key], dtype, device)
        advance(1)
        found.append(BenchmarkResult(case, tuple(seconds), works[key], limit, squares[case.dtype]))
    return found


def steps_of(cases: Sequence[Case], repeats: int) -> int:
    """How many steps `measure` tells of."""
    return len(cases) * (repeats + 2)


_COLUMNS = (
    Column("part"),
    Column("dtype"),
    Column("source", "count"),
    Column("target", "count"),
    Column("sentences", "count"),
    Column("beam_size", "count", shown=False),
    Column("tokens_per_second", "rate"),
    Column("spread", "share"),
    Column("seconds", "number", shown=False),
    Column("gflop_per_token", "number"),
    Column("gflops", "rate"),
    Column("limit_gflops", "rate"),
    Column("share", "share"),
    Column("square_gflops", "rate", shown=False),
    Column("share_of_square", "share"),
)


def report(
    subject: Subject, found: Sequence[BenchmarkResult], settings: dict[str, object], device: torch.device
) -> Report:
    """The table: rates are those of the fastest repeat, spreads how far the slowest lies above it."""
    rows = []
    for each in found:
        sizes, best = each.case.sizes, each.best
        rows.append(
            (
                each.case.part,
                each.case.dtype,
                sizes.source_length,
                sizes.target_length,
                sizes.sentences,
                sizes.beam_size if each.case.part == "decoding" else None,
                sizes.target_tokens / best,
                max(each.seconds) / best - 1,
                best,
                each.work.flop / sizes.target_tokens / 1e9,
                each.rate / 1e9,
                each.product_rate / 1e9,
                each.rate / each.product_rate,
                each.square_rate / 1e9,
                each.rate / each.square_rate,
            )
        )
    size = SQUARE[device.type]
    rates = {each.case.dtype: each.square_rate for each in found}
    squares = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in rates.items())
    notes = (
        "limit: gflops of the work's own matrix products with nothing between them",
        f"square: gflops of a matrix product of {size} x {size} x {size}: {squares}",
        "counted are the matrix products that were executed, 2 FLOP a multiplication and addition; lengths with </s>",
    )
    title = f"{subject.name} on {_machine(device)}"
    return Report("benchmark", (Table("speed", title, _COLUMNS, tuple(rows)),), notes, settings)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{torch.backends.cpu.get_cpu_capability()}, {threads} thread{'' if threads == 1 else 's'}"


def subject_of_model(directory: Path) -> Subject:
    """A trained model, with its weights."""
    from sparsenmt.assemble import build_model
    from sparsenmt.store import open_model

    bundle = open_model(directory, device=torch.device("cpu"), dtype=None)
    sizes = bundle.tokenizers.source.size, bundle.tokenizers.target.size
    weights = bundle.model.state_dict()

    def build() -> Transformer:
        model = build_model(bundle.recipe.model, source_size=sizes[0], target_size=sizes[1], seed=0)
        model.load_state_dict(weights)
        return model

    return Subject(bundle.recipe.name, bundle.recipe, build, *sizes, bundle.tokenizers.source, bundle.features)


def subject_of_recipe(recipe: schema.Recipe, name: str, vocabulary: int | None) -> Subject:
    """A recipe's model with random weights.

    Raises:
        UserError: its methods read features of words, which only a trained model has.
    """
    from sparsenmt.assemble import build_model, required_features

    if features := required_features(recipe):
        raise UserError(
            f"its methods read {', '.join(sorted(features))} of the source, which is learned from a text",
            where=name,
            hint="Name a model directory that was trained with the recipe.",
        )
    size = recipe.data.tokenizer.vocabulary_size if vocabulary is None else vocabulary

    def build() -> Transformer:
        return build_model(recipe.model, source_size=size, target_size=size, seed=0)

    return Subject(name, recipe, build, size, size)


def subject_of_preset(preset: str, vocabulary: int) -> Subject:
    """A plain Transformer of a preset's sizes with random weights."""
    from sparsenmt.assemble import load_resolved_recipe

    nothing = {"source": "none.source", "target": "none.target"}
    mapping = {
        "name": preset,
        "directory": "none",
        "model": {"preset": preset, "max_positions": 2**20},
        "data": {"directory": "none", "train": [nothing], "dev": nothing},
    }
    recipe = load_resolved_recipe(mapping)
    return replace(subject_of_recipe(recipe, preset, vocabulary), name=f"{preset}, {vocabulary:,} pieces")


def check_lengths(subject: Subject, cases: Sequence[Case]) -> None:
    """UserError if the model has too few positions for a case."""
    most = subject.recipe.model.max_positions
    longest = max(max(case.sizes.source_length, case.sizes.target_length) for case in cases)
    if longest > most:
        raise UserError(
            f"the model reads at most {most:,} pieces, </s> included, not {longest:,}",
            where="--lengths",
            hint="Shorten them, or raise `model.max_positions` of a recipe.",
        )
