"""`prepare` from text to what training opens: complete, reproducible, never half-made."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsenmt.data import prepared_data
from sparsenmt.data import text as text_module
from sparsenmt.data.features import source_features as features_module
from sparsenmt.data.line_parts import LinePart
from sparsenmt.data.prepare import pipeline as prepare_module
from sparsenmt.data.prepare.pipeline import PreparedData, prepare, sample_lines
from sparsenmt.data.tagging.source_tagger import SourceSentences
from sparsenmt.data.text import write_lines
from sparsenmt.data.vocabulary import EOS
from sparsenmt.errors import UserError
from sparsenmt.recipe import schema
from sparsenmt.storage.files import read_sealed, write_sealed
from sparsenmt.storage.records import file_entry

MakeData = Callable[..., schema.Data]
Lines = Callable[..., list[str]]
FEATURES = ("word_id", "frequency_rank")


def files(directory: str | Path) -> dict[str, bytes]:
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("shared", [True, False])
def test_text_goes_in_and_comes_out(make_data: MakeData, lines: Lines, kind: str, shared: bool) -> None:
    corpora = [(lines(150), lines(150, seed=1)), (lines(80, seed=4), lines(80, seed=5))]
    size = 60 if kind != "word" else 1000
    options = {"kind": kind, "shared": shared, "vocabulary_size": size}
    data = make_data(corpora, weights=[1.0, 2.0], tokenizer=options)
    report = prepare(data, features=FEATURES)
    assert not report.up_to_date
    assert [corpus.counts.kept for corpus in report.corpora] == [150, 80]

    prepared = PreparedData.open(data.directory)
    assert [dataset.name for dataset in prepared.train] == ["train0", "train1"]
    assert prepared.train_weights == [1.0, 2.0]
    assert prepared.fingerprint == report.fingerprint
    assert report.vocabulary_sizes == (prepared.tokenizers.source.size, prepared.tokenizers.target.size)
    assert prepared.dev_lines == list(zip(lines(20, seed=2), lines(20, seed=3), strict=True))
    for dataset, (sources, targets) in zip(prepared.train, corpora, strict=True):
        assert dataset.features == prepared.features.names == tuple(sorted(FEATURES))
        for number in range(len(dataset)):
            ids = dataset.source(number)
            assert ids[-1] == EOS and dataset.target(number)[-1] == EOS
            assert prepared.tokenizers.source.decode(ids.tolist()) == sources[number]
            assert prepared.tokenizers.target.decode(dataset.target(number).tolist()) == targets[number]
            for name, values in prepared.features.compute(ids, sources[number]).items():
                assert dataset.feature(name, number).tolist() == values.tolist()


def test_same_input_same_bytes(make_data: MakeData) -> None:
    data = make_data(tokenizer={"kind": "unigram"})
    prepare(data, features=FEATURES)
    first = files(data.directory)
    shutil.rmtree(data.directory)
    prepare(data, features=FEATURES)
    assert files(data.directory) == first


def test_up_to_date(make_data: MakeData, tmp_path: Path) -> None:
    data = make_data()
    first = prepare(data)
    before = {path: path.stat().st_mtime_ns for path in Path(data.directory).rglob("*")}

    os.utime(data.train[0].source)  # a newer file with the same content
    again = prepare(data)
    assert again.up_to_date
    assert "up to date" in again.describe()
    assert again.corpora == first.corpora
    assert {path: path.stat().st_mtime_ns for path in Path(data.directory).rglob("*")} == before

    # The same files elsewhere give the same data.
    for side in "st":
        shutil.copy(tmp_path / f"train0.{side}", tmp_path / f"moved.{side}")
    moved = data.train[0].model_copy(update={"source": str(tmp_path / "moved.s"), "target": str(tmp_path / "moved.t")})
    assert prepare(data.model_copy(update={"train": [moved]})).up_to_date


def test_changes_are_noticed(make_data: MakeData, lines: Lines) -> None:
    data = make_data()
    fingerprints = [prepare(data).fingerprint]

    def changed(**update: object) -> None:
        report = prepare(data.model_copy(update=update), features=features)
        assert not report.up_to_date
        fingerprints.append(report.fingerprint)

    features: tuple[str, ...] = ()
    changed(filters=schema.Filters(max_length=20))
    changed(tokenizer=schema.TokenizerSection(kind="bpe", vocabulary_size=61))
    features = FEATURES
    changed()
    write_lines(data.dev.target, lines(20, seed=99))
    changed()
    assert len(set(fingerprints)) == 5


def test_a_damaged_directory_is_noticed_and_mended(make_data: MakeData) -> None:
    data = make_data()
    prepare(data)
    path = Path(data.directory) / "train-0" / "source.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match="damaged") as caught:
        PreparedData.open(data.directory)
    assert "source.bin" in str(caught.value) and "prepare" in str(caught.value)
    path.unlink()
    with pytest.raises(UserError, match="the file is missing"):
        PreparedData.open(data.directory)
    assert not prepare(data).up_to_date
    PreparedData.open(data.directory)

    manifest = Path(data.directory) / "manifest.json"
    manifest.write_bytes(json.dumps({**json.loads(manifest.read_bytes()), "format": 0}).encode())
    with pytest.raises(UserError, match="another version"):
        PreparedData.open(data.directory)
    assert not prepare(data).up_to_date


@pytest.mark.parametrize("step", ["read_manifest", "verify_files", "read_parallel", "train_directory"])
def test_data_that_are_replaced_while_they_are_opened(
    make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Datasets, vocabularies and validation text are of one version; also if the replacement is undone."""
    data = make_data()
    prepare(data)
    directory, other = Path(data.directory), tmp_path / "other"
    prepare(data.model_copy(update={"directory": str(other), "filters": schema.Filters(max_length=9)}))
    fingerprints = {
        str(len(PreparedData.open(each).train[0])): PreparedData.open(each).fingerprint for each in (directory, other)
    }
    assert len(fingerprints) == 2
    original, calls = getattr(prepared_data, step), 0

    def exchanged() -> None:
        directory.rename(tmp_path / "aside")
        other.rename(directory)
        (tmp_path / "aside").rename(other)

    def interfering(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            exchanged()
        found = original(*arguments, **options)
        if calls == 1 and step == "verify_files":
            exchanged()
        return found

    monkeypatch.setattr(prepared_data, step, interfering)
    opened = PreparedData.open(directory)
    assert opened.fingerprint == fingerprints[str(len(opened.train[0]))]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train-0/source.bin", 60_000, "not in their vocabularies"),
        ("dev/target.bin", 60_000, "not in their vocabularies"),
        ("train-0/source.offsets.bin", -5, "not in their vocabularies"),
        ("train-0/target.offsets.bin", 1 << 62, "not in their vocabularies"),
        ("train-0/feature.word_id.bin", -1, "negative features"),
    ],
)
def test_numbers_of_strangers_are_checked(make_data: MakeData, name: str, value: int, message: str) -> None:
    """Their hashes are right: whoever makes a file can seal it."""
    data = make_data(tokenizer={"kind": "bpe", "vocabulary_size": 60})
    prepare(data, features=FEATURES)
    path = Path(data.directory) / name
    stem = path.name.split(".")[0]
    type_ = np.dtype("<i8") if "offsets" in name else np.dtype("<i4" if stem == "feature" else "<u2")
    values = np.frombuffer(path.read_bytes(), dtype=type_).copy()
    values[1] = value
    path.write_bytes(values.tobytes())
    manifest = Path(data.directory) / "manifest.json"
    record = read_sealed(manifest)
    write_sealed(manifest, {**record, "files": {**record["files"], name: file_entry(path)}})
    with pytest.raises(UserError, match=message):
        PreparedData.open(data.directory)


