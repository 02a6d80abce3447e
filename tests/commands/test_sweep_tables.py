"""Layouts of tables, against those of the papers: the published numbers go in, the published table comes out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsenmt.evaluation.observation import Observation, seed_means
from sparsenmt.evaluation.significance import PairedTest
from sparsenmt.recipe.sweep import CellValue, Layout
from sparsenmt.report.plots import Panel
from sparsenmt.workflows.training.sweep_table import grids, notes, panels, report


def observed(
    value: float | None,
    p: float | None = None,
    *,
    metric: str = "bleu",
    set: str = "test",
    baseline: str | None = None,
    **labels: str,
) -> Observation:
    test = None if p is None else {"difference": -1.0 if p > 0 else 1.0, "p_value": abs(p), "segments": 3003}
    values = {} if value is None else {"quality": value, "parameters": 7_582_000.0, "attended": 8.04}
    name = "-".join(labels.values())
    group = "-".join(label for axis, label in labels.items() if axis != "seed")
    tested = {**labels, "set": set, "metric": metric}
    return Observation(name, tested, values, test, 3003, group=group, baseline=baseline)


def test_raganato_2020_table_1() -> None:
    published = {  # EN-DE and DE-EN, four of seven depths; * as printed
        ("EN-DE", "8L"): "20.61 21.68 23.36 25.02",
        ("EN-DE", "7Fword+1L"): "19.72* 21.43 22.88* 24.85",
        ("DE-EN", "8L"): "25.66 27.28 29.31 30.99",
        ("DE-EN", "7Fword+1L"): "25.03* 26.72* 28.40* 30.69",
    }
    found = [
        observed(
            float(cell.rstrip("*")),
            None if system == "8L" else 0.01 if cell.endswith("*") else 0.4,
            direction=direction,
            system=system,
            layers=layers,
        )
        for (direction, system), cells in published.items()
        for layers, cell in zip(["1+1", "2+1", "6+1", "6+6"], cells.split(), strict=True)
    ]
    layout = Layout(rows=["direction", "system"], columns="layers", baseline={"system": "8L"})
    (grid,) = grids(layout, found)
    assert (
        str(grid)
        == """\
BLEU, test
direction  system       1+1     2+1     6+1     6+6
---------------------------------------------------
EN-DE      8L         20.61   21.68   23.36   25.02
           7Fword+1L  19.72*  21.43   22.88*  24.85
DE-EN      8L         25.66   27.28   29.31   30.99
           7Fword+1L  25.03*  26.72*  28.40*  30.69"""
    )
    assert notes(layout, found, PairedTest()) == [
        "* significantly worse than system 8L, + better: p < 0.05, paired bootstrap, 1,000 resamples"
    ]


def test_zhao_table_1() -> None:
    rows = {  # IWSLT French-English; AVG as printed
        "Full Attention": ([("Full", 37.10)], "-"),
        "Block Attention": ([("16", 35.04), ("8", 34.27), ("4", 33.63), ("2", 31.80)], "33.69"),
        "Window Attention": ([("16", 37.44), ("8", 37.03), ("4", 36.69), ("2", 31.98)], "35.79"),
    }
    found = [observed(value, method=method, k=k) for method, (cells, _) in rows.items() for k, value in cells]
    (grid,) = grids(Layout(rows="method", columns="k", average=True), found)
    assert (
        str(grid)
        == """\
BLEU, test
method             Full     16      8      4      2    AVG
----------------------------------------------------------
Full Attention    37.10      -      -      -      -      -
Block Attention       -  35.04  34.27  33.63  31.80  33.69
Window Attention      -  37.44  37.03  36.69  31.98  35.78"""
    )  # the paper rounds 35.785 up


def test_correia_2019_table_1_for_two_sets() -> None:
    found = [
        observed(value + (set == "dev"), activation=activation, data=data, set=set)
        for activation, values in {"softmax": (29.79, 21.57), "α-entmax": (29.90, 21.74)}.items()
        for data, value in zip(["DE-EN", "JA-EN"], values, strict=True)
        for set in ("test", "dev")
    ]
    test, dev = grids(Layout(rows="activation", columns="data", sections="set"), found)
    assert (
        str(test)
        == """\
