"""`sparsenmt score --model` with a real model."""

from __future__ import annotations

import json
import math
from pathlib import Path

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