def test_no_prepared_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no prepared data") as caught:
        PreparedData.open(tmp_path / "nowhere")
    assert "sparsenmt prepare" in str(caught.value)


def test_filters_are_counted_for_each_corpus(make_data: MakeData) -> None:
    text = ["a b c"] * 5
    first = (["", "a b", "a b c d e f", *text], ["x", "", "x", *text])
    second = (["a", "a a a a a a a a a", *text], ["a a a", "a", *text])
    filters = schema.Filters(max_length=8, max_ratio=2.0)
    data = make_data([first, second], tokenizer={"kind": "word", "vocabulary_size": 20}, filters=filters)
    one, two = prepare(data).corpora
    assert (one.counts.read, one.counts.kept) == (8, 5)
    assert one.counts.removed == {"empty": 2, "max_length": 0, "max_ratio": 1}
    assert two.counts.removed == {"empty": 0, "max_length": 1, "max_ratio": 1}
    assert PreparedData.open(data.directory).train[0].line_numbers.tolist() == [3, 4, 5, 6, 7]
    assert "2 removed by empty, 1 removed by max_ratio" in one.describe()


def test_sources_are_cut(make_data: MakeData) -> None:
    filters = schema.Filters(max_source_length=2, max_length=3)
    data = make_data([(["a b c d", "a"], ["x", "y"])], tokenizer={"kind": "word"}, filters=filters)
    report = prepare(data)
    assert (report.corpora[0].counts.cut, report.corpora[0].counts.kept) == (1, 2)
    prepared = PreparedData.open(data.directory)
    assert prepared.tokenizers.source.decode(prepared.train[0].source(0).tolist()) == "a b"


