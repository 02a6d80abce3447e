"""Forged records with a valid seal: every reader gives a result or a message, never another exception."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsenmt.assemble import model_directory
from sparsenmt.assemble.bundle import open_model
from sparsenmt.cli import run
from sparsenmt.data.dataset import Dataset
from sparsenmt.data.features.feature_set import FeatureSet
from sparsenmt.data.prepared_data import MANIFEST
from sparsenmt.data.tokenizers.tokenizer import Tokenizers
from sparsenmt.decoding.kept_translations import KeptTranslations
from sparsenmt.depth_selector.classifier import DepthClassifier
from sparsenmt.depth_selector.hyperparameter_search import HyperparameterSearch
from sparsenmt.depth_selector.selector import FOLDER, RECORD, open_selector, save_selector, source_embeddings
from sparsenmt.depth_selector.training import Hyperparameters, Trial
from sparsenmt.errors import UserError
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.storage.files import hidden_path, partial_path, read_sealed, write_json, write_sealed
from sparsenmt.storage.kept_work import Stages
from sparsenmt.storage.records import file_entry
from sparsenmt.storage.resumable_output import resumable_output
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.state import Progress
from sparsenmt.workflows.decoding.decode_request import DecodeRequest
from sparsenmt.workflows.evaluation.evaluate import (
    AS_IN_RECIPE,
    Evaluation,
    SiteAttention,
    _path_and_key,
    kept_evaluation,
)
from sparsenmt.workflows.evaluation.evaluate_text import TextBlock, TextEvaluation, kept_text_evaluation
from sparsenmt.workflows.evaluation.evaluate_text import _path_and_key as text_path_and_key
from sparsenmt.workflows.evaluation.reference_texts import PlainText, TestText
from sparsenmt.workflows.training.distill import DistilledCorpus, DistillRequest
from sparsenmt.workflows.training.prepare import open_data, prepare
from sparsenmt.workflows.training.run_checks import check_start
from tests.faults import pairs

OTHERS: tuple[Any, ...] = (None, [], "x", 1, -1, {}, [None], {"x": None})
MOST = 40  # forgeries of the inner parts of a record


def forgeries(value: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """The value with one part of it removed or of another type: of objects every key, of lists the first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            rest = {name: each for name, each in value.items() if name != key}
            yield f"{key} removed", rest
            yield f"{key} renamed", {**rest, f"../{key}": inner}
            for other in OTHERS:
                yield f"{key} = {other!r}", {**value, key: other}
            if depth:
                for what, each in forgeries(inner, depth - 1):
                    yield f"{key}.{what}", {**value, key: each}
    elif isinstance(value, list) and value:
        for other in OTHERS:
            yield f"[0] = {other!r}", [other, *value[1:]]
        if depth:
            for what, each in forgeries(value[0], depth - 1):
                yield f"[0].{what}", [each, *value[1:]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with checkpoints, prepared data and a text."""
    folder = tmp_path_factory.mktemp("world")
    pairs.make_world(folder)
    (folder / "run").mkdir()
    before = Path.cwd()
    os.chdir(folder / "run")
    try:
        prepare(pairs.recipe(Path("out")))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def place(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is a folder in the world; nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.chdir(world / "run")
    return world


def try_all(path: Path, readers: list[Callable[[], object]], *, seal: bool = True) -> None:
    """Read all forgeries of a record, which is there again afterwards."""
    original = path.read_bytes()
    value = json.loads(original)
    value.pop("seal", None)
    for reader in readers:
        reader()  # the record itself is valid
    outer, every = list(forgeries(value, 0)), list(forgeries(value))
    try:
        for what, forged in [*outer, *random.Random(1).sample(every, min(len(every), MOST))]:
            for reader in readers:
                (write_sealed if seal else write_json)(path, forged)
                try:
                    reader()
                except UserError as error:
                    assert str(error)
                except Exception as error:
                    pytest.fail(f"{path.name}, {what}: {error!r}")
    finally:
        path.write_bytes(original)


def test_manifest_of_a_model(place: Path, tmp_path: Path) -> None:
    model = place / "model"
    recipe = pairs.recipe(Path("out"))

    def copy() -> None:
        target = tmp_path / "copy"
        model_directory.copy_model(
            model, target, {"x": torch.zeros(1)}, after=1, made_of=[], version=model_directory.model_version(model)
        )
        target.rename(tmp_path / f"kept-{len(list(tmp_path.iterdir()))}")

    def start() -> object:
        return check_start(model, recipe, "fingerprint", None, Progress(update=1))

    try_all(model / model_directory.MANIFEST, [lambda: open_model(model, device=torch.device("cpu")), copy, start])


def test_manifest_of_prepared_data(place: Path) -> None:
    recipe = pairs.recipe(Path("out"))
    try_all(Path("out") / MANIFEST, [lambda: open_data(recipe)])


@pytest.mark.parametrize(
    "part", ["dev/meta.json", "tokenizers/tokenizers.json", "tokenizers/shared.json", "features/features.json"]
)
def test_parts_of_prepared_data(place: Path, part: str) -> None:
    data = Path("out")
    readers: dict[str, Callable[[], object]] = {
        "dev": lambda: Dataset(data / "dev"),
        "tokenizers": lambda: Tokenizers.load(data / "tokenizers"),
        "features": lambda: FeatureSet.load(data / "features", Tokenizers.load(data / "tokenizers")),
    }
    try_all(data / part, [readers[part.split("/")[0]]], seal=False)


def test_manifest_and_progress_of_a_checkpoint(place: Path) -> None:
    newest = find_checkpoints(place / "model")[-1]
    try_all(
        newest.path / "manifest.json",
        [newest.check, lambda: newest.interim, lambda: newest.check("weights.safetensors")],
    )
    try_all(newest.path / "progress.json", [newest.progress], seal=False)


def test_journal_of_an_output(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "text"
    lines, task = ["one", "two", "three"], {"task": {"a": 1}}
    with resumable_output(output, task, 3) as file:
        file.write(lines[:2])
        file.commit(2)
    journal, partial = hidden_path(output, "journal"), partial_path(output)
    start, value = partial.read_bytes(), read_sealed(journal)
    for what, forged in forgeries(value):
        partial.write_bytes(start)
        write_sealed(journal, forged)
        with resumable_output(output, task, 3) as file:
            file.write(lines[file.lines :])
            file.finish(3)
        assert output.read_bytes() == b"one\ntwo\nthree\n" or what == "lines = 1", what


def test_state_of_stages(tmp_path: Path) -> None:
    def write() -> dict[str, int]:
        (tmp_path / "file").write_bytes(b"text")
        return {"count": 1}

    Stages(tmp_path, {"task": 1}, False).run("first", write)
    state = tmp_path / ".state.json"
    assert state.exists()
    try_all(state, [lambda: Stages(tmp_path, {"task": 1}, False).run("first", write)])


def test_record_of_distilled_text(place: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    request = DistillRequest(DecodeRequest(place / "model"), pairs.recipe(Path("out")), folder=text)
    (corpus,) = request.corpora()
    assert isinstance(corpus, DistilledCorpus)
    work = {"format": 1, "source": "x", "vocabularies": {"a": "b"}}
    for path in (corpus.source, corpus.target):
        path.write_text("text\n", encoding="utf-8", newline="\n")
    write_sealed(
        corpus.record, {"work": work, "files": {p.name: file_entry(p) for p in (corpus.source, corpus.target)}}
    )
    assert corpus.is_complete(work)
    try_all(corpus.record, [lambda: corpus.is_complete(work)])


def test_record_of_a_selector(place: Path) -> None:
    model = place / "model"
    bundle = open_model(model, device=torch.device("cpu"), dtype=None)
    cell = Hyperparameters(1, 2, 0.0, 1.0, 0.5)
    depths = bundle.model.plan.depths()
    weights = DepthClassifier(source_embeddings(bundle), depths=len(depths), layers=1, heads=2).state_dict()
    (model / FOLDER).mkdir()
    save_selector(model / FOLDER, weights, model=bundle.identity(), depths=depths, cell=cell, notes={"asked": {"a": 1}})
    try_all(model / FOLDER / RECORD, [lambda: open_selector(model, bundle)])


@pytest.mark.parametrize("size", [0, 17, 10**5, 10**30])
def test_classifier_of_a_size_that_cannot_be(place: Path, tmp_path: Path, size: int) -> None:
    model = place / "model"
    bundle = open_model(model, device=torch.device("cpu"), dtype=None)
    depths = bundle.model.plan.depths()
    for key, cell in (
        ("layers", Hyperparameters(size, 2, 0.0, 1.0, 0.5)),
        ("heads", Hyperparameters(1, size * 10**4, 0.0, 1.0, 0.5)),
    ):
        folder = tmp_path / key
        folder.mkdir()
        save_selector(folder, {}, model=bundle.identity(), depths=depths, cell=cell, notes={})
        with pytest.raises(UserError, match=rf"selector\.json: .*cell\.{key} is"):
            open_selector(model, bundle, folder=folder)


def test_record_of_a_search(tmp_path: Path) -> None:
    cell = Hyperparameters(1, 2, 0.0, 1.0, 0.5)
    trial = {"epoch": 1, "own_loss": 0.5, "loss": 0.5, "chrf": 50.0}
    assert Trial(cell=cell, **trial)  # type: ignore[arg-type]
    record = tmp_path / "search.json"

    def read() -> None:
        model_directory.save_tensors(tmp_path / f"{cell.key}.safetensors", {"x": torch.zeros(1)})
        HyperparameterSearch(tmp_path, {"task": 1}, [cell])

    write_sealed(record, {"work": {"task": 1}, "trials": [{"cell": vars(cell), **trial}]})
    read()
    assert record.exists()
    try_all(record, [read])


def test_kept_translations(place: Path) -> None:
    model = place / "model"
    bundle = open_model(model, device=torch.device("cpu"))
    kept = KeptTranslations(place / "depths", bundle.identity(), pairs.LINES, bundle.recipe.decoding)
    depth = bundle.depth
    assert len(kept.at(bundle, depth)) == len(pairs.LINES)

    def read() -> None:
        assert all(isinstance(line, str) for line in kept.cached(depth)[: len(pairs.LINES)])

    (path,) = kept.directory.iterdir()
    try_all(path, [read])


@pytest.mark.thorough
def test_kept_evaluation(place: Path) -> None:
    model = place / "model"
    text = TestText("text", place / "text.en", place / "text.de")
    path, key = _path_and_key(model, text, model_directory.model_identity(model), AS_IN_RECIPE)
    attention = {"cross": SiteAttention(1.0, 2.0, None, 3)}
    tests = {"bleu x": {"difference": 0.1}}
    common = {"path": path, "key": key, "parameters": 7, "attention": attention, "tests": tests}
    scores = {"scores": {"bleu": 1.0}, "signatures": {"bleu": "x"}}
    Evaluation(**common, **scores, lines=["a", "b"], sparsity=0.5).save()
    assert kept_evaluation(model, text, ScoringOptions(("bleu",))) is not None

    def read() -> None:
        found = kept_evaluation(model, text, ScoringOptions(("bleu",)))
        if found is not None:
            found.overall("density")
            assert found.scores["bleu"] < 100 and all(isinstance(line, str) for line in found.lines)

    try_all(path, [read])


@pytest.mark.thorough
def test_kept_evaluation_of_a_language_model(place: Path) -> None:
    model, text = place / "model", PlainText("test", place / "text.en")
    path, key = text_path_and_key(model, text)
    blocks = [TextBlock(1.5, 2, 3, 1, 3), TextBlock(2.5, 1, 2, 1, 2)]
    TextEvaluation(path=path, key=key, parameters=7, blocks=blocks, spans=[[1.0, 2.0]], reading="segments").save()
    assert kept_text_evaluation(model, text) is not None

    def read() -> None:
        found = kept_text_evaluation(model, text)
        if found is not None:
            assert all(isinstance(value, float) for value in found.scores.values())
            assert found.size and (found.mean_span is None) is (found.longest_span is None)

    try_all(path, [read])


FILES = (None, [], "x", {"../../x": {"bytes": 1, "sha256": "0" * 64}}, {"tokenizers/x": 1})


@pytest.mark.parametrize("files", FILES)
def test_commands_refuse_a_forged_manifest(place: Path, capfd: pytest.CaptureFixture[str], files: object) -> None:
    path = place / "model" / model_directory.MANIFEST
    original = path.read_bytes()
    write_sealed(path, {**read_sealed(path), "files": files})
    try:
        for line in (
            ["decode", "../model", "-i", "../text.en"],
            ["average", "../model", "-o", "mean"],
            ["slice", "../model", "cut"],
            ["export", "../model", "exported", "--to", "safetensors-hf"],
        ):
            assert run(line) == 2
            assert f"{model_directory.MANIFEST}: " in capfd.readouterr().err
    finally:
        path.write_bytes(original)
