"""``sparsenmt analyze``: every report as a user calls it; what is printed, written, drawn and refused."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.data.text import read_lines
from tests.analysis.support import add_gates
from tests.analysis.test_plots import check_picture
from tests.commands.support import Run
from tests.examples import examples

REPORTS = {
    "pos": ["--tags", "tags"],
    "position": [],
    "attention-mass": ["--beam-size", "1"],
    "entropy": ["--baseline", "model"],
    "maps": ["--limit", "2", "--beam-size", "1"],
    "layers": [],
    "annotate": ["--limit", "3"],
}
MAIN = {"pos": "categories", "attention-mass": "summary"}
"""The first table of a report, if it is not called like the report."""
TAGS = ["DT", "NN", "VBZ", "IN", "JJ"]


@pytest.fixture(scope="session")
def gated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two gated models out of ``trained``."""
    folder = tmp_path_factory.mktemp("gated")
    lines = list(read_lines(trained / "corpus" / "test.en"))
    for name, share in (("some", 0.3), ("many", 0.6)):
        add_gates(trained / "model", folder / name, lines, share)
    return folder


@pytest.fixture
def place(gated: Path, workspace: Path) -> Path:
    """The working directory, with the models some/ and many/, the text ``text`` and its tags ``tags``."""
    for name in ("some", "many"):
        shutil.copytree(gated / name, workspace / name)
    lines = list(read_lines(workspace / "corpus" / "test.en"))[:6]
    write(workspace / "text", [lines[0], "", *lines[1:]])
    write(workspace / "tags", [tagged(line) for line in (lines[0], "", *lines[1:])])
    return workspace


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def tagged(line: str) -> str:
    """A tag for every word, by its length; punctuation at the end is a word of its own."""
    words = line.replace(".", " .").replace(",", " ,").split()
    return " ".join(f"{word}_{word if word in '.,' else TAGS[len(word) % len(TAGS)]}" for word in words)


def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    loaded: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())["tables"]
    return loaded


@examples("suffix", ["png", "svg"])
@pytest.mark.parametrize(("name", "options"), REPORTS.items(), ids=REPORTS)
def test_every_report(command: Run, place: Path, name: str, options: list[str], suffix: str) -> None:
    files = ["--json", "r.json", "--csv", "r.csv", "--plot", f"r.{suffix}"]
    result = command("analyze", name, "some", "many", "--input", "text", *options, *files)
    assert result.code == 0, result.err
    assert result.err == ""
    assert b"\x1b" not in result.out
    check_picture(place / f"r.{suffix}")
    records = tables(place / "r.json")[MAIN.get(name, name)]
    rows = list(csv.DictReader(io.StringIO((place / "r.csv").read_bytes().decode())))
    written = [{key: "" if value is None else str(value) for key, value in record.items()} for record in records]
    assert written == rows and len(rows) > 1
    assert {str(record["model"]) for record in records} == {"some", "many"}
    text = result.out.decode()
    if name not in ("maps", "annotate"):
        for record in records:  # what is printed are the same values, rounded
            assert record["sparsity"] is None or f"{record['sparsity']:.1%}" in text
    again = command("analyze", name, "some", "many", "--input", "text", *options, "--json", "again.json")
    assert again.out == result.out and (place / "again.json").read_bytes() == (place / "r.json").read_bytes()


def test_every_report_agrees_on_the_rate(command: Run, place: Path) -> None:
    found = {}
    for name, options in REPORTS.items():
        limits = ["--limit", "7"] if "--limit" in options else []
        assert command("analyze", name, "many", "--input", "text", *options, *limits, "--json", "r.json").code == 0
        records = tables(place / "r.json")[MAIN.get(name, name)]
        if name == "annotate":
            found[name] = sum(record["dropped"] for record in records) / len(records)
        elif name == "maps":
            columns = {(r["sentence"], r["key_position"]): r["dropped"] for r in records if r["key_position"] >= 0}
            found[name] = sum(columns.values()) / len(columns)
        else:
            found[name] = records[0]["sparsity"]
    assert 0.4 < found["pos"] < 0.8
    assert all(rate == pytest.approx(found["pos"]) for rate in found.values()), found


def test_analyze_pos_is_a_command_too(command: Run, place: Path) -> None:
    arguments = ["some", "--input", "text", "--tags", "tags"]
    assert command("analyze-pos", *arguments).out == command("analyze", "pos", *arguments).out != b""


def test_pos_prints_categories_tags_and_the_share_that_was_not_aligned(command: Run, place: Path) -> None:
    lines = command("analyze", "pos", "some", "--input", "text", "--tags", "tags").lines
    assert lines[0] == "sparsity rate by category: some"
    assert {"overall", "content", "function", "punctuation", "BPEH", "BPEO", "</s>"} <= {
        line.split(" ")[0] for line in lines
    }
    assert "could not be aligned with tokens" in lines[-1]