test | BLEU
activation  DE-EN  JA-EN
------------------------
softmax     29.79  21.57
α-entmax    29.90  21.74"""
    )
    assert str(dev).startswith("dev | BLEU\n") and "30.79  22.57" in str(dev)
    (both,) = grids(Layout(rows="activation", columns=["data", "set"]), found)
    assert both.heads == [["", "DE-EN", "", "JA-EN", ""], ["activation", "test", "dev", "test", "dev"]]


def test_zhang_2021_table_2_with_two_values_a_cell() -> None:
    published = {("Baseline", "bleu"): (0.0, 27.59), ("POS Pattern", "bleu"): (0.467, 27.11)}
    published |= {("Baseline", "rougeLsum"): (0.0, 36.88), ("POS Pattern", "rougeLsum"): (0.396, 35.57)}
    found = [
        Observation("x", {"pattern": pattern, "set": "test", "metric": metric}, {"sparsity": rate, "quality": value})
        for (pattern, metric), (rate, value) in published.items()
    ]
    layout = Layout(rows="pattern", columns="set", sections="metric", cell=["quality", "sparsity"])
    assert [str(grid) for grid in grids(layout, found)] == [
        "BLEU\npattern       test\n------------------\nBaseline     27.59\nPOS Pattern  27.11",
        "BLEU | sparsity rate\npattern       test\n------------------\nBaseline      0.0%\nPOS Pattern  46.7%",
        "ROUGE-Lsum\npattern       test\n------------------\nBaseline     36.88\nPOS Pattern  35.57",
        "ROUGE-Lsum | sparsity rate\npattern       test\n------------------\nBaseline      0.0%\nPOS Pattern  39.6%",
    ]
    assert len(panels(layout, found)) == 2  # the first value is drawn


def test_bars_say_where_their_axis_begins_unless_it_is_0() -> None:
    def panel(*values: float, cell: CellValue = "quality") -> Panel:
        labels = {"metric": "bleu", "set": "test"}
        found = [Observation("x", {"k": f"k{v}", "size": "base", **labels}, {cell: v}) for v in values]
        return panels(Layout(rows="k", columns="size", cell=cell), found)[0]

    assert panel(31.0, 30.0).y_label == "BLEU, test\naxis from 29.00, not from 0"
    assert panel(31.0, 30.0).y_range == (29.0, 31.1)
    low = panel(9.9, 5.0)  # an axis from 0.1 would hide nothing and need a note
    assert (low.y_label, low.y_range) == ("BLEU, test", (0.0, 9.9 + 0.49))
    assert panel(0.4, 0.5, cell="sparsity").percent == "y"


def test_without_columns_sets_and_metrics_and_what_was_measured_are_shown() -> None:
    found = [
        replace(one, values={**one.values, **measured}) if one.values else one
        for k, measured in (("2", {"sparsity": 0.4, "training_speed": 1234.0}), ("4", {"training_speed": 999.0}))
        for set_ in ("dev", "test")
        for one in (observed(20.0 + int(k) if set_ == "dev" else None, set=set_, k=k),)
    ]
    (grid,) = grids(Layout(rows="k"), found)
    assert (
        str(grid)
        == """\
     dev  test
