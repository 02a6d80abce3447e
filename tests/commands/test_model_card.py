"""The model card: what it says of data, training and scores, when it is brought up to date, what it never touches."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sparsenmt.assemble.model_card import CARD, MARK, RESULTS, model_card, write_model_card
from sparsenmt.assemble.model_directory import parameter_count, read_manifest, read_recipe, write_recipe
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.workflows.evaluation.evaluate import evaluate
from tests.commands.support import Run
from tests.importers import sources


def text_of(directory: Path) -> str:
    return (directory / CARD).read_bytes().decode()


def test_a_trained_model_has_a_card(workspace: Path) -> None:
    model = workspace / "model"
    card, manifest = text_of(model), read_manifest(model)
    header = yaml.safe_load(card.split("---")[1])
    assert header == {"language": ["en", "de"], "library_name": "sparsenmt", "pipeline_tag": "translation"}
    assert MARK in card and "$ sparsenmt decode model < source.txt" in card
    assert f"{parameter_count(model):,} weights" in card and "## Scores" not in card
    assert manifest["provenance"]["recipe_sha256"] in card and "demo: train.en and train.de" in card
    assert str(workspace) not in card, "no path of this machine"


def test_scores_come_with_signatures_and_only_of_these_weights(workspace: Path) -> None:
    model = workspace / "model"
    found = evaluate(model, "dev", attention=False)
    card = text_of(model)
    assert found.scores and f"| dev | {found.sentences} | " in card
    for name, value in found.scores.items():
        assert f"{value:.2f} | {found.signatures[name]}" in card.replace("\\|", "|")
    (path,) = (model / RESULTS).glob("*.json")
    kept = read_sealed(path, hint="")
    write_sealed(path, {**kept, "sparsity": 0.25})
    assert "25.0% on dev" in model_card(model)
    write_sealed(path, {**kept, "key": {**kept["key"], "weights": "others"}})
    assert "## Scores" not in model_card(model)
    write_sealed(path, {**kept, "scores": 3})
    assert "## Scores" not in model_card(model)
    path.write_bytes(b"{")
    assert "## Scores" not in model_card(model)


def test_a_card_of_the_user_stays(workspace: Path) -> None:
    model = workspace / "model"
    for own in (b"# Mine\n", "".join(text_of(model).split(MARK)).encode()):
        (model / CARD).write_bytes(own)
        write_model_card(model)
        assert (model / CARD).read_bytes() == own
    (model / CARD).unlink()
    (model / CARD).symlink_to(workspace / "small.yaml")
    before = (workspace / "small.yaml").read_bytes()
    write_model_card(model)
    assert (model / CARD).is_symlink() and (workspace / "small.yaml").read_bytes() == before
    (model / CARD).unlink()
    write_model_card(workspace)  # no model: nothing is written, and nothing fails
    assert not (workspace / CARD).exists()


def test_licence_methods_and_names_of_strangers(workspace: Path) -> None:
    model, recipe = workspace / "model", read_recipe(workspace / "model")
    write_recipe(model, recipe.model_copy(update={"name": "a | b\n# <b>\x1b", "license": "cc-by-4.0"}))
    card = model_card(model)
    assert yaml.safe_load(card.split("---")[1])["license"] == "cc-by-4.0" and "| licence | cc-by-4.0 |" in card
    assert "# a | b # &lt;b>\\x1b\n" in card
    assert read_recipe(model).license == "cc-by-4.0"
    assert "license" not in recipe.model_dump(mode="json")


@pytest.mark.parametrize("licence", ["[]", "{a: b}", "3"])
def test_a_licence_that_is_no_text_is_refused(licence: str, command: Run) -> None:
    result = command("train", "small.yaml", f"license={licence}")
    assert result.code == 2 and "license" in result.err


def test_copies_and_slices_have_cards_of_their_own(command: Run, workspace: Path) -> None:
    assert command("average", "model", "--last", "2", "--output", "mean").code == 0
    assert command("slice", "model", "cut", "--encoder-layers", "1", "--decoder-layers", "1").code == 0
    assert "sparsenmt decode mean" in text_of(workspace / "mean")
    cut = text_of(workspace / "cut")
    assert "| cut from | model |" in cut and "| validation |" not in cut


def test_exports_and_imports(command: Run, workspace: Path) -> None:
    evaluate(workspace / "model", "dev", attention=False)
    assert command("export", "model", "hf", "--to", "safetensors-hf").code == 0
    exported = text_of(workspace / "hf")
    assert yaml.safe_load(exported.split("---")[1])["language"] == ["en", "de"]
    assert "## Data and training" in exported and "## Scores" in exported and "```python" in exported
    sources.hugging_face(workspace / "theirs", "t5")
    assert command("import", "theirs", "ours").code == 0
    card, notes = text_of(workspace / "ours"), read_manifest(workspace / "ours")["imported_from"]["notes"]
    assert "Imported from theirs." in card and str(workspace) not in card
    assert notes and all(f"- {note}".replace("<", "&lt;") in card for note in notes)