def test_pos_reads_conllu_as_text_and_tags(command: Run, place: Path) -> None:
    words = ["the", "house"]
    rows = [f"{i}\t{word}\t_\tNOUN\tNN\t_\t_\t_\t_\t_" for i, word in enumerate(words, 1)]
    write(place / "x.conllu", ["# text = the house", *rows, "", "# text = house", rows[0].replace("the", "house"), ""])
    write(place / "plain", ["the house", "house"])
    write(place / "beside", ["the_NN house_NN", "house_NN"])
    first = command("analyze", "pos", "some", "--input", "x.conllu", "--json", "a.json")
    assert first.code == 0, first.err
    assert command("analyze", "pos", "some", "--input", "plain", "--tags", "beside", "--json", "b.json").code == 0
    assert tables(place / "a.json") == tables(place / "b.json")
    assert command("analyze", "annotate", "some", "--input", "x.conllu").lines[0] == "sentence 1"
    limited = command(
        "analyze", "pos", "some", "--input", "plain", "--tags", "beside", "--limit", "1", "--json", "c.json"
    )
    assert limited.code == 0 and tables(place / "c.json")["categories"][-1]["positions"] == 1


def test_unknown_tags_are_rest_with_one_warning(command: Run, place: Path) -> None:
    write(place / "text", ["the house", "the house"])
    write(place / "tags", ["the_DT house_QQQ", "the_DT house_QQQ"])
    result = command("analyze", "pos", "some", "--input", "text", "--tags", "tags")
    assert result.code == 0 and result.err.count("warning: ") == 1 and "'QQQ'" in result.err


@pytest.mark.skipif(importlib.util.find_spec("HanTa") is None, reason="the extra `pos` is not installed")
def test_pos_tags_the_text_itself(command: Run, place: Path) -> None:
    result = command("analyze", "pos", "some", "--input", "text", "--json", "r.json")
    assert result.code == 0, result.err
    settings = json.loads((place / "r.json").read_bytes())["settings"]
    assert settings["tags"] == "hanta" and settings["input"] == "text" and settings["models"] == ["some"]


def test_a_dense_model_beside_gated_ones_says_so(command: Run, place: Path) -> None:
    for name, options in REPORTS.items():
        result = command("analyze", name, "model", "some", "--input", "text", *options)
        assert result.code == 0, result.err
        assert "model: no filter decides, nothing is dropped" in result.out.decode(), name


@pytest.mark.parametrize("name", ["attention-mass", "maps", "annotate"])
def test_a_dense_model_alone(command: Run, place: Path, name: str) -> None:
    assert command("analyze", name, "model", "--input", "text", *REPORTS[name]).code == 0


@pytest.mark.parametrize("name", ["pos", "position", "entropy", "layers"])
def test_a_dense_model_has_nothing_to_report(place: Path, refused: Callable[..., str], name: str) -> None:
    message = refused("analyze", name, "model", "--input", "text")
    assert message.startswith("error: model: no filter decides in this model: nothing is ever dropped\n")