k   BLEU  BLEU  sparsity rate  target tokens/s in training
----------------------------------------------------------
2  22.00   ...          40.0%                        1,234
4  24.00   ...              -                          999"""
    )
    dense = [replace(each, values={"quality": 1.0}) for each in found]
    (grid,) = grids(Layout(rows="k"), dense)
    assert grid.heads[-1] == ["k", "BLEU", "BLEU"]
    (grid,) = grids(Layout(rows="k", cell="quality"), found)
    assert grid.heads[-1] == ["k", "BLEU", "BLEU"]
    (grid,) = grids(Layout(rows=["k", "set"]), dense)
    assert grid.heads == [["k", "set", "BLEU"]]
    assert [panel.series["2"] for panel in panels(Layout(rows="k"), dense)] == [[(0.0, 1.0), (1.0, 1.0)]]


def test_seeds_what_is_to_come_and_other_cells() -> None:
    found = [
        observed(20.0, system="a", k="8", seed="1"),
        observed(22.0, system="a", k="8", seed="2"),
        observed(None, system="b", k="8", seed="1"),
        observed(None, system="b", k="8", seed="2"),
        observed(30.0, system="b", k="4", seed="1"),
        observed(50.0, system="a", k="8", seed="1", metric="chrf"),
    ]
    layout = Layout(rows="system", columns="k")
    (grid,) = grids(layout, found)
    assert grid.rows == [["a", "21.00±1.41", "-"], ["b", "...", "30.00 (1)"]]
    means = "mean ± sample standard deviation over 2 seeds; (n): over n of them"
    assert notes(layout, found, PairedTest()) == [means, "... 2 variants to come"]
    (metrics,) = grids(Layout(rows=["system", "k"], columns="metric"), found)
    assert metrics.heads == [["system", "k", "BLEU", "chrF2"]] and metrics.rows[0] == [
        "a",
        "8",
        "21.00±1.41",
        "50.00 (1)",
    ]
    for cell, shown in (("parameters", "7,582,000±0"), ("attended", "8.0±0.0"), ("sparsity", "-")):
        (grid,) = grids(Layout(rows="system", columns="k", cell=cell), found)  # type: ignore[arg-type]
        assert grid.rows[0][1] == shown


def seeded(system: str, *values: float, baseline: str | None = "dense") -> list[Observation]:
    return [
        observed(value, 0.01, system=system, seed=str(seed), k="8", baseline=baseline and f"{baseline}-8")
        for seed, value in enumerate(values, start=1)
    ]


def test_differences_within_the_scatter_of_seeds_are_marked() -> None:
    """Tests of single translations (here p = 0.01, all worse) say nothing about seeds, and are not shown for means."""
    found = [
        *(replace(each, test=None) for each in seeded("dense", 30.0, 30.4, 30.8, baseline=None)),
        *seeded("near", 30.0, 30.2, 30.4),  # Welch's interval: -0.2 ± 3.22 * 0.258, with 2.94 degrees of freedom
        *seeded("far", 28.0, 28.4),
        *seeded("single", 20.0),
    ]
    layout = Layout(rows="system", columns="k", baseline={"system": "dense"})
    grid, _ = grids(layout, found)
    assert [row[1] for row in grid.rows] == ["30.40±0.40 ", "30.20±0.20~", "28.20±0.28 (2)*", "20.00 (1)*"]
    scatter = "smaller than the seeds' scatter: Welch's 95% interval of the difference of means holds 0"
    test = PairedTest("randomization", 500)
    assert notes(layout, found, test) == [
        f"* significantly worse than system dense, + better, in cells of one seed: p < 0.05, {test}",
        f"~ difference from system dense {scatter}",
        "* worse, + better, in cells of several seeds: p < 0.05; [95% interval]: paired t-test of the differences of "
        "the same seed",
        "mean ± sample standard deviation over 3 seeds; (n): over n of them",
    ]
    variants, means = report("s", "Title", found, ["system", "k", "seed"]).tables
    assert len(variants.rows) == 9 and "seed" not in means.names
    rows = {row["variant"]: row for row in means.records()}
    near = rows["near-8"]
    assert (near["seeds"], near["mean"], near["within_scatter"]) == (3, pytest.approx(30.2), "yes")
    assert (near["deviation"], near["difference"]) == (pytest.approx(0.2), pytest.approx(-0.2))
    assert (near["low"], near["high"]) == (pytest.approx(-1.031, abs=0.01), pytest.approx(0.631, abs=0.01))
    assert rows["far-8"]["within_scatter"] == "no" and rows["far-8"]["high"] < 0
    assert rows["single-8"]["deviation"] is rows["single-8"]["low"] is rows["single-8"]["within_scatter"] is None
    assert rows["dense-8"]["difference"] is None
    # Of the same seed: 0, -0.2, -0.4, with a mean of -0.2 ± 4.303 * 0.2 / sqrt(3).
    assert (near["seeds_low"], near["seeds_high"]) == (pytest.approx(-0.697, abs=1e-3), pytest.approx(0.297, abs=1e-3))
    assert near["p_of_seeds"] == pytest.approx(0.2254, abs=1e-4)
    assert rows["single-8"]["p_of_seeds"] is rows["dense-8"]["p_of_seeds"] is None
    named = notes(None, found, test)[1]
    assert named.startswith(f"deviation: sample standard deviation; within scatter: difference {scatter}; p of seeds")
    by_seed = Layout(rows=["system", "seed"], columns="k", baseline={"system": "dense"})
    (grid,) = grids(by_seed, found)
    assert [row[2] for row in grid.rows[3:]] == ["30.00*", "30.20*", "30.40*", "28.00*", "28.40*", "20.00*"]
    assert notes(by_seed, found, test) == [f"* significantly worse than system dense, + better: p < 0.05, {test}"]


def test_differences_of_the_same_seed_are_tested_beside_the_scatter() -> None:
    """Seeds scatter together: what lies within their scatter may differ by as much in each of them."""
    dense = (39.5, 39.2, 40.2)
    found = [
        *(replace(each, test=None) for each in seeded("dense", *dense, baseline=None)),
        *seeded("adaptive", *(one + other for one, other in zip(dense, (-0.28, -0.33, -0.51), strict=True))),
        *seeded("1.5", *(one + other for one, other in zip(dense, (-0.27, 0.03, -0.22), strict=True))),
    ]
    grid, differences = grids(Layout(rows="system", columns="k", baseline={"system": "dense"}), found)
    assert (
        str(differences)
        == """\
