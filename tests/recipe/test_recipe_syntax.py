"""Recipes that YAML, or the reader of files, does not take: every one is answered with its file, line and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.recipe import checks, errors, resolve, yaml_tree
from sparsenmt.recipe.errors import YamlOrigin
from sparsenmt.recipe.key_paths import KeyPath
from sparsenmt.recipe.load import load
from sparsenmt.recipe.yaml_tree import YamlNode
from tests.recipe.support import METHODS, MINIMAL, write

BASIS = MINIMAL.encode()  # seven lines


def refused(path: Path, *overrides: str) -> UserError:
    """The error of a recipe; always with a place and a remedy."""
    with pytest.raises(UserError) as caught:
        load(path, METHODS, overrides)
    error = caught.value
    assert error.where and error.hint and error.message
    assert "problems:" in error.message or not error.message.endswith(".")
    assert all(line.isprintable() for line in str(error).split("\n"))
    return error


def read(folder: Path, content: bytes, *overrides: str) -> str:
    path = folder / "recipe.yaml"
    path.write_bytes(content)
    return str(refused(path, *overrides)).replace(str(folder), "DIR")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"name: [a\n", "DIR/recipe.yaml:2:1: invalid YAML: the bracket opened on line 1 is not closed"),
        (b'name: "a\nb: 1\n', "DIR/recipe.yaml:3:1: invalid YAML: the quotation mark of line 1 is not closed"),
        (
            b"name: a: b\n",
            "DIR/recipe.yaml:1:8: invalid YAML: there is a second colon, or the line is indented too far",
        ),
        (b"name: x\n  directory: y\n", "DIR/recipe.yaml:2:12: invalid YAML: there is a second colon, or"),
        (b"name:x\ndirectory: y\n", "with a space after the colon, here and in the line above"),
        (b"name\ndata: {}\n", "DIR/recipe.yaml:2:5: invalid YAML: there is a second colon"),
        (b"name: x\ndirectory\n", "DIR/recipe.yaml:3:1: invalid YAML: a key without a colon"),
        (b"data:\n    a: 1\n  b: 2\n", "DIR/recipe.yaml:3:3: invalid YAML: the indentation fits no line above"),
        (b"data:\n\tdirectory: x\n", "DIR/recipe.yaml:2:1: invalid YAML: a tab\n  Use spaces"),
        (b"name:\tx\n", "DIR/recipe.yaml:1:6: invalid YAML: a tab"),
        (b"name: @x\n", "DIR/recipe.yaml:1:7: invalid YAML: a text cannot begin with @\n  Put the text into quotes."),
        (b'name: "\\q"\n', "DIR/recipe.yaml:1:9: invalid YAML: the backslash before 'q' has no meaning"),
        (b"name: *b\n", "DIR/recipe.yaml:1:7: invalid YAML: there is no anchor `&b`"),
        (b"a: &x 1\nb: &x 2\n", "DIR/recipe.yaml:2:4: invalid YAML: an anchor that line 1 defines is defined again"),
        (b"name: a\n---\nname: b\n", "DIR/recipe.yaml:2:1: invalid YAML: a second document begins here"),
        (b"name: !x!y z\n", "DIR/recipe.yaml:1:7: invalid YAML: found undefined tag handle '!x!'"),
        (b"name: a\x00b\n", "DIR/recipe.yaml:1:8: invalid YAML: the character U+0000 is not allowed here"),
        (b"\x7fELF\x02\x01", "DIR/recipe.yaml:1:1: invalid YAML: the character U+007F is not allowed here"),
        (MINIMAL.encode("utf-16"), "DIR/recipe.yaml: the text is UTF-16 or UTF-32 by its byte order mark"),
        (BASIS + b"decoding: \xe4\n", "DIR/recipe.yaml:8: the recipe is not UTF-8"),
        (b"\xef\xbb\xbf", "DIR/recipe.yaml: the recipe is empty\n  Begin it with"),
        (b"---\n", "DIR/recipe.yaml: the recipe is empty"),
        (b" \n \n", "DIR/recipe.yaml: the recipe is empty"),
        (b"- name: x\n", "DIR/recipe.yaml: a recipe must be a mapping of keys to values"),
        (b"name:x\n", "Begin it with a line like `name: my-run`, with a space after the colon."),
        (b"a: " + b"[" * 5000, "DIR/recipe.yaml: invalid YAML: it is nested too deeply"),
        (b"x" * 1_000_001, "DIR/recipe.yaml: the file is larger than 1,000,000 bytes"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"decoding: {alpha: !foo 3}\n", "decoding.alpha: the YAML tag `!foo` cannot be used in a recipe"),
        (b"decoding: !foo {alpha: 3}\n", "decoding: the YAML tag `!foo` cannot be used in a recipe"),
        (b"decoding: !!set {alpha}\n", "decoding: the YAML tag `!!set` cannot be used in a recipe"),
        (b"training: {seed: !!int abc}\n", "training.seed: 'abc' does not fit its tag `!!int`"),
        (b"training: {<<: {seed: 3}}\n", "training.<<: YAML's merge key `<<` cannot be used in a recipe"),
        (b"'': 3\n", "recipe.yaml:8: a key must be a plain word"),
        (b"{a: b}: 3\n", "recipe.yaml:8: a key must be a plain word"),
        (b'"\\e[31mred": 4\n', "recipe.yaml:8: \\x1b[31mred: a key contains an unprintable character"),
        (b"\xef\xbb\xbftraining: {}\n", "recipe.yaml:8: \\ufefftraining: a key contains an unprintable character"),
        (b'training: {seed: "\\e[31m\\n"}\n', "training.seed: must be a whole number, not '\\x1b[31m\\n'"),
        (b"training: {3: 4}\n", "recipe.yaml:8: training.3: unknown key"),
        (b"true: 4\n", "recipe.yaml:8: true: unknown key"),
        (b"~: 4\n", "recipe.yaml:8: ~: unknown key"),
        (b"training: {seed: " + b"9" * 5000 + b"}\n", "training.seed: 999"),
        (b"training: {batch_tokens: 9223372036854775808}\n", "batch_tokens: 9223372036854775808 is too large"),
        (b"training: {batch_tokens: 0x" + b"f" * 5000 + b"}\n", "is too large\n  Whole numbers go up to 9223372036"),
        (b"training: {learning_rate: 1e999}\n", "training.learning_rate: must be a finite number, not inf"),
        (b"training: {learning_rate: .nan}\n", "training.learning_rate: must be a finite number, not nan"),
        (b"training: {seed: .inf}\n", "training.seed: must be a finite number, not inf"),
        (b"model: {encoder_layers: 1000000000000}\n", "model.encoder_layers: must be at most 1000, not 1000000000000"),
        (b"model: {dimension: 1000000000}\n", "model.dimension: must be at most 65536"),
        (b'name2: "\\ud800"\n', "name2: '\\ud800' contains half of a character"),
        (b"losses: &a {l: *a}\n", "losses.l: an alias refers to a value that contains it"),
        (b"model: " + b"{a: " * 60 + b"1" + b"}" * 60, "model.a.a: sections are nested more than 50 deep"),
        (b"x" * 100 + b": 3\n", f"recipe.yaml:8: {'x' * 57}...: unknown key"),
        (b'base: "a\\0b"\n', "recipe.yaml:8: base: a path cannot contain the character U+0000"),
        (b"base: " + b"a" * 5000 + b"\n", "recipe.yaml:8: base: there is no file DIR/aaa"),
        (b"base: .\n", "recipe.yaml:8: base: there is no file DIR"),
        (b"base: ''\n", "recipe.yaml:8: base: must be the path of a recipe"),
    ],
)
def test_values_and_keys(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in read(tmp_path, BASIS + content)


@pytest.mark.parametrize(
    "override",
    [
        "training.seed=\udcff",
        "a.b=\x1b[31m",
        "\x1b[31m=3",
        "data.train." + "9" * 5000 + "=3",
        ".".join("a" * 5000) + "=1",
    ],
)
def test_overrides_from_a_strange_command_line(tmp_path: Path, override: str) -> None:
    assert (refused(write(tmp_path, MINIMAL), override).where or "").startswith("override '")


def test_aliases_that_multiply(tmp_path: Path) -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    for above, here in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{here}: &{here} [{','.join([f'*{above}'] * 10)}]")
    assert "DIR/recipe.yaml: the recipe has more than 100,000 values" in read(tmp_path, "\n".join(lines).encode())


def test_an_alias_may_be_used(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "losses: {a: &one {weight: 2}, b: *one}\n")
    assert load(path, METHODS).losses["b"].weight == 2


def test_what_cannot_be_read_has_one_complaint(tmp_path: Path) -> None:
    assert "problems" not in read(tmp_path, BASIS + b"training: {seed: !!int abc}\n")
    assert "problems" not in read(tmp_path, b"base: [3]\n"), "what is missing may stand in the base"


def test_a_key_that_is_wrong_is_explained(tmp_path: Path) -> None:
    text = read(tmp_path, BASIS + b"training: {seed: x}\n")
    assert text.endswith(
        "meaning: Random seed of initialisation, data order and dropout (exact on the CPU). Default: 1."
    )
    assert "Its meaning: Share that is dropped." in read(
        tmp_path, BASIS + b"model: {memory: [{name: drop, rate: 2}]}\n"
    )


def test_paths_that_no_model_could_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "data.dev.source: a path cannot contain" in read(tmp_path, BASIS, 'data.dev.source="a\\0b"')
    monkeypatch.setenv("FOLDER", os.fsdecode(b"/\xff"))
    path = write(tmp_path, MINIMAL)
    assert "is not UTF-8" in refused(path, "directory=${FOLDER}/x").message
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    error = refused(write(folder, MINIMAL))
    assert "not UTF-8" in str(error) and "\\udcff" in str(error)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    text = read(tmp_path, BASIS + b"".join(b"k%d: 1\n" % i for i in range(2500)))
    lines = text.split("\n")
    assert lines[0] == "DIR/recipe.yaml: 2,500 problems:"
    assert len(lines) == 1 + 20 + 2 and lines[-2] == "  ... and 2,480 more"


def test_many_problems_are_found_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Similar words are looked up for the problems that are shown only, and no section is copied for each problem."""
    calls: list[str] = []

    def similar(word: str, *_: object, **__: object) -> list[str]:
        calls.append(word)
        return []

    monkeypatch.setattr(errors, "get_close_matches", similar)
    passes: list[int] = []

    def counted(node: YamlNode, changes: dict[KeyPath, YamlNode | None]) -> YamlNode:
        passes.append(len(changes))
        return yaml_tree.replace_all(node, changes)

    monkeypatch.setattr(checks, "replace_all", counted)
    unknown = "".join(f"k{i}: 1\n" for i in range(5_000))
    losses = "".join(f"  l{i}: {{name: x}}\n" for i in range(5_000))
    for text in (unknown, f"losses:\n{losses}"):
        calls.clear()
        passes.clear()
        assert "5,000 problems" in read(tmp_path, BASIS + text.encode())
        assert len(calls) <= 3 * 20 and passes == [5000]


