"""`sparsenmt contrast`: what is printed, written, drawn and refused, on a very small model."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.text import read_lines
from tests.analysis.support import add_gates
from tests.analysis.test_plots import check_picture
from tests.commands.support import Run
from tests.evaluation.contrast.support import write, write_json, write_translation_suite


@pytest.fixture(scope="session")
def gated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that drops some of its encoder outputs."""
    folder = tmp_path_factory.mktemp("contrast")
    add_gates(trained / "model", folder / "gated", list(read_lines(trained / "corpus" / "test.en")), 0.4)
    return folder / "gated"


@pytest.fixture
def place(gated: Path, workspace: Path) -> Path:
    """The working directory, with model/, gated/, and line-aligned src, right, wrong and wronger of 12 lines."""
    shutil.copytree(gated, workspace / "gated")
    source, target = (list(read_lines(workspace / "corpus" / f"test.{side}"))[:12] for side in ("en", "de"))
    write(workspace / "src", source)
    write(workspace / "right", target)
    write(workspace / "wrong", [" ".join(line.split()[::-1]) for line in target])
    write(workspace / "wronger", [*target[1:], target[0]])
    return workspace


LINES = ["--source", "src", "--correct", "right", "--incorrect", "wrong"]


def log_probabilities(command: Run, model: str, target: str, *options: str) -> list[float]:
    result = command("score", "--model", model, "--source", "src", "--target", target, "--json", *options)
    assert result.code == 0, result.err
    return [json.loads(line)["log_probability"] for line in result.lines]


def lengths(command: Run, model: str, target: str) -> list[int]:
    result = command("score", "--model", model, "--source", "src", "--target", target, "--json")
    return [len(json.loads(line)["tokens"]) for line in result.lines]


def report(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "out.json").read_bytes())
    return found


@pytest.mark.parametrize("model", ["model", "gated"])
@pytest.mark.parametrize("normalize", [False, True])
def test_accuracy_is_that_of_the_scores_of_sparsenmt_score(
    place: Path, command: Run, model: str, normalize: bool
) -> None:
    more = ["--incorrect", "wronger", "--json", "out.json", "--items", "items.tsv", *["--normalize"] * normalize]
    result = command("contrast", model, *LINES, *more)
    assert result.code == 0, result.err
    files = [log_probabilities(command, model, name) for name in ("right", "wrong", "wronger")]
    if normalize:
        sizes = [lengths(command, model, name) for name in ("right", "wrong", "wronger")]
        files = [[a / b for a, b in zip(*pair, strict=True)] for pair in zip(files, sizes, strict=True)]
    expected = [correct > max(one, two) for correct, one, two in zip(*files, strict=True)]
    (row,) = report(place)["tables"]["overall"]
    assert (row["items"], row["right"], row["ties"]) == (12, sum(expected), 0)
    assert row["accuracy"] == sum(expected) / 12 and row["low"] <= row["accuracy"] <= row["high"]
    assert row["chance"] == pytest.approx(1 / 3)
    heads, *items = [line.split("\t") for line in read_lines(place / "items.tsv")]
    decisions = [item[heads.index(f"{model} decision")] == "right" for item in items]
    assert decisions == expected
    for item, correct in zip(items, files[0], strict=True):
        assert float(item[heads.index(f"{model} correct")]) == pytest.approx(correct, rel=1e-4)


def test_a_depth_is_that_of_sparsenmt_score(place: Path, command: Run) -> None:
    depth = ["--encoder-layers", "1", "--decoder-layers", "1"]
    result = command("contrast", "model", *LINES, "--items", "items.tsv", *depth)
    assert result.code == 0, result.err
    heads, *items = [line.split("\t") for line in read_lines(place / "items.tsv")]
    found = [float(item[heads.index("model correct")]) for item in items]
    assert found == pytest.approx(log_probabilities(command, "model", "right", *depth), rel=1e-4)
    refused = command("contrast", "model", *LINES, "--encoder-layers", "9")
    assert refused.code == 2 and "--encoder-layers 9" in refused.err


