"""`sparsenmt score --model` with a real model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from sparsenmt.decoding import forced_decoding, translate
from tests.commands.support import Run


def test_forced_decoding_has_a_line_for_every_line(command: Run, workspace: Path) -> None:
    (workspace / "source").write_text("a\u2028b\n\nc\rd\n" + "e " * 2000 + "\n", encoding="utf-8", newline="\n")
    (workspace / "target").write_text("\nx\u2028\n\x00\n" + "y " * 2000 + "\n", encoding="utf-8", newline="\n")
    arguments = ["score", "--model", "model", "--source", "source", "--target", "target"]
    assert len(command(*arguments).lines) == 4
    for line in command(*arguments, "--json").lines:
        one = json.loads(line)
        total = math.fsum(token["log_probability"] for token in one["tokens"])
        assert math.isclose(one["log_probability"], total, rel_tol=1e-4) and one["tokens"][-1]["piece"] == "</s>"


def test_the_models_score_is_that_of_its_output(command: Run, workspace: Path) -> None:
    assert command("decode", "model", "-i", "corpus/test.en", "-o", "out").code == 0
    decoded = json.loads(command("score", "out", "-r", "corpus/test.de", "-m", "chrf", "--json").out)
    arguments = ["score", "--model", "model", "--source", "corpus/test.en", "-r", "corpus/test.de", "-m", "chrf"]
    assert json.loads(command(*arguments, "--json").out)["scores"] == decoded["scores"]


def test_cut_lines_are_named(command: Run, workspace: Path) -> None:
    (workspace / "long").write_text("a\n" + "a " * 3000 + "\n", encoding="utf-8", newline="\n")
    (workspace / "short").write_text("b\nb\n", encoding="utf-8", newline="\n")
    for files, warnings in (
        (["--source", "long", "-r", "short"], []),  # translated in parts
        (["--source", "long", "--target", "short"], ["long, line 2, is too long: 1023 of 3000 tokens are read"]),
        (["--source", "short", "--target", "long"], ["long, line 2, is too long: 1023 of 3000 tokens are scored"]),
        (["--source", "short", "--target", "short"], []),
    ):
        result = command("score", "--model", "model", *files, "--batch-tokens", "99999")
        assert result.code == 0
        shown = [line for line in result.err.split("\n") if line.startswith("warning: ")]
        assert shown == [f"warning: {warning}" for warning in warnings]


def test_out_of_memory(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(forced_decoding, "_score_batch", fail)
    monkeypatch.setattr(translate, "encoded_batch", fail)
    for mode, message in (("--target", "target tokens"), ("-r", "beam 2")):
        arguments = ["--source", "corpus/test.en", mode, "corpus/test.de"]
        result = command("score", "--model", "model", *arguments)
        assert (result.code, result.out) == (2, b"")
        assert "out of memory on a batch of" in result.err and message in result.err
        assert "--batch-tokens" in result.err
        alone = command("score", "--model", "model", *arguments, "--batch-tokens", "1")
        assert "a batch of 1 sentence, " in alone.err and "plit the" in alone.err


def test_mistakes(command: Run, workspace: Path) -> None:
    (workspace / "short").write_text("a\n", encoding="utf-8")
    common = ["--source", "corpus/test.en"]
    for arguments, message in (
        (["--model", "nowhere", *common, "-r", "corpus/test.de"], "nowhere: there is no such model directory"),
        (["--model", "corpus", *common, "--target", "corpus/test.de"], "corpus: this is not a model directory"),
        (["--model", "model", *common, "--target", "short"], "short has 1"),
        (["--model", "model", *common, "-r", "nowhere"], "nowhere: no such file"),
    ):
        result = command("score", *arguments)
        assert (result.code, result.out) == (2, b"")
        assert message in result.err