def test_of_dev_nothing_is_left_out_but_sources_are_cut(make_data: MakeData) -> None:
    dev = (["", "a " * 400, "a"], ["x", "", "x " * 50])
    filters = schema.Filters(max_length=5, max_ratio=1.5, max_source_length=3)
    data = make_data([(["a b"], ["x y"])], dev, tokenizer={"kind": "word"}, filters=filters)
    prepare(data, features=FEATURES)
    prepared = PreparedData.open(data.directory)
    assert prepared.dev.source_lengths.tolist() == [1, 4, 2]
    assert prepared.dev.target_lengths.tolist() == [2, 1, 51]
    assert prepared.dev_lines == list(zip(*dev, strict=True))


@pytest.mark.parametrize(("module", "limit"), [(text_module, "_BATCH_LINES"), (text_module, "_BATCH_CHARACTERS")])
def test_blocks_do_not_change_the_result(
    make_data: MakeData, monkeypatch: pytest.MonkeyPatch, module: object, limit: str
) -> None:
    data = make_data()
    whole = prepare(data, features=FEATURES).fingerprint
    shutil.rmtree(data.directory)
    monkeypatch.setattr(module, limit, 7)
    monkeypatch.setattr(prepare_module, "_FEATURE_TOKENS", 5)
    assert prepare(data, features=FEATURES).fingerprint == whole


def test_bad_input_leaves_nothing(make_data: MakeData, lines: Lines, tmp_path: Path) -> None:
    def refused(data: schema.Data, message: str) -> str:
        with pytest.raises(UserError, match=message) as caught:
            prepare(data)
        assert not Path(data.directory).exists()
        assert not [path for path in tmp_path.iterdir() if "partial" in path.name]
        return str(caught.value)

    unequal = refused(make_data([(lines(9), lines(8))]), "different numbers of lines")
    assert "train0.s has 9" in unequal and "train0.t has 8" in unequal
    assert "dev.s" in refused(make_data(dev=([], [])), "empty")
    refused(make_data([([], [])]), "empty")
    refused(make_data([(["", " "], ["", ""])]), "no text")
    refused(make_data(tokenizer={"vocabulary_size": 100_000}), "too large")
    data = make_data([(["a b c"] * 9, ["a b c"] * 9)], tokenizer={"kind": "word"}, filters=schema.Filters(max_length=1))
    assert "9 by max_length" in refused(data, "filters remove all")

    data = make_data()
    Path(data.train[0].target).write_bytes(b"a\n\xff\n")
    assert "train0.t, line 2" in refused(data, "invalid UTF-8")
    Path(data.dev.source).unlink()
    assert "dev.s" in refused(data, "no such file")
    with pytest.raises(UserError, match="unknown source feature"):
        prepare(make_data(), features=["mood"])
    twins = make_data([(lines(9), lines(9)), (lines(9), lines(9))])
    twins = twins.model_copy(update={"train": [twins.train[0], twins.train[0]]})
    refused(twins, "two training corpora are called 'train0'")


def test_a_failure_keeps_the_old_data(make_data: MakeData) -> None:
    data = make_data()
    prepare(data)
    before = files(data.directory)
    with pytest.raises(UserError):
        prepare(data.model_copy(update={"tokenizer": schema.TokenizerSection(vocabulary_size=100_000)}))
    assert files(data.directory) == before


