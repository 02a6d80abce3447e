"""``sparsenmt benchmark``: what it counts is what the formulas give; what it prints is what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.recipe import schema
from sparsenmt.recipe.load import load_resolved
from sparsenmt.sparsity.registry import methods
from sparsenmt.workflows.evaluation.benchmark import flops as arithmetic
from sparsenmt.workflows.evaluation.benchmark.flops import Arithmetic, count_arithmetic, product_rate, square_rate
from sparsenmt.workflows.evaluation.benchmark.measurement import (
    BenchmarkCase,
    BenchmarkResult,
    benchmark_report,
    recipe_model,
)
from sparsenmt.workflows.evaluation.benchmark.workloads import (
    BenchmarkModel,
    DecodingWorkload,
    GenerationWorkload,
    ScoringWorkload,
    SegmentTrainingWorkload,
    TrainingWorkload,
    WorkloadSizes,
)
from tests.commands.support import Run
from tests.export.support import make_recipe

CPU = torch.device("cpu")
QUICK = ("--repeats", "1", "--sentences", "2", "--beam-size", "2", "--lengths", "5:4")
D, F, N, M, V = 16, 24, 2, 3, 50  # the sizes of `make_recipe`


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of products without the repeats that make them right."""
    monkeypatch.setattr(arithmetic, "_SECONDS", 0.0)
    monkeypatch.setattr(arithmetic, "_FEWEST", 1)
    monkeypatch.setattr(arithmetic, "SQUARE", {"cpu": 16, "cuda": 16})


def encoder_flop(rows: int, length: int) -> int:
    return N * rows * (8 * D * D + 4 * D * F + 4 * length * D)


def decoder_flop(rows: int, own: int, source: int) -> int:
    """Of rows that each attend to ``own`` positions of their own and to ``source`` of the source."""
    return rows * (M * (12 * D * D + 4 * D * F + 4 * (own + source) * D) + 2 * D * V)


def test_the_arithmetic_of_beam_search() -> None:
    """Cross-attention's keys and values once a sentence; every other product of the decoder once a hypothesis."""
    b, s, t, k = 2, 7, 5, 3
    subject = recipe_model(make_recipe(), "it", V)
    work = DecodingWorkload(subject, WorkloadSizes(s, t, b, 1), torch.float32, CPU).count()
    once = encoder_flop(b * s, s) + M * b * s * 4 * D * D
    assert work.flop == once + sum(decoder_flop(b, length, s) for length in range(1, t + 1))
    assert work.products[b, D, V] == t, "the projection, once a step"
    wide = DecodingWorkload(subject, WorkloadSizes(s, t, b, k), torch.float32, CPU).count()
    # In the first step all hypotheses of a sentence are one.
    assert wide.flop == once + decoder_flop(b, 1, s) + sum(decoder_flop(b * k, n, s) for n in range(2, t + 1))


def test_the_arithmetic_of_training() -> None:
    """Forward once and backward twice, as every weight and every input needs a gradient; causal masks save nothing."""
    b, s, t = 3, 7, 5
    work = TrainingWorkload(recipe_model(make_recipe(), "it", V), WorkloadSizes(s, t, b), torch.float32, CPU).count()
    forward = encoder_flop(b * s, s) + M * b * s * 4 * D * D + decoder_flop(b * t, t, s)
    assert work.flop == 3 * forward


def text_recipe(memory: int, decoder_self: dict[str, Any] | None = None) -> schema.Recipe:
    sizes = {"dimension": D, "feed_forward": F, "heads": 2, "decoder_layers": M}
    own = {"positions": "none", "segment_memory": memory, "attention": {"decoder_self": decoder_self or {}}}
    mapping = {
        "name": "text",
        "directory": "unused",
        "model": {**sizes, **own},
        "data": {
            "task": "language_model",
            "directory": "unused",
            "train": [{"text": "/a"}],
            "dev": {"text": "/b"},
            "tokenizer": {"kind": "char", "vocabulary_size": V},
        },
        "training": {"segment_length": 8, "streams": 4, "batch_tokens": 24},
    }
    return load_resolved(mapping, methods())


def text_model(memory: int, decoder_self: dict[str, Any] | None = None) -> BenchmarkModel:
    return recipe_model(text_recipe(memory, decoder_self), "text", None)


def layers_flop(rows: int, own: int, projected: int = 0) -> int:
    """Operations of positions that see ``own`` each; ``projected``: keys and values of the memory to project."""
    return M * (rows * (8 * D * D + 4 * D * F + 4 * own * D) + projected * 4 * D * D)


def test_the_arithmetic_of_a_language_model() -> None:
    """The memory is full; its keys and values are projected anew in training, and cached in scoring."""
    memory, t, b = 10, 8, 3
    subject = text_model(memory)
    training = SegmentTrainingWorkload(subject, WorkloadSizes(0, t, b), torch.float32, CPU)
    assert training.count().flop == 3 * (layers_flop(b * t, memory + t, b * memory) + 2 * b * t * D * V)
    assert training.kept_bytes == M * b * memory * D * 4
    scoring = ScoringWorkload(subject, WorkloadSizes(0, t, 1), torch.float32, CPU)
    assert scoring.count().flop == layers_flop(t, memory + t) + 2 * t * D * V
    assert scoring.kept_bytes == M * memory * 2 * D * 4


