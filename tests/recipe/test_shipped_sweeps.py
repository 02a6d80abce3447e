"""The sweeps that come with the package: one a table of a paper, and those for two CPU cores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsenmt.recipe.sweep import read_sweep
from tests.recipe.test_shipped_recipes import ROOT, header

SWEEPS = sorted((ROOT / "recipes" / "sweeps").glob("*.yaml"))
VARIANTS = {
    "entmax-table1": 3 * 4,
    "europarl-doc": 2 * (1 + 8 * 2),
    "fixed-heads-low-resource": 4,
    "fixed-heads-table1": 2 * 4 * 7,
    "multi30k-10k": 6,
    "multi30k-depths": 3 * 3,
    "multi30k-depth-systems": 4,
    "multi30k-patterns": 1 + 7 * 3,
    "multi30k-scratch": 5 * 2 + 2 + 2,
    "multi30k-transforms": 5,
    "tatoeba-word-senses": 2 * 2 + 2,
    "topk-table1": 2 * (1 + 6 * 4),
    "topk-table2": 2 * (1 + 7 * 3),
    "wmt18-depths": 6 * 6,
    "wmt18-teachers": 5,
}


def test_these_sweeps_are_shipped() -> None:
    assert {path.stem for path in SWEEPS} == set(VARIANTS)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_variant_of_a_shipped_sweep_is_a_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.workflows.sweep import plan_sweep

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    sweep = read_sweep(path)
    jobs = plan_sweep(sweep).runs  # assembles each
    assert sweep.name == path.stem and len(jobs) == VARIANTS[path.stem]
    for job in jobs:
        training, updates = job.recipe.training, job.variant.updates
        assert updates == 0 or training.average_last * training.save_every <= (updates or training.max_updates)
    assert len({str(job.recipe.model.attention) + str(job.variant.labels) for job in jobs}) == len(jobs)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_says_what_it_is_and_how_to_run_it(path: Path) -> None:
    assert "\n Settings: " in header(path)
    assert re.search(rf"\n +sparsenmt sweep recipes/sweeps/{path.name}(\n|$)", header(path))


def test_recipes_name_variants_that_are_there() -> None:
    calls = []
    for path in (ROOT / "recipes").glob("*.yaml"):
        for match in re.finditer(r"sparsenmt sweep recipes/sweeps/(\S+\.yaml)(?: --only (\S+))?", header(path)):
            calls.append((match[1], match[2]))
    assert len(calls) > 10
    for name, only in calls:
        names = {variant.name for variant in read_sweep(ROOT / "recipes" / "sweeps" / name).variants}
        assert only is None or only in names, (name, only, sorted(names))


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("multi30k-transforms", {"softmax", "entmax15", "entmax", "sparsemax", "topk"}),
        ("multi30k-patterns", {"full", "block", "window", "dilated", "global", "random", "softmax", "topk"}),
        ("topk-table2", {"full", "block", "window", "dilated", "global", "random", "bigbird", "softmax", "topk_oow"}),
    ],
)
def test_methods_of_a_sweep(name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.workflows.sweep import plan_sweep

    monkeypatch.setenv("SPARSENMT_DATA", "data")
    sites = [
        job.recipe.model.attention.encoder_self
        for job in plan_sweep(read_sweep(ROOT / "recipes" / "sweeps" / f"{name}.yaml")).runs
    ]
    found = {site.transform.name for site in sites} | {site.pattern.name for site in sites}
    assert found - {"full"} == kinds - {"full"}
