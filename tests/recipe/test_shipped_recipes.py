"""The recipes that come with the package, and the reference of all keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsenmt.recipe.document import document
from sparsenmt.recipe.keys import all_keys
from sparsenmt.recipe.load import dump, load
from tests.recipe.support import METHODS

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("**/*.yaml"))


def test_these_recipes_are_shipped() -> None:
    assert {path.stem for path in RECIPES} == {
        "demo",
        "low-resource",
        "multi30k-en-de",
        "tatoeba-de-en",
        "wmt14-en-de",
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_loads(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsenmt.sparsity.registry import methods

    monkeypatch.setenv("SPARSENMT_DATA", str(tmp_path))
    known = methods()
    recipe = load(path, known)
    assert recipe.name == path.stem
    again = tmp_path / "again.yaml"
    again.write_text(dump(recipe), encoding="utf-8", newline="\n")
    assert load(again, known) == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_says_what_it_is_and_how_to_run_it(path: Path) -> None:
    head = path.read_text(encoding="utf-8").split("\nname:")[0]
    assert all(line.startswith("#") for line in head.split("\n"))
    assert "# Settings" in head
    assert f"sparsenmt train recipes/{path.name}" in head


def test_the_corpora_that_are_there_are_found(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", str(real_data))
    for name in ("multi30k-en-de", "tatoeba-de-en", "low-resource"):
        data = load(ROOT / "recipes" / f"{name}.yaml", METHODS).data
        for corpus in (*data.train, data.dev, data.test):
            assert corpus is not None
            assert Path(corpus.source).is_file() and Path(corpus.target).is_file()


def test_the_reference_is_up_to_date() -> None:
    # Another process: methods that other tests register do not belong to the reference.
    environment = {name: value for name, value in os.environ.items() if name != "SPARSENMT_PLUGINS"}
    command = [sys.executable, "-m", "sparsenmt", "recipe-docs"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    committed = (ROOT / "docs" / "recipes.md").read_bytes()
    assert result.stdout == committed, "run: sparsenmt recipe-docs --output docs/recipes.md"


def test_the_reference_names_every_key_with_a_description() -> None:
    lines = document(METHODS).split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    assert all(row[-1] for row in rows), "a key without a description"
    named = {row[0].strip("`") for row in rows}
    assert {path[-1] for path in all_keys()} - {"0", "name"} <= named
    assert {"k", "ties", "rate"} <= named
    text = "\n".join(lines)
    assert "| `k` | whole number > 0 | `8` | Keys kept. |" in text
    assert "| `rate` | number >= 0, <= 1 | required | Share that is dropped. |" in text
    assert "| `ties` | `keep`, `first` | `keep` | What happens to ties. |" in text
