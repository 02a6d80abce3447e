"""The speed of decoding and training on this machine, as a share of what its matrix products reach alone.

Of a language model: the generation of text, the scoring of a text, and training.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sparsenmt import __version__
from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.methods import load_resolved_recipe, required_features
from sparsenmt.assemble.model import build_model
from sparsenmt.decoding.text_scores import TextReading
from sparsenmt.engine.build import DTYPES
from sparsenmt.errors import UserError
from sparsenmt.model.sockets import content_patterns
from sparsenmt.model.transformer import Transformer
from sparsenmt.process.devices import pick_device, use_threads
from sparsenmt.process.progress import progress_bar
from sparsenmt.recipe import schema
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.training.precision import pick_dtype
from sparsenmt.workflows.evaluation.benchmark.flops import SQUARE, Arithmetic, product_rate, square_rate, synchronize
from sparsenmt.workflows.evaluation.benchmark.workloads import (
    BenchmarkModel,
    DecodingWorkload,
    GenerationWorkload,
    InferenceWorkload,
    Part,
    ScoringWorkload,
    SegmentTrainingWorkload,
    TrainingWorkload,
    WorkloadSizes,
)

_PROMPTS = (64, 64)
"""Tokens of a prompt, and of its continuation, unless others are asked for."""

_TRAINED = ("fp32", "bf16")  # dtypes of training


@dataclass(frozen=True)
class BenchmarkRequest:
    """The arguments of `benchmark`.

    Args:
        model: a model directory, or a recipe (.yaml); None: a plain model of ``preset``.
        overrides: changes of a recipe's keys.
        preset: sizes of a plain model; None: base.
        vocabulary: vocabulary size of a preset or recipe; None: 32,000, or the recipe's.
        decoding: time beam search; of a language model the continuation of prompts.
        scoring: time the reading of a text by a language model; None: if the model is one.
        lengths: pairs of source and target tokens of a sentence, without </s>, or of tokens of a prompt and its
            continuation; empty: 15 and 16, or 64 and 64.
        sentences: of a batch in decoding, or prompts; None: 32.
        beam_size: in decoding; None: 4, or of a language model 1, which is greedy search.
        batch_tokens: sentences of a training batch times its longer side, or tokens of its segments, at most; None:
            4,096, or those of the language model's recipe.
        dtypes: empty: fp32, and bf16 where the device computes it natively.
        repeats: timed runs of each case; the fastest counts.
        threads: CPU threads; None: all cores.
    """

    model: Path | None = None
    overrides: Sequence[str] = ()
    preset: str | None = None
    vocabulary: int | None = None
    decoding: bool = True
    scoring: bool | None = None
    training: bool = True
    lengths: Sequence[tuple[int, int]] = ()
    sentences: int | None = None
    beam_size: int | None = None
    batch_tokens: int | None = None
    dtypes: Sequence[str] = ()
    device: str = "auto"
    repeats: int = 5
    threads: int | None = None


@dataclass(frozen=True)
class BenchmarkCase:
    """A row of the report: one workload with one data type."""

    part: Part
    dtype: str
    sizes: WorkloadSizes
    workload: Callable[[BenchmarkModel, WorkloadSizes, torch.dtype, torch.device], InferenceWorkload | TrainingWorkload]


@dataclass(frozen=True)
class BenchmarkResult:
    """The measurements of a case.

    Args:
        seconds: of every repeat.
        work: the arithmetic of one repeat.
        product_rate: FLOP per second of the workload's own matrix products alone.
        square_rate: FLOP per second of a large square product.
        kept_bytes: see `Work`.
    """

    case: BenchmarkCase
    seconds: tuple[float, ...]
    work: Arithmetic
    product_rate: float
    square_rate: float
    kept_bytes: int | None = None

    @property
    def best(self) -> float:
        """Seconds of the fastest repeat."""
        return min(self.seconds)

    @property
    def rate(self) -> float:
        """FLOP per second of the fastest repeat."""
        return self.work.flop / self.best


def benchmark(request: BenchmarkRequest) -> Report:
    """Time a model's decoding and training, or a language model's generation, scoring and training.

    Raises:
        UserError: an option or the model is invalid, or nothing is left to time.
    """
    use_threads(request.threads)
    device = pick_device(request.device, "--device")
    benchmarked = _benchmarked_model(request)
    reads_text = benchmarked.recipe.data.is_language_model
    _check_options(request, reads_text=reads_text)
    usual: Sequence[str] = _TRAINED if pick_dtype("auto", device) == torch.bfloat16 else ("fp32",)
    dtypes = request.dtypes or usual
    cases = _text_cases(request, benchmarked, dtypes) if reads_text else _cases(request, dtypes)
    if not cases:
        raise UserError(
            "nothing is left to time",
            where="--dtype",
            hint="Time decoding too, or name fp32: a model is trained in fp32 or bf16, and a text is scored in fp32."
            if reads_text
            else "Time decoding too: a model is trained in fp32 or bf16.",
        )
    check_lengths(benchmarked, cases)
    steps = len(cases) * (request.repeats + 2)
    with progress_bar(benchmarked.name, steps, unit="step") as advance:
        results = measure(benchmarked, cases, device, request.repeats, advance)
    settings: dict[str, object] = {
        "model": str(request.model or request.preset or "base"),
        "overrides": list(request.overrides),
        "batch_tokens": request.batch_tokens or (benchmarked.recipe.training.batch_tokens if reads_text else 4096),
        "repeats": request.repeats,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "sparsenmt": __version__,
        "torch": torch.__version__,
    }
    return benchmark_report(benchmarked, results, settings, device)


def _benchmarked_model(request: BenchmarkRequest) -> BenchmarkModel:
    """Return the model of a request; UserError if an option does not fit it."""
    model, vocabulary = request.model, request.vocabulary
    if model is None:
        return preset_model(request.preset or "base", vocabulary or 32_000)
    if request.preset is not None:
        raise UserError("is given beside a model", where="--preset", hint="Leave one of the two out.")
    if model.suffix in (".yaml", ".yml") and not model.is_dir():
        recipe = load_recipe(model, request.overrides)
        if vocabulary is not None and recipe.data.tokenizer.kind == "byte":
            raise UserError("there are 256 bytes", where="--vocabulary", hint="Leave it out.")
        return recipe_model(recipe, str(model), vocabulary)
    for value, option in ((request.overrides, "OVERRIDES"), (vocabulary, "--vocabulary")):
        if value:
            raise UserError("a trained model cannot be changed", where=option, hint="Name a recipe, or leave it out.")
    return trained_model(model)


def _check_options(request: BenchmarkRequest, *, reads_text: bool) -> None:
    """Raise UserError if an option has no effect."""
    if request.scoring is not None and not reads_text:
        raise UserError(
            "the model translates: it scores no text",
            where="--scoring" if request.scoring else "--no-scoring",
            hint="Leave it out.",
        )
    decoding: dict[str, object] = {"--sentences": request.sentences, "--beam-size": request.beam_size}
    decoding |= {"--lengths": request.lengths or None} if reads_text else {}
    parts = (
        ("decoding", request.decoding, decoding),
        ("training", request.training, {"--batch-tokens": request.batch_tokens}),
    )
    for part, timed, options in parts:
        for option, value in options.items():
            if value is not None and not timed:
                raise UserError(f"has no effect with --no-{part}", where=option, hint="Leave one of the two out.")
    if request.scoring and request.dtypes and "fp32" not in request.dtypes:
        raise UserError("a text is scored in fp32", where="--scoring", hint="Leave it out, or add --dtype fp32.")


def _cases(request: BenchmarkRequest, dtypes: Sequence[str]) -> list[BenchmarkCase]:
    """Return a case for every part at every length in every data type; training has fp32 and bf16."""
    cases: list[BenchmarkCase] = []
    for source, target in ((source + 1, target + 1) for source, target in request.lengths or ((15, 16),)):
        if request.decoding:
            sizes = WorkloadSizes(source, target, request.sentences or 32, request.beam_size or 4)
            cases += [BenchmarkCase("decoding", dtype, sizes, DecodingWorkload) for dtype in dtypes]
        if request.training:
            sizes = WorkloadSizes(source, target, max((request.batch_tokens or 4096) // max(source, target), 1))
            cases += [
                BenchmarkCase("training", dtype, sizes, TrainingWorkload) for dtype in dtypes if dtype in _TRAINED
            ]
    return cases


def _text_cases(request: BenchmarkRequest, benchmarked: BenchmarkModel, dtypes: Sequence[str]) -> list[BenchmarkCase]:
    """Return the cases of a language model, part by part; UserError if it cannot decode, or a batch is too small."""
    cases: list[BenchmarkCase] = []
    recipe, training = benchmarked.recipe, benchmarked.recipe.training
    if request.decoding:
        if not all(pattern.decodes for pattern in content_patterns(benchmarked.build().modules())):
            raise UserError(
                "the model cannot decode: later positions decide what a query sees",
                where=benchmarked.name,
                hint="Add --no-decoding.",
            )
        for prompt, new in request.lengths or (_PROMPTS,):
            sizes = WorkloadSizes(prompt, new, request.sentences or 32, request.beam_size or 1)
            cases += [BenchmarkCase("generation", dtype, sizes, GenerationWorkload) for dtype in dtypes]
    if request.scoring is not False and "fp32" in dtypes:
        reading = TextReading.of(recipe)
        sizes = WorkloadSizes(0, reading.segment_length, 1 if reading.segment_memory else reading.rows)
        cases.append(BenchmarkCase("scoring", "fp32", sizes, ScoringWorkload))
    if request.training:
        length = training.segment_length
        rows = min(training.batch_tokens // length, training.streams)
        rows = rows if request.batch_tokens is None else request.batch_tokens // length
        if request.batch_tokens is not None and not rows:
            raise UserError(
                f"a batch holds whole segments, of {length:,} tokens",
                where="--batch-tokens",
                hint=f"Give {length} or more.",
            )
        sizes = WorkloadSizes(0, length, rows)
        cases += [
            BenchmarkCase("training", each, sizes, SegmentTrainingWorkload) for each in dtypes if each in _TRAINED
        ]
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
        advance: is called with 1 ``repeats + 2`` times for each case.

    Returns:
        the measurements in the order of the cases.
    """
    found = []
    works: dict[tuple[Part, WorkloadSizes], Arithmetic] = {}
    squares: dict[str, float] = {}
    for case in cases:
        dtype = DTYPES[case.dtype]
        workload = case.workload(benchmarked, case.sizes, dtype, device)
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
        kept = workload.kept_bytes
        del workload  # frees its weights before the next workload is made
        gc.collect()
        if case.dtype not in squares:
            squares[case.dtype] = square_rate(dtype, device)
        limit = product_rate(works[key], dtype, device)
        advance(1)
        found.append(BenchmarkResult(case, tuple(seconds), works[key], limit, squares[case.dtype], kept))
    return found