@pytest.mark.parametrize("beam", [1, 2])
def test_the_arithmetic_of_a_continuation(beam: int) -> None:
    b, prompt, new, memory = 2, 6, 4, 5
    work = GenerationWorkload(text_model(memory), WorkloadSizes(prompt, new, b, beam), torch.float32, CPU)
    read = layers_flop(b * (prompt + 1), prompt + 1)
    assert work.count().flop == read + (new - 1) * layers_flop(b * beam, memory + 1) + 2 * D * V * b * (
        1 + (new - 1) * beam
    )
    work.run()
    assert work.kept_bytes == b * beam * M * memory * 2 * D * 4


def test_the_cache_of_a_language_model_is_as_long_as_its_longest_span() -> None:
    span = {"span": {"name": "adaptive_span", "maximum": 32, "ramp": 4}}
    for make in (ScoringWorkload, SegmentTrainingWorkload):
        full, learned = (
            make(text_model(32, own), WorkloadSizes(0, 8, 1), torch.float32, CPU).kept_bytes or 0 for own in ({}, span)
        )
        assert learned == full * 3 / 32  # the ramp, without the position itself


def test_what_is_saved_is_not_counted() -> None:
    """Given heads have no query and key projections, and attend almost without products."""
    sizes = WorkloadSizes(6, 3, 2, 1)

    def flop(**heads: Any) -> float:
        recipe = make_recipe(attention={"encoder_self": {"heads": {"count": 8, **heads}}})
        return DecodingWorkload(recipe_model(recipe, "it", V), sizes, torch.float32, CPU).count().flop

    saved = flop() - flop(given={"name": "fixed_token", "learned": 1})
    assert saved == pytest.approx(N * 2 * 6 * (7 / 8) * (4 * D * D + 4 * 6 * D), rel=0.05)


def test_rates_are_of_the_counted_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = {(4, 8, 2): 1.0, (1, 8, 8): 3.0}
    monkeypatch.setattr(arithmetic, "_fastest", lambda shape, dtype, device: timed[shape])
    work = Arithmetic(0.0, {(4, 8, 2): 3, (1, 8, 8): 2})
    assert product_rate(work, torch.float32, CPU) == pytest.approx((3 * 128 + 2 * 128) / (3 * 1.0 + 2 * 3.0))
    timed[16, 16, 16] = 2.0
    assert square_rate(torch.float32, CPU) == 2 * 16**3 / 2.0


def test_products_with_weights_are_listed() -> None:
    layer = torch.nn.Linear(8, 5)
    work = count_arithmetic(lambda: layer(torch.ones(2, 3, 8)).sum().backward())
    assert work.flop == 2 * 2 * 6 * 8 * 5, "no gradient of the input"
    assert set(work.products) == {(6, 8, 5), (5, 6, 8)}


def test_a_report() -> None:
    sizes = WorkloadSizes(10, 20, 5, 4)
    measured = BenchmarkResult(
        BenchmarkCase("decoding", "fp32", sizes, DecodingWorkload), (0.5, 0.4, 0.6), Arithmetic(4e9, {}), 20e9, 40e9
    )
    subject = recipe_model(make_recipe(), "it", V)
    (table,) = benchmark_report(subject, [measured], {}, CPU).tables
    (row,) = table.records()
    assert row["tokens_per_second"] == pytest.approx(100 / 0.4) and row["spread"] == pytest.approx(0.5)
    assert row["gflop_per_token"] == pytest.approx(0.04) and row["gflops"] == pytest.approx(10.0)
    assert row["share"] == pytest.approx(0.5) and row["share_of_square"] == pytest.approx(0.25)


@pytest.mark.thorough
def test_a_trained_model_a_recipe_and_a_preset(command: Run, workspace: Path) -> None:
    files = ("--json", "speed.json", "--csv", "speed.csv")
    result = command("benchmark", "model", *QUICK, "--batch-tokens", "40", *files, "--dtype", "fp32", "--dtype", "bf16")
    assert result.code == 0, result.err
    assert [line.split()[:2] for line in result.lines[3:7]] == [
        [part, dtype] for part in ("decoding", "training") for dtype in ("fp32", "bf16")
    ]
    rows = json.loads(Path("speed.json").read_bytes())["tables"]["speed"]
    assert [row["sentences"] for row in rows] == [2, 2, 6, 6]
    assert all(row["source"] == 6 and row["target"] == 5 and row["share"] > 0 for row in rows)
    assert Path("speed.csv").read_bytes().count(b"\n") == 5
    only = ("--no-training", "--dtype", "fp32")
    recipe = command(
        "benchmark", "small.yaml", "model.memory=[{name: l0drop}]", "losses={l0: {weight: 1}}", *QUICK, *only
    )
    assert recipe.code == 0 and "small.yaml" in recipe.lines[0]
    preset = command("benchmark", "--preset", "tiny", "--vocabulary", "64", *QUICK, *only)
    assert preset.code == 0 and preset.lines[0].startswith("tiny, 64 tokens on ")


