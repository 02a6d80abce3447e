"""Files of sweeps: what they multiply out to, and mistakes, each with its line and its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsenmt.errors import UserError
from sparsenmt.recipe.sweep import Layout, Sweep, SweepFile, VariantBlock, read_sweep
from sparsenmt.recipe.variants import Variant
from sparsenmt.recipe.yaml_tree import plain

HEAD = "name: s\ndirectory: runs/s\nrecipe: base.yaml\n"
ONE = HEAD + "variants:\n  - name: one\n"
HUNDRED = list(range(100))
PRODUCT = {f"k{i}": HUNDRED for i in range(8)}  # of 10^16 variants
MANY = "the sweep has more than 10,000 variants"


def sweep_of(tmp_path: Path, text: str) -> Sweep:
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8", newline="\n")
    return read_sweep(path)


def settings(variant: Variant) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in variant.settings}


def test_axes_are_multiplied_out(tmp_path: Path) -> None:
    text = """\
set: {training.seed: 3}
variants:
  - at: {system: full, k: full}
    name: full
  - at:
      system: [window, block]
      k: [8, 4]
    set: {model.attention.encoder_self.pattern: {name: "${system}", k: "${k}"}, training.seed: 4}
"""
    sweep = sweep_of(tmp_path, HEAD + text)
    assert [variant.name for variant in sweep.variants] == ["full", "window-8", "window-4", "block-8", "block-4"]
    assert sweep.axes == ("system", "k")
    assert settings(sweep.variants[0]) == {"training.seed": 3}
    last = sweep.variants[-1]
    assert last.labels == {"system": "block", "k": "4"}
    assert [each.key for each in last.settings] == [
        "training.seed",
        "model.attention.encoder_self.pattern",
        "training.seed",
    ]
    assert plain(last.settings[1].value) == {"name": "block", "k": 4}  # a number stays one
    assert last.recipe == tmp_path / "base.yaml" and last.start is None


def test_labels_with_values_and_settings(tmp_path: Path) -> None:
    text = """\
variants:
  - recipe: ${pair.recipe}.yaml
    at:
      pair: [{label: EN-DE, recipe: en-de}, {label: DE-EN, recipe: de-en}]
      system:
        - {label: 8L, heads: {}}
        - label: 7F token + 1L
          heads: {given: {name: fixed, learned: 1}}
          set: {data.directory: "runs/data/${pair.recipe}"}
    set: {"model.attention.${site}.heads": "${system.heads}", model.name: "x${system.heads.given.learned}"}
"""
    with pytest.raises(UserError, match=r"sweep\.yaml:13: .*label '8L' of system has no value `heads\.given\.learned`"):
        sweep_of(tmp_path, HEAD + text)
    sweep = sweep_of(tmp_path, HEAD + text.replace(', model.name: "x${system.heads.given.learned}"', ""))
    names = ["EN-DE-8L", "EN-DE-7F-token+1L", "DE-EN-8L", "DE-EN-7F-token+1L"]
    assert [variant.name for variant in sweep.variants] == names
    assert [variant.recipe.name for variant in sweep.variants] == ["en-de.yaml"] * 2 + ["de-en.yaml"] * 2
    assert settings(sweep.variants[0]) == {"model.attention.${site}.heads": {}}
    assert settings(sweep.variants[3]) == {
        "model.attention.${site}.heads": {"given": {"name": "fixed", "learned": 1}},
        "data.directory": "runs/data/de-en",
    }


def test_what_the_sweep_says_holds_where_a_block_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENSE", "runs/dense")
    text = """\
from: ${DENSE}
updates: 300
seeds: [2, 5]
variants:
  - {name: one}
  - {name: two, from: one, updates: 0}
  - {name: three, from: null}
  - {name: four, restart: true, updates: 7}
