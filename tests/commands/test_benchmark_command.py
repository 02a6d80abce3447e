"""``sparsenmt benchmark``: what it counts is what the formulas give; what it prints is what it measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.workflows.benchmark import flops as arithmetic
from sparsenmt.workflows.benchmark.flops import Arithmetic, count_arithmetic, product_rate, square_rate
from sparsenmt.workflows.benchmark.measurement import BenchmarkCase, BenchmarkResult, benchmark_report, recipe_model
from sparsenmt.workflows.benchmark.workloads import DecodingWorkload, TrainingWorkload, WorkloadSizes
from tests.commands.support import Run
from tests.export.support import make_recipe

CPU = torch.device("cpu")
QUICK = ("--repeats", "1", "--sentences", "2", "--beam-size", "2", "--batch-tokens", "40", "--lengths", "5:4")
D, F, N, M, V = 16, 24, 2, 3, 50  # the sizes of `make_recipe`


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of products without the repeats that make them right."""
    monkeypatch.setattr(arithmetic, "_SECONDS", 0.0)
    monkeypatch.setattr(arithmetic, "_FEWEST", 1)
    monkeypatch.setattr(arithmetic, "SQUARE", {"cpu": 16})


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
        BenchmarkCase("decoding", "fp32", sizes), (0.5, 0.4, 0.6), Arithmetic(4e9, {}), 20e9, 40e9
    )
    subject = recipe_model(make_recipe(), "it", V)
    (table,) = benchmark_report(subject, [measured], {}, CPU).tables
    (row,) = table.records()
    assert row["tokens_per_second"] == pytest.approx(100 / 0.4) and row["spread"] == pytest.approx(0.5)
    assert row["gflop_per_token"] == pytest.approx(0.04) and row["gflops"] == pytest.approx(10.0)
    assert row["share"] == pytest.approx(0.5) and row["share_of_square"] == pytest.approx(0.25)


def test_a_trained_model_a_recipe_and_a_preset(command: Run, workspace: Path) -> None:
    files = ("--json", "speed.json", "--csv", "speed.csv")
    result = command("benchmark", "model", *QUICK, *files, "--dtype", "fp32", "--dtype", "bf16")
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


def test_what_is_refused(refused: Callable[..., str], workspace: Path) -> None:
    assert "is not two lengths" in refused("benchmark", "--lengths", "15")
    assert "is not two lengths" in refused("benchmark", "--lengths", "0:3")
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
