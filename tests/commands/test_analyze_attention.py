"""``sparsenmt analyze``: the reports on attention heads and on quality, as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsenmt.cli import run
from sparsenmt.data.text import read_lines
from tests.analysis.test_plots import check_picture
from tests.commands.support import Run

LEARNED = [f"model.attention.{site}.transform.name=entmax" for site in ("encoder_self", "decoder_self", "cross")]
REPORTS = {
    "alphas": [],
    "density": ["--target", "ref"],
    "diversity": ["--beam-size", "1"],
    "roles": ["--interrogative", "how"],
    "dense-sentences": ["--sparse", "1", "--target", "ref"],
    "last-token": ["--target", "ref"],
    "ablate-heads": ["--reference", "ref", "--beam-size", "1", "--resamples", "20", "--metric", "bleu"],
    "by-length": ["--reference", "ref", "--beam-size", "1", "--resamples", "20", "--edges", "6,8"],
    "maps": ["--limit", "2", "--target", "ref", "--site", "encoder_self", "--apart"],
}
MODELS = {"alphas": ["sparse"]}
MAIN = {"alphas": "sites", "density": "sites"}
"""The first table of a report, if it is not called like the report."""


@pytest.fixture(scope="session")
def sparse(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads learn their alphas, trained on the same data."""
    folder = tmp_path_factory.mktemp("sparse")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        changes = ["directory=sparse", "training.max_updates=8", "training.log_every=2", *LEARNED]
        assert run(["train", "small.yaml", *changes]) == 0
    finally:
        os.chdir(before)
    return folder / "sparse"


@pytest.fixture
def place(sparse: Path, workspace: Path) -> Path:
    """The working directory, with the models model/ and sparse/, and ``text`` with its translation ``ref``."""
    shutil.copytree(sparse, workspace / "sparse")
    for name, language in (("text", "en"), ("ref", "de")):
        lines = list(read_lines(workspace / "corpus" / f"test.{language}"))[:12]
        write(workspace / name, [lines[0], "", *lines[1:], lines[0].split(" ")[0]])
    return workspace


def write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    loaded: dict[str, list[dict[str, Any]]] = json.loads(path.read_bytes())["tables"]
    return loaded


def arguments(name: str) -> list[str]:
    text = [] if name == "alphas" else ["--input", "text"]
    return ["analyze", name, *MODELS.get(name, ["model", "sparse"]), *text, *REPORTS[name]]


@pytest.mark.parametrize("name", REPORTS)
def test_every_report(command: Run, place: Path, name: str) -> None:
    files = ["--json", "r.json", "--csv", "r.csv", "--plot", "r.png"]
    result = command(*arguments(name), *files)
    assert result.code == 0, result.err
    assert result.err == ""
    check_picture(place / "r.png")
    records = tables(place / "r.json")[MAIN.get(name, name)]
    rows = list(csv.DictReader(io.StringIO((place / "r.csv").read_bytes().decode())))
    assert [{key: "" if value is None else str(value) for key, value in each.items()} for each in records] == rows
    if name != "dense-sentences":  # twelve sentences are too few to call one of them unusual
        models = {str(record.get("model", record.get("system"))) for record in records}
        assert models == set(MODELS.get(name, ["model", "sparse"]))
    again = command(*arguments(name), "--json", "again.json")
    assert again.out == result.out and (place / "again.json").read_bytes() == (place / "r.json").read_bytes()


def test_the_course_of_alphas_needs_no_checkpoints(command: Run, place: Path) -> None:
    lines = [json.loads(line) for line in (place / "sparse/metrics.jsonl").read_text().splitlines()]
    logged = [line["update"] for line in lines if line["kind"] == "train"]
    shutil.rmtree(place / "sparse/checkpoints")
    result = command("analyze", "alphas", "sparse", "--json", "r.json", "--plot", "r.png", "--head", "cross:1.2")
    assert (result.code, result.err) == (0, "")
    assert result.lines[-1] == f"sparse: log of {len(logged)} updates, {logged[0]} to {logged[-1]}" and len(logged) > 1
    assert [row["update"] for row in tables(place / "r.json")["course"] if row["site"] == "cross"][::2] == logged
    check_picture(place / "r.png")


def test_alphas_of_checkpoints(command: Run, place: Path) -> None:
    """A log of an older version has no alphas."""
    lines = [json.loads(line) for line in (place / "sparse/metrics.jsonl").read_text().splitlines()]
    write(place / "sparse/metrics.jsonl", [json.dumps({**line, "heads": None}) for line in lines])
    result = command("analyze", "alphas", "sparse", "model", "--json", "r.json")
    assert result.code == 0, result.err
    assert result.lines[-2:] == ["sparse: checkpoints of 3 updates, 4 to 8", "model: no alpha is learned"]
    found = tables(place / "r.json")
    assert len(found["heads"]) == 2 * 3 and len(found["course"]) == 3 * 2 * 3
    assert all(1.01 < float(row["alpha"]) < 2 for row in found["heads"])
    last = [row["alpha"] for row in found["course"] if row["update"] == 8]
    assert last != [row["alpha"] for row in found["course"] if row["update"] == 4]
    (place / "sparse" / "weights.safetensors").unlink()  # as while it trains
    assert command("analyze", "alphas", "sparse", "--json", "s.json").code == 0
    assert [row["alpha"] for row in tables(place / "s.json")["heads"]] == last


