"""Messages about paths that do not exist, and hints that can help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.cli import run
from sparsenmt.errors import UserError

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["decode", "runs/none"], "runs/none"),
        (["decode", "model", "-i", "none.txt"], "none.txt"),
        (["train", "none.yaml"], "none.yaml"),
        (["train", "small.yaml", "data.directory=none"], "none"),
        (["finetune-l0", "runs/none", "--target", "0.4"], "runs/none"),
        (["compare", "model", "none"], "none"),
        (["average", "none"], "none"),
        (["score", "none.txt", "--reference", "corpus/dev.de"], "none.txt"),
        (["contrast", "model", "suite.json"], "suite.json"),
        (["analyze", "layers", "model", "--json", "none/x.json"], "none"),
        (["analyze", "layers", "none"], "none"),
        (["export", "none", "out", "--to", "safetensors-hf"], "none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_relative_path_is_shown_in_full(refused: Refused, workspace: Path, words: list[str], missing: str) -> None:
    message = refused(*words)
    assert f"\n  Looked for: {workspace / missing} (relative to the working directory).\n  " in message


def test_an_absolute_path_is_shown_once(refused: Refused, workspace: Path) -> None:
    assert "Looked for" not in refused("decode", str(workspace / "none"))


def test_no_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    assert str(UserError("no such file", where="x", missing="x")) == "x: no such file"


def test_a_corpus_path_names_its_key(refused: Refused, workspace: Path) -> None:
    message = refused("prepare", "small.yaml", "data.directory=new", "data.train.0.target=corpus/none.de")
    assert f"error: {workspace}/corpus/none.de: no such file" in message
    assert "correct `data.train.0.target`" in message
    message = refused("prepare", "small.yaml", "data.directory=new", "data.dev.source=corpus/none.en")
    assert "correct `data.dev.source`: paths in a recipe are relative to its folder" in message


@pytest.mark.parametrize("method", ["sample", "greedy"])
def test_more_hypotheses_than_a_search_without_a_beam_has(refused: Refused, method: str) -> None:
    """A larger beam would change nothing."""
    message = refused("decode", "model", "--method", method, "--n-best", "4", stdin=b"a\n")
    assert "Use --method beam, with as large a --beam-size." in message
    assert refused("decode", "model", "--n-best", "40", stdin=b"a\n").endswith("\n  Raise --beam-size.\n")


@pytest.mark.parametrize(
    ("override", "meant"),
    [("training.compute_dtype=float32", "fp32"), ("decoding.dtype=bfloat16", "bf16"), ("model.norm=prenorm", "pre")],
)
def test_words_of_other_toolkits(refused: Refused, override: str, meant: str) -> None:
    assert f"Did you mean `{meant}`?" in refused("train", "small.yaml", override)
    message = refused("train", "small.yaml", "training.device=gpu")
    assert "must be one of auto, cpu, cuda, cuda:N; not 'gpu'" in message and "Did you mean" not in message


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--targets", " Did you mean '--target'?"),
        ("--sparsity", " Did you mean '--target'?"),
        ("--lambda", " Did you mean '--weight'?"),
        ("--upadtes", " Did you mean '--updates'?"),
        ("--frobnicate", ""),
    ],
)
def test_options_that_do_not_exist(option: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["finetune-l0", "model", option, "0.4"]) == 2
    assert capsys.readouterr().err.endswith(f"Error: No such option '{option}'.{hint}\n")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["decode", "model", "-i", "-"], "--input"),
        (["decode", "model", "-o", "-"], "--output"),
        (["score", "-", "-r", "corpus/dev.de"], "HYP"),
        (["score", "--model", "model", "--source", "-", "-r", "corpus/dev.de"], "--source"),
    ],
    ids=" ".join,
)
def test_a_dash_is_no_stream(refused: Refused, words: list[str], place: str) -> None:
    message = refused(*words)
    assert message.startswith(f"error: {place}: '-' stands for no file, nor for standard input or output\n")
    assert "  Write /dev/stdin for standard input, /dev/stdout for standard output, or ./- for" in message


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["finetune-l0", "model", "--target", "0.3,0.5,0.30"], "--target: 0.3"),
        (["finetune-l0", "model", "--weight", "0.1", "--weight", "0.1"], "--weight: 0.1"),
        (["average", "model", "--last", "2,2"], "--last: 2"),
        (["select-depth", "model", "-s", "corpus/dev.en", "-r", "corpus/dev.de", "--lambda", "1,1"], "--lambda: 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_number_is_in_a_list_once(refused: Refused, words: list[str], place: str) -> None:
    assert refused(*words) == f"error: {place} is in the list twice\n  Write every number once.\n"
