"""The JSON Schema of recipes: every shipped one is valid, and an editor underlines what the schema of keys refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.recipe.json_schema import recipe_schema, sweep_schema
from sparsenmt.recipe.yaml_tree import parse_plain
from sparsenmt.sparsity import registry
from tests.recipe.support import METHODS
from tools.recipe_index import HEADER, RECIPES

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS: dict[str, Any] = {
    "recipe.schema.json": recipe_schema(registry.methods()),
    "sweep.schema.json": sweep_schema(),
}
DATA = {"directory": "d", "train": [{"source": "a", "target": "b"}], "dev": {"source": "a", "target": "b"}}
RECIPE = {"name": "n", "directory": "d", "data": DATA}


def mistakes(values: Any, schema: Any = SCHEMAS["recipe.schema.json"]) -> set[str]:
    """The key paths of what an editor underlines."""
    found = jsonschema.Draft7Validator(schema).iter_errors(values)
    return {".".join(map(str, error.absolute_path)) for error in found}


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_names_its_schema_and_fits_it(path: Path) -> None:
    text = path.read_bytes().decode()
    first, _, _ = text.partition("\n")
    assert first.startswith(HEADER) and (path.parent / first.removeprefix(HEADER)).is_file()
    assert mistakes(parse_plain(text, name=path.name), SCHEMAS[first.removeprefix(HEADER)]) == set()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_written_schemas_are_up_to_date(name: str) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[name])
    # Another process: methods that other tests register do not belong to the schema.
    environment = {key: value for key, value in os.environ.items() if key != "SPARSENMT_PLUGINS"}
    (path,) = RECIPES.rglob(name)
    options = ["--sweep"] if name.startswith("sweep") else []
    command = [sys.executable, "-m", "sparsenmt", "recipe-schema", *options]
    result = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert result.stdout == path.read_bytes(), "run: make docs"


def attention(**parts: Any) -> dict[str, Any]:
    return {**RECIPE, "model": {"attention": {"encoder_self": parts}}}


@pytest.mark.parametrize(
    ("values", "places"),
    [
        (RECIPE, set()),
        ({"name": "n"}, {""}),
        ({"base": "other.yaml", "training": {"max_updates": 3}}, set()),
        ({"base": ["a.yaml", "b.yaml"]}, set()),
        ({**RECIPE, "data": {"directory": "d"}}, {"data"}),
        ({**RECIPE, "trainning": {}}, {""}),
        ({**RECIPE, "training": {"max_updates": "many", "seed": -1}}, {"training.max_updates", "training.seed"}),
        ({**RECIPE, "model": {"activation": "swosh"}}, {"model.activation"}),
        ({**RECIPE, "decoding": {"method": "bean"}}, {"decoding.method"}),
        ({**RECIPE, "training": {"validation": {"metric": "blue"}}}, {"training.validation.metric"}),
        (attention(transform={"name": "topk", "k": 8}), set()),
        (attention(transform={"name": "topk", "k": "eight"}), {"model.attention.encoder_self.transform.k"}),
        (attention(transform={"name": "topk", "l": 8}), {"model.attention.encoder_self.transform"}),
        (attention(pattern={"name": "topk"}), {"model.attention.encoder_self.pattern.name"}),
        (attention(position={"name": "distance_vectors", "maximum": 4}), set()),
        ({**RECIPE, "model": {"memory": [{"name": "l0drop", "at": "between"}]}}, set()),
        ({**RECIPE, "model": {"memory": [{"name": "l0drop", "at": "here"}]}}, {"model.memory.0.at"}),
        ({**RECIPE, "losses": {"l0": {"target": {"from": 0, "to": 0.4, "steps": 10}}}}, set()),
    ],
)
def test_what_an_editor_underlines(values: Any, places: set[str]) -> None:
    found = mistakes(values)
    assert found == places or (places and all(any(each.startswith(place) for each in found) for place in places))
    assert bool(found) == bool(places)


def test_methods_from_outside_are_part_of_it() -> None:
    schema = recipe_schema(METHODS)
    socket, names = next((socket, names) for socket, names in METHODS.items() if names)
    assert {f"{socket} {name}" for name in names} <= schema["definitions"].keys()


def test_keys_have_their_descriptions() -> None:
    schema = SCHEMAS["recipe.schema.json"]
    sections = schema["definitions"]
    training = sections["Training"]["properties"]
    for value in training.values():
        assert "description" in (value if "description" in value else sections[value["$ref"].rpartition("/")[2]])
    dotted = SCHEMAS["sweep.schema.json"]["properties"]["set"]["properties"]
    assert dotted["training.max_updates"]["description"] == training["max_updates"]["description"]
