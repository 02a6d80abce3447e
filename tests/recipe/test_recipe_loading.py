"""Loading recipes: values, presets, bases, overrides, paths, and the way back to YAML."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from pydantic import BaseModel

from sparsenmt.errors import UserError
from sparsenmt.recipe.choices import PRESETS
from sparsenmt.recipe.load import dump, load, load_resolved
from sparsenmt.recipe.yaml_tree import parse, plain
from tests.recipe.support import METHODS, MINIMAL, load_text, write


def parsed(text: str) -> object:
    node, problems = parse(text, name="x", folder=Path())
    assert node is not None and not problems
    return plain(node)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("300_000", 300_000),
        ("010", 10),
        ("0x10", 16),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("'1'", "1"),
        ("1e", "1e"),
        ("-", [None]),
        (".inf", float("inf")),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    got = parsed(f"key: {text}" if text != "-" else "key:\n  -")
    assert got == {"key": value}
    assert type(got["key"]) is type(value)  # type: ignore[index]


@pytest.mark.parametrize(
    "value", ["no", "1e-3", "true", "", "null", "300_000", "0o7", "a: b", "\u2028x\0", "1.", "é #x"]
)
def test_written_texts_are_read_back_as_texts(tmp_path: Path, value: str) -> None:
    recipe = load_text(tmp_path).model_copy(update={"name": value})
    assert load(write(tmp_path, dump(recipe), "again.yaml"), METHODS).name == value


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, "training: {learning_rate: 1e-3, max_updates: 1e5}\n")
    assert recipe.training.learning_rate == 1e-3
    assert recipe.training.max_updates == 100_000


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_under_the_users_keys(tmp_path: Path, name: str) -> None:
    recipe = load_text(tmp_path, f"model: {{preset: {name}, heads: 2}}\n")
    sizes = PRESETS[name] | {"heads": 2}
    assert {key: getattr(recipe.model, key) for key in sizes} == sizes


def test_the_presets_are_these() -> None:
    assert {name: tuple(sizes.values()) for name, sizes in PRESETS.items()} == {
        "tiny": (64, 256, 4, 2, 2),
        "small": (256, 1024, 4, 3, 3),
        "base": (512, 2048, 8, 6, 6),
        "big": (1024, 4096, 16, 6, 6),
    }


def test_an_override_of_the_preset_leaves_the_files_keys(tmp_path: Path) -> None:
    recipe = load_text(tmp_path, "model: {preset: base, feed_forward: 100}\n", "model.preset=tiny")
    assert (recipe.model.dimension, recipe.model.feed_forward) == (64, 100)


def test_bases_are_merged_under(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + "training: {seed: 5, warmup_updates: 7, optimizer: {beta1: 0.5}}\n", "one.yaml")
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "base: ../one.yaml\ntraining: {seed: 6, batch_tokens: 9}\n", "two.yaml")
    path = write(tmp_path, "base: sub/two.yaml\nname: three\ntraining: {optimizer: {beta2: 0.9}}\n")
    recipe = load(path, METHODS)
    training = recipe.training
    assert (recipe.name, training.seed, training.warmup_updates, training.batch_tokens) == ("three", 6, 7, 9)
    assert (training.optimizer.beta1, training.optimizer.beta2) == (0.5, 0.9)


def test_another_optimizer_loses_the_constants_of_the_one_below(tmp_path: Path) -> None:
    below = "training: {optimizer: {beta1: 0.5, epsilon: 1.0e-8}}\n"
    for override in ("training.optimizer.name=adagrad", "training.optimizer={name: adagrad}"):
        optimizer = load_text(tmp_path, below, override).training.optimizer
        assert (optimizer.name, optimizer.beta1, optimizer.epsilon) == ("adagrad", 0.9, 1e-8)
    assert load_text(tmp_path, below, "training.optimizer.name=adam").training.optimizer.beta1 == 0.5


def test_later_bases_lie_over_earlier_ones_and_lists_are_replaced(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + "training: {seed: 5}\n", "one.yaml")
    write(
        tmp_path, "training: {seed: 6}\ndata: {train: [{source: b, target: c}, {source: d, target: e}]}\n", "two.yaml"
    )
    recipe = load(write(tmp_path, "base: [one.yaml, two.yaml]\n"), METHODS)
    assert recipe.training.seed == 6
    assert [Path(corpus.source).name for corpus in recipe.data.train] == ["b", "d"]


def test_one_base_may_be_reached_twice(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "root.yaml")
    write(tmp_path, "base: root.yaml\ntraining: {seed: 2}\n", "left.yaml")
    write(tmp_path, "base: root.yaml\n", "right.yaml")
    assert load(write(tmp_path, "base: [left.yaml, right.yaml]\n"), METHODS).training.seed == 2


def test_bases_in_a_circle_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "base: two.yaml\n", "one.yaml")
    path = write(tmp_path, "\nbase: one.yaml\n", "two.yaml")
    with pytest.raises(UserError, match=r"one\.yaml:1: base: .*two\.yaml includes itself"):
        load(path, METHODS)


def test_a_missing_base_is_reported_where_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"recipe\.yaml:8: base: there is no file .*nothing\.yaml"):
        load_text(tmp_path, "base: nothing.yaml\n")


def test_another_method_does_not_inherit_options(tmp_path: Path) -> None:
    site = "model: {attention: {cross: {transform: {name: %s}}}}\n"
    write(tmp_path, MINIMAL + site % "nearest, k: 3", "one.yaml")
    changed = load(write(tmp_path, "base: one.yaml\n" + site % "softmax"), METHODS)
    assert changed.model.attention.cross.transform.options == {}
    same = load(write(tmp_path, "base: one.yaml\n" + site % "nearest, ties: first"), METHODS)
    assert same.model.attention.cross.transform.options == {"k": 3, "ties": "first"}


def test_other_mappings_with_a_name_are_merged_as_usual(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "one.yaml")
    recipe = load(write(tmp_path, "base: one.yaml\nname: other\ndata: {dev: {name: held-out}}\n"), METHODS)
    assert (recipe.name, recipe.directory, recipe.data.dev.name) == ("other", "runs/test", "held-out")
    assert Path(recipe.data.dev.source).name == "d.en"


def test_overrides(tmp_path: Path) -> None:
    recipe = load_text(
        tmp_path,
        "",
        "training.learning_rate=1e-3",
        "training.validation.patience=3",
        "training.validation.patience=",
        "model.memory.0={name: drop, rate: 0.5}",
        "model.memory.0.at=between",
        "losses.l.weight={from: 0, to: 1, steps: 10}",
        "data.train.1={source: b, target: c}",
        "data.train.1.weight=2",
        "name=a=b",
        "data.test=null",
    )
    assert recipe.training.learning_rate == 1e-3
    assert recipe.training.validation.patience is None
    assert recipe.model.memory[0].at == "between"
    assert recipe.model.memory[0].options == {"rate": 0.5}
    assert recipe.losses["l"].weight.steps == 10  # type: ignore[union-attr]
    assert [corpus.weight for corpus in recipe.data.train] == [1.0, 2.0]
    assert recipe.name == "a=b"


@pytest.mark.parametrize("order", [1, -1])
def test_an_overridden_method_takes_the_options_of_the_command_line_only(tmp_path: Path, order: int) -> None:
    key = "model.attention.cross.transform"
    overrides = [f"{key}.name=nearest", f"{key}.k=2"][::order]
    recipe = load_text(tmp_path, "model: {attention: {cross: {transform: {name: softmax, heat: 1}}}}\n", *overrides)
    assert recipe.model.attention.cross.transform.options == {"k": 2, "ties": "keep"}


def test_corpus_paths_are_relative_to_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "work").mkdir()
    write(tmp_path / "base", MINIMAL, "base.yaml")
    path = write(tmp_path, "base: base/base.yaml\ndata: {test: {source: /abs/t.en, target: ../t.de}}\n")
    monkeypatch.chdir(tmp_path / "work")
    recipe = load(Path("..") / path.name, METHODS, ["data.dev.source=here.en"])
    assert recipe.data.train[0].source == str(tmp_path / "base" / "a.en")
    assert recipe.data.dev.source == str(tmp_path / "work" / "here.en")
    assert recipe.data.test is not None
    assert (recipe.data.test.source, recipe.data.test.target) == ("/abs/t.en", str(tmp_path.parent / "t.de"))
    assert (recipe.directory, recipe.data.directory) == ("runs/test", "runs/data")


def test_variables_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORPORA", "/corpora")
    monkeypatch.delenv("NOWHERE", raising=False)
    recipe = load_text(
        tmp_path,
        "",
        "data.dev.source=${CORPORA}/${NOWHERE:-x}.en",
        "data.dev.target=${NOWHERE:-}${CORPORA:-y}/x.de",
        "directory=${NOWHERE:-runs}/a",
        "name=${CORPORA}",
    )
    assert (recipe.data.dev.source, recipe.data.dev.target) == ("/corpora/x.en", "/corpora/x.de")
    assert (recipe.directory, recipe.name) == ("runs/a", "${CORPORA}")


@pytest.mark.parametrize("text", ["${NOWHERE}/x", "${NOWHERE:-a}${NOWHERE}", "${NOT CLOSED", "${}"])
def test_unset_and_malformed_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    head = MINIMAL.replace("directory: runs/test", f'directory: "{text}"')
    with pytest.raises(UserError, match=r"recipe\.yaml:2: directory: "):
        load_text(tmp_path, head=head)


def test_the_dump_is_the_same_recipe(tmp_path: Path) -> None:
    extra = (
        "model: {preset: small, memory: [{name: drop, rate: 0.25, at: between}],\n"
        "  attention: {cross: {transform: {name: nearest}}}}\n"
        "losses: {l: {weight: {from: 0, to: 0.3, steps: 1e3}}, m: {weight: 2}}\n"
        "training: {learning_rate: 1e-5, threads: 2}\n"
    )
    recipe = load_text(tmp_path, extra)
    text = dump(recipe)
    again = load(write(tmp_path, text, "again.yaml"), METHODS)
    assert again == recipe
    assert dump(again) == text
    values = yaml.safe_load(text)
    assert load_resolved(values, METHODS) == recipe
    assert values["model"]["attention"]["cross"]["transform"] == {"name": "nearest", "k": 8, "ties": "keep"}


def test_a_resolved_recipe_keeps_its_paths(tmp_path: Path) -> None:
    values = yaml.safe_load(MINIMAL)
    values["data"]["dev"]["source"] = "${NOWHERE}/x"
    assert load_resolved(values, METHODS).data.dev.source == "${NOWHERE}/x"
    with pytest.raises(UserError, match=r"model-dir: name: this key is required"):
        load_resolved({"directory": "x", "data": values["data"]}, METHODS, origin="model-dir")


def test_options_that_do_not_take_their_own_defaults_back_stay_as_written(tmp_path: Path) -> None:
    class Picky(BaseModel):
        a: int | None = None

        def model_post_init(self, _context: object) -> None:
            if "a" in self.model_fields_set and self.a is None:
                raise ValueError("a may be left out, not null")

    methods = {**METHODS, "depth": {"plain": Picky}}
    recipe = load(write(tmp_path, MINIMAL), methods)
    assert recipe.model.depth.options == {}


def test_a_younger_option_is_written_only_where_it_is_not_the_default(tmp_path: Path) -> None:
    """So a run whose recipe is older than the option goes on."""

    class Grown(BaseModel):
        younger: ClassVar[frozenset[str]] = frozenset({"b"})
        a: int = 1
        b: int = 2

    methods = {**METHODS, "depth": {"plain": Grown}}
    found = [
        load(write(tmp_path, f"{MINIMAL}model: {{depth: {{name: plain{rest}}}}}\n"), methods).model.depth.options
        for rest in ("", ", b: 2", ", b: 3")
    ]
    assert found == [{"a": 1}, {"a": 1}, {"a": 1, "b": 3}]