TEXT = """\
name: text
directory: unused
model: {preset: tiny, dimension: 32, feed_forward: 64, heads: 2, decoder_layers: 2, positions: none, segment_memory: 16,
  attention: {decoder_self: {span: {name: adaptive_span, maximum: 16, ramp: 8}}}}
losses: {span: {weight: 0}}
data: {task: language_model, directory: unused, train: [{text: a}], dev: {text: b}, tokenizer: {kind: byte}}
training: {streams: 4, segment_length: 8, batch_tokens: 16}
"""


def test_a_language_model(command: Run, workspace: Path) -> None:
    Path("text.yaml").write_text(TEXT, encoding="utf-8")
    sizes = ("--repeats", "1", "--sentences", "2", "--lengths", "5:4", "--beam-size", "2")
    result = command("benchmark", "text.yaml", *sizes, "--json", "speed.json", "--dtype", "fp32")
    assert result.code == 0, result.err
    rows = json.loads(Path("speed.json").read_bytes())["tables"]["speed"]
    expected = [("generation", 5, 4, 2, 2), ("scoring", None, 8, 1, None), ("training", None, 8, 2, None)]
    shown = [(row["part"], row["prompt"], row["tokens"], row["rows"], row["beam_size"]) for row in rows]
    assert shown == expected
    assert all(row["share"] > 0 and row["kept_mb"] > 0 for row in rows)
    assert "spans are those at the beginning of training" in result.out.decode()


@pytest.mark.parametrize(
    "options, message",
    [
        (("--no-decoding", "--lengths", "5:4"), "--lengths: has no effect with --no-decoding"),
        (("--no-decoding", "--sentences", "2"), "--sentences: has no effect with --no-decoding"),
        (("--no-training", "--batch-tokens", "64"), "--batch-tokens: has no effect with --no-training"),
        (("--batch-tokens", "7"), "a batch holds whole segments, of 8 tokens"),
        (("--scoring", "--dtype", "bf16"), "--scoring: a text is scored in fp32"),
        (("--no-decoding", "--no-training", "--dtype", "bf16"), "nothing is left to time"),
        (("--vocabulary", "300"), "--vocabulary: there are 256 bytes"),
        (("model.positions=learned", "model.max_positions=64", "model.segment_memory=0"), "reads at most 64 tokens of"),
    ],
)
def test_what_is_refused_of_a_language_model(
    refused: Callable[..., str], workspace: Path, options: tuple[str, ...], message: str
) -> None:
    Path("text.yaml").write_text(TEXT, encoding="utf-8")
    assert message in refused("benchmark", "text.yaml", *options)


def test_a_language_model_that_cannot_decode_is_scored_and_trained(refused: Callable[..., str], command: Run) -> None:
    routing = "pattern: {name: routing, clusters: 2, local: 1, assignment: balanced}"
    text = TEXT.replace("span: {name: adaptive_span, maximum: 16, ramp: 8}", routing)
    Path("text.yaml").write_text(text.replace("losses: {span: {weight: 0}}\n", ""), encoding="utf-8")
    assert "later positions decide what a query sees" in refused("benchmark", "text.yaml")
    result = command("benchmark", "text.yaml", "--no-decoding", "--dtype", "fp32", "--repeats", "1")
    assert result.code == 0, result.err


def test_what_is_refused(refused: Callable[..., str], workspace: Path) -> None:
    assert "is not two lengths" in refused("benchmark", "--lengths", "15")
    assert "is not two lengths" in refused("benchmark", "--lengths", "0:3")
    assert "the model translates: it scores no text" in refused("benchmark", "model", "--scoring")
    assert "has no effect with --no-decoding" in refused("benchmark", "model", "--no-decoding", "--beam-size", "2")
    assert "beside a model" in refused("benchmark", "model", "--preset", "tiny")
    assert "cannot be changed" in refused("benchmark", "model", "--vocabulary", "100")
    assert "cannot be changed" in refused("benchmark", "model", "model.norm=post")
    assert "--json names a file that another option names" in refused("benchmark", "small.yaml", "--json", "small.yaml")
    assert "not a model directory" in refused("benchmark", "corpus")
    assert "no such model directory" in refused("benchmark", "nowhere")
    assert "reads at most 1,024 tokens" in refused("benchmark", "model", "--lengths", "2000:5")
    assert "nothing is left to time" in refused("benchmark", "model", "--dtype", "int8", "--no-decoding")
    message = refused("benchmark", "small.yaml", "model.memory=[{name: freq, top: 5}]")
    assert "learned from a text" in message and "small.yaml" in message
