"""The options of scoring, alike in every command that makes a table of scores, and the heads that reports disable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.metric import METRICS
from sparsenmt.storage.files import read_sealed
from sparsenmt.workflows.evaluation import evaluate as evaluating
from tests.commands.support import Run

SWEEP = """\
name: scored
directory: sweep
recipe: small.yaml
from: model
updates: 0
set: {data.test: {source: text, target: reference, documents: ids}}
variants: [{name: same}]
"""
COUNT = 8
EVERY = tuple(name for name, each in METRICS.items() if not each.model_variable)
GIVEN = ("--source", "text", "--reference", "reference", "--documents", "ids")
READ = ("--input", "text", "--reference", "reference", "--documents", "ids", "--json", "r.json", "--resamples", "2")


@pytest.fixture
def place(workspace: Path) -> Path:
    """The working directory with a short text, its ids, a reference in another case, and a sweep."""
    source, target = (
        (workspace / "corpus" / f"test.{side}").read_bytes().decode().split("\n")[:COUNT] for side in ("en", "de")
    )
    files = {
        "text": source,
        "reference": [line.title() for line in target],
        "ids": [f"d{i // 3}" for i in range(COUNT)],
    }
    for name, lines in files.items():
        (workspace / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    (workspace / "sweep.yaml").write_text(SWEEP, encoding="utf-8", newline="\n")
    return workspace


def tables(path: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(Path(path).read_bytes())["tables"]
    return found


def by_score(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    arguments = ("score", "--model", "model", *GIVEN, *options)
    shown = command(*arguments).out.decode()
    return {each["name"]: each["value"] for each in json.loads(command(*arguments, "--json").out)["scores"]}, shown


def by_compare(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    result = command("compare", "model", *GIVEN, "--no-speed", "--no-attention", "--json", "r.json", *options)
    (row,) = tables("r.json")["models"]
    return {name: row[name] for name in EVERY if name in row}, result.out.decode()


def by_sweep(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    result = command("sweep", "sweep.yaml", *options)
    assert result.code == 0, result.err
    return {row["metric"]: row["quality"] for row in tables("sweep/table.json")["variants"]}, result.out.decode()


def by_ablation(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    result = command("analyze", "ablate-heads", "model", *READ, "--head", "1", *options)
    assert result.code == 0, result.err
    rows = [row for row in tables("r.json")["ablate-heads"] if row["disabled"] == "-"]
    return {named(row["metric"]): row["score"] for row in rows}, result.out.decode()


def by_length(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    result = command("analyze", "by-length", "model", *READ, *options)
    assert result.code == 0, result.err
    rows = [row for row in tables("r.json")["by-length"] if row["length"] == "all"]
    return {named(row["metric"]): row["score"] for row in rows}, result.out.decode()


def by_depth(command: Run, options: list[str]) -> tuple[dict[str, float], str]:
    result = command("depth-table", "model", *GIVEN, "--no-speed", "-o", "depths", *options)
    assert result.code == 0, result.err
    (row,) = tables("depths/table.json")["cells"]
    return {name: row[name] for name in EVERY if name in row}, result.out.decode()


def named(label: str) -> str:
    return next(name for name, metric in METRICS.items() if metric.label == label)


COMMANDS = {
    "score": by_score,
    "compare": by_compare,
    "sweep": by_sweep,
    "ablate-heads": by_ablation,
    "by-length": by_length,
    "depth-table": by_depth,
}
CHARACTERS = ["--tokenize", "char", "--language", "en"]
SETTINGS = (
    ([], ScoringOptions(EVERY)),
    (CHARACTERS, ScoringOptions(EVERY, tokenize="char", language="en")),
    ([*CHARACTERS, "--lowercase"], ScoringOptions(EVERY, lowercase=True, tokenize="char", language="en")),
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_metric_by_every_setting(command: Run, place: Path, name: str) -> None:
    hypotheses = command("decode", "model", "-i", "text").lines
    references, ids = ((place / each).read_bytes().decode().split("\n")[:-1] for each in ("reference", "ids"))
    asked = [part for metric in EVERY for part in ("-m", metric)]
    seen = []
    for arguments, scoring in SETTINGS:  # one after the other: kept scores of another setting are not shown
        found, shown = COMMANDS[name](command, [*asked, *arguments])
        scores = corpus_scores(hypotheses, [references], scoring.settings(language="de", documents=ids))
        assert found == {score.name: score.value for score in scores}
        for score in scores:
            assert score.signature in shown, f"{score.name}: the signature says how it was made"
        seen.append(found)
    plain, cased, lowercase = seen
    assert all(lowercase[metric] > cased[metric] for metric in ("bleu", "dbleu", "chrf"))
    assert cased["bleu"] != plain["bleu"] and cased["chrf"] == plain["chrf"]


def test_kept_scores_and_tests_belong_to_their_settings(
    command: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("average", "model", "--update", "6", "-o", "early").code == 0
    arguments = ("compare", "model", "early", *GIVEN, "--no-speed", "--no-attention", "-m", "chrf")
    first = command(*arguments)
    monkeypatch.setattr(evaluating, "_new_evaluation", lambda *_, **__: pytest.fail("it is translated again"))
    lower = command(*arguments, "--lowercase")
    assert lower.code == 0, lower.err
    (kept,) = Path("early/evaluation").glob("*.json")
    content = read_sealed(kept)
    assert list(content["scores"]) == list(content["signatures"]) == ["chrf", "chrf lowercase"]
    assert sorted(key.rpartition(" ")[0].rpartition(" ")[0] for key in content["tests"]) == ["chrf", "chrf lowercase"]
    assert "case:lc" in lower.out.decode() and "case:mixed" in first.out.decode()
    monkeypatch.setattr(evaluating, "corpus_scores", None)  # nor measured again
    assert command(*arguments).out == first.out and command(*arguments, "--lowercase").out == lower.out


def test_finished_variants_are_scored_anew_for_another_table(
    command: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("sweep", "sweep.yaml", "-m", "bleu").code == 0
    monkeypatch.setattr(evaluating, "_new_evaluation", lambda *_, **__: pytest.fail("it is translated again"))
    Path("sweep.yaml").write_text(f"{SWEEP}metrics: [chrf]\nlowercase: true\n", encoding="utf-8", newline="\n")
    result = command("sweep", "sweep.yaml", "--table")
    assert result.code == 0, result.err
    (row,) = tables("sweep/table.json")["variants"]
    found, _ = by_score(command, ["-m", "chrf", "--lowercase"])
    assert row["metric"] == "chrf" and row["quality"] == found["chrf"] and "case:lc" in row["signature"]


CALLS: dict[str, tuple[str, ...]] = {
    "score": ("score", "--model", "model", "--source", "text", "--reference", "reference"),
    "score of a file": ("score", "reference", "--reference", "reference"),
    "compare": ("compare", "model", "--source", "text", "--reference", "reference"),
    "sweep": ("sweep", "plain.yaml"),
    "ablate-heads": ("analyze", "ablate-heads", "model", "--input", "text", "--reference", "reference"),
    "by-length": ("analyze", "by-length", "model", "--input", "text", "--reference", "reference"),
    "by-length of a file": ("analyze", "by-length", "reference", "--reference", "reference"),
    "depth-table": ("depth-table", "model", "--source", "text", "--reference", "reference"),
}
MISTAKES = [
    (["-m", "dbleu"], "d-BLEU needs to know where documents end"),
    (["-m", "bleu", "--tokenize", "chars"], "there is no tokenizer 'chars'"),
    (["-m", "bleu", "--tokenize", "chars"], "Did you mean 'char'?"),
    (["-m", "bleu", "--tokenize", "ja-mecab"], "'ja-mecab' cannot be used (Japanese tokenization requires extra"),
    (["-m", "bleu", "--tokenize", "ja-mecab"], "pip install sacrebleu[ja]"),
    (["-m", "chrf", "-m", "rougeL", "--tokenize", "13a"], "--tokenize: changes nothing: chrF2, ROUGE-L uses no"),
]


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_scored_is_refused_before_anything_is_translated(
    refused: Callable[..., str], place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = SWEEP.replace(", documents: ids", "").replace("updates: 0", "updates: 1")
    (place / "plain.yaml").write_text(text, encoding="utf-8", newline="\n")
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    for module in ("evaluation.evaluate", "evaluation.score", "training.sweep"):
        for attribute in ("open_model", "train", "make_untrained"):
            monkeypatch.setattr(f"sparsenmt.workflows.{module}.{attribute}", None, raising=False)
    monkeypatch.setattr("sparsenmt.analysis.session.open_model", None)
    for arguments, message in MISTAKES:
        assert message in refused(*CALLS[name], *arguments)


@pytest.mark.parametrize("name", [name for name in CALLS if "of a file" in name])
def test_documents_that_nothing_reads(refused: Callable[..., str], place: Path, name: str) -> None:
    assert "--documents: none of these metrics uses documents" in refused(
        *CALLS[name], "--documents", "ids", "-m", "bleu"
    )


def test_ids_that_do_not_fit(refused: Callable[..., str], place: Path) -> None:
    (place / "few").write_text("a\nb\n", encoding="utf-8", newline="\n")
    for name in ("ablate-heads", "by-length", "by-length of a file"):
        assert "few, line 3: 2 document ids, but" in refused(*CALLS[name], "--documents", "few", "-m", "dbleu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tokenize: chars\n", "sweep.yaml: tokenize: there is no tokenizer 'chars'"),
        ("metrics: [ter]\ntokenize: char\n", "sweep.yaml: tokenize: changes nothing: TER of a text with spaces"),
        ("lowercase: maybe\n", "sweep.yaml:8: lowercase"),
    ],
)
def test_keys_of_a_sweep(refused: Callable[..., str], place: Path, change: str, message: str) -> None:
    (place / "sweep.yaml").write_text(SWEEP + change, encoding="utf-8", newline="\n")
    assert message in refused("sweep", "sweep.yaml")


def test_one_table_has_one_metric(refused: Callable[..., str], place: Path) -> None:
    """Without `metrics`, each variant has that of its own recipe: the layout showed the first one only."""
    text = SWEEP.partition("variants:")[0] + (
        "variants:\n  - at: {judge: [bleu, chrf]}\n    set: {training.validation.metric: '${judge}'}\n"
        "table: {rows: judge, columns: set}\n"
    )
    (place / "sweep.yaml").write_text(text, encoding="utf-8", newline="\n")
    message = refused("sweep", "sweep.yaml")
    assert "sweep.yaml: bleu would be judged by bleu, and chrf by chrf, in one table" in message
    assert "Write `metrics`" in message


def test_variants_of_different_texts_are_not_compared(command: Run, place: Path) -> None:
    """Without a layout the first variant is the baseline: another text has no difference to it."""
    (place / "other").write_bytes((place / "text").read_bytes())
    text = f"{SWEEP.partition('variants:')[0]}variants:\n  - {{name: same}}\n  - name: other\n    set: "
    other = "{data.test: {source: text, target: other}}\n  - {name: again}\n"
    (place / "sweep.yaml").write_text(text + other, encoding="utf-8", newline="\n")
    result = command("sweep", "sweep.yaml", "-m", "chrf")
    assert result.code == 0, result.err
    found = {row["variant"]: row["p_value"] for row in tables("sweep/table.json")["variants"]}
    assert found == {"same": None, "other": None, "again": 1}


def test_models_of_several_languages_do_not_share_a_table_of_rouge(
    command: Run, refused: Callable[..., str], place: Path
) -> None:
    changes = ("data.target_language=en", "data.directory=others", "directory=other", "training.max_updates=1")
    assert command("prepare", "small.yaml", *changes).code == 0
    assert command("train", "small.yaml", *changes).code == 0
    text = ("--source", "text", "--reference", "reference")
    calls = (
        ("compare", "model", "other", *text, "--no-speed", "--no-attention"),
        ("depth-table", "--grid", "model", "other", *text, "--no-speed", "-o", "depths"),
        ("analyze", "by-length", "model", "other", "--input", "text", "--reference", "reference"),
        ("analyze", "ablate-heads", "model", "other", "--input", "text", "--reference", "reference", "--head", "1"),
    )
    for arguments in calls:
        message = refused(*arguments, "-m", "rouge1")
        assert "ROUGE-1 depends on the language" in message and "(" in message and "other en" in message, message
        assert "Name the language of the text with --language." in message
    result = command(*calls[0], "-m", "rouge1", "--language", "de")
    assert result.code == 0 and "stem:no" in result.out.decode()


def test_reports_do_not_replace_the_reference(refused: Callable[..., str], place: Path) -> None:
    for name in ("by-length", "ablate-heads"):
        for given, options in (("reference", ()), ("ids", ("--documents", "ids"))):
            message = refused(*CALLS[name], *options, "--json", given)
            assert f"{given}: --json names a file that another option names" in message


def test_lengths_of_other_texts(command: Run, place: Path) -> None:
    """`--length` and compare-mt's bins, by the number of sentences in each."""
    (place / "reference").write_bytes(b"a b c\n" + b"a, b. \n" + b"x " * 9 + b"\n" + b"x " * 10 + b"\n" * 5)
    (place / "text").write_bytes(b"one, two.\n" * COUNT)
    counted = {
        "reference-words": {"up to 9": 7, "10 to 19": 1},
        "reference-tokens": {"up to 9": 7, "10 to 19": 1},
        "source-words": {"up to 9": COUNT},
        "source-tokens": {"up to 9": COUNT},
    }
    for length, buckets in counted.items():
        call = ("analyze", "by-length", "reference", "--input", "text", "--reference", "text", "--json", "r.json")
        call = (*call[:6], "reference", *call[7:]) if length.startswith("reference") else call
        result = command(*call, "--edges", "compare-mt", "--length", length)
        assert result.code == 0, result.err
        rows = tables("r.json")["by-length"]
        assert {row["length"]: row["sentences"] for row in rows} == {"all": COUNT, **buckets}, length
    result = command(*call, "-m", "chrf", "--length", "source-tokens", "--tokenize", "char", "--edges", "7,8")
    assert result.code == 0, "the length uses the tokenizer"
    assert {row["length"] for row in tables("r.json")["by-length"]} == {"all", "8 to 8"}