BLEU, test: difference, paired by seed
system                       8
------------------------------
adaptive  -0.37 [-0.67, -0.07]
1.5       -0.15 [-0.55, +0.25]"""
    )
    assert [row[1] for row in grid.rows] == ["39.63±0.51  ", "39.26±0.41~*", "39.48±0.43~ "]
    rows = {row["variant"]: row for row in report("s", "", found, ["system", "k", "seed"]).tables[1].records()}
    assert (rows["adaptive-8"]["p_of_seeds"], rows["1.5-8"]["p_of_seeds"]) == (
        pytest.approx(0.033, abs=5e-4),
        pytest.approx(0.240, abs=5e-4),
    )
    shifted = [replace(each, labels={**each.labels, "seed": "9" + each.labels["seed"]}) for each in found[3:]]
    assert all(each.paired is None for each in seed_means([*found[:3], *shifted]).values()), "no seed in common"


@pytest.mark.parametrize(
    ("difference", "p_value", "metric", "mark"),
    [
        (-1.0, 0.01, "bleu", "*"),
        (1.0, 0.01, "bleu", "+"),
        (1.0, 0.01, "ter", "*"),
        (-1.0, 0.2, "bleu", ""),
        (0.0, 0.001, "bleu", ""),
    ],
)
def test_marks(difference: float, p_value: float, metric: str, mark: str) -> None:
    test = {"difference": difference, "p_value": p_value}
    assert Observation("a", {"metric": metric}, {"quality": 1.0}, test).mark == mark


def test_diagrams_are_curves_over_numbers_and_bars_over_names() -> None:
    found = [observed(value, method="top-k", k=k) for k, value in (("full", 30.0), ("8", 29.0), ("4", 28.0))]
    (panel,) = panels(Layout(rows="method", columns="k"), found)
    assert panel.style == "curves" and panel.series == {"top-k": [(0.0, 30.0), (1.0, 29.0), (2.0, 28.0)]}
    assert panel.ticks == [(0.0, "full"), (1.0, "8"), (2.0, "4")] and panel.y_label == "BLEU, test"
    (panel,) = panels(Layout(rows="k", columns="method"), found)
    assert panel.style == "bars" and panel.y_range is not None and 0 < panel.y_range[0] < 28
    assert panels(Layout(rows="k", columns="method"), [observed(None, method="a", k="1")]) == []


def test_bits_are_drawn_without_perplexities() -> None:
    found = [observed(value, metric=name, system="a") for name, value in (("bpc", 1.7), ("word_perplexity", 900.0))]
    (panel,) = panels(Layout(rows="system", columns="metric"), found)
    assert panel.series == {"a": [(0.0, 1.7)]} and [label for _, label in panel.ticks or []] == ["BPC"]


def test_the_rows_of_csv_and_json() -> None:
    found = [observed(20.0, 0.01, system="a"), observed(None, system="b")]
    (table,) = report("s", "Title", found, ["system"]).tables
    (row,) = table.records()
    assert row == {
        **{"variant": "a", "system": "a", "set": "test", "metric": "bleu", "sentences": 3003, "quality": 20.0},
        **{"difference": -1.0, "p_value": 0.01, "sacrebleu_p": None, "parameters": 7_582_000.0, "sparsity": None},
        **{"attended": 8.04, "density": None, "training_speed": None, "training_deviation": None},
        **{"training_seconds": None, "signature": None},
    }
