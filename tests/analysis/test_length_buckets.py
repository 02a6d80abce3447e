"""Quality by reference length: buckets, scores and comparisons, against scoring each bucket by itself."""

from __future__ import annotations

import pytest

from sparsenmt.analysis.length_buckets import ALL, LEAST, buckets, measure, panels, report, word_count
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import PairedTest, compare

REFERENCES = [" ".join(["alte"] + ["Haus"] * (i % 23)) for i in range(60)] + ["", "am Fluss"]
GOOD = [line + " ." if i % 3 else line for i, line in enumerate(REFERENCES)]
BAD = ["zwei " + line if i % 2 else line for i, line in enumerate(REFERENCES)]


def lengths(lines: list[str]) -> list[int]:
    return [word_count(line) for line in lines]


def test_every_sentence_is_in_one_bucket() -> None:
    found = buckets(lengths(REFERENCES), [5, 10, 90])
    assert list(found) == [ALL, "up to 5", "6 to 10", "11 to 90"]  # none is longer
    every, *parts = found.values()
    assert every == list(range(62)) == sorted(i for lines in parts for i in lines)
    for lines, (low, high) in zip(parts, [(0, 5), (6, 10), (11, 90)], strict=True):
        assert all(low <= len(REFERENCES[i].split()) <= high for i in lines)
    assert list(buckets([3], [1])) == [ALL, "over 1"]
    assert list(buckets([0], [1, 2])) == [ALL, "up to 1"]


def test_cells_are_what_each_bucket_scores_alone() -> None:
    cells = measure(
        {"a": GOOD, "b": BAD},
        REFERENCES,
        ScoringSettings(["bleu", "chrf"]),
        edges=[5, 20],
        test=PairedTest(resamples=50),
    )
    assert {metric: len(group) for metric, group in cells.items()} == {"bleu": 4 * 2, "chrf": 4 * 2}
    for bucket, places in buckets(lengths(REFERENCES), [5, 20]).items():
        wanted, good, bad = ([lines[i] for i in places] for lines in (REFERENCES, GOOD, BAD))
        for name, lines in (("a", good), ("b", bad)):
            for score in corpus_scores(lines, [wanted], ScoringSettings(["bleu", "chrf"])):
                (cell,) = [c for c in cells[score.name] if (c.system, c.bucket) == (name, bucket)]
                assert (cell.score.score, cell.sentences) == (score.value, len(places))
                if name == "a" or len(places) < LEAST:
                    assert cell.score.comparison is None
                else:
                    metrics = ["bleu", "chrf"]
                    tested = compare(bad, good, [wanted], ScoringSettings(metrics), PairedTest(resamples=50))
                    assert cell.score.comparison == next(one for one in tested if one.name == score.name)


def test_the_report_and_the_plot() -> None:
    cells = measure(
        {"a": GOOD, "b": BAD}, REFERENCES, ScoringSettings(["bleu"]), edges=[5, 22], test=PairedTest(resamples=20)
    )
    (table,) = report(cells).tables
    rows = {(row["length"], row["system"]): row for row in table.records()}
    assert rows["all", "a"]["difference"] is None and isinstance(rows["all", "b"]["p"], float)
    assert rows["over 22", "b"]["sentences"] == 2 and rows["over 22", "b"]["p"] is None
    (panel,) = panels(cells)
    assert list(panel.series) == ["a", "b"]
    assert [label for _, label in panel.ticks] == ["up to 5 (17)", "6 to 22 (43)", "over 22 (2)", "all (62)"]
    assert sorted(panel.series["a"]) == [(float(i), y) for i, (_, y) in enumerate(sorted(panel.series["a"]))]


@pytest.mark.parametrize("references", [["a b"], [""]])
def test_one_sentence(references: list[str]) -> None:
    cells = measure({"a": ["a b"], "b": ["b"]}, references, ScoringSettings(["bleu"]), test=PairedTest(resamples=5))
    assert all(cell.score.comparison is None and cell.sentences == 1 for cell in cells["bleu"])
