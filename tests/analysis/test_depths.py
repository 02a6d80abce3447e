"""Tables of depths: the oracle with its ties, relative time, what is shown, and the maps."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu

from sparsenmt.analysis.depth_table import (
    DEFAULT,
    DepthGrid,
    SystemSize,
    TimeReference,
    TranslatedText,
    heat_maps,
    report,
    score_grid,
)
from sparsenmt.report.plots import ValueMap, value_maps
from sparsenmt.report.tables import render

REFERENCES = ["der Hund schläft", "die Katze schläft", "ein Mann läuft", "zwei Kinder spielen"]
LINES = {
    (1, 1): ["der Hund schläft", "die Maus", "ein Mann", "zwei Kinder"],
    (2, 1): ["der Hund schläft", "die Katze schläft", "ein Mann", "zwei Kinder"],
    (1, 2): ["der Hund schläft", "die Katze schläft", "ein Mann läuft", "zwei Kinder"],
    (2, 2): ["der Hund", "die Katze schläft", "ein Mann läuft", "zwei Kinder spielen"],
}
SETTINGS = DEFAULT.settings()
SECONDS = {(1, 1): 1.0, (2, 1): 1.5, (1, 2): 3.0, (2, 2): 4.0}


def block(system: str = "tied", *, timed: bool = True) -> DepthGrid:
    made = {
        depth: TranslatedText(lines, system, f"{system}/{depth}", SECONDS[depth] if timed else None)
        for depth, lines in LINES.items()
    }
    return score_grid(system, "beam 4", made, REFERENCES, SETTINGS)


def test_of_equals_the_oracle_takes_the_fastest() -> None:
    """Equation 1: the fewest decoder layers, then the fewest encoder layers."""
    found = block()
    assert [cell.depth for cell in found.cells] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert found.depths.tolist() == [[1, 1], [2, 1], [1, 2], [2, 2]]
    assert [cell.oracle for cell in found.cells] == [1, 1, 1, 1]
    assert found.oracle["chrf"].value == pytest.approx(100)


def test_the_oracle_is_that_of_a_plain_loop() -> None:
    generator = np.random.default_rng(3)
    words = ["der", "Hund", "schläft", "eine", "Katze", "läuft"]
    depths = [(n, m) for n in (1, 2, 3) for m in (1, 2)]
    sentences = [[" ".join(generator.choice(words, 4)) for _ in range(30)] for _ in range(len(depths) + 1)]
    references, lines = sentences[0], dict(zip(depths, sentences[1:], strict=True))
    found = score_grid(
        "x", "greedy", {depth: TranslatedText(each, "", "") for depth, each in lines.items()}, references, SETTINGS
    )
    expected = []
    for i, reference in enumerate(references):
        best = None
        for m in (1, 2):
            for n in (1, 2, 3):
                score = sacrebleu.sentence_chrf(lines[n, m][i], [reference]).score
                if best is None or score > best[0]:
                    best = (score, n, m)
        assert best is not None
        expected.append(list(best[1:]))
    assert found.depths.tolist() == expected
    chosen = [lines[n, m][i] for i, (n, m) in enumerate(expected)]
    assert found.oracle["bleu"].value == sacrebleu.corpus_bleu(chosen, [references]).score
    assert sum(cell.oracle for cell in found.cells) == 30


def test_time_is_relative_to_one_cell() -> None:
    found = block()
    timed = TimeReference(found.name, (2, 2), 4.0, 200)
    cells = report("test", [found], timed).tables[0].records()
    assert [cell["relative_time"] for cell in cells] == [0.25, 0.375, 0.75, 1.0]
    assert [cell["seconds"] for cell in cells] == [1.0, 1.5, 3.0, 4.0]
    assert (cells[1]["model"], cells[1]["translations"]) == ("tied", "tied/(2, 1)")
    text = render(report("test", [found], timed))
    assert "1 is tied, beam 4 at 2+2: 4.00 s for 200 lines" in text
    assert "tied    beam 4  1   0.25   0.75\ntied    beam 4  2   0.38   1.00" in text


def test_what_was_not_timed_is_not_shown() -> None:
    found = block(timed=False)
    text = render(report("test", [found], None))
    assert "time" not in text and "BLEU, test, 4 sentences" in text
    assert "25.0%" in text
    assert report("test", [found], None).tables[0].column("relative_time") == [None] * 4
    assert len(heat_maps([found], None)[0]) == 3


def test_the_time_of_the_oracle() -> None:
    spreads = {depth: (seconds, seconds / 100) for depth, seconds in SECONDS.items()}
    found = block(timed=False).timed(spreads, 2.0)
    timed = TimeReference(found.name, (2, 2), 4.0, 200)
    assert [cell.text.seconds for cell in found.cells] == list(SECONDS.values())
    made = report("test", [found], timed)
    (row,) = next(table for table in made.tables if table.name == "blocks").records()
    assert row["oracle_time"] == 0.5
    assert any("+2.2% (median), +4.0% at most" in note for note in made.notes)
    assert report("test", [found], timed).tables[0].column("spread") == [0.01, 0.015, 0.03, 0.04]
    (row,) = report("test", [block(timed=False)], None).filed[1].records()
    assert row["oracle_time"] is None


def test_sizes_and_training_times() -> None:
    """Table 4: size relative to the first system. Training: relative to one plain model of the full depth."""
    tied = SystemSize("tied", 1, 183, 950.0, 950.0, False)
    separate = SystemSize("separate models", 36, 4608, 2550.0, 100.0, True)
    unknown = SystemSize("separate models, rs", 36, 2623, None, 10.0, True)
    made = report("test", [block()], None, [tied, separate, unknown]).tables[-1]
    assert made.title == "size, relative to tied, and training time, relative to the deepest of separate models"
    assert made.column("relative_size") == [1.0, 4608 / 183, 2623 / 183]
    assert made.column("relative_training") == [9.5, 25.5, None]
    made = report("test", [block()], None, [tied]).tables[-1]
    assert (made.column("relative_size"), made.column("relative_training")) == ([1.0], [1.0])
    assert len(report("test", [block()], None).filed) == 2


def test_a_grid_with_gaps() -> None:
    made = {depth: TranslatedText(lines, "m", "f") for depth, lines in LINES.items() if depth != (2, 1)}
    gaps = score_grid("separate models", "greedy", made, REFERENCES, SETTINGS)
    drawn = heat_maps([block(timed=False), gaps], None)
    assert np.isnan(drawn[1][0].values).tolist() == [[False, False], [True, False]]
    assert drawn[0][0].ends == drawn[1][0].ends, "one scale for all blocks"
    row = next(line for line in render(report("t", [gaps], None)).split("\n") if line.startswith("separate models  gr"))
    assert "-" not in row
    value_maps(drawn)


def test_values_stand_in_the_cells() -> None:
    values = np.array([[1.0, np.nan], [2.25, 3.5]])
    figure = value_maps([[ValueMap("cost $5", "n", ["1", "2"], "m", ["1", "2"], values, ".2f")]])
    axis, scale = figure.axes
    assert scale.get_ylim() == (1.0, 3.5)  # the numbers of the colours
    assert sorted(text.get_text() for text in axis.texts) == ["1.00", "2.25", "3.50"]
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title()) == ("m", "n", r"cost \$5")
    figure.savefig(io.BytesIO(), format="svg")


def test_noise_does_not_look_like_a_difference() -> None:
    """Colours end at least 2 points of a score apart, half of the reference's time, or a fifth of the sentences."""
    grid = block()
    cells = tuple(
        replace(cell, scores={"bleu": 30.0 + i / 10, "chrf": 50.0 + i * 3}) for i, cell in enumerate(grid.cells)
    )
    times = TimeReference(grid.name, (2, 2), 40.0, 200)
    (line,) = heat_maps([replace(grid, cells=cells)], times)
    ends = {each.title.split("\n")[1]: each.ends for each in line}
    assert ends["BLEU"] == pytest.approx((29.15, 31.15)) and ends["chrF2"] == (50.0, 59.0)
    assert ends["relative decoding time"] == (0.0, 0.5) and ends["oracle's share of sentences"] == (0.0, 0.25)