def test_ties_are_counted_and_wrong(place: Path, command: Run) -> None:
    result = command("contrast", "model", *LINES[:4], "--incorrect", "right", "--json", "out.json")
    assert result.code == 0
    (row,) = report(place)["tables"]["overall"]
    assert (row["right"], row["ties"], row["accuracy"], row["low"]) == (0, 12, 0.0, 0.0)


def lingeval(place: Path) -> Path:
    """The lines as a suite with two types, distances and frequencies."""
    texts = [list(read_lines(place / name)) for name in ("src", "right", "wrong", "wronger")]
    entries = [
        {
            "source": source,
            "reference": right,
            "origin": f"demo{number % 2}.{number}",
            "errors": [
                {"type": "order", "contrastive": wrong, "distance": number + 8, "frequency": 3 * number},
                {"type": "other", "contrastive": wronger},
            ],
        }
        for number, (source, right, wrong, wronger) in enumerate(zip(*texts, strict=True))
    ]
    return write_json(place / "suite.json", entries)


def test_several_models_and_all_tables(place: Path, command: Run) -> None:
    suite = lingeval(place)
    more = ["--json", "out.json", "--csv", "out.csv", "--batch-tokens", "200", "--threads", "1"]
    result = command("contrast", "model", "gated", suite, *more)
    assert result.code == 0, result.err
    found = report(place)
    assert found["settings"]["format"] == "lingeval97" and found["settings"]["cut"] == {"model": 0, "gated": 0}
    tables = found["tables"]
    assert list(tables) == sorted(["overall", "types", "distances", "frequencies", "origins"])
    assert [row["distance"] for row in tables["distances"][::2]] == [*map(str, range(8, 16)), ">15"]
    for name, rows in tables.items():
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            assert (first["model"], second["model"]) == ("model", "gated")
            assert first["p_value"] is None and 0 < second["p_value"] <= 1
            gain = second["only_this"] - second["only_first"]
            assert second["right"] - first["right"] == gain, name
            assert second["difference"] == pytest.approx(gain / second["items"])
    assert sum(row["items"] for row in tables["types"]) == 48
    assert [row["items"] for row in tables["origins"]] == [12] * 4
    rows = list(csv.reader(io.StringIO((place / "out.csv").read_bytes().decode())))
    assert rows[0][:4] == ["model", "items", "right", "ties"] and len(rows) == 3
    assert (place / "out.distances.csv").is_file()
    text = "\n".join(result.lines)
    for title in ("Contrastive accuracy", "By type", "By distance in words", "By frequency", "By origin"):
        assert title in text
    assert "p: exact McNemar test against model, two-sided" in text and "Wilson" in text


def test_batches_do_not_matter(place: Path, command: Run) -> None:
    suite = lingeval(place)
    found = []
    for limit in ("1", "10000"):
        assert command("contrast", "gated", suite, "--json", "out.json", "--batch-tokens", limit).code == 0
        found.append(report(place)["tables"])
    assert found[0] == found[1]


def test_types_and_origins(place: Path, command: Run) -> None:
    suite = lingeval(place)
    arguments = ["contrast", "model", suite, "--json", "out.json", "--type", "order", "--origin", "demo1"]
    assert command(*arguments).code == 0
    found = report(place)
    assert found["tables"]["overall"][0]["items"] == 6
    assert (found["settings"]["types"], found["settings"]["origins"]) == (["order"], ["demo1"])


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("distances", [False, True])
def test_plots(place: Path, command: Run, suffix: str, distances: bool) -> None:
    arguments = [lingeval(place), "--plot", f"p{suffix}"] if distances else [*LINES, "--plot", f"p{suffix}"]
    result = command("contrast", "model", "gated", *arguments)
    assert result.code == 0, result.err
    check_picture(place / f"p{suffix}")


def test_a_suite_without_a_model(place: Path, command: Run) -> None:
    key = write_translation_suite(place / "mucow")
    result = command("contrast", key, "--save-suite", "pairs.json")
    assert result.code == 0, result.err
    assert result.lines[0] == "2 items" and "1 of 3 lines are left out" in result.lines[1]
    entries = json.loads((place / "pairs.json").read_bytes())
    assert [len(entry["errors"]) for entry in entries] == [2, 3]
    again = command("contrast", "model", "pairs.json", "--json", "out.json")
    assert again.code == 0
    assert report(place)["tables"]["overall"][0]["chance"] == pytest.approx((1 / 3 + 1 / 4) / 2)


