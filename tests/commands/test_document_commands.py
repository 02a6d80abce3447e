"""`prepare`, `train`, `decode` and `score` with documents, as a user runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from sparsenmt.cli import run
from sparsenmt.data.text import read_lines, write_lines
from sparsenmt.decoding import translate
from sparsenmt.process.interrupts import Interrupted
from tests.commands.support import Result, Run

LINES = 20  # of corpus/test.en
IDS = [str(number // 5) for number in range(LINES)]
BLOCKS = """\
base: small.yaml
name: blocks
directory: blocks
data:
  directory: prepared-blocks
  documents: {max_length: 60}
  train: [{name: demo, source: corpus/train.en, target: corpus/train.de, documents: corpus/train.id}]
  dev: {documents: corpus/dev.id}
training: {validation: {metric: dbleu, max_sentences: 8}}
decoding: {max_length_factor: 1.0}
"""
DECODE = ("decode", "blocks", "-i", "corpus/test.en", "--documents", "corpus/test.id")
SCORE = ("score", "--model", "blocks", "--source", "corpus/test.en", "--documents", "corpus/test.id")
FORCED = ("score", "--target", "corpus/test.de", *SCORE[1:])


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `trained` with ids of documents, and a model of blocks beside the model of sentences."""
    folder = tmp_path_factory.mktemp("documents") / "made"
    shutil.copytree(trained, folder)
    for name, lines in (("train", 200), ("dev", 20), ("test", LINES)):
        write_lines(folder / "corpus" / f"{name}.id", [str(number // 5) for number in range(lines)])
    (folder / "blocks.yaml").write_text(BLOCKS, encoding="utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["prepare", "blocks.yaml"]) == 0
        assert run(["train", "blocks.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workspace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def decoded(result: Result) -> list[str]:
    assert result.code == 0, result.err
    return result.lines


def test_training_measures_documents(workspace: Path) -> None:
    records = [json.loads(line) for line in read_lines("blocks/metrics.jsonl")]
    measured = [record["dbleu"] for record in records if "dbleu" in record]
    assert len(measured) == 2 and all(0 <= value <= 100 for value in measured)


def test_one_line_comes_out_for_each_that_goes_in(command: Run) -> None:
    result = command(*DECODE)
    lines = decoded(result)
    assert len(lines) == LINES and not any("<sep>" in line for line in lines)
    counts = "blocks came back with another number of sentences: "
    assert result.err.count(counts) <= 1, "told once"
    text = "\n".join(read_lines("corpus/test.en")) + "\n"
    assert decoded(command(*DECODE[:2], *DECODE[4:], stdin=text.encode())) == lines
    assert decoded(command(*DECODE, "--window", "1", "--batch-tokens", "50")) == lines
    assert decoded(command(*DECODE, "-o", "out")) == []
    assert list(read_lines("out")) == lines


def test_blank_lines_stay_blank(command: Run) -> None:
    texts = list(read_lines("corpus/test.en"))
    texts[3] = texts[10] = ""
    write_lines("gaps", texts)
    lines = decoded(command("decode", "blocks", "-i", "gaps", "--documents", "corpus/test.id"))
    assert len(lines) == LINES and lines[3] == lines[10] == ""


def test_json_is_an_object_for_each_block(command: Run) -> None:
    lines, blocks = decoded(command(*DECODE)), [json.loads(line) for line in decoded(command(*DECODE, "--json"))]
    assert len(blocks) < LINES
    assert blocks[0]["line"] == 1
    assert sum(block["lines"] for block in blocks) == LINES
    assert [text for block in blocks for text in block["source"]] == list(read_lines("corpus/test.en"))
    assert [text for block in blocks for text in block["hypotheses"][0]["texts"]] == lines
    assert [block["document"] for block in blocks] == [IDS[block["line"] - 1] for block in blocks]
    assert all(block["hypotheses"][0]["log_probability"] < 0 for block in blocks)


def test_n_best_numbers_lines(command: Run) -> None:
    lines, best = decoded(command(*DECODE)), decoded(command(*DECODE, "--n-best", "2"))
    rows = [line.split(" ||| ") for line in best]
    assert [int(number) for number, _, _ in rows] == [number for number in range(LINES) for _ in range(2)]
    assert [text for _, text, _ in rows[::2]] == lines


@pytest.mark.parametrize("options", [["--method", "greedy"], ["--method", "sample", "--seed", "3"], ["--json"]])
def test_an_interrupted_run_goes_on(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    arguments = (*DECODE, *options, "--window", "2")
    assert command(*arguments, "-o", "whole").code == 0
    search = translate.encoded_batch

    def stopped(bundle: Any, memory: Any, numbers: Any, batch: list[translate.SourceLine], *rest: Any) -> Any:
        if any(line.number >= 10 for line in batch):
            raise Interrupted(signal.SIGINT)
        return search(bundle, memory, numbers, batch, *rest)

    monkeypatch.setattr(translate, "encoded_batch", stopped)
    result = command(*arguments, "-o", "out")
    assert result.code != 0 and "out is kept up to line" in result.err
    assert not Path("out").exists()
    monkeypatch.setattr(translate, "encoded_batch", search)
    again = command(*arguments, "-o", "out")
    assert again.code == 0 and "resumes after line" in again.err
    assert Path("out").read_bytes() == Path("whole").read_bytes()


def test_other_ids_start_an_interrupted_run_again(
    command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = translate.encoded_batch

    def stopped(bundle: Any, memory: Any, numbers: Any, batch: list[translate.SourceLine], *rest: Any) -> Any:
        if any(line.number >= 10 for line in batch):
            raise Interrupted(signal.SIGINT)
        return search(bundle, memory, numbers, batch, *rest)

    monkeypatch.setattr(translate, "encoded_batch", stopped)
    assert "is kept up to" in command(*DECODE, "--window", "1", "-o", "out").err
    monkeypatch.setattr(translate, "encoded_batch", search)
    write_lines("corpus/test.id", ["all"] * LINES)
    assert "starts again: the documents has changed" in command(*DECODE, "--window", "1", "-o", "out").err


def test_scores_of_a_model_are_those_of_its_output(command: Run) -> None:
    write_lines("hyp", decoded(command(*DECODE)))
    of_model = json.loads(command(*SCORE, "-r", "corpus/test.de", "--json").out)["scores"]
    assert [score["name"] for score in of_model] == ["bleu", "chrf", "ter", "dbleu"]
    of_text = json.loads(command("score", "hyp", "-r", "corpus/test.de", "--documents", "corpus/test.id", "--json").out)
    assert of_text["scores"] == of_model

    def documents(path: str) -> list[str]:
        lines = list(read_lines(path))
        return [" ".join(lines[first : first + 5]) for first in range(0, LINES, 5)]

    expected = sacrebleu.corpus_bleu(documents("hyp"), [documents("corpus/test.de")]).score
    assert of_model[3]["value"] == pytest.approx(expected)
    assert of_model[3]["signature"].startswith("docs:4|nrefs:1|")
    compared = command(*SCORE, "-r", "corpus/test.de", "-m", "dbleu", "--baseline", "hyp", "--resamples", "20")
    assert compared.code == 0 and "+0.00" in compared.out.decode()


def test_batches_of_sentences_are_refused_for_blocks(command: Run) -> None:
    texts = ("--source", "corpus/test.en", "--reference", "corpus/test.de", "--documents", "corpus/test.id")
    result = command("compare", "blocks", *texts, "--batch-sentences", "4")
    assert result.code == 2
    assert "error: --batch-sentences: blocks reads blocks of sentences, not single ones" in result.err


def test_a_model_of_sentences_is_scored_by_documents(command: Run) -> None:
    write_lines("hyp", decoded(command("decode", "model", "-i", "corpus/test.en")))
    documents = ("--documents", "corpus/test.id", "-m", "dbleu", "-r", "corpus/test.de", "--json")
    of_model = command("score", "--model", "model", "--source", "corpus/test.en", *documents)
    assert of_model.code == 0 and of_model.err == ""
    of_text = command("score", "hyp", *documents)
    assert json.loads(of_model.out)["scores"] == json.loads(of_text.out)["scores"]


def test_forced_scores_are_one_for_each_block(command: Run) -> None:
    result = command(*FORCED, "--json")
    blocks = [json.loads(line) for line in decoded(result)]
    assert sum(block["lines"] for block in blocks) == LINES and len(blocks) < LINES
    for block in blocks:
        pieces = [token["piece"] for token in block["tokens"]]
        assert pieces.count("▁<sep>") == block["lines"] - 1 and pieces[-1] == "</s>"
        assert block["log_probability"] == pytest.approx(sum(token["log_probability"] for token in block["tokens"]))
    assert f"{LINES} sentences in {len(blocks)} blocks, " in result.err
    assert len(decoded(command(*FORCED))) == len(blocks)


def test_a_model_of_blocks_warns_of_single_sentences(command: Run) -> None:
    warning = "warning: the model was trained on blocks of sentences; here every line is read by itself"
    for arguments in (DECODE[:4], (*SCORE[:5], "-r", "corpus/test.de"), (*SCORE[:5], "--target", "corpus/test.de")):
        result = command(*arguments)
        assert result.code == 0 and result.err.count(warning) == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[1:], "bad, line 20: 19 document ids, but corpus/test.en has 20 lines"),
        ([*IDS, "9"], "bad, line 21: 21 document ids, but corpus/test.en has 20 lines"),
        (["0", "1"] * 10, "bad, line 3: document '0', which begins in line 1, continues after another document"),
        ([*IDS[:4], "", *IDS[5:]], "bad, line 5: the document id is missing"),
    ],
)
def test_ids_that_do_not_fit(refused: Callable[..., str], workspace: Path, ids: list[str], message: str) -> None:
    write_lines("bad", ids)
    for arguments in (DECODE, (*SCORE, "-r", "corpus/test.de"), FORCED):
        assert message in refused(*(part.replace("corpus/test.id", "bad") for part in arguments))
    bad = ("--documents", "bad", "-r", "corpus/test.de")
    assert message in refused("score", "corpus/test.en", *bad)


def test_ids_that_end_before_the_stream_does(command: Run, workspace: Path) -> None:
    write_lines("bad", IDS[:3])
    text = "\n".join(read_lines("corpus/test.en")) + "\n"
    result = command("decode", "blocks", "--documents", "bad", stdin=text.encode())
    assert result.code == 2 and "bad, line 4: 3 document ids, but stdin has 20 lines" in result.err


def test_what_has_no_meaning_is_refused(refused: Callable[..., str], workspace: Path) -> None:
    plain = ("--source", "corpus/test.en", "--documents", "corpus/test.id")
    assert "there is nothing to pack" in refused("decode", "model", *DECODE[2:])
    assert "there is nothing to pack" in refused("score", "--model", "model", *plain, "--target", "corpus/test.de")
    text = ("score", "corpus/test.en", "-r", "corpus/test.de")
    assert "d-BLEU needs to know where documents end" in refused(*text, "-m", "dbleu")
    assert "none of these metrics uses documents" in refused(*text, *plain[2:], "-m", "bleu")
    assert "no such file" in refused(*text, "--documents", "nowhere")
    os.mkfifo("pipe")
    assert "which cannot be read twice" in refused(*text, "--documents", "pipe")
