"""`decode` with target prefixes, a glossary, alternatives, and long lines: what comes out, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.support import Plugin, Run

SHORT = "Sophie swims ."
LINES = [SHORT, "", "Sophie swims . Sophie swims ."]


def write(workspace: Path, name: str, lines: list[str]) -> None:
    (workspace / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def files(workspace: Path) -> Path:
    write(workspace, "in", LINES)
    write(workspace, "prefixes", ["Sophie", "", "die"])
    write(workspace, "terms", ["swims\tschwimmt", "Sophie swims\tSophie schwimmt", "x\ty"])
    return workspace


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_prefixes(command: Run, files: Path, method: str) -> None:
    options = ["decode", "model", "--target-prefix", "prefixes", "--method", method]
    result = command(*options, "-i", "in")
    assert result.code == 0 and result.err == ""
    assert [line.split(" ")[0][: len(own)] for line, own in zip(result.lines, ["Sophie", "", "die"], strict=True)] == [
        "Sophie", "", "die",
    ]  # fmt: skip
    assert command(*options, "-i", "in", "-o", "out").code == 0
    assert (files / "out").read_bytes() == result.out
    assert command(*options, stdin=(files / "in").read_bytes()).out == result.out
    write(files, "prefixes", ["", "", ""])
    plain = command("decode", "model", "--method", method, "-i", "in")
    assert command(*options, "-i", "in").out == plain.out


def test_a_glossary(command: Run, files: Path) -> None:
    result = command(
        "decode", "model", "--glossary", "terms", "--max-length-offset", "30", "-i", "in", "--beam-size", "4"
    )
    assert result.code == 0
    assert all("Sophie schwimmt" in line for line in (result.lines[0], result.lines[2])) and result.lines[1] == ""
    assert result.err == "2 of 2 terms of the glossary stand in the translations\n"
    soft = command("decode", "model", "--glossary", "terms", "--glossary-bonus", "0.001", "-i", "in")
    plain = command("decode", "model", "-i", "in")
    assert soft.code == 0 and "of 2 terms of the glossary stand" in soft.err
    assert soft.lines == plain.lines


def test_alternatives(command: Run, files: Path) -> None:
    arguments = ["decode", "model", "--alternatives", "1", "--n-best", "3", "-i", "in"]
    result = command(*arguments)
    assert result.code == 0
    found = [json.loads(line) for line in result.lines]
    plain = command("decode", "model", "-i", "in").lines
    assert [each["text"] for each in found] == plain and [each["line"] for each in found] == [1, 2, 3]
    assert [len(each["alternatives"]) for each in found] == [3, 0, 3]
    for each in found:
        assert all(other["text"].startswith(other["word"]) for other in each["alternatives"])
    assert command(*arguments, "--window", "1").lines == result.lines
    assert "--alternatives" not in result.err
    far = command("decode", "model", "--alternatives", "99", "-i", "in")
    assert far.code == 0 and all(json.loads(line)["alternatives"] == [] for line in far.lines)
    assert "warning: 2 translations have no word at the position of --alternatives: lines 1, 3\n" in far.err


def test_an_output_with_other_constraints_starts_again(command: Run, files: Path) -> None:
    write(files, "in", [SHORT] * 5)
    write(files, "prefixes", ["die"] * 5)
    whole = ["decode", "model", "-i", "in", "-o", "out", "--window", "2", "--target-prefix", "prefixes"]
    assert command(*whole).code == 0
    first = (files / "out").read_bytes()
    write(files, "prefixes", ["Sophie"] * 5)
    assert command(*whole).code == 0
    assert (files / "out").read_bytes() != first


@pytest.mark.parametrize(
    ("arguments", "lines", "message"),
    [
        (["--target-prefix", "bad"], ["die", ""], "2 target prefixes, but in has 3 lines"),
        (["--target-prefix", "bad"], ["die", "", "", "die"], "4 target prefixes, but in has 3 lines"),
        (["--target-prefix", "bad"], ["", "", "☃"], "bad, line 3: the target vocabulary does not have '☃'"),
        (["--target-prefix", "bad"], ["die " * 1100, "", ""], "more than an output can have: 1,023"),
        (["--target-prefix", "missing"], [], "no such file"),
        (["--target-prefix", "bad", "--documents", "bad"], ["1"] * 3, "--target-prefix: is given beside --documents"),
        (["--glossary", "bad"], ["house Haus"], "the line does not have two columns"),
        (["--glossary", "bad"], ["a\tdie", "a\tdas"], "'a' has another target in line 1"),
        (["--glossary", "bad"], ["a\t☃"], "the target vocabulary does not have '☃'"),
        (["--glossary", "bad", "--method", "greedy"], ["a\tdie"], "terms are for beam search"),
        (["--glossary-bonus", "1"], [], "is given without --glossary"),
        (["--glossary", "bad", "--glossary-bonus", "nan"], ["a\tdie"], "must be a number above 0, not nan"),
        (["--glossary", "bad", "--glossary-bonus", "inf"], ["a\tdie"], "must be a number above 0, not inf"),
        (["--tags", "bad", "--long", "split"], [], "--long split: divides lines"),
        (["--alternatives", "2", "--long", "split"], [], "divides lines"),
        (["--long", "refuse"], [], "line 3: the line is longer than what the model was trained on"),
    ],
)
def test_what_does_not_fit_is_refused(
    refused: Callable[..., str], files: Path, arguments: list[str], lines: list[str], message: str
) -> None:
    write(files, "bad", lines)
    if "refuse" in arguments:
        write(files, "in", [SHORT, "", f"{SHORT} " * 40])
    found = refused("decode", "model", "-i", "in", *arguments)
    assert message in found


@pytest.mark.parametrize("options", [["--target-prefix", "prefixes"], ["--alternatives", "1"]])
def test_a_strategy_without_prefixes_is_refused_before_anything_is_read(
    refused: Callable[..., str], files: Path, plugin: Plugin, options: list[str]
) -> None:
    plugin(
        "from sparsenmt import register_strategy\n"
        "from sparsenmt.decoding.greedy import GreedySearch\n"
        '@register_strategy("own")\n'
        "class Own(GreedySearch):\n"
        "    keeps_prefixes = False\n"
    )
    write(files, "prefixes", ["", "", ""])
    message = refused("decode", "model", "-i", "in", "--method", "own", *options)
    assert message.startswith(f"error: {options[0]}: the decoding strategy 'own' does not begin outputs with")
