"""Lines that are longer than all of the training text, and text of the other side's language: told once, everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.assemble.model_directory import MANIFEST
from sparsenmt.data.dataset import Dataset
from sparsenmt.decoding.unusual_text import UnusualText
from sparsenmt.storage.files import read_sealed, write_sealed
from tests.commands.support import Run

LONG = "Sophie swims and " * 60 + "Sophie swims ."
SHORT = "Sophie swims ."
LIKE_TARGET = "the text is like the target (de) of the training text, not like its source (en)"


def change_manifest(workspace: Path, **changes: Any) -> None:
    path = workspace / "model" / MANIFEST
    manifest = {key: value for key, value in read_sealed(path).items() if key != "seal"} | changes
    write_sealed(path, {key: value for key, value in manifest.items() if value is not None})


def test_a_model_knows_the_longest_lines_of_its_training_text(workspace: Path) -> None:
    train, text = Dataset(workspace / "prepared" / "train-0"), open_model(workspace / "model").text
    assert text is not None
    assert text.longest == (train.source_lengths.max() - 1, train.target_lengths.max() - 1)


@pytest.mark.thorough
def test_longer_lines_are_counted_and_named(command: Run, workspace: Path) -> None:
    text = open_model(workspace / "model").text
    assert text is not None
    lines = [SHORT, LONG, SHORT, "", *[LONG] * 6]
    for name in ("long", "long.de"):
        (workspace / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    source = f"7 of 9 lines are longer than every source of the training text, {text.longest[0]} tokens "
    source += "(lines 2, 5, 6, 7, 8, ...): their outputs may break off or repeat words; divide such lines\n"
    divided = f"7 lines were longer than what the model was trained on ({text.longest[0]} tokens, or 256 in a sentence)"
    divided += ", and translated in parts (decoding.long): lines 2, 5, 6, 7, 8, ...\n"
    for options, told in ([], divided), (["--long", "cut"], f"warning: {source}"):
        assert command("decode", "model", "-i", "long", *options).err == told
        assert command("decode", "model", "-i", "long", "-o", "out", "--window", "2", *options).err == told
    target = f"7 of 9 lines are longer than every target of the training text, {text.longest[1]} tokens "
    for arguments, warning in (
        (["score", "--model", "model", "--source", "long", "--reference", "long.de"], f"long: {divided}"),
        (["score", "--model", "model", "--source", "long", "--target", "long.de"], f"warning: long: {source}"),
        (
            ["score", "--model", "model", "--source", "corpus/ten.en", "--target", "long.de"],
            f"warning: long.de: {target}",
        ),
        (["compare", "model", "--source", "long", "--reference", "long.de", "--no-speed"], f"model: long: {divided}"),
        (["contrast", "model", "--source", "long", "--correct", "long.de", "--incorrect", "corpus/ten.en"], source),
        (["analyze", "density", "model", "-i", "long"], f"warning: long: {source}"),
    ):
        first = (workspace / "corpus/test.en").read_text(encoding="utf-8").split("\n")[: len(lines)]
        (workspace / "corpus/ten.en").write_text("".join(f"{line}\n" for line in first), encoding="utf-8")
        result = command(*arguments)
        assert result.code == 0 and result.err.count(warning) == 1, result.err


def test_a_model_of_an_earlier_version_opens_and_says_nothing(command: Run, workspace: Path) -> None:
    change_manifest(workspace, text=None)
    assert open_model(workspace / "model").text is None
    assert command("decode", "model", "--long", "cut", stdin=f"{LONG}\n".encode()).err == ""
    assert command("decode", "model", "-i", "corpus/test.de").err == ""


# With so few tokens words are not tokens, and no language has words of its own.
WORDS = ("data.tokenizer.vocabulary_size=500", "data.directory=words")


def test_text_of_the_other_language_is_told(command: Run, workspace: Path) -> None:
    words = (*WORDS, "directory=named", "training.max_updates=1")
    assert command("prepare", "small.yaml", *words).code == command("train", "small.yaml", *words).code == 0
    swapped = f"warning: {LIKE_TARGET}: are the sides swapped, or the languages?\n"
    told = ["--max-length-factor", "0.01", "--method", "greedy"]
    assert command("decode", "named", *told, "-i", "corpus/test.de").err.endswith(swapped)
    assert LIKE_TARGET not in command("decode", "named", *told, "-i", "corpus/test.en").err
    result = command("score", "--model", "named", "--source", "corpus/dev.de", "--target", "corpus/dev.en")
    assert f"warning: corpus/dev.de: {LIKE_TARGET}" in result.err
    assert "warning: corpus/dev.en: the text is like the source (en) of the training text" in result.err
    both = command("slice", "named", "cut", "--vocabulary", "corpus/test.en", "--vocabulary", "corpus/test.de")
    assert (both.code, "swapped" in both.err) == (0, False), "a text of both sides may be of either language"
    sides = "--source-vocabulary", "corpus/test.de", "--target-vocabulary", "corpus/test.en"
    assert command("slice", "named", "other", *sides).err.count("are the sides swapped") == 2
    for text in (["Sophie Anna Ben Emma"] * 50, ["12 , 3 . 45"] * 50, ["Wir schwimmen ."]):
        assert "is like the" not in command("decode", "named", *told, stdin="\n".join(text).encode()).err, text


def test_a_corpus_with_swapped_sides_is_told_before_training(command: Run, workspace: Path) -> None:
    plain = command("prepare", "small.yaml", *WORDS)
    assert (plain.code, "swapped" in plain.err) == (0, False)
    dev = [*WORDS, "data.dev.source=corpus/dev.de", "data.dev.target=corpus/dev.en"]
    warning = "warning: dev: the sides are swapped: its source is like the target of the training text"
    for _ in range(2):
        assert warning in command("prepare", "small.yaml", *dev).err
    assert warning in command("train", "small.yaml", *dev, "directory=else", "training.max_updates=1").err
    more = "{name: new, source: corpus/test.de, target: corpus/test.en}"
    train = f"data.train=[{{source: corpus/train.en, target: corpus/train.de}}, {more}]"
    result = command("prepare", "small.yaml", *WORDS, train)
    assert result.code == 0 and "warning: new: the sides are swapped: its source is like" in result.err
    assert result.err.count("the sides are swapped") == 1, "the larger corpus is right"


def test_tags_that_a_model_was_trained_with_are_not_told(command: Run, workspace: Path) -> None:
    tags = ("data.directory=tags", "directory=tagged", 'data.tokenizer.user_symbols=[">>deu<<"]')
    assert command("prepare", "small.yaml", *tags).code == 0
    assert command("train", "small.yaml", *tags, "training.max_updates=1").code == 0
    short = ["--max-length-factor", "0.01", "--method", "greedy"]
    assert "name of a language" not in command("decode", "tagged", *short, stdin=b">>deu<< Sophie swims .\n").err
    told = "line 2 begins with the name of a language"
    assert told in command("decode", "tagged", *short, stdin=b">>deu<< Sophie\n>>fra<< Sophie\n").err


def test_a_tag_that_the_model_does_not_have_is_named(workspace: Path) -> None:
    bundle = open_model(workspace / "model")
    lines = ["<xy> Sophie swims .", SHORT, "<xy> Sophie"]
    for tag, expected in (
        (
            "bt",
            ["warning: lines 1, 3 begin with a tag that is none of the model's, and is read as text: they are <bt>"],
        ),
        (None, []),
    ):
        corpora = [each.model_copy(update={"tag": tag}) for each in bundle.recipe.data.train]
        data = bundle.recipe.data.model_copy(update={"train": corpora})
        found = UnusualText(replace(bundle, recipe=bundle.recipe.model_copy(update={"data": data})))
        merged = UnusualText(bundle)
        for number, line in enumerate(lines):
            found.add(number, bundle.tokenizers.source.encode(line), line)
        assert [each for each in found.warnings() if "tag" in each] == expected
        merged.merge(found.as_json())
        assert merged.as_json() == found.as_json()


def test_a_model_of_an_earlier_version_says_how_long_is_long(command: Run, workspace: Path) -> None:
    change_manifest(workspace, text=None)
    (workspace / "short").write_text(f"{SHORT}\n", encoding="utf-8")
    told = "the model does not say how long its training text was: a line is long beyond 256 tokens"
    assert told in command("decode", "model", "-i", "short", "--long", "split").err
    assert command("decode", "model", "-i", "short").err == ""
