"""The sweeps that come with the package: one a table of a paper, and those for two CPU cores."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.sweep import read_sweep
from sparsenmt.recipe.yaml_tree import child, mapping, read
from sparsenmt.sparsity import registry
from sparsenmt.sparsity.bigbird import BigBirdPattern
from sparsenmt.sparsity.block import BlockPattern
from sparsenmt.sparsity.dilated import DilatedPattern
from sparsenmt.sparsity.entmax import AdaptiveEntmax
from sparsenmt.sparsity.entmax15 import Entmax15
from sparsenmt.sparsity.global_pattern import GlobalPattern
from sparsenmt.sparsity.random_pattern import RandomPattern
from sparsenmt.sparsity.routing_transformer import Routing
from sparsenmt.sparsity.softmax import Softmax
from sparsenmt.sparsity.sparsemax import Sparsemax
from sparsenmt.sparsity.topk import TopK
from sparsenmt.sparsity.topk_oow import TopKOutOfWindow
from sparsenmt.sparsity.window import WindowPattern
from sparsenmt.workflows.training.sweep import VariantRun, plan_sweep
from tests.recipe.sweep_labels import MEANINGS, Meaning
from tests.recipe.test_shipped_recipes import ROOT, header

SWEEPS = sorted((ROOT / "recipes" / "sweeps").glob("*.yaml"))
VARIANTS = {
    "alignment-de-en": 4 * 2,
    "books-language-models": 8,
    "books-language-models-seeds": 4 * 2,
    "dialogsum-l0drop-rules": 6 * 3,
    "entmax-table1": 3 * 4,
    "europarl-doc": 2 * (1 + 8 * 2),
    "fixed-heads-low-resource": 4,
    "fixed-heads-table1": 2 * (4 * 7 + 2),
    "fixed-heads-table2": 4 * 4 * 2,
    "fixed-heads-table3": 2 * 4,
    "fixed-heads-table5": 4 * 3,
    "l0drop-table1": 5 * 2,
    "l0drop-table2": 2 * 6,
    "multi30k-10k": 6,
    "multi30k-bpe-dropout": 3 * 3,
    "multi30k-depth-systems": 4,
    "multi30k-depths": 3 * 3,
    "multi30k-depths-full": 6 * 2,
    "multi30k-heads-full": (5 * 2 + 2) * 3,
    "multi30k-l0drop-from-scratch": 4 * 3,
    "multi30k-l0drop-places": 3 * 3,
    "multi30k-l0drop-rules": 6 * 3,
    "multi30k-l0drop-targets": 2 * 4 * 3,
    "multi30k-patterns": 1 + 7 * 3,
    "multi30k-scratch": 5 * 2 + 2 + 2,
    "multi30k-transforms": 15,
    "multi30k-transforms-full": 4 * 3,
    "tatoeba-word-senses": 2 * 2 + 2,
    "topk-figure5": 2,
    "topk-table1": 2 * (1 + 6 * 4),
    "topk-table2": 2 * (1 + 7 * 3),
    "wmt18-depths": 6 * 6,
    "wmt18-depths-recurrent": 6 * 6,
    "wmt18-teachers": 5,
}


@functools.cache
def runs(path: Path) -> list[VariantRun]:
    """The variants of a sweep; each is assembled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSENMT_DATA", "data")
        return plan_sweep(read_sweep(path)).runs


def test_these_sweeps_are_shipped() -> None:
    assert {path.stem for path in SWEEPS} == set(VARIANTS) == set(MEANINGS)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_variant_of_a_shipped_sweep_can_be_trained(path: Path) -> None:
    assert read_sweep(path).file.name == path.stem and len(runs(path)) == VARIANTS[path.stem]
    for job in runs(path):
        training, updates = job.recipe.training, job.variant.updates
        assert updates == 0 or training.average_last * training.save_every <= (updates or training.max_updates)


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


PATTERNS = {
    "block": BlockPattern,
    "window": WindowPattern,
    "dilated": DilatedPattern,
    "global": GlobalPattern,
    "random": RandomPattern,
    "bigbird": BigBirdPattern,
}
TRANSFORMS = {
    "softmax": Softmax,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": AdaptiveEntmax,
    "topk": TopK,
    "topk_oow": TopKOutOfWindow,
}


