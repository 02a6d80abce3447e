"""What users are told about mistakes in recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsenmt.errors import UserError
from sparsenmt.recipe.key_paths import all_keys
from sparsenmt.recipe.load import load
from tests.recipe.support import METHODS, MINIMAL, load_text, write


def complaint(folder: Path, extra: str = "", *overrides: str, head: str = MINIMAL) -> str:
    with pytest.raises(UserError) as caught:
        load_text(folder, extra, *overrides, head=head)
    return str(caught.value).replace(str(folder), "DIR")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (
            "learning_rate: 1\n",
            "DIR/recipe.yaml:8: learning_rate: unknown key\n  Did you mean `training.learning_rate`?",
        ),
        ("trainig: {}\n", "DIR/recipe.yaml:8: trainig: unknown key\n  Did you mean `training`?"),
        (
            "training:\n  lerning_rate: 1\n",
            "DIR/recipe.yaml:9: training.lerning_rate: unknown key\n  Did you mean `learning_rate`?",
        ),
        (
            "training: {beam_size: 3}\n",
            "unknown key\n  Did you mean `training.validation.beam_size` or `decoding.beam_size`?",
        ),
        ("lr: 3\n", "lr: unknown key\n  Did you mean `training.learning_rate`?"),
        (
            "training.seed: 3\n",
            "unknown key\n  Sections are nested in a file: write `training:`, and indent `seed` under it.",
        ),
        (
            "zzz: 3\n",
            "zzz: unknown key\n  The keys here are: name, directory, license, model, losses, data, training, decoding.",
        ),
        (
            "model: {dropout: {xyz: 1}}\n",
            "model.dropout.xyz: unknown key\n  The keys here are: residual, attention, activation.",
        ),
        ("training: {seed: -1}\n", "training.seed: must be at least 0, not -1"),
        ("training: {seed: 1.5}\n", "training.seed: must be a whole number, not 1.5"),
        ("training: {seed: abc}\n", "training.seed: must be a whole number, not 'abc'"),
        ("training: {seed: true}\n", "training.seed: must be a number, not true"),
        ("training: {learning_rate: .inf}\n", "training.learning_rate: must be a finite number, not inf"),
        ("training: {learning_rate: [1]}\n", "training.learning_rate: must be a number, not a list"),
        ("training:\n", "training: must be a section (keys with values, indented under it), not empty"),
        ("training: {validation: {metric: belu}}\n", "not 'belu'\n  Did you mean `bleu`?"),
        ("model: {preset: smal}\n", "must be one of tiny, small, base, big; not 'smal'\n  Did you mean `small`?"),
        ("model: {memory: {name: drop}}\n", "model.memory: must be a list, not a mapping"),
        ("losses: {l: {weight: x}}\n", "losses.l.weight: must be a number, not 'x'"),
        ("losses: {l: {weight: true}}\n", "losses.l.weight: must be a number, not true"),
        ("losses: {l: {weight: {from: 1, to: -1, steps: 2}}}\n", "losses.l.weight.to: must be at least 0, not -1"),
        (
            "losses: {l: {weight: {from: 1, to: 1, setps: 2}}}\n",
            "losses.l.weight.setps: unknown key. Did you mean `steps`?",
        ),
        ("losses: {l: {weight: -1}}\n", "losses.l.weight: must be at least 0, not -1"),
        ("model: {depth: {nme: plain}}\n", "model.depth.name: this key is required"),
        (
            "model: {depth: plane}\n",
            "model.depth: must be a section (keys with values, indented under it), not 'plane'",
        ),
        (
            "model: {depth: {name: plan}}\n",
            "there is no depth method 'plan'\n  Did you mean `plain`? Registered are: plain.",
        ),
        ("model: {depth: {name: plain, at: output}}\n", "model.depth.at: unknown option of the method 'plain'"),
        ("model: {memory: [{name: drop}]}\n", "model.memory.0.rate: this key is required"),
        (
            "model: {memory: [{name: drop, rte: 1}]}\n",
            "model.memory.0.rte: unknown option of the method 'drop'. Did you mean `rate`?",
        ),
        ("model: {memory: [{name: drop, rate: 2}]}\n", "model.memory.0.rate: must be at most 1, not 2"),
        (
            "model: {memory: [{name: drop, rate: 1, at: in}]}\n",
            "model.memory.0.at: must be one of output, between; not 'in'",
        ),
        (
            "model: {attention: {cross: {heads: {given: {name: x}}}}}\n",
            "no method is registered for the socket `heads`",
        ),
        (
            "model: {attention: {cross: {pattern: {name: nearest}}}}\n",
            "'nearest' belongs to the socket `transform`; pattern methods are: full.",
        ),
        ("training: {seed: 1, seed: 2}\n", "training.seed: the key occurs twice, first at DIR/recipe.yaml:8"),
        ("name: again\n", "DIR/recipe.yaml:8: name: the key occurs twice, first at DIR/recipe.yaml:1"),
        ("decoding: {alpha: !!python/object:os.system x}\n", "cannot be used in a recipe"),
        ("losses: &a {l: *a}\n", "an alias refers to a value that contains it"),
        ("[a]: 3\n", "a key must be a plain word"),
        ("base: [3]\n", "base: must be the path of a recipe"),
    ],
)
def test_one_mistake(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in complaint(tmp_path, extra)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.seed", "override 'training.seed': must look like `key=value`"),
        ("=3", "must look like `key=value`"),
        ("training..seed=3", "the key is not valid"),
        ("base=x.yaml", "`base` can be set in a recipe file only"),
        ("training.sed=3", "override 'training.sed=3': training.sed: unknown key\n  Did you mean `seed`?"),
        ("seed=3", "override 'seed=3': seed: unknown key\n  Did you mean `training.seed` or `decoding.seed`?"),
        ("training.seed.x=3", "override 'training.seed.x=3': `training.seed` is 1, not a section: it has no key `x`"),
        ("data.train.7.weight=3", "`data.train` has 1 item: there is no item 7"),
        ("data.train.x=3", "`data.train` is a list\n  Write an index after it, e.g. `data.train.0`."),
        ("name={a", "override 'name={a': invalid YAML"),
        ("training={seed: -1}", "override 'training={seed: -1}': training.seed: must be at least 0, not -1"),
        ("data.dev.source=${NOWHERE}", "data.dev.source: the environment variable NOWHERE is not set"),
        ("data.dev.source=''", "data.dev.source: must not be empty"),
        ("directory=${NOWHERE_AT_ALL:-}", "directory: the path is empty after its variables are replaced"),
        ("data.dev.source=${NOWHERE_AT_ALL:-}", "data.dev.source: the path is empty"),
    ],
)
def test_one_wrong_override(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in complaint(tmp_path, "training: {seed: 1}\n", override)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("model: {dimension: 100, heads: 3}\n", "model.dimension: 100 is not divisible by the number of heads, 3"),
        ("model: {preset: tiny, heads: 5}\n", "is not divisible by the number of heads, 5"),
        ("model: {dimension: 33, heads: 3}\n", "sinusoidal positions need an even dimension"),
        (
            "model: {attention: {cross: {heads: {count: 7}}}}\n",
            "model.attention.cross.heads.count: must divide the dimension",
        ),
        (
            "model: {encoder_layers: 1, memory: [{name: drop, rate: 0, at: between}]}\n",
            "model.memory.0.at: an encoder with one layer",
        ),
        ("training: {average_last: 9}\n", "9 checkpoints cannot be averaged if `keep_last` keeps 5"),
        (
            "training: {accumulate_tokens: 10}\n",
            "training.accumulate_tokens: must be at least `batch_tokens`, 4096, not 10",
        ),
        (
            "training: {schedule: linear, max_updates: 10}\n",
            "the linear schedule has no updates left after a warm-up of 4000",
        ),
        (
            "training: {schedule: cosine, max_updates: 10}\n",
            "the cosine schedule has no updates left after a warm-up of 4000",
        ),
        (
            "training: {optimizer: {name: adagrad, beta2: 0.9}}\n",
            "training.optimizer.beta2: belongs to adam\n  Remove it, or set `training.optimizer.name` to adam.",
        ),
        ("training: {optimizer: {name: adagrad, weight_decay: 0.0}}\n", "optimizer.weight_decay: belongs to adam"),
        ("training: {optimizer: {initial_sum: 0.1}}\n", "training.optimizer.initial_sum: belongs to adagrad"),
        ("training: {clip: step}\n", "training.clip: clips the steps of Adagrad only"),
        ("model: {positions: learned, first_position: 2}\n", "model.first_position: belongs to sinusoidal positions"),
        ("model: {positions: learned, sinusoids: paper}\n", "model.sinusoids: belongs to sinusoidal positions"),
    ],
)
def test_keys_that_contradict_each_other(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in complaint(tmp_path, extra)


def test_contradictions_in_data(tmp_path: Path) -> None:
    tied = complaint(tmp_path, "", "data.tokenizer.shared=false")
    assert tied.startswith("override 'data.tokenizer.shared=false': ") and "needs one vocabulary" in tied
    assert "`tie_embeddings: inputs` needs" in complaint(
        tmp_path, "model: {tie_embeddings: inputs}\n", "data.tokenizer.shared=false"
    )
    load_text(tmp_path, "model: {tie_embeddings: target}\n", "data.tokenizer.shared=false")
    assert "are the same file" in complaint(tmp_path, "", "data.dev.source=x", "data.dev.target=x")
    names = ("data.train.0.name=a", "data.train.1={source: b, target: c, name: a}")
    assert "two training corpora are named 'a'" in complaint(tmp_path, "", *names)
    assert "special tokens" in complaint(tmp_path, "", "data.tokenizer.vocabulary_size=4")
    assert "at least 0.98 for SentencePiece" in complaint(tmp_path, "", "data.tokenizer.character_coverage=0.97")
    load_text(tmp_path, "", "data.tokenizer={kind: char, character_coverage: 0.5}")


def test_a_contradiction_is_blamed_on_the_override_that_made_it(tmp_path: Path) -> None:
    text = complaint(tmp_path, "model: {dimension: 100, heads: 4}\n", "model.heads=7")
    assert text.startswith("override 'model.heads=7': ")


def test_no_contradiction_with_a_key_that_is_wrong_by_itself(tmp_path: Path) -> None:
    text = complaint(tmp_path, "model: {dimension: 100, heads: eight}\n")
    assert "divisible" not in text and "model.heads: must be a whole number" in text


def test_everything_is_shown_together(tmp_path: Path) -> None:
    extra = (
        "learning_rate: 1\n"
        "model: {dimension: 101, heads: 2, memory: [{name: dorp}], depth: {name: plain, x: 1}}\n"
        "training: {average_last: 6, seed: x}\n"
    )
    text = complaint(tmp_path, extra, "decoding.beam=1", "nonsense")
    first, *lines, hint = text.split("\n")
    assert hint.startswith("  Fix them all")
    assert first == "DIR/recipe.yaml: 9 problems:"
    assert len(lines) == 9
    for expected in (
        "learning_rate",
        "dorp",
        "depth.x",
        "not divisible",
        "sinusoidal",
        "averaged",
        "seed",
        "decoding.beam",
    ):
        assert any(expected in line for line in lines), expected
    places = [line.split(": ")[0].strip() for line in lines]
    assert places == [
        *["DIR/recipe.yaml:8"],
        *["DIR/recipe.yaml:9"] * 4,
        *["DIR/recipe.yaml:10"] * 2,
        "override 'nonsense'",
        "override 'decoding.beam=1'",
    ]


def test_no_word_of_pydantic(tmp_path: Path) -> None:
    extra = (
        "training: {seed: x, clip_norm: [], validation: 3}\nlosses: {l: {weight: []}}\nmodel: {memory: 3, depth: []}\n"
    )
    text = complaint(tmp_path, extra, "data.train=[]", "data.tokenizer.shared=maybe", "name={}").lower()
    for word in ("pydantic", "input", "validation error", "dict", "instance", "none", "str"):
        assert word not in text.replace("training.validation", ""), word


def test_the_origin_of_a_problem_is_its_own_file(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + "training: {seed: -1, threads: 0}\n", "base.yaml")
    with pytest.raises(UserError) as caught:
        load(write(tmp_path, "base: base.yaml\ntraining:\n  threads: -2\n"), METHODS)
    text = str(caught.value)
    assert f"{tmp_path / 'base.yaml'}:8: training.seed" in text
    assert f"{tmp_path / 'recipe.yaml'}:3: training.threads" in text


def test_missing_keys(tmp_path: Path) -> None:
    text = complaint(tmp_path, head="name: x\ndata:\n  train: [{source: a}]\n")
    assert "DIR/recipe.yaml: directory: this key is required" in text
    assert "DIR/recipe.yaml:2: data.directory: this key is required" in text
    assert "DIR/recipe.yaml:3: data.train.0.target: this key is required" in text
    assert "data.train: must have at least 1 item" in complaint(tmp_path, "", "data.train=[]")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1\nb: 2", r"recipe.yaml:2:2: invalid YAML: "),
        (b"a:\n\tb: 1", r"recipe.yaml:2:1: invalid YAML: a tab"),
        (b"a: 1\n---\nb: 2", r"recipe.yaml:2:1: invalid YAML: "),
        (b"a: *b", r"recipe.yaml:1:4: invalid YAML: there is no anchor `&b`"),
        (b"a: 1\nb: \x07", r"recipe.yaml:2:4: invalid YAML: the character U\+0007"),
        (b"", "the recipe is empty"),
        (b"# nothing\n", "the recipe is empty"),
        (b"- a\n", "a recipe must be a mapping"),
        (b"text", "a recipe must be a mapping"),
        (b"a: 1\nb: \xff", r"recipe.yaml:2: the recipe is not UTF-8"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=expected):
        load(path, METHODS)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.yaml: there is no such file"):
        load(tmp_path / "nothing.yaml", METHODS)
    with pytest.raises(UserError, match="this is a directory, not a recipe"):
        load(tmp_path, METHODS)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(path, METHODS).name == "test"


VALUES = (
    "",
    "-1",
    "0.5",
    "true",
    "x",
    "[]",
    "[3]",
    "[[{}]]",
    "{}",
    "{name: x}",
    "{name: 3, at: []}",
    "{a: {b: 1}}",
    "''",
)


@pytest.mark.parametrize("key", [".".join(path) for path in all_keys()])
def test_no_value_of_any_key_breaks_the_loader(tmp_path: Path, key: str) -> None:
    """Whatever is written, a recipe loads or a `UserError` names the key."""
    path = write(tmp_path, MINIMAL)
    for value in VALUES:
        override = f"{key}={value}"
        try:
            load(path, METHODS, [override])
        except UserError as error:
            assert f"override '{override}': " in str(error)