"""
    sweep = sweep_of(tmp_path, HEAD + text)
    found = [(v.name, v.start, v.updates, v.restart) for v in sweep.variants if v.labels["seed"] == "2"]
    assert found == [
        ("one", Path("runs/dense"), 300, False),
        ("two", Path("one"), 0, False),
        ("three", None, None, False),
        ("four", Path("runs/dense"), 7, True),
    ]
    assert [v.name for v in sweep.variants[:2]] == ["one", "one-seed5"]
    assert settings(sweep.variants[1]) == {"training.seed": 5}


def test_a_variant_begins_from_that_of_its_seed(tmp_path: Path) -> None:
    text = """\
seeds: [2, 5]
variants:
  - {name: dense, from: runs/outside, updates: 0}
  - {name: cut, from: dense, updates: 0}
  - {name: one}
  - {name: two, from: one, updates: 3}
  - {name: three, from: one, updates: 0}
  - {name: four, from: dense, updates: 7}
"""
    found = [
        (v.name, v.group, None if v.start is None else str(v.start)) for v in sweep_of(tmp_path, HEAD + text).variants
    ]
    assert found == [
        ("dense", "dense", "runs/outside"),  # a model that no seed changes: once
        ("cut", "cut", "dense"),
        ("one", "one", None),
        ("one-seed5", "one", None),
        ("two", "two", "one"),
        ("two-seed5", "two", "one-seed5"),
        ("three", "three", "one"),
        ("three-seed5", "three", "one-seed5"),
        ("four", "four", "dense"),
        ("four-seed5", "four", "dense"),
    ]


SEEDS = HEAD + "seeds: [1, 2]\n"
COLLISION = "the sweep has `seeds`, which give the seed. Remove this key, or `seeds`."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the recipe is empty"),
        (ONE + "  x: [", "invalid YAML"),
        (HEAD, "sweep.yaml: variants: this key is required"),
        (HEAD + "variants: []\n", "sweep.yaml:4: variants: must have at least 1 item"),
        (ONE.replace("recipe: base.yaml\n", ""), "sweep.yaml: recipe: this key is required"),
        (ONE + "metrics: [blue]\n", "sweep.yaml:6: metrics.0: must be one of bleu"),
        (ONE + "training: {max_updates: 3}\n", "sweep.yaml:6: training: unknown key. The keys here are: name, title"),
        (ONE + "varients: 3\n", "sweep.yaml:6: varients: unknown key. Did you mean `variants`? Write keys of"),
        (ONE + "    sett: {}\n", "sweep.yaml:6: variants.0.sett: unknown key. Did you mean `set`?"),
        (ONE + "updates: -1\n", "sweep.yaml:6: updates: must be at least 0, not -1"),
        (ONE + "updates: 5\n", "sweep.yaml:6: updates: needs `from`"),
        (ONE + "    restart: true\n", "sweep.yaml:6: variants.0.restart: needs `from`"),
        (ONE + "  - name: ONE\n", "sweep.yaml:6: variants: two variants are named ONE"),
        (HEAD + "variants:\n  - {}\n", "sweep.yaml:5: variants.0: the variant has no name"),
        (HEAD + "variants:\n  - name: ...\n", "sweep.yaml:5: variants.0: the variant has no name"),
        (HEAD + "variants:\n  - name: a-${k}\n", "sweep.yaml:5: variants.0.name: the variant has no axis 'k'"),
        (HEAD + "variants:\n  - at: {k: []}\n", "sweep.yaml:5: variants.0.at.k: the axis has no labels"),
        (HEAD + "variants:\n  - at: {k: [1, 1]}\n", "sweep.yaml:5: variants.0.at.k: the label '1' occurs twice"),
        (HEAD + "variants:\n  - at: {k: [true]}\n", "variants.0.at.k: a label must be a text or a number, not true"),
        (HEAD + "variants:\n  - at: {k: [{set: {}}]}\n", "variants.0.at.k: a value of an axis has no label"),
        (HEAD + "variants:\n  - at: {k: [{label: 1, set: 2}]}\n", "variants.0.at.k.set: must be a mapping of keys"),
        (HEAD + "variants:\n  - at: {seed: 1}\n", "variants.0.at.seed: 'seed' cannot be the name of an axis"),
        (HEAD + "variants:\n  - at: {a b: 1}\n", "'a b' cannot be the name of an axis"),
        (HEAD + f"variants:\n  - at: {PRODUCT}\n", f"sweep.yaml:5: variants.0: {MANY}, 10,000,000,"),
        (HEAD + f"seeds: {HUNDRED}\nvariants:\n  - at: {{k: {HUNDRED}}}\n  - name: a\n", f":7: variants.1: {MANY}"),
        (HEAD + "variants:\n  - {name: a, from: '${NO_SUCH}'}\n", "variants.0.from: the environment variable NO_SUCH"),
        (ONE.replace("runs/s", "'${NO_SUCH}'"), "sweep.yaml:2: directory: the environment variable NO_SUCH is not set"),
        (ONE + "seeds: [1, -2]\n", "sweep.yaml:6: seeds.1: must be at least 0, not -2"),
        (ONE + "seeds: [true]\n", "sweep.yaml:6: seeds.0: must be a number, not true"),
        (ONE + "seeds: [4294967296]\n", "sweep.yaml:6: seeds.0: must be less than 4294967296"),
        (ONE + "seeds: [3, 1, 3]\n", "sweep.yaml:6: seeds.2: the seed 3 occurs twice. Remove one of the two."),
        (SEEDS + "set: {training.seed: 1}\nvariants:\n  - name: a\n  - name: b\n", f":5: training.seed: {COLLISION}"),
        (SEEDS + "variants:\n  - {name: a, set: {training.seed: 3}}\n", f":6: training.seed: {COLLISION}"),
        (SEEDS + "variants:\n  - {name: a, set: {training: {seed: 3}}}\n", f":6: training.seed: {COLLISION}"),
        (SEEDS + "variants:\n  - at: {k: [{label: 1, set: {training.seed: 3}}]}\n", f":6: training.seed: {COLLISION}"),
        (ONE + "significance: t\n", "sweep.yaml:6: significance: must be one of bootstrap, randomization"),
        (ONE + "table: {columns: k}\n", "sweep.yaml:6: table.rows: this key is required"),
        (ONE + "table: {rows: k, columns: set}\n", "sweep.yaml:6: table.rows: no variant has an axis 'k'"),
        (ONE + "table: {rows: [set, metric]}\n", "sweep.yaml:6: table: sets and metrics are in the rows or sections"),
        (ONE + "table: {rows: set, columns: set, cell: x}\n", "sweep.yaml:6: table.cell: must be one of quality"),
        (ONE + "table: {rows: set, columns: set, cell: []}\n", "sweep.yaml:6: table.cell: "),
        (ONE + "table: {rows: set, columns: set, cell: [quality, x]}\n", "table.cell.1: must be one of quality"),
        (
            HEAD + "variants:\n  - at: {k: [1, 2]}\ntable: {rows: set, columns: metric}\n",
            "sweep.yaml:6: table: 1 and 2 share a cell",
        ),
        (
            HEAD + "variants:\n  - at: {k: [1, 2]}\ntable: {rows: k, columns: set, baseline: {k: 3}}\n",
            "sweep.yaml:6: table.baseline.k: no variant has the k '3'",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as found:
        sweep_of(tmp_path, text)
    assert message in str(found.value).replace(f"{tmp_path}/", "").replace("\n  ", ". ")


def test_all_mistakes_are_shown_together(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)3 problems:.*:6: x: unknown key.*:7: updates: must.*:8: sets.0: must"):
        sweep_of(tmp_path, ONE + "x: 1\nupdates: -1\nsets: [train]\n")


def test_every_key_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "sweeps.md").read_text(encoding="utf-8")
    for section in (SweepFile, VariantBlock, Layout):
        for name, field in section.model_fields.items():
            assert field.description and f"`{field.alias or name}`" in text, name
