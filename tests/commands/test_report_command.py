"""`sparsenmt report`: its figures are those of the commands it names; bad input; resuming; the same bytes again."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparsenmt.assemble.model_directory import read_recipe
from sparsenmt.cli import run
from sparsenmt.evaluation.depth_oracle import sentence_chrf
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.schema import Recipe
from sparsenmt.report.page.document import Document, ReportSection, SentenceWords, read_document
from sparsenmt.workflows.evaluation.report import figures, report_request, sentences, words
from sparsenmt.workflows.evaluation.report.quality import dense_twin, different_spans
from sparsenmt.workflows.evaluation.report.report_data import ReportData
from sparsenmt.workflows.evaluation.report.report_request import ReportRequest
from tests.analysis.support import add_gates
from tests.commands.support import Run
from tests.evaluation.contrast.support import LINGEVAL, write_json
from tests.report.figures import check_figures, tables

TIED = """\
base: small.yaml
name: tied
directory: tied
model: {encoder_layers: 2, decoder_layers: 2, depth: {name: tied_multi}}
training: {max_updates: 4, validation: {every: 4}}
"""
ALPHAS = """\
base: small.yaml
name: sparse
directory: sparse
model: {attention: {encoder_self: {transform: {name: entmax, alpha: learned}}}}
training: {max_updates: 4, log_every: 2, validation: {every: 4}}
"""
TEXTS = ("--source", "corpus/test.en", "--reference", "corpus/test.de")
FAST = ("--threads", "1", "--no-speed", "--resamples", "50", "-o", "r.html", "--json", "r.json")


@pytest.fixture(scope="module")
def several(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, one with gates, one with learned alphas and one of four depths."""
    folder = tmp_path_factory.mktemp("several")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    text = (folder / "corpus" / "test.en").read_text(encoding="utf-8").splitlines()
    add_gates(folder / "model", folder / "gated", text, 0.4)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, recipe in (("tied", TIED), ("sparse", ALPHAS)):
            Path(f"{name}.yaml").write_text(recipe, encoding="utf-8", newline="\n")
            assert run(["train", f"{name}.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def models(several: Path, workspace: Path) -> list[str]:
    for name in ("gated", "tied", "sparse"):
        shutil.copytree(several / name, workspace / name)
    return ["model", "gated", "sparse", "tied"]


def report(command: Run, *arguments: str | Path) -> Document:
    result = command("report", *arguments, *FAST)
    assert result.code == 0, result.err
    page = Path("r.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert not list(Path.cwd().glob(".r.html*")), "nothing is left over"
    return read_document(Path("r.json"))


@pytest.mark.thorough
def test_every_figure_is_that_of_the_named_command(command: Run, models: list[str]) -> None:
    suite = write_json(Path("suite.json"), LINGEVAL)
    made = report(command, *models, *TEXTS, "--depths", "--suite", suite)
    checked = check_figures(made, lambda words: command(*words).code, "--threads", "1")
    methods = ["pos", "position", "layers", "density", "alphas", "roles"]
    assert checked == ["scores", "lengths", "sparsity", *methods, "depths", "contrast-1"]
    quality = tables(next(each for each in made.sections if each.name == "sparsity"))["sparsity"]
    sparsity = {row["model"]: row["sparsity"] for row in quality}
    assert sparsity["gated"] > 0 and sparsity["model"] is None


def test_the_named_commands_read_the_same_languages() -> None:
    """A model of several languages translates by them: without the options the figures would be others."""
    asked = ReportRequest([Path("m")], Path("s"), Path("o"), source_language="en", target_language="de")
    data: Any = SimpleNamespace(request=asked)
    named = "--source-language en --target-language de"
    assert ReportData.command(data, "analyze pos", reads=("input",)) == f"sparsenmt analyze pos m --input s {named}"
    assert ReportData.command(data, "contrast", "suite") == f"sparsenmt contrast m {named} suite"
    assert ReportData.command(data, "analyze alphas") == "sparsenmt analyze alphas m"


def test_the_sentences_and_words_of_a_report(command: Run, models: list[str]) -> None:
    made = {each.name: each for each in report(command, "model", "gated", *TEXTS, "--sentences", "7").sections}
    sources = Path("corpus/test.en").read_text(encoding="utf-8").splitlines()
    references = Path("corpus/test.de").read_text(encoding="utf-8").splitlines()
    outputs = {name: command("decode", name, "--input", "corpus/test.en").lines for name in ("model", "gated")}
    compared = made["differences"].comparisons
    chrf = sentence_chrf(list(outputs.values()), references)
    spread = chrf.max(1) - chrf.min(1)
    assert [each.difference for each in compared] == sorted(spread.tolist(), reverse=True)[:7]
    for each in compared:
        i = each.number - 1
        assert (each.source, each.reference) == (sources[i], references[i])
        for k, own in enumerate(each.outputs):
            assert own.text == outputs[own.model][i] and own.scores == {"chrF2": chrf[i, k]}
            words = " ".join(own.text[first:last] for first, last in own.spans).split()
            assert set(own.text.split()) - set(each.outputs[1 - k].text.split()) <= set(words)
    kept = made["annotate"].kept_words
    assert len(kept) == 7 and {each.model for each in kept} == {"gated"}
    assert command("analyze", "annotate", "gated", "-i", "corpus/test.en", "--json", "a.json").code == 0
    rows = json.loads(Path("a.json").read_text())["tables"]["annotate"]
    for shown in kept:
        gates = [gate for word in shown.words for gate in word.gates]
        assert gates == [row["gate"] for row in rows if row["sentence"] == shown.number]
        assert "".join(word.text for word in shown.words) == sources[shown.number - 1].replace(" ", "") + "</s>"
        assert shown.output == outputs["gated"][shown.number - 1]
    maps = made["maps"].attention
    assert {each.number for each in maps} == {each.number for each in kept}
    chosen = ["--site", "cross", "--layer", "1", "--head", "2", "--apart"]
    assert command("analyze", "maps", "gated", "-i", "corpus/test.en", *chosen, "--json", "m.json").code == 0
    cells = json.loads(Path("m.json").read_text())["tables"]["maps"]
    for drawn in maps:
        for head in drawn.maps:
            assert len(head.weights) == len(drawn.rows) == len(drawn.row_words)
            assert {len(row) for row in head.weights} <= {len(drawn.columns)}
        assert len(drawn.columns) == len(drawn.column_words) == len(drawn.dropped)
        assert list(drawn.row_words) == sorted(drawn.row_words)
        if drawn.site == "cross" and drawn.model == "gated":
            weights = [row["weight"] for row in cells if row["sentence"] == drawn.number]
            (head,) = [head for head in drawn.maps if head.head == 2]
            assert [value for row in head.weights for value in row] == pytest.approx(weights, abs=1e-6)
            assert drawn.stand_in is any(drawn.dropped)
    heads = {(each.model, each.site, each.layer, each.head): each for each in made["maps"].heads}
    density = {(row["model"], row["head"]): row["density"] for row in tables(made["density"])["heads"][:2]}
    assert heads["model", "encoder_self", 1, 1].density == density["model", "1.1"]
    assert all(each.transform == "softmax" and each.alpha is None for each in heads.values())


def test_without_a_reference_its_parts_are_absent_and_say_so(command: Run, models: list[str]) -> None:
    made = {
        each.name: each for each in report(command, "gated", *TEXTS[:2], "--alignments", "--sentences", "3").sections
    }
    absent = ["scores", "lengths", "words-by-length", "words-by-frequency", "words-by-tag", "ngrams", "differences"]
    for name in (*absent, "sparsity", "time"):
        assert made[name].missing == "--reference: there is no reference translation. Name one with --reference."
        assert made[name].command == ""
    assert all(each.reference is None and each.output == "" for each in made["annotate"].kept_words)
    assert len(made["maps"].attention) == 9 and len(made["alignments"].alignments) == 3
    for each in made["alignments"].alignments:
        assert all(s < len(each.source) and t < len(each.target) for s, t in each.links)


def test_given_tags_stand_beside_the_words(command: Run, models: list[str]) -> None:
    made = {
        each.name: each
        for each in report(command, "gated", *TEXTS[:2], "--tags", "corpus/test.tags", "--sentences", "4").sections
    }
    tagged = Path("corpus/test.tags").read_text(encoding="utf-8").splitlines()
    for each in made["annotate"].kept_words:
        items = [item.rsplit("_", 1) for item in tagged[each.number - 1].split()]
        words = [word for word in each.words if word.text != "</s>"]
        firsts = [tag for i, (token, tag) in enumerate(items) if _begins_word(each, items, i)]
        assert [word.tag for word in words] == firsts
    assert tables(made["pos"])["tags"]


def _begins_word(shown: SentenceWords, items: list[list[str]], i: int) -> bool:
    """True if the token of the tags begins a word of the source."""
    before = len("".join(token for token, _ in items[:i]))
    starts = [0]
    for word in shown.words:
        starts.append(starts[-1] + len(word.text))
    return before in starts


def test_attention_is_shown_of_as_many_sentences_as_may_be(
    command: Run, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("model", *TEXTS[:2], "--target", "corpus/test.de", "--sentences", "6")
    monkeypatch.setattr(sentences, "MOST_WEIGHTS", 20_000)
    some = next(each for each in report(command, *arguments).sections if each.name == "maps")
    weights = sum(len(row) for each in some.attention for head in each.maps for row in head.weights)
    numbers = {each.number for each in some.attention}
    assert weights <= 20_000 and 0 < len(numbers) < 6
    assert f"attention of {len(numbers)} of them, which have 20,000 weights or fewer together" in some.notes
    monkeypatch.setattr(sentences, "MOST_WEIGHTS", 10)
    none = next(each for each in report(command, *arguments).sections if each.name == "maps")
    assert not none.attention and "every sentence has more than 10 attention weights" in none.missing


def test_the_depths_that_a_selector_chooses(command: Run, models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Chooser:
        depths = ((1, 1), (2, 1), (1, 2), (2, 2))

        def choose(self, sentences: list[list[int]]) -> list[tuple[int, int]]:
            return [self.depths[len(tokens) % 2] for tokens in sentences]

    Path("tied/selector").mkdir()
    monkeypatch.setattr(figures, "open_selector", lambda *given: Chooser())
    made = {each.name: each for each in report(command, "tied", *TEXTS[:2], "--sentences", "1").sections}
    rows = tables(made["chosen-depths"])["chosen"]
    assert [(row["encoder_layers"], row["decoder_layers"]) for row in rows] == list(Chooser.depths)
    assert sum(row["sentences"] for row in rows[:2]) == 20 and rows[3]["share"] == 0


def test_given_targets_are_read(command: Run, models: list[str]) -> None:
    made = {each.name: each for each in report(command, "model", *TEXTS[:2], "--target", "corpus/test.de").sections}
    words = shlex.split(made["density"].command)[1:]
    assert "--target" in words
    assert command(*words, "--json", "one.json", "--threads", "1").code == 0
    assert tables(made["density"]) == json.loads(Path("one.json").read_text())["tables"]
    assert "no filter decides in this model" in made["annotate"].missing


@pytest.mark.thorough
def test_the_same_command_writes_the_same_bytes(command: Run, models: list[str]) -> None:
    report(command, "model", "gated", *TEXTS, "--sentences", "5")
    first = [Path(name).read_bytes() for name in ("r.html", "r.json")]
    report(command, "model", "gated", *TEXTS, "--sentences", "5")
    assert [Path(name).read_bytes() for name in ("r.html", "r.json")] == first


def test_an_interrupted_report_resumes(command: Run, models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["gated", *TEXTS[:2], "--sentences", "3"]
    real, calls = sentences.map_attention, list[str]()

    def stopped(*_given: object) -> ReportSection:
        raise Interrupted(signal.SIGINT)

    def noting(data: ReportData, section: ReportSection) -> ReportSection:
        calls.append(section.name)
        return rates(data, section)

    rates = figures.densities
    monkeypatch.setattr(figures, "densities", noting)
    monkeypatch.setattr(sentences, "map_attention", stopped)
    result = command("report", *arguments, *FAST)
    assert result.code == 130 and "the sections that are finished are kept" in result.err, result.err
    assert Path(".r.html.sections/density.json").is_file() and not Path("r.html").exists()
    monkeypatch.setattr(sentences, "map_attention", real)
    resumed = report(command, *arguments)
    assert calls == ["density"]
    report(command, *arguments)
    assert calls == ["density", "density"] and read_document(Path("r.json")) == resumed


def test_hostile_lines_are_data(command: Run, models: list[str]) -> None:
    lines = ["<script>alert(1)</script> \"x'", "abc \u202e def \u200f", "a nul\x00byte", "", "</script><!--"]
    Path("bad.en").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    Path("bad.de").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    made = report(command, "gated", "--source", "bad.en", "--reference", "bad.de")
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "\x00" not in page and "\u202e" not in page
    compared = next(each for each in made.sections if each.name == "differences").comparisons
    assert {each.source for each in compared} == set(lines)


@pytest.mark.thorough
def test_an_imported_model_beside_one_with_other_vocabularies(command: Run, models: list[str]) -> None:
    assert command("export", "model", "--to", "safetensors-hf", "hf").code == 0
    assert command("import", "hf", "back", "--source-language", "en", "--target-language", "de").code == 0
    assert command("prepare", "small.yaml", "data.directory=p2", "data.tokenizer.vocabulary_size=120").code == 0
    few = ("training.max_updates=2", "training.validation.every=2", "training.save_every=2")
    assert (
        command(
            "train", "small.yaml", "data.directory=p2", "data.tokenizer.vocabulary_size=120", "directory=other", *few
        ).code
        == 0
    )
    made = {
        each.name: each
        for each in report(command, "other", "back", *TEXTS, "--target", "corpus/test.de", "--sentences", "2").sections
    }
    assert [row["source_vocabulary"] for row in tables(made["models"])["models"]] == [120, 150]
    assert made["training"].notes == ("back: there is no log of its training",)
    assert len(tables(made["scores"])["models"]) == 2 and len(made["maps"].attention) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "--source", "none.en"], "none.en"),
        (["model", "--source", "empty.en"], "empty.en: there is no text in it"),
        (["model", *TEXTS[:2], "--reference", "one.de"], "one.de"),
        (["model", *TEXTS[:2], "--target", "one.de"], "one.de"),
        (["model", "model", *TEXTS], "the model is named twice"),
        (["model", *TEXTS, "--suite", "one.de"], "one.de"),
        (["model", "--source", "r.html"], "--output names a file that another option names"),
        (["model", "turned", *TEXTS], "turned: its source language is fr, that of model en"),
        (["text", *TEXTS], "this is a language model: it reads no source sentences"),
    ],
)
def test_what_is_refused(
    models: list[str], refused: Callable[..., str], arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty.en").write_bytes(b"")
    Path("one.de").write_bytes(b"eins\n")
    Path("r.html").write_bytes(b"eins\n")
    for name, change in (("turned", {"source_language": "fr"}), ("text", {"task": "language_model"})):
        shutil.copytree("model", name)
        recipe = read_recipe(Path(name))
        changed = recipe.model_copy(update={"data": recipe.data.model_copy(update=change)})
        monkeypatch.setitem(_CHANGED, name, changed)
    monkeypatch.setattr(report_request, "read_recipe", lambda path: _CHANGED.get(path.name) or read_recipe(path))
    assert message in refused("report", *arguments, *FAST)


_CHANGED: dict[str, Recipe] = {}


def test_the_dense_twin_has_the_same_sizes_and_no_methods(models: list[str]) -> None:
    recipes = {name: read_recipe(Path(name)) for name in models}
    twins = {name: dense_twin(recipes, name) for name in models}
    assert twins == {"model": None, "gated": "model", "sparse": "model", "tied": None}


def test_stretches_that_differ() -> None:
    assert different_spans("a b c d", "a x c") == ((2, 3), (6, 7))
    assert different_spans("a b", "a b") == () and different_spans("", "a") == ()
    assert different_spans("a  b c", "") == ((0, 6),)
    long = " ".join(map(str, range(2000)))
    assert different_spans(long, long) == () and different_spans(long, "1") == ((0, len(long)),)


def test_the_bands_of_frequency() -> None:
    names = words._bands(words.FREQUENCIES)
    assert names == ["0", "1", "2", "3", "4", "5 to 9", "10 to 99", "100 to 999", "1000 and more"]
