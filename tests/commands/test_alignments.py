"""`decode --alignments` and `score --alignments`: formats, one making with the Python API, resumption, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import sparsenmt
from sparsenmt.data.input_line import input_lines
from sparsenmt.decoding.translate import translate_lines
from tests.commands.support import Run

SOURCE, TARGET = "corpus/test.en", "corpus/test.de"


def test_links_follow_the_output_and_are_those_of_the_api(command: Run, workspace: Path) -> None:
    plain = command("decode", "model", "-i", SOURCE).lines
    found = command("decode", "model", "-i", SOURCE, "--alignments", "hard").lines
    assert [line.partition(" ||| ")[0] for line in found] == plain
    assert command("decode", "model", "--alignments", "hard", stdin=b"\n").lines == [" ||| "]
    lines, model = Path(SOURCE).read_text().splitlines(), sparsenmt.load("model", device="cpu")
    expected, encode, compared = model.alignments(lines, plain), model.bundle.tokenizers.target.encode, 0
    translations = translate_lines(model.bundle, input_lines(lines), model.recipe.decoding)
    for line, own, each in zip(found, expected, translations, strict=True):
        if encode(each.text) == each.hypotheses[0].tokens:  # a search may divide a text in another way
            assert line.partition(" ||| ")[2] == str(own)
            compared += 1
    assert compared
    best = command("decode", "model", "-i", SOURCE, "--alignments", "hard", "--n-best", "2").lines
    assert [line.split(" ||| ")[1::2] for line in best[::2]] == [line.split(" ||| ") for line in found]


def test_weights_are_probabilities_of_the_words(command: Run, workspace: Path) -> None:
    hard = command("decode", "model", "-i", SOURCE, "--alignments", "hard", "--json").lines
    soft = command("decode", "model", "-i", SOURCE, "--alignments", "soft", "--alignment-head", "1.2").lines
    for first, second in zip(map(json.loads, hard), map(json.loads, soft), strict=True):
        (links,), (weights,) = first["hypotheses"], second["hypotheses"]
        assert first["source_words"] == second["source_words"] == first["source"].split()
        assert links["target_words"] == weights["target_words"] == links["text"].split()
        assert all(i < len(first["source_words"]) and j < len(links["target_words"]) for i, j in links["alignment"])
        rows = zip(weights["alignment"], weights["dropped"], weights["outside"], strict=True)
        for row, dropped, outside in rows:
            assert len(row) == len(first["source_words"]) and dropped == 0
            assert sum(row) + outside == pytest.approx(1, abs=1e-4)


def test_a_window_of_other_lines_gives_the_same_links(command: Run, workspace: Path) -> None:
    for window in ("1", "7"):
        same = command("decode", "model", "-i", SOURCE, "-o", window, "--alignments", "hard", "--window", window)
        assert same.code == 0
    assert Path("1").read_bytes() == Path("7").read_bytes()


def test_the_error_rate_of_a_file_and_of_a_model(command: Run, workspace: Path) -> None:
    sources, targets = (Path(name).read_text().splitlines() for name in (SOURCE, TARGET))
    own = sparsenmt.load("model", device="cpu").alignments(sources, targets)
    Path("gold").write_text("".join(f"{each}\n" for each in own))
    shown = command("score", "gold", "--alignments", "gold")
    assert shown.code == 0 and "AER" in shown.lines[3] and "0.000" in shown.lines[3]
    use = ("--model", "model", "--source", SOURCE, "--target", TARGET, "--alignments", "gold", "--json")
    assert json.loads(command("score", *use).out)["aer"] == 0
    assert json.loads(command("score", *use, "--alignment-head", "1.1").out)["aer"] > 0


def test_what_does_not_fit_is_refused(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    wanted = ("decode", "model", "-i", SOURCE, "--alignments", "hard")
    assert "--alignment-head: decoder layer 2 does not exist or does not run: the last one is 1" in refused(
        *wanted, "--alignment-head", "2"
    )
    assert "--alignment-head: head 3 does not exist" in refused(*wanted, "--alignment-head", "1.3")
    assert "names no head" in refused(*wanted, "--alignment-head", "last")
    assert "--alignment-head: changes nothing" in refused("decode", "model", "-i", SOURCE, "--alignment-head", "1")
    assert "--alignments: is given beside --documents" in refused(*wanted, "--documents", SOURCE)
    Path("short").write_text("0-0\n")
    model = ("score", "--model", "model", "--source", SOURCE)
    assert "lines" in refused(*model, "--target", TARGET, "--alignments", "short")
    assert "--alignments: needs a file of alignments; or --target" in refused(*model, "--alignments", "short")
    assert "--reference: has no meaning" in refused("score", "short", "--alignments", "short", "-r", TARGET)
    assert "--alignment-head: needs" in refused("score", "short", "--alignments", "short", "--alignment-head", "1")
    Path("far").write_text("0-0\n" * 19 + "0-99\n")
    assert "far, line 20: '0-99'" in refused(*model, "--target", TARGET, "--alignments", "far")
    Path("empty").write_text("")
    assert "empty: the file has no lines" in refused("score", "empty", "--alignments", "empty")
