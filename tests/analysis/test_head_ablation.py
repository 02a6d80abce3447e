"""Quality without a head: scores and comparisons with the whole model."""

from __future__ import annotations

from sparsenmt.analysis.head_ablation import NONE, measure, panels, report
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringSettings
from sparsenmt.evaluation.significance import PairedTest, compare

REFERENCES = ["alte Haus steht am Fluss", "zwei Katzen spielen dort", "und sieht nie"] * 4
TRANSLATIONS: dict[int | None, list[str]] = {
    None: ["alte Haus steht am Fluss", "zwei Katzen spielen", "und sieht nie"] * 4,
    1: ["alte Haus steht", "zwei Katzen spielen dort", "und nie"] * 4,
    2: ["Haus", "Katzen", ""] * 4,
}


def test_rows_are_scored_and_compared_with_all_heads() -> None:
    names = {1: "previous", 2: "learned"}
    metrics = ["bleu", "chrf"]
    found = measure(TRANSLATIONS, REFERENCES, names, ScoringSettings(metrics), test=PairedTest(resamples=30))
    assert [(row.head, row.name) for row in found] == [(None, NONE), (1, "previous"), (2, "learned")]
    for row in found:
        lines = TRANSLATIONS[row.head]
        assert {name: each.score for name, each in row.scores.items()} == {
            s.name: s.value for s in corpus_scores(lines, [REFERENCES], ScoringSettings(metrics))
        }
        if row.head is None:
            assert all(each.comparison is None for each in row.scores.values())
        else:
            tested = compare(
                lines, TRANSLATIONS[None], [REFERENCES], ScoringSettings(metrics), PairedTest(resamples=30)
            )
            assert [each.comparison for each in row.scores.values()] == tested
    (table,) = report({"m": found}, "encoder_self").tables
    rows = table.records()
    assert [row["disabled"] for row in rows] == ["-", "1", "2"] * 2
    assert rows[0]["difference"] is None and float(str(rows[2]["difference"])) < 0
    drawn = panels({"m": found}, "encoder_self")
    assert len(drawn) == 2 and [label for _, label in drawn[0].ticks] == ["1\nprevious", "2\nlearned"]
    assert drawn[0].series["m"][1][1] == rows[2]["difference"]
