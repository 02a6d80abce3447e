"""docs/records/papers.md: a line for every table and figure, commands and models that can be built."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
import torch

from sparsenmt.assemble.checks import load_recipe
from sparsenmt.assemble.model import build_model
from sparsenmt.cli import COMMANDS
from sparsenmt.recipe.schema import ModelSection, Recipe
from sparsenmt.recipe.sweep import read_sweep
from sparsenmt.workflows.training.sweep import plan_sweep
from tests.examples import examples

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/records/papers.md").read_text(encoding="utf-8")

PAPERS = {
    "L0Drop": (2, 8),
    "Fixed heads": (6, 3),
    "Top-k selective attention": (6, 5),
    "Tied-multi Transformers": (4, 2),
    "Adaptively sparse attention": (1, 14),
}
"""Section -> the numbers of tables and of figures of the paper."""

STATES = ("run here", "by assembly", "a drawing", "not here: ")
"""A state begins with one of these."""


def lines(paper: str) -> dict[str, list[str]]:
    """The cells of the lines of a paper's section, by the first: `Table 1`."""
    section = re.search(rf"^## {re.escape(paper)} .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = re.findall(r"^\| ?(.*) \|$", section[0], re.MULTILINE)[1:]
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    assert len({row[0] for row in cells}) == len(cells), "two lines for one table or figure"
    return {row[0]: row[1:] for row in cells}


def commands() -> list[list[str]]:
    """The words after `sparsenmt` of every command of the page."""
    shown = re.findall(r"`sparsenmt ([^`]+)`", PAGE)
    return [shlex.split(text) for text in dict.fromkeys(shown)]


def recipe_name(words: list[str], folder: str) -> int | None:
    """The place of a recipe of this folder in a command."""
    return next((i for i, word in enumerate(words) if re.fullmatch(rf"{folder}/[^/]+\.yaml", word)), None)


@functools.cache
def parameters_of(section: str, vocabulary: int) -> int:
    """The parameters of the model of a recipe's section, built without its numbers."""
    options = ModelSection.model_validate_json(section)
    with torch.device("meta"):
        model = build_model(options, source_size=vocabulary, target_size=vocabulary)
    assert len(model.encoder.steps) == options.encoder_layers
    return sum(parameter.numel() for parameter in model.parameters())


def build(recipe: Recipe, vocabulary: int = 8) -> int:
    """Build a recipe's model, one for all recipes with the same section; returns its number of parameters."""
    return parameters_of(recipe.model.model_dump_json(by_alias=True), vocabulary)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_has_a_line(paper: str) -> None:
    tables, figures = PAPERS[paper]
    numbered = [f"Table {i + 1}" for i in range(tables)] + [f"Figure {i + 1}" for i in range(figures)]
    found = lines(paper)
    assert [name for name in found if re.match(r"(Table|Figure) \d", name)] == numbered
    for name, cells in found.items():
        assert len(cells) == 3 and cells[0], name
        state = cells[2]
        assert state.startswith(STATES), (name, state)
        assert "](claims.md#" in state or not re.match("run here|by assembly; small", state), (name, state)
        assert ("`sparsenmt " in cells[1]) == state.startswith(("run here", "by assembly")), name


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_can_be_given(words: list[str]) -> None:
    command: click.Command = importlib.import_module(f"sparsenmt.commands.{COMMANDS[words[0]].module}").command
    if isinstance(command, click.Group):
        context = command.make_context(words[0], words[1:])
        command, words = command.get_command(context, words[1]), words[1:]  # type: ignore[assignment]
    command.make_context(words[0], words[1:])  # parsed, not run
    for word in words:
        assert not word.startswith("recipes/") or (ROOT / word).is_file(), word


@pytest.mark.parametrize("words", [each for each in commands() if recipe_name(each, "recipes")], ids=" ".join)
def test_recipes_are_models(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", "data")
    place = recipe_name(words, "recipes")
    assert place is not None
    overrides = [word for word in words[place + 1 :] if re.match(r"[a-z_]+(\.[a-z_0-9]+)*=", word)]
    build(load_recipe(ROOT / words[place], overrides))


@functools.cache
def made() -> set[str]:
    """The model directories of all shipped recipes and sweeps, and those that a command of the page names."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "recipes").glob("*.yaml")]
    found = {directory for text in texts for directory in re.findall(r"^directory: (\S+)$", text, re.MULTILINE)}
    for path in (ROOT / "recipes/sweeps").glob("*.yaml"):
        sweep = read_sweep(path)
        found |= {sweep.directory.as_posix()}  # of `--grid`
        found |= {(sweep.directory / variant.name).as_posix() for variant in sweep.variants}
    for words in commands():
        found |= {word.removeprefix("directory=") for word in words if word.startswith("directory=")}
        output = next((after for word, after in pairwise(words) if word == "-o"), None)
        if output is not None:
            values = [value for word, value in pairwise(words) if word == "--weight"]
            found |= {output} | {f"{output}/weight-{number}" for value in values for number in value.split(",")}
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_models_of_commands_are_made(words: list[str]) -> None:
    named = {word for word in words if word.startswith("runs/")}
    assert named <= made(), named - made()


@functools.cache
def sweeps() -> list[str]:
    return sorted({words[place] for words in commands() if (place := recipe_name(words, "recipes/sweeps")) is not None})


@examples("name", sweeps(), fast=3)
def test_every_variant_of_a_sweep_is_a_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSENMT_DATA", "data")
    for run in plan_sweep(read_sweep(ROOT / name)).runs:
        build(run.recipe)


def test_the_parameters_that_the_page_gives_are_those_of_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 4 on tied-multi models, with the paper's vocabulary of 32,000."""
    monkeypatch.setenv("SPARSENMT_DATA", "data")
    counted = []
    for name in ("wmt18-depths", "wmt18-en-de-tied-multi", "wmt18-depths-recurrent", "wmt18-en-de-recurrent"):
        sweep = ROOT / f"recipes/sweeps/{name}.yaml"
        if sweep.exists():
            recipes = [run.recipe for run in plan_sweep(read_sweep(sweep)).runs]
        else:
            recipes = [load_recipe(ROOT / f"recipes/{name}.yaml")]
        counted.append(sum(build(each, 32_000) for each in recipes))
    tied = counted[1]
    separate, recurrent, one_recurrent = (f"{counted[i] / tied:.2f}" for i in (0, 2, 3))
    (state,) = lines("Tied-multi Transformers")["Table 4"][2:]
    assert f"{separate}, 1, {recurrent} and {one_recurrent} times {tied / 1e6:.1f} million" in state
