"""`sparsenmt shortlist`, and models that decode with the file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsenmt.assemble.bundle import open_model
from sparsenmt.data.input_line import numbered_lines
from sparsenmt.data.shortlist import Shortlist
from sparsenmt.data.translation_table import translation_table
from sparsenmt.decoding.translate import translate_lines
from tests.commands.support import Run

CORPUS = ("corpus/train.en", "corpus/train.de")


def test_ibm_model_1_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    pairs = [(rng.integers(4, 9, 1 + n % 4).tolist(), rng.integers(4, 11, n % 3).tolist()) for n in range(30)]
    expected: dict[tuple[int, int], float] = {}
    table = {(x, y): 1.0 for source, target in pairs for x in (0, *source) for y in target}
    for _ in range(3):
        counts = dict.fromkeys(table, 0.0)
        for source, target in pairs:
            for y in target:
                whole = sum(table[x, y] for x in (0, *source))
                for x in (0, *source):
                    counts[x, y] += table[x, y] / whole
        totals = {x: sum(c for (other, _), c in counts.items() if other == x) for x, _ in counts}
        table = expected = {(x, y): c / totals[x] for (x, y), c in counts.items()}
    found = translation_table(pairs, 11, rounds=3)
    ours = dict(zip(zip(found.source.tolist(), found.target.tolist(), strict=True), found.probabilities, strict=True))
    assert ours == {key: pytest.approx(p, rel=1e-12) for key, p in expected.items() if key[0] != 0}
    best = found.best(2, 11)[5]
    assert best == sorted((y for x, y in expected if x == 5), key=lambda y: (-ours[5, y], y))[:2]


def test_a_shortlist_is_made_and_used(command: Run, workspace: Path) -> None:
    Path("few.en").write_text("".join(Path("corpus/test.en").read_text().splitlines(keepends=True)[:6]))
    options = ("--first", "5", "--best", "3", "--test", "few.en", "--rounds", "1")
    result = command("shortlist", "model", *CORPUS, "-o", "a.shortlist", *options)
    assert result.code == 0, result.err
    for part in ("source tokens", "of 150 target tokens on average", "of 6 translations change", "decoding takes"):
        assert part in result.err
    assert command("shortlist", "model", *CORPUS, "-o", "b.shortlist", *options[:4]).code == 0
    assert Path("a.shortlist").read_bytes() == Path("b.shortlist").read_bytes()
    bundle = open_model(Path("model"))
    used = command("decode", "model", "--shortlist", "a.shortlist", "-i", "few.en", "-o", "with.txt")
    assert used.code == 0, used.err
    plain = command("decode", "model", "-i", "few.en")
    assert command("decode", "model", "-i", "few.en", "--shortlist", "none").out == plain.out
    chosen = bundle.recipe.decoding.model_copy(update={"shortlist": "a.shortlist"})
    shortlist = bundle.shortlist(chosen)
    assert shortlist is not None and shortlist is bundle.shortlist(chosen)
    found = list(translate_lines(bundle, numbered_lines(Path("few.en").read_text().splitlines()), chosen))
    assert [each.text for each in found] == Path("with.txt").read_text().splitlines()
    for each, row in zip(found, shortlist.allowed([each.source.ids for each in found]), strict=True):
        assert bool(row[each.hypotheses[0].tokens].all())


def test_alignments_are_counted(command: Run, workspace: Path) -> None:
    tokenizers = open_model(Path("model")).tokenizers
    Path("one.en").write_text("a house\n")
    Path("one.de").write_text("ein Haus\n")
    source, target = tokenizers.source.encode("a house"), tokenizers.target.encode("ein Haus")
    Path("one.align").write_text(f"0-{len(target) - 1}\n")
    files = ("one.en", "one.de", "-o", "one.shortlist", "--first", "1", "--alignments", "one.align")
    assert command("shortlist", "model", *files).code == 0
    shortlist = Shortlist.read(Path("one.shortlist"), tokenizers.source, tokenizers.target)
    own, none = shortlist.allowed([source[:1], source[-1:]])
    assert (own ^ none).nonzero().flatten().tolist() in ([target[-1]], [])  # the first token comes from the last


def test_what_does_not_fit_is_refused(command: Run, refused: Callable[..., str], workspace: Path) -> None:
    assert "not pairs" in refused("shortlist", "model", "corpus/train.en", "-o", "x")
    assert "lines" in refused("shortlist", "model", "corpus/train.en", "corpus/test.de", "-o", "x")
    Path("wrong.align").write_text("0-0 999-0\n" + "\n" * 199)
    message = refused("shortlist", "model", *CORPUS, "-o", "x", "--alignments", "wrong.align")
    assert "'999-0'" in message and "line 1" in message
    assert "no shortlist of its own" in refused("decode", "model", "--shortlist", "-i", "corpus/test.en")
    assert "no such shortlist" in refused("decode", "model", "--shortlist", "missing", "-i", "corpus/test.en")
    shutil.copyfile("model/weights.safetensors", "weights")
    assert "not a shortlist" in refused("decode", "model", "--shortlist", "weights", "-i", "corpus/test.en")
    assert command("shortlist", "model", *CORPUS, "-o", "a.shortlist").code == 0
    whole = Path("a.shortlist").read_bytes()
    Path("a.shortlist").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "changed" in refused("decode", "model", "--shortlist", "a.shortlist", "-i", "corpus/test.en")
    Path("a.shortlist").write_bytes(whole)
    tokenizers = open_model(Path("model")).tokenizers
    found = Shortlist.read(Path("a.shortlist"), tokenizers.source, tokenizers.target)
    Shortlist(found.always, found.ends, found.tokens, found.target_size, ("x", "y")).save(Path("b.shortlist"))
    message = refused("decode", "model", "--shortlist", "b.shortlist", "-i", "corpus/test.en")
    assert "another source and another target vocabulary" in message
