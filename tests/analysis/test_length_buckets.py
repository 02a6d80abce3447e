"""Quality by reference length: buckets, scores and comparisons, against scoring each bucket by itself."""

from __future__ import annotations

import pytest

from sparsenmt.analysis.length_buckets import ALL, LEAST, buckets, measure, panels, report
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import compare

REFERENCES = [" ".join(["alte"] + ["Haus"] * (i % 23)) for i in range(60)] + ["", "am Fluss"]
GOOD = [line + " ." if i % 3 else line for i, line in enumerate(REFERENCES)]
BAD = ["zwei " + line if i % 2 else line for i, line in enumerate(REFERENCES)]


def test_every_sentence_is_in_one_bucket() -> None:
    found = buckets(REFERENCES, [5, 10, 90])
    assert [each.name for each in found] == [ALL, "up to 5", "6 to 10", "11 to 90"]  # none is longer
    assert found[0].lines == list(range(62))
    assert sorted(i for each in found[1:] for i in each.lines) == found[0].lines
    for each, (low, high) in zip(found[1:], [(0, 5), (6, 10), (11, 90)], strict=True):
        assert all(low <= len(REFERENCES[i].split()) <= high for i in each.lines)
    assert [each.name for each in buckets(["a b c"], [1])] == [ALL, "over 1"]
    assert [each.name for each in buckets([""], [1, 2])] == [ALL, "up to 1"]


def test_cells_are_what_each_bucket_scores_alone() -> None:
    cells = measure({"a": GOOD, "b": BAD}, REFERENCES, edges=[5, 20], metrics=["bleu", "chrf"], resamples=50)
    assert len(cells) == 4 * 2 * 2
    for bucket in buckets(REFERENCES, [5, 20]):
        wanted, good, bad = ([lines[i] for i in bucket.lines] for lines in (REFERENCES, GOOD, BAD))
        for name, lines in (("a", good), ("b", bad)):
            for score in corpus_scores(lines, [wanted], ScoringSettings(["bleu", "chrf"])):
                (cell,) = [c for c in cells if (c.system, c.bucket, c.score.metric) == (name, bucket.name, score.name)]
                assert (cell.score.score, cell.sentences) == (score.value, len(bucket.lines))
                if name == "a" or len(bucket.lines) < LEAST:
                    assert cell.score.comparison is None
                else:
                    metrics = ["bleu", "chrf"]
                    tested = compare(bad, good, [wanted], ScoringSettings(metrics), resamples=50)
                    assert cell.score.comparison == next(one for one in tested if one.name == score.name)


def test_the_report_and_the_plot() -> None:
    cells = measure({"a": GOOD, "b": BAD}, REFERENCES, edges=[5, 22], resamples=20)
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
    cells = measure({"a": ["a b"], "b": ["b"]}, references, resamples=5)
    assert all(cell.score.comparison is None and cell.sentences == 1 for cell in cells)
