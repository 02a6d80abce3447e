"""`prepare` of the text of a language model: complete, reproducible, resumed, never taken for a translation."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sparsenmt.commands.prepare import command
from sparsenmt.data.prepare.pipeline import check_prepared_data, prepare
from sparsenmt.data.prepared_data import PreparedData, PreparedText, read_manifest
from sparsenmt.data.text import write_lines
from sparsenmt.data.vocabulary import BOS, EOS, PAD, UNK
from sparsenmt.errors import UserError
from sparsenmt.kept_work import Stages
from sparsenmt.metric import TextCounts
from sparsenmt.recipe import schema

Lines = Callable[..., list[str]]
MakeText = Callable[..., schema.Data]
ODD = ["", "Käse für 日本", "  two\twords ", "form\x0cfeed \u2028 and \r"]


@pytest.fixture
def make_text(tmp_path: Path, lines: Lines) -> MakeText:
    """Writes texts and returns the data section of a recipe that names them; the second training text is gzipped."""

    def make(kind: str = "byte", **options: object) -> schema.Data:
        write_lines(tmp_path / "one.txt", [*lines(120), *ODD])
        (tmp_path / "two.txt.gz").write_bytes(gzip.compress("\n".join(lines(60, seed=1)).encode()))
        write_lines(tmp_path / "dev.txt", lines(30, seed=2))
        return schema.Data(
            task="language_model",
            directory=str(tmp_path / "prepared"),
            train=[
                schema.Corpus(text=str(tmp_path / "one.txt"), weight=2),
                schema.Corpus(text=str(tmp_path / "two.txt.gz"), name="two"),
            ],
            dev=schema.Corpus(text=str(tmp_path / "dev.txt")),
            tokenizer=schema.TokenizerSection(kind=kind, **options),  # type: ignore[arg-type]
        )

    return make


def files(directory: str | Path) -> dict[str, bytes]:
    root = Path(directory)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("kind", "size"), [("byte", 260), ("char", 100), ("bpe", 90), ("unigram", 90), ("word", 2000)])
def test_text_goes_in_and_comes_out(make_text: MakeText, lines: Lines, kind: str, size: int) -> None:
    data = make_text(kind, vocabulary_size=size)
    report = prepare(data)
    prepared = PreparedText.open(data.directory)
    assert [dataset.name for dataset in prepared.train] == ["one.txt", "two"] and prepared.dev.name == "dev"
    assert prepared.train_weights == [2, 1] and prepared.fingerprint == report.fingerprint
    assert prepared.tokenizer is prepared.tokenizers.source and prepared.features.names == ()
    texts = [[*lines(120), *ODD], lines(60, seed=1), lines(30, seed=2)]
    for dataset, text, told in zip([*prepared.train, prepared.dev], texts, [*report.corpora, report.dev], strict=True):
        words = sum(len(line.split()) + 1 for line in text)
        whole = "\n".join([*text, ""])
        assert dataset.counts == TextCounts(len(dataset), len(whole), words, len(whole.encode()))
        expected = [[*prepared.tokenizer.encode(line), EOS] for line in text]
        assert dataset.ids.tolist() == [id_ for line in expected for id_ in line]
        assert (told.lines, told.characters) == (len(text), dataset.counts.characters)
        assert (told.tokens, told.unknown) == (len(dataset), (dataset.ids == UNK).sum())
        assert not {BOS, PAD} & set(dataset.ids.tolist())
    decoded = [prepared.tokenizer.decode(prepared.tokenizer.encode(line)) for line in ODD]
    if kind in ("byte", "char"):
        assert decoded == ODD


def test_the_same_text_gives_the_same_bytes_once(make_text: MakeText) -> None:
    data = make_text()
    first = prepare(data)
    before = files(data.directory)
    assert not first.up_to_date and "one.txt: 124 lines" in first.describe()
    assert "vocabulary: 260 tokens\n" in first.describe() and "characters:" not in first.describe()
    shutil.rmtree(data.directory)
    prepare(data)
    assert files(data.directory) == before
    os.utime(data.dev.text)
    again = prepare(data)
    assert again.up_to_date and again.corpora == first.corpora and again.dev == first.dev
    assert check_prepared_data(data, ()) == first.fingerprint
    write_lines(Path(data.dev.text), ["another text"])
    with pytest.raises(UserError, match=r"dev\.txt is not the text that was prepared"):
        check_prepared_data(data, ())
    changed = prepare(data)
    assert not changed.up_to_date and changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("stage", ["vocabularies", "train-0", "train-1", "dev"])
def test_goes_on_after_the_finished_stages(make_text: MakeText, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    data = make_text()
    prepare(data)
    expected = files(data.directory)
    shutil.rmtree(data.directory)
    done: list[str] = []
    run = Stages.run

    def interrupted(self: Stages, name: str, work: Callable[[], Any]) -> Any:
        def noted() -> Any:
            done.append(name)
            if name == stage and done.count(stage) == 1:
                raise KeyboardInterrupt
            return work()

        return run(self, name, noted)

    monkeypatch.setattr(Stages, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    assert not Path(data.directory).exists()
    prepare(data)
    assert files(data.directory) == expected
    assert sorted(done) == sorted(["vocabularies", "train-0", "train-1", "dev", stage])


def test_a_text_is_not_taken_for_a_translation(
    make_text: MakeText, make_data: Callable[..., schema.Data], tmp_path: Path
) -> None:
    data, pairs = make_text(), make_data()
    prepare(data)
    with pytest.raises(UserError, match=r"prepared for `data\.task: language_model`"):
        PreparedData.open(data.directory)
    with pytest.raises(UserError, match="prepared with other settings"):
        check_prepared_data(pairs, ())
    assert not prepare(pairs).up_to_date  # in its place
    PreparedData.open(pairs.directory)
    assert "task" not in read_manifest(Path(pairs.directory))["settings"]
    with pytest.raises(UserError, match=r"prepared for `data\.task: translation`"):
        PreparedText.open(pairs.directory)
    assert not prepare(data).up_to_date
    PreparedText.open(data.directory)


def test_damage_is_noticed(make_text: MakeText) -> None:
    data = make_text()
    prepare(data)
    path = Path(data.directory) / "train-1" / "text.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match="contents changed"):
        PreparedText.open(data.directory)
    path.unlink()
    with pytest.raises(UserError, match="the file is missing"):
        PreparedText.open(data.directory)
    assert not prepare(data).up_to_date
    PreparedText.open(data.directory)


def test_texts_that_are_refused(make_text: MakeText, tmp_path: Path) -> None:
    data = make_text()
    with pytest.raises(UserError, match="read word_id of a source, and a language model has none"):
        prepare(data, features=("word_id",))
    same = data.model_copy(update={"train": [data.train[0], data.train[0].model_copy(update={"name": "again"})]})
    with pytest.raises(UserError, match=r"'one\.txt' and 'again' contain the same text"):
        prepare(same)
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(UserError, match=r"two\.txt\.gz: the corpus is empty"):
        prepare(data)
    make_text()
    write_lines(tmp_path / "dev.txt", ["", " "])
    with pytest.raises(UserError, match="every line of the validation text is blank") as caught:
        prepare(data)
    assert caught.value.hint == "Name validation text with words in data.dev."
    (tmp_path / "dev.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match=r"dev\.txt, line 2: invalid UTF-8"):
        prepare(data)
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(UserError, match="no such file") as caught:
        prepare(data)
    assert caught.value.hint is not None and "`data.dev.text`" in caught.value.hint
    assert not Path(data.directory).exists()


RECIPE = """\
name: small
directory: {root}/model
data:
  task: language_model
  directory: {root}/prepared
  train: [{{text: one.txt, name: first}}]
  dev: {{text: dev.txt}}
  tokenizer: {{kind: char, vocabulary_size: 20}}
"""


def test_the_command_reports_and_warns(make_text: MakeText, tmp_path: Path) -> None:
    make_text()
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE.format(root=tmp_path), encoding="utf-8")

    def run(*overrides: str) -> str:
        result = CliRunner().invoke(command, [str(recipe), *overrides], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    output = run()
    assert "first: 124 lines, " in output and "of them unknown" in output and "written" in output
    assert "warning: first: " in output and "of the text tokens are unknown: characters beyond data.token" in output
    assert "up to date" in run()
    assert "unknown" not in run("data.tokenizer.kind=byte", "data.tokenizer.vocabulary_size=260")
    write_lines(tmp_path / "dev.txt", ["日本語の文章", "言葉の間に空白がない文章"])
    output = run("data.tokenizer.kind=word", "data.tokenizer.vocabulary_size=5000")
    assert "dev: 100.0% of the text tokens are unknown: another language or script than the training text\n" in output
    assert "the text has none between words" in output
