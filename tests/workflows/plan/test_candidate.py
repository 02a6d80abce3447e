"""The candidates of a plan: what each axis offers a model, and what a choice writes into the decoding options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble.methods import load_resolved_recipe
from sparsenmt.assemble.model import depth_plan
from sparsenmt.assemble.model_directory import ModelIdentity
from sparsenmt.workflows.plan import candidate as candidates_module
from sparsenmt.workflows.plan.candidate import AXES, PlanCandidate, PlanModel, candidates, decoding_of

CORPORA = ((Path("train.en"), Path("train.de")),)


def plan_model(decoding: dict[str, Any] | None = None, files: tuple[str, ...] = (), **changes: Any) -> PlanModel:
    nothing = {"source": "none.source", "target": "none.target"}
    mapping = {
        "name": "tied",
        "directory": "none",
        "model": {"preset": "tiny", "encoder_layers": 2, "decoder_layers": 2, "depth": {"name": "tied_multi"}},
        "data": {"directory": "none", "train": [nothing], "dev": nothing},
        "decoding": {"beam_size": 4, **(decoding or {})},
    }
    recipe = load_resolved_recipe(mapping)
    identity = ModelIdentity("hash", {key: {} for key in files}, {}, 100)
    plan = depth_plan(recipe.model)
    made = PlanModel("tied", Path("tied"), recipe, identity, plan, (), torch.device("cpu"), 4)
    return replace(made, **changes)


@pytest.fixture(autouse=True)
def _int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with products in int8 and without those in bf16."""
    monkeypatch.setattr(candidates_module, "rounds", lambda weight, dtype: dtype == torch.int8)


def offered(model: PlanModel) -> dict[str, list[Any]]:
    return {name: list(axis.values(model)) for name, axis in AXES.items()}


def test_each_axis_offers_what_the_model_allows() -> None:
    assert offered(plan_model()) == {
        "depth": [(1, 1), (2, 1), (1, 2)],
        "vocabulary": [],
        "shortlist": [],
        "dtype": ["int8"],
        "beam": [1, 2],
        "batch": [1024, 4096, 8192],
        "threads": [1, 2],
    }
    own = offered(plan_model({"shortlist": "model", "dtype": "int8"}, ("tokenizers/shortlist.safetensors",)))
    assert own["shortlist"] == ["none"] and own["dtype"] == ["fp32"]
    assert offered(plan_model(corpora=CORPORA))["shortlist"] == ["corpus"]
    assert offered(plan_model({"method": "greedy"}))["beam"] == []
    assert offered(plan_model({"encoder_layers": 1, "decoder_layers": 1}))["depth"] == [(2, 1), (1, 2), (2, 2)]


@pytest.mark.parametrize(("native", "expected"), [(True, ["bf16", "fp16"]), (False, ["fp16"])])
def test_half_precision_is_offered_on_a_gpu(native: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: native)
    assert list(AXES["dtype"].values(plan_model(device=torch.device("cuda")))) == expected


def test_all_combinations_are_tried_the_recipe_first() -> None:
    found = list(candidates(plan_model(corpora=CORPORA)))
    assert len(found) == len(set(found)) == 4 * 2 * 2 * 2 * 3
    assert found[0] == PlanCandidate("tied")
    every = list(candidates(plan_model(corpora=CORPORA), all_axes=True))
    assert len(every) == len(found) * 4 * 3 and every[0] == found[0]


def test_choices_are_named_in_the_order_of_the_axes_and_written_as_options() -> None:
    model = plan_model(corpora=CORPORA)
    chosen = PlanCandidate("tied").at("beam", 1).at("threads", 1).at("depth", (2, 1)).at("shortlist", "corpus")
    assert str(chosen) == "tied, 2+1 layers, shortlist, beam 1, 1 thread"
    options = decoding_of(chosen, model)
    assert (options.encoder_layers, options.decoder_layers, options.shortlist) == (2, 1, "model")
    assert (options.method, options.beam_size, options.threads) == ("greedy", 1, 1)
    assert chosen.at("beam", 2).at("beam", 1) == chosen and hash(chosen.at("beam", 1)) == hash(chosen)
    assert chosen.get("dtype") is None and options.dtype == model.recipe.decoding.dtype
