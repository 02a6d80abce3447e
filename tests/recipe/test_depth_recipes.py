"""The recipes of Dabre, Rubino and Fujita 2020: the blocks of Table 3, on Multi30k and with the published settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.assemble.model import depth_plan
from sparsenmt.recipe.load import load
from sparsenmt.recipe.schema import Recipe
from sparsenmt.recipe.sweep import read_sweep
from sparsenmt.sparsity.registry import methods
from sparsenmt.workflows.training.sweep import VariantRun, plan_sweep
from tests.recipe.test_shipped_recipes import ROOT

PLAIN = {"multi30k": "multi30k-en-de", "wmt18": "wmt18-en-de"}
BLOCKS = {
    "multi30k": ("multi30k-tied-multi", "multi30k-recurrent"),
    "wmt18": ("wmt18-en-de-tied-multi", "wmt18-en-de-recurrent"),
}
DEPTH = {"multi30k": 3, "wmt18": 6}


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", "data")


def recipe(name: str) -> Recipe:
    return load(ROOT / "recipes" / f"{name}.yaml", methods())


def jobs(name: str) -> list[VariantRun]:
    return plan_sweep(read_sweep(Path(ROOT / "recipes" / "sweeps" / f"{name}.yaml"))).runs


def alike(one: Recipe, other: Recipe, *ignored: str) -> bool:
    """Whether two recipes are the same but for their names, directories, and these keys of the model."""
    plain = []
    for each in (one, other):
        values = each.model_dump(mode="json", exclude={"name", "directory"})
        for key in ignored:
            del values["model"][key]
        plain.append(values)
    return plain[0] == plain[1]


@pytest.mark.parametrize("corpus", PLAIN)
def test_the_blocks_differ_in_depth_and_text_alone(corpus: str) -> None:
    dense, size = recipe(PLAIN[corpus]), DEPTH[corpus]
    every = tuple(range(1, size + 1))
    for name, stored in zip(BLOCKS[corpus], (size, 1), strict=True):
        own, distilled = recipe(name), recipe(f"{name}-distilled")
        assert alike(own, dense, "depth")
        found = depth_plan(own.model)
        assert found.encoder_exits == found.decoder_exits == every and len(found.pairs()) == size**2
        assert len(set(found.encoder)) == len(set(found.decoder)) == stored
        assert distilled.model == own.model and distilled.training == own.training
        assert distilled.data.train == own.data.train, "`distill` puts the distilled text in its place"
        assert distilled.data.directory == f"runs/data/{PLAIN[corpus]}-distilled"
        assert alike(distilled.model_copy(update={"data": own.data}), own)


@pytest.mark.parametrize("corpus", PLAIN)
def test_the_separate_models_are_of_every_depth(corpus: str) -> None:
    dense, size = recipe(PLAIN[corpus]), DEPTH[corpus]
    if corpus == "multi30k":  # short runs: the sweep trains as its sibling of tied-multi models does
        shared = {job.recipe.training.model_dump_json() for job in jobs(f"{corpus}-depth-systems")}
        dense = dense.model_copy(update={"training": jobs(f"{corpus}-depth-systems")[0].recipe.training})
        assert len(shared) == 1
    found = {}
    for job in jobs(f"{corpus}-depths"):
        found[job.recipe.model.encoder_layers, job.recipe.model.decoder_layers] = job
        assert alike(job.recipe, dense, "encoder_layers", "decoder_layers")
    assert set(found) == {(n, m) for n in range(1, size + 1) for m in range(1, size + 1)}


def test_published_settings() -> None:
    for name in (PLAIN["wmt18"], *BLOCKS["wmt18"]):
        own = recipe(name)
        model, training, decoding = own.model, own.training, own.decoding
        assert (model.dimension, model.feed_forward, model.heads) == (512, 2048, 8)
        assert (model.encoder_layers, model.decoder_layers, model.tie_embeddings) == (6, 6, "all")
        assert (own.data.tokenizer.vocabulary_size, own.data.tokenizer.shared) == (32_000, True)
        assert (training.max_updates, training.average_last, training.save_every) == (300_000, 10, 1000)
        assert (decoding.method, decoding.beam_size, decoding.length_penalty, decoding.alpha) == (
            "beam",
            4,
            "gnmt",
            0.6,
        )
        # `transformer_base_single_gpu`: 2 * 512^-0.5 * 16,000^-0.5.
        assert training.learning_rate == pytest.approx(2 * (512 * 16_000) ** -0.5, rel=2e-3)
        assert (training.warmup_updates, training.batch_tokens, model.norm) == (16_000, 2048, "pre")


def test_five_teachers_differ_in_their_seed() -> None:
    found = jobs("wmt18-teachers")
    assert [job.recipe.training.seed for job in found] == [1, 2, 3, 4, 5]
    assert all(
        alike(job.recipe, recipe("wmt18-en-de").model_copy(update={"training": job.recipe.training})) for job in found
    )
    header = (ROOT / "recipes" / "wmt18-en-de-tied-multi-distilled.yaml").read_text(encoding="utf-8")
    assert f"distill runs/wmt18-teachers/{found[2].name} " in header