_SPEED = (
    *("hidden count beam_size", "rate tokens_per_second", "share spread", "hidden number seconds"),
    *("number gflop_per_token", "rate gflops limit_gflops", "share share", "hidden rate square_gflops"),
    "share share_of_square",
)
_COLUMNS = columns("text part dtype", "count source target sentences", *_SPEED)
_TEXT_COLUMNS = columns("text part dtype", "count prompt tokens rows", *_SPEED, "number kept_mb")


def benchmark_report(
    benchmarked: BenchmarkModel, found: Sequence[BenchmarkResult], settings: dict[str, object], device: torch.device
) -> Report:
    """Return the report: rates of the fastest repeat, and the excess time of the slowest one as a share (spread)."""
    reads_text = benchmarked.recipe.data.is_language_model
    rows = []
    for each in found:
        sizes, best = each.case.sizes, each.best
        rows.append(
            (
                each.case.part,
                each.case.dtype,
                sizes.source_length or None,
                sizes.target_length,
                sizes.sentences,
                sizes.beam_size if each.case.part in ("decoding", "generation") else None,
                sizes.target_tokens / best,
                max(each.seconds) / best - 1,
                best,
                each.work.flop / sizes.target_tokens / 1e9,
                each.rate / 1e9,
                each.product_rate / 1e9,
                each.rate / each.product_rate,
                each.square_rate / 1e9,
                each.rate / each.square_rate,
                *((each.kept_bytes and each.kept_bytes / 1e6,) if reads_text else ()),
            )
        )
    size = SQUARE[device.type]
    rates = {each.case.dtype: each.square_rate for each in found}
    squares = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in rates.items())
    notes = (
        "limit: gflops of the work's own matrix products with nothing between them",
        f"square: gflops of a matrix product of {size} x {size} x {size}: {squares}",
        "counted are the matrix products that were executed, 2 FLOP a multiplication and addition"
        + ("" if reads_text else "; lengths with </s>"),
        *(_text_notes(benchmarked) if reads_text else ()),
    )
    title = f"{benchmarked.name} on {_machine(device)}"
    return Report(
        "benchmark", (Table("speed", title, _TEXT_COLUMNS if reads_text else _COLUMNS, tuple(rows)),), notes, settings
    )