def test_a_dense_model_is_dense(command: Run, place: Path) -> None:
    command(*arguments("density"), "--json", "r.json")
    found = tables(place / "r.json")
    for row in found["heads"]:
        assert (row["density"] == 1) == (row["attended"] == row["visible"]) and (row["alpha"] is None) == (
            row["model"] == "model"
        )
        assert row["model"] == "sparse" or row["density"] == 1
    assert {row["sentences"] for row in found["sites"]} == {13}
    result = command("analyze", "dense-sentences", "model", "--input", "text")
    assert result.lines[-1] == "model: no head is sparse"


def test_only_a_site(command: Run, place: Path) -> None:
    for name in ("density", "diversity"):
        arguments = ["analyze", name, "model", "--input", "text", "--site", "encoder_self", "--json", "r.json"]
        assert command(*arguments).code == 0
        assert {row["site"] for row in tables(place / "r.json")[MAIN.get(name, name)]} == {"encoder self"}


def test_a_row_of_the_ablation_is_what_decoding_without_the_head_scores(command: Run, place: Path) -> None:
    options = ["--input", "text", "--reference", "ref", "--site", "cross", "--head", "2", "--json", "r.json"]
    assert command("analyze", "ablate-heads", "model", *options).code == 0
    rows = [row for row in tables(place / "r.json")["ablate-heads"] if row["metric"] == "BLEU"]
    assert [(row["disabled"], row["what_it_does"]) for row in rows] == [("-", "none"), ("2", "learned")]
    scoring = ["score", "--model", "model", "--source", "text", "--reference", "ref", "--metric", "bleu", "--json"]
    for row, disabled in zip(rows, ([], ["--disable-heads", "cross:2"]), strict=True):
        (score,) = json.loads(command(*scoring, *disabled).out)["scores"]
        assert row["score"] == score["value"]


def test_a_model_and_its_own_translations_are_equally_good(command: Run, place: Path) -> None:
    assert command("decode", "model", "--input", "text", "--output", "out").code == 0
    arguments = ["analyze", "by-length", "model", "out", "--input", "text", "--reference", "ref", "--json", "r.json"]
    assert command(*arguments).code == 0
    for row in tables(place / "r.json")["by-length"]:
        if row["system"] == "out" and row["p"] is not None:
            assert (row["difference"], row["p"]) == (0, 1)
    alone = command("analyze", "by-length", "out", "ref", "--reference", "ref", "--json", "s.json")  # no model, no text
    assert alone.code == 0, alone.err
    scores = {(row["length"], row["system"]): row["score"] for row in tables(place / "s.json")["by-length"]}
    assert (
        scores["all", "ref"] == pytest.approx(100)
        and scores["all", "out"] == tables(place / "r.json")["by-length"][0]["score"]
    )


def test_maps_stand_side_by_side(command: Run, place: Path) -> None:
    result = command("analyze", "maps", "model", "sparse", "--sentence", "The house", "--site", "encoder_self")
    assert result.lines[0] == "sentence 1, encoder self-attention in percent"
    assert result.lines[1].split() == ["model", "sparse"]


MISTAKES = [
    ("alphas model", "error: model: no alpha is learned in this model\n"),
    ("density model", "error: --input: there is no text\n"),
    ("density model --input text --target short", "error: short: it has 1 lines, but text has 14\n"),
    (
        "density model --input text --target ref --beam-size 1",
        "error: --beam-size: is given beside --target, and nothing is translated\n",
    ),
    ("roles model --input empty", "error: empty: there is no text in it\n"),
    ("ablate-heads model --input text --reference short", "error: short: it has 1 lines, but text has 14\n"),
    (
        "ablate-heads model --input text --reference ref --head 3",
        "error: --head: model has 2 heads at encoder_self, not 3\n",
    ),
    (
        "by-length ref --reference ref --edges 5,3",
        "error: --edges: '5,3' is not a list of rising whole numbers from 1 to 1,000,000\n",
    ),
    ("by-length ref ref --reference ref", "error: ref: the file is named twice\n"),
    ("by-length ref --reference short", "error: ref: it has 14 lines, but short has 1\n"),
    ("by-length ref model --reference ref", "error: --input: there is no text\n"),
    ("by-length model --input text --reference short", "error: text: it has 14 lines, but short has 1\n"),
    ("by-length ref --reference nothing", "error: nothing: no such file\n"),
    ("by-length nothing --reference ref", "error: nothing: there is no such model directory\n"),
    ("by-length ref --reference none", "error: none: the file has no lines\n"),
    ("alphas sparse --head cross:1.3", "error: --head: sparse learns no alpha for head 1.3 of cross\n"),
    ("alphas sparse --head cross:1", "error: --head: 'cross:1' names no head\n"),
    ("maps model --sentence a --layer 2", "error: --layer: model has 1 decoder layer, not 2\n"),
    ("maps model --sentence a --site encoder_self --layer 2", "error: --layer: model has 1 encoder layer, not 2\n"),
    ("maps model --sentence a --head 1 --head 3", "error: --head: model has 2 heads at cross, not 3\n"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes(place: Path, refused: Callable[..., str], words: str, message: str) -> None:
    write(place / "empty", ["", " "])
    write(place / "none", [])
    write(place / "short", ["Haus"])
    assert refused("analyze", *words.split()).startswith(message)
