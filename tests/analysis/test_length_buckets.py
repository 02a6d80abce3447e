"""Quality by reference length: buckets, scores and comparisons, against scoring each bucket by itself."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import pytest

from sparsenmt.analysis.length_buckets import (
    ALL,
    COMPARE_MT_EDGES,
    buckets,
    counter,
    measure,
    panels,
    report,
    word_count,
)
from sparsenmt.evaluation.metrics import by_document, corpus_scores
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


def test_the_bins_of_compare_mt() -> None:
    """Its `LengthSentenceBucketer` puts a length into the first bin whose cutoff is larger."""
    cutoffs = [10, 20, 30, 40, 50, 60]
    _, *found = buckets(range(75), COMPARE_MT_EDGES).values()
    assert found == [
        [length for length in range(75) if bisect_right(cutoffs, length) == number]
        for number in range(len(cutoffs) + 1)
    ]


def test_words_and_tokens() -> None:
    settings = ScoringSettings(["bleu"])
    assert [counter(length, settings)("Yes, he can.") for length in ("reference-words", "source-tokens")] == [3, 5]
    assert counter("reference-tokens", replace(settings, tokenize="char"))("Yes, he") == 6


def test_markers_are_no_words() -> None:
    assert word_count("a b.<n>C d.") == word_count("a b. <n> C d.") == word_count("a b. C d.") == 4


def test_documents_are_counted_by_their_own_length() -> None:
    """d-BLEU of a bucket is that of its documents, each of which has the words of all its lines."""
    ids = [f"d{i // 5}" for i in range(len(REFERENCES))]
    settings = ScoringSettings(["dbleu", "bleu"], documents=ids)
    cells = measure({"a": GOOD, "b": BAD}, REFERENCES, settings, edges=[55], test=PairedTest(resamples=20))
    assert list(cells) == ["dbleu", "bleu"]
    wanted, bad = (by_document(lines, ids) for lines in (REFERENCES, BAD))
    short = [i for i, line in enumerate(wanted) if word_count(line) <= 55]
    assert 0 < len(short) < len(wanted)
    (cell,) = [each for each in cells["dbleu"] if (each.bucket, each.system) == ("up to 55", "b")]
    (score,) = corpus_scores([bad[i] for i in short], [[wanted[i] for i in short]], ScoringSettings(["bleu"]))
    assert (cell.sentences, cell.score.score) == (len(short), score.value)
    assert cell.score.signature == f"docs:{len(short)}|{score.signature}"
    assert {each.sentences for each in cells["bleu"] if each.bucket == ALL} == {len(REFERENCES)}


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
                if name == "a":
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
    assert rows["over 22", "b"]["sentences"] == 2 and rows["over 22", "b"]["p"] >= 0.5, "of two sentences"
    assert "with fewer than 30 segments (2, 17)" in " ".join(report(cells).notes)
    (panel,) = panels(cells)
    assert list(panel.series) == ["a", "b"]
    assert [label for _, label in panel.ticks] == [
        "up to 5\n17",
        "6 to 22\n43",
        "all\n62",
    ]  # of 2 sentences nothing is drawn
    assert sorted(panel.series["a"]) == [(float(i), y) for i, (_, y) in enumerate(sorted(panel.series["a"]))]


@pytest.mark.parametrize("references", [["a b"], [""]])
def test_one_sentence(references: list[str]) -> None:
    cells = measure({"a": ["a b"], "b": ["b"]}, references, ScoringSettings(["bleu"]), test=PairedTest(resamples=5))
    assert all(cell.sentences == 1 for cell in cells["bleu"])
    tested = [cell.score.comparison for cell in cells["bleu"] if cell.system == "b"]
    assert tested and all(one is not None and one.p_value is None for one in tested)
