"""Recipes and overrides as mappings: the same recipe as from a file and a command line, with as good messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenmt.assemble.checks import load_recipe
from sparsenmt.errors import UserError
from sparsenmt.recipe.yaml_tree import write

CORPUS = {"source": "text/train.en", "target": Path("text/train.de")}
RECIPE: dict[str, Any] = {
    "name": "small",
    "directory": "model",
    "model": {"preset": "tiny", "memory": [{"name": "l0drop"}]},
    "data": {"directory": "prepared", "train": (CORPUS,), "dev": CORPUS},
    "losses": {"l0": {"weight": 0.3}},
    "training": {"max_updates": np.int64(7), "learning_rate": np.float64(1e-3)},
}
OVERRIDES = {
    "training.seed": 5,
    "training": {"log_every": 3},
    "model.memory.0.at": "output",
    "decoding.unknown": "copy",
}
LINES = ["training.seed=5", "training.log_every=3", "model.memory.0.at=output", "decoding.unknown=copy"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plain = {**RECIPE, "training": {"max_updates": 7, "learning_rate": 0.001}}
    texts = {key: str(path) for key, path in CORPUS.items()}
    plain["data"] = {"directory": "prepared", "train": [texts], "dev": texts}
    (tmp_path / "small.yaml").write_text(write(plain), encoding="utf-8")
    return tmp_path / "small.yaml"


def test_a_mapping_is_a_recipe(file: Path) -> None:
    assert load_recipe(RECIPE) == load_recipe(file)
    assert load_recipe(RECIPE, OVERRIDES) == load_recipe(str(file), LINES)
    assert load_recipe(RECIPE).data.train[0].source == str(file.parent / "text/train.en")


def test_a_mapping_may_have_a_base(file: Path) -> None:
    found = load_recipe({"base": "small.yaml", "training": {"max_updates": 9}})
    assert found == load_recipe(file, ["training.max_updates=9"])


def test_a_recipe_that_was_read_can_be_changed(file: Path) -> None:
    recipe = load_recipe(file)
    assert load_recipe(recipe) is recipe
    assert load_recipe(recipe, OVERRIDES) == load_recipe(file, LINES)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.max_update": 3}, r"^override 'training.max_update=3': training.max_update: unknown key"),
        ({"training": {"seed": -1}}, r"^override 'training=a mapping': training.seed: must be"),
        ({"training.seed": object}, r"^override 'training.seed=<class 'object'>': training.seed: must be"),
        ({"base": "other.yaml"}, r"^override 'base='other.yaml'': `base` can be set in a recipe file only"),
        ({"a..b": 1}, "the key is not valid"),
    ],
)
def test_mistakes_in_overrides(file: Path, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(file, overrides)


def test_mistakes_in_a_mapping(file: Path) -> None:
    with pytest.raises(UserError, match=r"^recipe: model.presett: unknown key"):
        load_recipe({**RECIPE, "model": {"presett": "tiny"}})
    with pytest.raises(UserError, match=r"(?s)^recipe: 2 problems:.*recipe: name: .*recipe: directory: "):
        load_recipe({"data": RECIPE["data"]})
    with pytest.raises(UserError, match=r"^recipe: base: there is no file "):
        load_recipe({"base": "nothing.yaml"})
    with pytest.raises(TypeError, match=r"^overrides is one str, not a list of them: write \['training.seed=2'\]$"):
        load_recipe(RECIPE, "training.seed=2")