# Disabled heads


def test_lengths_without_heads(command: Run, place: Path) -> None:
    assert command("average", "model", "--update", "6", "-o", "early").code == 0
    scored = ("score", "--source", "text", "--reference", "reference", "-m", "chrf", "--json")
    wanted = {
        (model, bool(heads)): json.loads(command(*scored, "--model", model, *heads).out)["scores"][0]["value"]
        for model in ("model", "early")
        for heads in ((), ("--disable-heads", "cross:1,2"))
    }
    call = ("analyze", "by-length", "model", "early", "--input", "text", "--reference", "reference", "-m", "chrf")
    for value, disabled in (("cross:1,2", (True, True)), ("early=cross:1,2", (False, True))):
        result = command(*call, "--disable-heads", value, "--json", "r.json")
        assert result.code == 0 and f"disabled heads: {value}" in result.lines
        scores = {row["system"]: row["score"] for row in tables("r.json")["by-length"] if row["length"] == "all"}
        assert scores == {name: wanted[name, own] for name, own in zip(("model", "early"), disabled, strict=True)}
        assert json.loads(Path("r.json").read_bytes())["settings"]["disabled_heads"] == [value]


def test_contrasts_without_heads(command: Run, place: Path) -> None:
    (place / "wrong").write_bytes((place / "text").read_bytes())
    call = ("contrast", "model", "--source", "text", "--correct", "reference", "--incorrect", "wrong")
    heads = ("--disable-heads", "encoder_self:2", "--disable-heads", "model=cross:1")
    result = command(*call, *heads, "--items", "items", "--json", "r.json")
    assert result.code == 0 and "disabled heads: encoder_self:2, model=cross:1" in result.lines
    forced = ("score", "--model", "model", "--source", "text", "--target", "reference", "--json")
    disabled = command(*forced, "--disable-heads", "encoder_self:2", "--disable-heads", "cross:1")
    expected = [json.loads(line)["log_probability"] for line in disabled.lines]
    head, *rows = [line.split("\t") for line in (place / "items").read_bytes().decode().split("\n")[:-1]]
    assert [float(row[head.index("model correct")]) for row in rows] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["by-length", "model", "--input", "text"], "--disable-heads cross:3: there is no head 3 at cross: it has 2"),
        (["by-length", "reference"], "--disable-heads cross:3: there is no model, and files have no heads"),
    ],
)
def test_heads_that_are_not_there(refused: Callable[..., str], place: Path, arguments: list[str], message: str) -> None:
    assert message in refused("analyze", *arguments, "--reference", "reference", "--disable-heads", "cross:3")
    call = ("contrast", "model", "--source", "text", "--correct", "reference", "--incorrect", "ids")
    assert "there is no head 3 at cross" in refused(*call, "--disable-heads", "cross:3")
    assert "--disable-heads other=cross:1: there is no model 'other'" in refused(
        *call, "--disable-heads", "other=cross:1"
    )