def test_changes_of_many_values() -> None:
    node = yaml_tree.tree({"a": {"b": 1, "c": [1, 2]}, "d": 3, "e": {"f": 4}}, YamlOrigin("here"))
    new = yaml_tree.tree(5, YamlOrigin("there"))
    changed = yaml_tree.replace_all(node, {("a", "b"): None, ("a", "c", 1): new, ("e",): None, ("e", "f"): new})
    assert yaml_tree.plain(changed) == {"a": {"c": [1, 5]}, "d": 3}
    assert yaml_tree.plain(node)["a"] == {"b": 1, "c": [1, 2]}, "nodes are never changed in place"


def test_mistakes_in_a_base_are_found_there(tmp_path: Path) -> None:
    path = write(tmp_path, "base: sub/base.yaml\n")
    (tmp_path / "sub").mkdir()
    base = tmp_path / "sub" / "base.yaml"
    for content, place in (
        (b"name: [a\n", f"{base}:2:1"),
        (b"\xff", f"{base}:1"),
        (b"", f"{base}"),
        (BASIS + b"training: {sed: 1}\n", f"{base}:8: training.sed"),
        (BASIS + b"training: {seed: 1, seed: 2}\n", f"{base}:8: training.seed"),
        (BASIS + b"model: {heads: 3}\n", f"{base}:8: model.heads"),
        (b"base: nothing.yaml\n", f"{base}:1: base"),
    ):
        base.write_bytes(content)
        assert refused(path).where == place
    base.unlink()
    assert refused(path).where == f"{path}:1: base"


def test_bases_that_multiply(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "0.yaml")
    for i in range(1, 20):
        write(tmp_path, f"base: [{i - 1}.yaml, {i - 1}.yaml]\n", f"{i}.yaml")
    assert load(tmp_path / "4.yaml", METHODS).name == "test"
    assert "more than 100 files are included" in refused(tmp_path / "19.yaml").message


def test_bases_are_limited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_MOST_BYTES", 2000)
    write(tmp_path, f"{MINIMAL}# {'x' * 400}\n", "base.yaml")
    path = write(tmp_path, "base: [base.yaml, base.yaml, base.yaml]\n")
    assert load(path, METHODS).name == "test"
    path.write_text("base:\n" + "  - base.yaml\n" * 98, encoding="utf-8", newline="\n")
    error = refused(path)
    assert error.where == f"{path}:3: base"  # the second: the list itself has more than 1,000 bytes
    assert "together larger than 2,000 bytes" in error.message


def test_a_recipe_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert refused(path).message == "the recipe cannot be read: Permission denied"


def test_endless_files(tmp_path: Path) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("no /dev/zero")
    assert "larger than" in refused(Path("/dev/zero")).message
    assert "is empty" in refused(Path("/dev/null")).message