def test_training_text_is_left_out(place: Path, command: Run) -> None:
    train = [list(read_lines(place / "corpus" / f"train.{side}")) for side in ("en", "de")]
    write(place / "src", [train[0][0], "never heard of before", "this neither"])
    write(place / "right", ["das kennt keiner", train[1][3], "das auch nicht"])
    write(place / "wrong", ["x", "y", "z"])
    for origin in ("small.yaml", "model"):
        result = command("contrast", "model", *LINES, "--exclude-training", origin, "--json", "out.json")
        assert result.code == 0, result.err
        assert report(place)["tables"]["overall"][0]["items"] == 1
        assert "2 of 3 items are in the training text and are left out: 1 by their source, 1 by their ref" in "\n".join(
            result.lines
        )
    result = command("contrast", "model", *LINES, "--exclude-training", "src")
    assert result.code == 2 and "the training text holds every item of the suite" in result.err


def test_long_texts_are_cut_and_counted(place: Path, command: Run) -> None:
    write(place / "src", ["a man " * 2000, "a man"])
    write(place / "right", ["ein Mann", "ein Mann " * 2000])
    write(place / "wrong", ["eine Frau", "ein Mann " * 3000])
    result = command("contrast", "model", *LINES, "--json", "out.json")
    assert result.code == 0, result.err
    assert report(place)["settings"]["cut"] == {"model": 2}
    assert report(place)["tables"]["overall"][0]["ties"] == 1  # cut, both are the same
    assert "model: 2 items with a text that is too long for the model, and is cut" in "\n".join(result.lines)


def test_languages_that_are_not_the_models(place: Path, command: Run) -> None:
    result = command("contrast", "model", write_translation_suite(place / "mucow"))
    assert result.code == 0
    assert "warning: mucow/de-en.key.txt: the suite is de-en, the model model is en-de" in result.err.replace(
        f"{place}/", ""
    )


def test_tags_stand_beside_the_sources(place: Path, command: Run) -> None:
    write(place / "tags", [" ".join(f"{word}_NN" for word in line.split()) for line in read_lines(place / "src")])
    result = command("contrast", "model", *LINES, "--tags", "tags")
    assert result.code == 0 and "the model reads no part-of-speech tags" in result.err
    write(place / "tags", ["the_DT"])
    result = command("contrast", "model", *LINES, "--tags", "tags")
    assert result.code == 2 and "tags: " in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "SUITE: there is no test suite"),
        (["model"], "model: this is a model directory, and no test suite follows"),
        (["suite.json"], "MODEL_DIR: there is no model"),
        (["suite.json", "--json", "x.json"], "--json: there is no model to write about"),
        (["model", "absent.json"], "absent.json: there is no such file or folder"),
        (["corpus", "suite.json"], "corpus: this is not a model directory"),
        (["model", "model", "suite.json"], "model: the model is named twice"),
        (["model", "--source", "src", "--correct", "right"], "--incorrect: is missing"),
        (["model", *LINES, "--format", "lingeval97"], "--format: is given beside --source"),
        (["model", *LINES[:4], "--incorrect", "suite.json"], "line-aligned files have different numbers of lines"),
        (["model", "suite.json", "--json", "suite.json"], "--json names a file that another option names"),
        (["model", "suite.json", "--items", "model/metrics.jsonl"], "--items names a part of the model in"),
        (["model", "suite.json", "--save-suite", "model/recipe.yaml"], "--save-suite names a part of the model in"),
        (["model", "suite.json", "--csv", "nowhere/x.csv"], "nowhere: there is no such directory"),
        (["model", "suite.json", "--plot", "x.pdf"], "x.pdf: a plot is written as PNG or SVG"),
        (["model", "suite.json", "--type", "word"], "--type: the suite has no 'word'"),
        (["model", "suite.json", "--exclude-training", "absent"], "absent: no such file"),
        (["model", "suite.json", "--exclude-training", "corpus"], "corpus: this is not a model directory"),
    ],
)
def test_mistakes(place: Path, refused: Callable[..., str], arguments: list[str], message: str) -> None:
    lingeval(place)
    assert message in refused("contrast", *arguments)
