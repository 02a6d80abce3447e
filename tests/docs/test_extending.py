"""docs/guides/extending.md: every example is a module that registers something, and does what the page says."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.command import COMMANDS, REPORTS
from sparsenmt.data.demo_corpus import write_demo_corpus
from sparsenmt.data.features.source_features import FEATURES
from sparsenmt.metric import METRICS
from sparsenmt.plugins.modules import GROUPS
from sparsenmt.sparsity.registry import METHODS, SOCKETS, Method
from sparsenmt.strategy import STRATEGIES
from sparsenmt.testing import RULES, check_method

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guides/extending.md").read_text(encoding="utf-8")
TABLES = (METHODS, STRATEGIES, METRICS, REPORTS, COMMANDS)

RECIPE = """\
name: page
directory: {name}
model:
  dimension: 16
  feed_forward: 24
  heads: 2
  encoder_layers: 2
  decoder_layers: 2
  {model}
data:
  directory: prepared
  train: [{{source: corpus/train.en, target: corpus/train.de}}]
  dev: {{source: corpus/dev.en, target: corpus/dev.de}}
  tokenizer: {{kind: word, vocabulary_size: 300}}
training: {{max_updates: 3, threads: 1, device: cpu, batch_tokens: 256, learning_rate: 0.02, warmup_updates: 1}}
decoding: {{beam_size: 2, max_length_factor: 0, max_length_offset: 12}}
"""
MODELS = {
    "first": """\
attention:
    encoder_self: {pattern: {name: attention_sinks, window: 4, first: 2}, transform: {name: softmax_one}}
    decoder_self: {position: {name: alibi}, span: {name: fading, farthest: 6}}
    cross: {transform: {name: softmax_one, constant: 0.5}}
  memory: [{name: short_tokens, longest: 3}]
  depth: {name: twice}
""",
    "second": """\
attention:
    encoder_self: {pattern: {name: same_side}}
    cross: {heads: {given: {name: mean_so_far}}}
  recurrence: {name: running_mean}
  memory: [{name: short_tokens}]
""",
}
"""Between them they use every method of the page."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


EXAMPLES = {text.partition(".py\n")[0].removeprefix("# "): text for text in blocks("python")}
MODULES = [name for name in EXAMPLES if not name.startswith("test_")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the examples, which are registered."""
    path = tmp_path_factory.mktemp("extending")
    for name, text in EXAMPLES.items():
        (path / f"{name}.py").write_text(text, encoding="utf-8", newline="\n")
    features = dict(FEATURES)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as scopes:
        patch.syspath_prepend(path)
        patch.chdir(path)
        for table in TABLES:
            scopes.enter_context(table.scope())
        for name in MODULES:
            importlib.import_module(name)
        write_demo_corpus(path / "corpus", train=200, dev=20, test=20)
        yield path
    FEATURES.clear()
    FEATURES.update(features)
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def registered(table: Any) -> dict[str, Any]:
    """Return the entries of a table that the examples have registered."""
    return {name: table[name] for name in table if table.origin(name).module in MODULES}


def test_there_is_an_example_for_each_socket_and_each_kind(folder: Path) -> None:
    methods: list[Method] = list(registered(METHODS).values())
    assert {method.socket for method in methods} == set(SOCKETS)
    assert {method.per_step for method in methods if method.socket == "pattern"} == {False, True}
    assert all(len(registered(table)) == 1 for table in TABLES[1:]) and "letters" in FEATURES
    assert len(MODULES) == len(methods) + 4, "a module each"
    assert any(len(method.options.model_fields) > 0 for method in methods)


@pytest.mark.parametrize(
    "rules",
    [["build", "weights", "steps"], pytest.param([rule.name for rule in RULES], marks=pytest.mark.thorough)],
    ids=["some", "all"],
)
@pytest.mark.parametrize("module", [name for name in MODULES if '@register("' in EXAMPLES[name]])
def test_the_methods_keep_the_rules(folder: Path, module: str, rules: list[str]) -> None:
    (method,) = (each for name, each in registered(METHODS).items() if METHODS.origin(name).module == module)
    found = check_method(method, rules=rules, others=())
    assert found.holds, [(each.rule.name, each.message, each.script) for each in found.broken]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.thorough
def test_models_of_the_examples_train_and_decode(folder: Path, name: str) -> None:
    text = RECIPE.format(name=name, model=MODELS[name].rstrip())
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8", newline="\n")
    assert run(["prepare", f"{name}.yaml"]) == 0
    assert run(["train", f"{name}.yaml"]) == 0
    assert run(["decode", name, "-i", "corpus/test.en", "-o", f"{name}.de", "--method", "typical"]) == 0
    assert (folder / f"{name}.de").read_bytes().count(b"\n") == 20
    record = json.loads((folder / name / "manifest.json").read_bytes())
    methods = {key.split()[-1] for each in record["plugins"] for key in each["registers"]}
    assert methods == {method.name for method in registered(METHODS).values() if f"name: {method.name}" in text}


@pytest.mark.thorough
def test_the_metric_the_report_and_the_subcommand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = folder / "corpus/test.de"
    assert run(["score", str(reference), "-r", str(reference), "-m", "exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"][0]["value"] == 100
    assert run(["count-words", str(reference)]) == 0
    assert capsys.readouterr().out == f"{len(reference.read_bytes().split())}\n"
    if not (folder / "first").exists():
        test_models_of_the_examples_train_and_decode(folder, "first")
    arguments = ["analyze", "token-counts", "first", "-i", "corpus/test.en", "--least", "2", "--json", "counts.json"]
    assert run(arguments) == 0
    rows = json.loads((folder / "counts.json").read_bytes())["tables"]["token-counts"]
    assert rows and all(row["tokens"] >= 2 for row in rows)


def test_the_entry_points_name_modules_of_the_page() -> None:
    (text,) = blocks("toml")
    for group, points in tomllib.loads(text)["project"]["entry-points"].items():
        assert group in GROUPS.values() and set(points.values()) <= set(MODULES)


def test_the_test_of_a_method(folder: Path) -> None:
    test = importlib.import_module("test_softmax_one").test_softmax_one
    assert [mark.name for mark in test.pytestmark] == ["parametrize"]


def test_the_commands_and_the_rules_exist() -> None:
    (text,) = blocks("console")
    called = re.findall(r"^\$ sparsenmt ([\w-]+)", text, re.MULTILINE)
    assert len(called) == 3 and all(name in COMMANDS for name in called)
    modules = re.findall(r"SPARSENMT_PLUGINS=([\w,]+)", text)[0].split(",")
    assert set(modules) <= set(MODULES)