def test_annotated_sentences_are_plain_when_piped(command: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["analyze", "annotate", "many", "--sentence", "The old house", "--sentence", "The house"]
    plain = command(*arguments)
    assert b"[" in plain.out and b"\x1b" not in plain.out and plain.lines[2] == "sentence 2"
    colours = command(*arguments, "--color").out
    assert b"\x1b[31m" in colours and b"\x1b[32m" in colours and b"[</s>]" not in colours


def test_a_map_is_a_distribution(command: Run, place: Path) -> None:
    command("analyze", "maps", "many", "--sentence", "The old house .", "--layer", "1", "--json", "r.json")
    sums: dict[int, float] = {}
    for record in tables(place / "r.json")["maps"]:
        sums[record["query_position"]] = sums.get(record["query_position"], 0.0) + record["weight"]
        assert not record["dropped"] or record["weight"] == 0
    assert all(math.isclose(total, 1, abs_tol=1e-5) for total in sums.values())


def test_the_dense_model_split_by_the_gates_of_its_copy_is_the_same(command: Run, place: Path) -> None:
    """Gates after the encoder change nothing before them."""
    command("analyze", "entropy", "some", "--baseline", "model", "--input", "text", "--json", "r.json")
    (record,) = tables(place / "r.json")["entropy"]
    assert record["kept_entropy"] == record["kept_baseline"] and record["dropped_entropy"] == record["dropped_baseline"]


MISTAKES = [
    ("annotate some", "error: --input: there is no text\n"),
    ("annotate some --input text --sentence a", "error: --sentence: is given beside --input\n"),
    ("layers some --input nothing", "error: nothing: no such file\n"),
    ("layers some --input empty", "error: empty: there is no text in it\n"),
    ("layers nothing --input text", "error: nothing: there is no such model directory\n"),
    ("layers some ./some --input text", "error: some: the model is named twice\n"),
    ("layers some --input text --plot a.pdf", "error: a.pdf: a plot is written as PNG or SVG\n"),
    ("layers some --input text --csv no/a", "error: no: there is no such directory\n"),
    ("layers some --input text --json some", "error: some: this is a directory\n"),
    ("layers some --input text --json text", "error: text: --json names a file that another option names\n"),
    ("layers some --input text --json a --csv a", "error: a: --json names a file that another option names\n"),
    ("maps some --sentence a --layer 2", "error: --layer: some has 1 decoder layer, not 2\n"),
    ("pos some --input text --tags short", "error: short: 1 tagged sentences, but text has 7 lines\n"),
    ("pos some --input text --tags other", "error: other, line 1: the 1 tagged words are not those of line 1 of text"),
    ("pos some --input a.conllu --tags tags", "error: --tags: is given, but the text has tags of its own\n"),
    (
        "annotate some --input long --plot a.png",
        "error: --plot: 21 sentences are too many for one picture: it holds 20\n",
    ),
    ("maps some --input long --plot a.png", "error: --plot: 21 sentences are too many for one picture: it holds 20\n"),
    ("pos some --input text --language xx", "error: --tagger"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes(place: Path, refused: Callable[..., str], words: str, message: str) -> None:
    write(place / "empty", ["", " "])
    write(place / "long", ["house"] * 21)
    lines = (place / "tags").read_bytes().decode().split("\n")
    write(place / "short", lines[:1])
    write(place / "other", ["Nonsense_NN", *lines[1:-1]])
    write(place / "a.conllu", ["1\ta\t_\tNOUN\tNN\t_\t_\t_\t_\t_", ""])
    assert refused("analyze", *words.split()).startswith(message)


def test_without_matplotlib_only_the_plot_is_refused(
    command: Run, place: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
    )
    message = refused("analyze", "layers", "some", "--input", "text", "--plot", "a.png")
    assert message.startswith("error: --plot: matplotlib is not installed\n") and "sparsenmt[plots]" in message
    assert command("analyze", "layers", "some", "--input", "text", "--csv", "a.csv").code == 0


def test_a_baseline_with_other_pieces(place: Path, refused: Callable[..., str], command: Run) -> None:
    assert command("prepare", "small.yaml", "data.directory=new", "data.tokenizer.vocabulary_size=120").code == 0
    words = ["data.directory=new", "directory=other", "training.max_updates=1", "data.tokenizer.vocabulary_size=120"]
    assert command("train", "small.yaml", *words).code == 0
    message = refused("analyze", "entropy", "some", "--baseline", "other", "--input", "text")
    assert message.startswith("error: other: its tokens of the text are not those of some\n")


@pytest.mark.skipif(importlib.util.find_spec("HanTa") is None, reason="the extra `pos` is not installed")
def test_a_rule_by_tags_drops_what_the_report_counts(command: Run, place: Path) -> None:
    """The rule and the report know tags and split words from the same places, but by different ways."""
    words = ["model.memory.0.name=pos", "data.directory=new", "directory=ruled"]
    assert command("prepare", "small.yaml", *words).code == 0
    trained = command("train", "small.yaml", *words, "training.max_updates=1")
    assert trained.code == 0, trained.err

    def sparsity(*options: str) -> dict[str, float | None]:
        result = command("analyze", "pos", "ruled", "--input", "text", *options, "--json", "r.json")
        assert result.code == 0, result.err
        return {record["category"]: record["sparsity"] for record in tables(place / "r.json")["categories"]}

    found = sparsity()
    assert found["function"] == found["punctuation"] == found["BPEO"] == 1
    assert found["</s>"] == 0 and 0 < (found["overall"] or 0) < 1
    write(place / "tags", [tagged(line).replace("_DT", "_NN") for line in read_lines(place / "text")])
    given = sparsity("--tags", "tags")  # the model reads the tags that are given
    assert given["content"] == 0 and given["punctuation"] == given["BPEO"] == 1 and given != found


def test_character_models_have_places_of_characters(command: Run, place: Path) -> None:
    words = ["model.memory.0.name=group", "data.tokenizer.kind=char", "data.directory=new", "directory=spelled"]
    assert command("prepare", "small.yaml", *words).code == 0
    assert command("train", "small.yaml", *words, "training.max_updates=1").code == 0
    result = command("analyze", "position", "spelled", "--input", "text", "--json", "r.json", "--plot", "r.png")
    assert result.code == 0, result.err
    records = {record["place"]: record for record in tables(place / "r.json")["position"]}
    lines = list(read_lines(place / "text"))
    assert records["space"]["positions"] == sum(line.count(" ") for line in lines)
    assert records["overall"]["positions"] == sum(len(line) + 1 for line in lines if line)
    assert records["overall"]["dropped"] == sum((len(line) + 1) // 2 for line in lines if line)  # every second one
    assert {record["unit"] for record in records.values()} == {"characters"}
    check_picture(place / "r.png")
