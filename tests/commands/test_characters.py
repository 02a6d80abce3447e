"""Characters as pieces, from text to output."""

from __future__ import annotations

import json

from sparsenmt.data.text import write_lines
from tests.commands.support import Run


def test_characters_from_text_to_output(command: Run) -> None:
    changes = ["data.tokenizer.kind=char", "data.directory=characters", "directory=char"]
    assert command("prepare", "small.yaml", *changes).code == 0
    options = ["training.max_updates=2", "training.save_every=2", "training.validation.every=2"]
    trained = command("train", "small.yaml", *changes, *options)
    assert trained.code == 0, trained.err

    lines = ["a man  sees", " the", "e", ""]
    write_lines("in", lines)
    write_lines("out", lines)
    scored = command("score", "--model", "char", "--source", "in", "--target", "out", "--json")
    for line, found in zip(lines, scored.lines, strict=True):
        pieces = [token["piece"] for token in json.loads(found)["tokens"]]
        assert pieces == [*line.replace(" ", "\u2581"), "</s>"], "every space is kept"

    decoded = command("decode", "char", "-i", "in", "--json")
    for line, found in zip(lines, decoded.lines, strict=True):
        (best,) = json.loads(found)["hypotheses"][:1]
        assert len(best["text"]) == best["pieces"]
        assert best["pieces"] <= 5 + len(line) // 2