def meant(run: VariantRun, sweep: str) -> Meaning:
    """The meaning of a variant's labels, its seed included."""
    meaning = MEANINGS[sweep]({axis: label for axis, label in run.variant.labels.items() if axis != "seed"})
    seed = run.variant.labels.get("seed")
    if seed is None:
        return meaning
    inside = meaning.start is not None and Path(meaning.start).parent == run.directory.parent
    start = f"{meaning.start}-seed{seed}" if inside and seed != "1" else meaning.start
    return replace(meaning, changes=meaning.changes | {"training.seed": int(seed)}, start=start)


def values(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe by their dotted keys; a method with its options, and a list, is one value."""
    found: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict) and value and not (key.startswith("model.") and "name" in value):
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else name)
        else:
            found[key] = value

    walk(recipe.model_dump(mode="json", by_alias=True), "")
    files = ("name", "source", "target", "text")
    found["data.train"] = [tuple(each[key] for key in files if each.get(key)) for each in found["data.train"]]
    return {key: value for key, value in found.items() if key not in ("name", "directory")}


def whole_filter(choice: dict[str, Any]) -> dict[str, Any]:
    """A filter with all of its options; without a place at the encoder's output."""
    given = {name: option for name, option in choice.items() if name not in ("name", "at")}
    options = registry.get("memory", choice["name"]).options.model_validate(given)
    place = {"name": choice["name"], "at": choice.get("at", "output"), "per": "model"}
    return {**place, **options.model_dump(mode="json")}


def whole(key: str, value: Any) -> Any:
    """A method, or a list of filters, with all options."""
    if key == "model.memory":
        return [whole_filter(choice) for choice in value]
    if not isinstance(value, dict):
        return value
    socket = {"given": "heads"}.get(key.split(".")[-1], key.split(".")[-1])
    given = {name: option for name, option in value.items() if name != "name"}
    options = registry.get(socket, value["name"]).options.model_validate(given)  # type: ignore[arg-type]
    younger = {key for key in options.younger if getattr(options, key) == type(options).model_fields[key].default}
    return {"name": value["name"], **options.model_dump(mode="json", exclude=younger)}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_variants_differ_in_what_their_labels_say_and_in_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", "data")
    common = len(mapping(child(read(path)[0], "set")))
    bases: dict[str, dict[str, Any]] = {}
    for run in runs(path):
        meaning = meant(run, path.stem)
        if meaning.recipe not in bases:
            recipe = load_recipe(ROOT / "recipes" / f"{meaning.recipe}.yaml", run.variant.settings[:common])
            bases[meaning.recipe] = values(recipe)
        wanted = bases[meaning.recipe] | {key: whole(key, value) for key, value in meaning.changes.items()}
        found = values(run.recipe)
        # Keys that a later version added are not written where they have their defaults.
        wanted = {key: value for key, value in wanted.items() if key in found or value not in (None, 0, {})}
        assert {key: found[key] for key in found if found[key] != wanted[key]} == {}, run.name
        assert found.keys() == wanted.keys(), run.name
        start = None if run.variant.start is None else run.variant.start.as_posix()
        assert (start, run.variant.updates) == (meaning.start, meaning.updates), run.name


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_models_of_a_sweep_have_the_methods_of_their_labels(path: Path) -> None:
    """A pattern lets the middle query of an encoder, and the last one of a decoder, see k positions."""
    places = torch.arange(256)[None]
    everything = torch.ones(1, 1, 256, 256, dtype=torch.bool)
    for run in runs(path):
        layers = {"encoder_layers": min(run.recipe.model.encoder_layers, 1), "decoder_layers": 1}
        section = run.recipe.model.model_copy(update=layers)
        with torch.device("meta"):
            model = build_model(section, source_size=8, target_size=8)
        changes = meant(run, path.stem).changes
        for site, stack, row, seen in (
            ("encoder_self", model.encoder, 128, everything),
            ("decoder_self", model.decoder, 255, everything.tril()),
        ):
            if not stack.plan:  # the encoder of a language model
                continue
            step = stack.steps.at(0, "self")
            pattern = changes.get(f"model.attention.{site}.pattern")
            transform = changes.get(f"model.attention.{site}.transform", {"name": "softmax"})
            assert type(step.transform) is TRANSFORMS[transform["name"]], run.name
            if pattern is None:
                assert step.pattern is None, run.name
                continue
            if pattern["name"] == "routing":
                assert type(step.content) is Routing and step.pattern is None, run.name
                continue
            assert type(step.pattern) is PATTERNS[pattern["name"]], run.name
            visible = step.pattern(places, places, seen) & seen
            own = pattern["name"] == "global" and site == "decoder_self"  # sees itself, too
            assert int(visible[0, 0, row].sum()) == pattern["k"] + own, (run.name, site)