def test_an_interruption_keeps_the_old_data(make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data()
    prepare(data)
    before = files(data.directory)

    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(data, features=FEATURES)
    assert files(data.directory) == before
    hidden = [path.name for path in Path(data.directory).parent.iterdir() if path.name.startswith(".")]
    assert hidden == [".prepared.partial"]
    assert prepare(data).up_to_date, "other settings: what was begun is not wanted"
    assert not (Path(data.directory).parent / ".prepared.partial").exists()


def test_foreign_files_are_never_deleted(make_data: MakeData) -> None:
    data = make_data()
    directory = Path(data.directory)
    directory.mkdir()
    prepare(data)  # an empty directory is fine
    (directory / "thesis.txt").write_bytes(b"precious")
    other = data.model_copy(update={"filters": schema.Filters(max_length=9)})
    with pytest.raises(UserError, match=r"did not write, such as thesis\.txt"):
        prepare(other)
    (directory / "manifest.json").unlink()
    with pytest.raises(UserError, match="did not write"):
        prepare(other)
    assert (directory / "thesis.txt").exists()
    shutil.rmtree(directory)
    directory.write_bytes(b"")
    with pytest.raises(UserError, match="not a directory"):
        prepare(data)


def test_features_that_need_text_get_the_line_of_their_pair(
    make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LineLength(features_module.WordId):
        needs_text = True

        def compute(self, sources: SourceSentences) -> np.ndarray:
            ends = np.flatnonzero(sources.ids == EOS) + 1
            return np.repeat([len(line) for line in sources.lines], np.diff(ends, prepend=0))

    monkeypatch.setitem(features_module.FEATURES, "line_length", LineLength)
    sources = ["a", "", "a b c", "a a a a a a", "a b"]
    filters = schema.Filters(max_length=4)
    data = make_data([(sources, ["x"] * 5)], (["", "a b"], ["x", "x"]), tokenizer={"kind": "word"}, filters=filters)
    prepare(data, features=["line_length"])
    prepared = PreparedData.open(data.directory)
    assert [int(prepared.train[0].feature("line_length", number)[0]) for number in range(3)] == [1, 5, 3]
    assert [int(prepared.dev.feature("line_length", number)[0]) for number in range(2)] == [0, 3]


def test_sampling_lines() -> None:
    text = [str(number) for number in range(1000)]
    lines = [LinePart(line) for line in text]
    assert list(sample_lines(lines, total=1000, wanted=1000)) == text
    assert list(sample_lines(lines, total=1000, wanted=5000)) == text
    some = list(sample_lines(lines, total=1000, wanted=100))
    assert len(some) == 100 == len(set(some))
    assert some == sorted(some, key=int)
    assert some == list(sample_lines(lines, total=1000, wanted=100))
    parts = [LinePart(text, ends) for line in text for text, ends in ((line, False), ("more", True))]
    assert list(sample_lines(parts, total=1000, wanted=100)) == [each for line in some for each in (line, "more")]
    assert 350 < np.mean([int(line) for line in some]) < 650


def test_the_vocabulary_is_learned_from_so_many_lines(make_data: MakeData) -> None:
    text = [f"word{number}" for number in range(100)]
    options = {"kind": "word", "vocabulary_size": 1000, "max_training_lines": 30}
    data = make_data([(text, text)], tokenizer={**options, "shared": False})
    prepare(data)
    prepared = PreparedData.open(data.directory)
    assert prepared.tokenizers.source.size == prepared.tokenizers.target.size == 4 + 30


def test_without_torch() -> None:
    code = "import sys, sparsenmt.data.prepare.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_text(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "multi30k"

    def corpus(stem: str) -> schema.Corpus:
        return schema.Corpus(source=str(folder / f"{stem}.en.gz"), target=str(folder / f"{stem}.de.gz"))

    data = schema.Data(directory=str(tmp_path / "data"), train=[corpus("train")], dev=corpus("val"))
    report = prepare(data, features=FEATURES)
    assert report.corpora[0].name == "train.en.gz"
    assert report.corpora[0].counts.kept == 29_000
    assert report.vocabulary_sizes == (8000, 8000)
    prepared = PreparedData.open(data.directory)
    assert len(prepared.dev) == len(prepared.dev_lines) == 1014
    for number in random.Random(1).sample(range(1014), 50):
        source, target = prepared.dev_lines[number]
        assert prepared.tokenizers.source.decode(prepared.dev.source(number).tolist()) == source
        assert prepared.tokenizers.target.decode(prepared.dev.target(number).tolist()) == target
        ranks, words = (prepared.dev.feature(name, number) for name in ("frequency_rank", "word_id"))
        assert words[-1] == len(source.split(" "))
        assert ranks[-1] == 0 and ranks[:-1].min() >= 1
