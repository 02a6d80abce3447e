"""The speed of decoding and training on this machine, as a share of what its matrix products reach alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from sparsenmt import __version__
from sparsenmt.assemble import DTYPES, build_model, load_recipe, load_resolved_recipe, required_features
from sparsenmt.devices import pick_device, use_threads
from sparsenmt.errors import UserError
from sparsenmt.model.transformer import Transformer
from sparsenmt.progress import progress_bar
from sparsenmt.recipe import schema
from sparsenmt.recipe.task import check_translates
from sparsenmt.report.tables import Column, Report, Table, columns
from sparsenmt.store import open_model
from sparsenmt.training.precision import pick_dtype
from sparsenmt.workflows.benchmark.flops import SQUARE, Arithmetic, product_rate, square_rate, synchronize
from sparsenmt.workflows.benchmark.workloads import (
    BenchmarkModel,
    DecodingWorkload,
    Part,
    TrainingWorkload,
    WorkloadSizes,
)

_KINDS: dict[Part, type[DecodingWorkload] | type[TrainingWorkload]] = {
    "decoding": DecodingWorkload,
    "training": TrainingWorkload,
}


DtypeName = Literal["fp32", "bf16", "int8"]


@dataclass(frozen=True)
class BenchmarkRequest:
    """The arguments of `benchmark`.

    Args:
        model: a model directory, or a recipe (.yaml); None: a plain model of ``preset``.
        overrides: changes of a recipe's keys.
        preset: sizes of a plain model; None: base.
        vocabulary: vocabulary size of a preset or recipe; None: 32,000, or the recipe's.
        lengths: pairs of source and target tokens of a sentence, without </s>.
        sentences: of a batch in decoding.
        beam_size: in decoding.
        batch_tokens: sentences of a training batch times its longer side, at most.
        dtypes: empty: fp32, and bf16 where the device computes it natively.
        repeats: timed runs of each case.
        threads: CPU threads; None: all cores.
    """

    model: Path | None = None
    overrides: Sequence[str] = ()
    preset: str | None = None
    vocabulary: int | None = None
    decoding: bool = True
    training: bool = True
    lengths: Sequence[tuple[int, int]] = ((15, 16),)
    sentences: int = 32
    beam_size: int = 4
    batch_tokens: int = 4096
    dtypes: Sequence[DtypeName] = ()
    device: str = "auto"
    repeats: int = 5
    threads: int | None = None


@dataclass(frozen=True)
class BenchmarkCase:
    """A row of the report: one workload with one data type."""

    part: Part
    dtype: DtypeName
    sizes: WorkloadSizes


@dataclass(frozen=True)
class BenchmarkResult:
    """The measurements of a case.

    Args:
        seconds: of every repeat.
        product_rate: FLOP per second of the workload's own matrix products alone.
        square_rate: FLOP per second of a large square product.
    """

    case: BenchmarkCase
    seconds: tuple[float, ...]
    work: Arithmetic
    product_rate: float
    square_rate: float

    @property
    def best(self) -> float:
        """Seconds of the fastest repeat."""
        return min(self.seconds)

    @property
    def rate(self) -> float:
        """FLOP per second of the fastest repeat."""
        return self.work.flop / self.best


def benchmark(request: BenchmarkRequest) -> Report:
    """Time a model's decoding and training.

    Raises:
        UserError: an option or the model is invalid, or nothing is left to time.
    """
    use_threads(request.threads)
    device = pick_device(request.device, "--device")
    benchmarked = _benchmarked_model(request)
    cases = _cases(request, device)
    check_lengths(benchmarked, cases)
    steps = len(cases) * (request.repeats + 2)
    with progress_bar(benchmarked.name, steps, unit="step") as advance:
        results = measure(benchmarked, cases, device, request.repeats, advance)
    settings: dict[str, object] = {
        "model": str(request.model or request.preset or "base"),
        "overrides": list(request.overrides),
        "batch_tokens": request.batch_tokens,
        "repeats": request.repeats,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "sparsenmt": __version__,
        "torch": torch.__version__,
    }
    return benchmark_report(benchmarked, results, settings, device)


def _benchmarked_model(request: BenchmarkRequest) -> BenchmarkModel:
    model, vocabulary = request.model, request.vocabulary
    if model is None:
        return preset_model(request.preset or "base", vocabulary or 32_000)
    if request.preset is not None:
        raise UserError("is given beside a model", where="--preset", hint="Leave one of the two out.")
    if model.suffix in (".yaml", ".yml") and not model.is_dir():
        recipe = load_recipe(model, request.overrides)
        check_translates(recipe, model)
        return recipe_model(recipe, str(model), vocabulary)
    for value, option in ((request.overrides, "OVERRIDES"), (vocabulary, "--vocabulary")):
        if value:
            raise UserError("a trained model cannot be changed", where=option, hint="Name a recipe, or leave it out.")
    return trained_model(model)


def _cases(request: BenchmarkRequest, device: torch.device) -> list[BenchmarkCase]:
    """Return a case for every part at every length in every data type."""
    dtypes: Sequence[DtypeName] = request.dtypes
    if not dtypes:
        dtypes = ("fp32", "bf16") if pick_dtype("auto", device) == torch.bfloat16 else ("fp32",)
    cases: list[BenchmarkCase] = []
    for source, target in ((source + 1, target + 1) for source, target in request.lengths):
        if request.decoding:
            sizes = WorkloadSizes(source, target, request.sentences, request.beam_size)
            cases += [BenchmarkCase("decoding", dtype, sizes) for dtype in dtypes]
        if request.training:
            sizes = WorkloadSizes(source, target, max(request.batch_tokens // max(source, target), 1))
            cases += [BenchmarkCase("training", dtype, sizes) for dtype in dtypes if dtype != "int8"]
    if not cases:
        raise UserError(
            "nothing is left to time", where="--dtype", hint="Time decoding too: int8 is for decoding only."
        )
    return cases


def measure(
    benchmarked: BenchmarkModel,
    cases: Sequence[BenchmarkCase],
    device: torch.device,
    repeats: int,
    advance: Callable[[int], object],
) -> list[BenchmarkResult]:
    """Time every case ``repeats`` times, after one untimed run; its limit is measured right afterwards.

    Args:
        advance: is told 1 ``repeats + 2`` times for each case.
    """
    found = []
    works: dict[tuple[Part, WorkloadSizes], Arithmetic] = {}
    squares: dict[str, float] = {}
    for case in cases:
        dtype = DTYPES[case.dtype]
        workload = _KINDS[case.part](benchmarked, case.sizes, dtype, device)
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
        del workload  # frees its weights before the next workload is made
        gc.collect()
        if case.dtype not in squares:
            squares[case.dtype] = square_rate(dtype, device)
        limit = product_rate(works[key], dtype, device)
        advance(1)
        found.append(BenchmarkResult(case, tuple(seconds), works[key], limit, squares[case.dtype]))
    return found


_COLUMNS = (
    *columns("text part dtype"),
    *(*columns("count source target sentences"), Column("beam_size", "count", shown=False)),
    *(Column("tokens_per_second", "rate"), Column("spread", "share"), Column("seconds", "number", shown=False)),
    *(Column("gflop_per_token", "number"), *columns("rate gflops limit_gflops"), Column("share", "share")),
    *(Column("square_gflops", "rate", shown=False), Column("share_of_square", "share")),
)


def benchmark_report(
    benchmarked: BenchmarkModel, found: Sequence[BenchmarkResult], settings: dict[str, object], device: torch.device
) -> Report:
    """Return the report: rates of the fastest repeat, and the distance of the slowest one (spread)."""
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
    title = f"{benchmarked.name} on {_machine(device)}"
    return Report("benchmark", (Table("speed", title, _COLUMNS, tuple(rows)),), notes, settings)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{torch.backends.cpu.get_cpu_capability()}, {threads} thread{'' if threads == 1 else 's'}"


def trained_model(directory: Path) -> BenchmarkModel:
    """Return a trained model with its weights."""
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None)
    sizes = bundle.tokenizers.source.size, bundle.tokenizers.target.size
    weights = bundle.model.state_dict()

    def build() -> Transformer:
        model = build_model(bundle.recipe.model, source_size=sizes[0], target_size=sizes[1], seed=0)
        model.load_state_dict(weights)
        return model

    return BenchmarkModel(bundle.recipe.name, bundle.recipe, build, *sizes, bundle.tokenizers.source, bundle.features)


def recipe_model(recipe: schema.Recipe, name: str, vocabulary: int | None) -> BenchmarkModel:
    """Return a recipe's model with random weights.

    Raises:
        UserError: its methods read source features, which only a trained model has.
    """
    if features := required_features(recipe):
        raise UserError(
            f"its methods read {', '.join(sorted(features))} of the source, which is learned from a text",
            where=name,
            hint="Name a model directory that was trained with the recipe.",
        )
    size = recipe.data.tokenizer.vocabulary_size if vocabulary is None else vocabulary

    def build() -> Transformer:
        return build_model(recipe.model, source_size=size, target_size=size, seed=0)

    return BenchmarkModel(name, recipe, build, size, size)


def preset_model(preset: str, vocabulary: int) -> BenchmarkModel:
    """Return a plain Transformer of a preset's sizes with random weights."""
    nothing = {"source": "none.source", "target": "none.target"}
    mapping = {
        "name": preset,
        "directory": "none",
        "model": {"preset": preset, "max_positions": 2**20},
        "data": {"directory": "none", "train": [nothing], "dev": nothing},
    }
    recipe = load_resolved_recipe(mapping)
    return replace(recipe_model(recipe, preset, vocabulary), name=f"{preset}, {vocabulary:,} tokens")


def check_lengths(benchmarked: BenchmarkModel, cases: Sequence[BenchmarkCase]) -> None:
    """Raise UserError if the model has too few positions for a case."""
    most = benchmarked.recipe.model.max_positions
    longest = max(max(case.sizes.source_length, case.sizes.target_length) for case in cases)
    if longest > most:
        raise UserError(
            f"the model reads at most {most:,} tokens, </s> included, not {longest:,}",
            where="--lengths",
            hint="Shorten them, or raise `model.max_positions` of a recipe.",
        )