def _text_notes(benchmarked: BenchmarkModel) -> list[str]:
    """Return notes on memory and spans, which the table of a language model does not show."""
    memory = benchmarked.recipe.model.segment_memory
    found = ["kept mb: keys and values that the next tokens attend to; in training the memory of the streams"]
    if memory:
        found.append(
            f"scoring and training with a full segment memory of {memory:,} positions, or as many as heads reach"
        )
    spans = benchmarked.build().logged().get("span", {})
    if spans and benchmarked.source is None:
        longest = max(value for layers in spans.values() for layer in layers for value in layer)
        found.append(
            f"spans are those at the beginning of training, at most {longest:,.0f} positions: learned ones differ"
        )
    return found


def _machine(device: torch.device) -> str:
    """Return the name of the GPU, or the instruction set of the CPU and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{torch.backends.cpu.get_cpu_capability()}, {threads} thread{'' if threads == 1 else 's'}"


def trained_model(directory: Path) -> BenchmarkModel:
    """Return a trained model, built with its weights."""
    bundle = open_model(directory, device=torch.device("cpu"), dtype=None, any_task=True)
    sizes = bundle.tokenizers.source.size, bundle.tokenizers.target.size
    weights = bundle.model.state_dict()

    def build() -> Transformer:
        model = build_model(bundle.recipe.model, source_size=sizes[0], target_size=sizes[1], seed=0)
        model.load_state_dict(weights)
        return model

    return BenchmarkModel(bundle.recipe.name, bundle.recipe, build, *sizes, bundle.tokenizers.source, bundle.features)


def recipe_model(recipe: schema.Recipe, name: str, vocabulary: int | None) -> BenchmarkModel:
    """Return a recipe's model with random weights; ``vocabulary``: tokens of each side; None: the recipe's number.

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
    """Return a plain Transformer of a preset's sizes, with random weights and ``vocabulary`` tokens on each side."""
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
    recipe = benchmarked.recipe
    if recipe.data.is_language_model:
        if recipe.model.positions == "none":
            return
        longest = max(case.sizes.source_length + case.sizes.target_length for case in cases)
        what = "tokens of prompt and continuation"
    else:
        longest = max(max(case.sizes.source_length, case.sizes.target_length) for case in cases)
        what = "tokens, </s> included"
    if longest > recipe.model.max_positions:
        raise UserError(
            f"the model reads at most {recipe.model.max_positions:,} {what}, not {longest:,}",
            where="--lengths",
            hint="Shorten them, or raise `model.max_positions` of a recipe.",
        )
