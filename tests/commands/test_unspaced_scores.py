"""Text without spaces between words: validation and tables of scores compare characters, and say so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from sparsenmt.assemble.checks import load_recipe
from sparsenmt.errors import UserError
from sparsenmt.evaluation import tokenizer_choice
from sparsenmt.evaluation.metrics import corpus_scores
from sparsenmt.evaluation.scorer import ScoringOptions
from sparsenmt.storage.files import read_sealed, seal_text, unseal_text
from sparsenmt.training.checkpoints import find_checkpoints
from sparsenmt.training.state import Progress
from sparsenmt.workflows.evaluation.evaluate import evaluate
from sparsenmt.workflows.evaluation.reference_texts import TestText
from sparsenmt.workflows.training import validation
from sparsenmt.workflows.training.validation import recorded_tokenizer, validation_scoring
from tests.commands import test_scoring_options as scored
from tests.commands.support import Run

place = scored.place
KANA = str.maketrans({chr(97 + i): chr(0x3042 + i) for i in range(26)} | {" ": "", "ä": "ん", "ö": "わ", "ü": "を"})
LATIN = ["It rains."]
UNSPACED = ["明日は雨が降るでしょう。"]


@pytest.fixture(autouse=True)
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that has no morphological analyser."""
    monkeypatch.setattr(tokenizer_choice.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]


def unspaced(path: Path) -> None:
    """Write a text again in Kana, without spaces."""
    path.write_text(path.read_text(encoding="utf-8").lower().translate(KANA), encoding="utf-8", newline="\n")


@pytest.mark.parametrize("name", scored.COMMANDS)
def test_tables_of_scores(command: Run, place: Path, name: str) -> None:
    """The text decides, also against a recipe of German: BLEU by 13a was 0 for all but equal lines."""
    unspaced(place / "reference")
    hypotheses = command("decode", "model", "-i", "text").lines
    references, ids = ((place / each).read_bytes().decode().split("\n")[:-1] for each in ("reference", "ids"))
    metrics = ("bleu", "ter", "dbleu", "length", "rouge1")
    found, shown = scored.COMMANDS[name](command, [part for metric in metrics for part in ("-m", metric)])
    scoring = ScoringOptions(metrics, tokenize="char", unspaced=True)
    scores = corpus_scores(hypotheses, [references], scoring.settings(language="de", documents=ids))
    assert found == {score.name: score.value for score in scores}
    assert all(score.signature in shown for score in scores)
    kept = [key for file in Path("model/evaluation").glob("*.json") for key in read_sealed(file)["scores"]]
    assert set(kept) in (set(), {*(f"{name} tokenize:char" for name in metrics[:-1]), "rouge1 unspaced"})


def test_a_tokenizer_for_ter_alone(command: Run, refused: Callable[..., str], place: Path) -> None:
    """It changes the scores of text without spaces only; it was refused for all text."""
    calls = [("score", "text", "--reference", "reference"), ("compare", "model", *scored.GIVEN, "--no-speed")]
    for call in calls:
        message = refused(*call, "-m", "ter", "--tokenize", "char")
        assert "--tokenize: changes nothing: TER of a text with spaces between words uses no tokenizer" in message
    unspaced(place / "reference")
    for call in calls:
        found = command(*call, "-m", "ter", "--tokenize", "char")
        assert found.code == 0 and "tok:char+tercom" in found.out.decode(), found.err


def test_programs_that_name_a_tokenizer(place: Path) -> None:
    """TER was that of the text between spaces, as nobody had looked at the text."""
    unspaced(place / "reference")
    text = TestText("text", place / "text", place / "reference")
    found = evaluate(Path("model"), text, ScoringOptions(("ter",), tokenize="char"), attention=False)
    assert list(found.scores) == ["ter tokenize:char"]


def test_lengths_of_a_source_without_spaces(command: Run, place: Path) -> None:
    """Its tokens are not those of the reference's tokenizer: by 13a every line had one."""
    (place / "text").write_text(f"{UNSPACED[0]}\n" * scored.COUNT, encoding="utf-8", newline="\n")
    call = ("analyze", "by-length", "reference", "--input", "text", "--reference", "reference", "--json", "r.json")
    assert command(*call, "--length", "source-tokens", "--edges", "11,12").code == 0
    rows = scored.tables("r.json")["by-length"]
    assert {row["length"] for row in rows} == {"all", "12 to 12"}
    assert json.loads(Path("r.json").read_bytes())["settings"]["tokenize"] == "13a", "of the scores"


def test_scores_that_were_kept_by_13a_are_not_shown_as_characters(command: Run, place: Path) -> None:
    unspaced(place / "reference")
    call = ("compare", "model", *scored.GIVEN, "--no-speed", "--no-attention", "-m", "bleu", "--json", "r.json")
    assert "warning: the text is written without spaces" in command(*call, "--tokenize", "13a").err
    assert json.loads(Path("r.json").read_bytes())["settings"]["tokenize"] == "13a"
    result = command(*call)
    assert result.err.count("no spaces") + result.err.count("without spaces") == 1, "said once"
    assert "the language is de: BLEU compares characters" in result.err and "tok:char" in result.out.decode()
    assert json.loads(Path("r.json").read_bytes())["settings"]["tokenize"] == "char"
    (kept,) = Path("model/evaluation").glob("*.json")
    assert list(read_sealed(kept)["scores"]) == ["bleu", "bleu tokenize:char"]


def test_recipes_with_different_tokenizers_do_not_share_a_table(refused: Callable[..., str], place: Path) -> None:
    (place / "sweep.yaml").write_text(
        f"{scored.SWEEP}  - {{name: other, set: {{training.validation.tokenize: char}}}}\n".replace(
            "[{name: same}]", "\n  - {name: same}"
        ),
        encoding="utf-8",
        newline="\n",
    )
    message = refused("sweep", "sweep.yaml")
    assert "same would be scored by the tokenizer 13a, and other by char, in one table" in message
    shutil.copytree("model", "other")
    change(Path("other"), "tokenize: null", "tokenize: char")
    message = refused("compare", "model", "other", *scored.GIVEN, "--no-speed", "-m", "bleu")
    assert "lead to different tokenizers (model 13a, other char)" in message


def change(model: Path, old: str, new: str) -> None:
    """Change the recipe of a model."""
    path = model / "recipe.yaml"
    text = unseal_text(path.read_text(encoding="utf-8"))
    assert text is not None and text.count(old) == 1
    path.write_text(seal_text(text.replace(old, new)), encoding="utf-8", newline="\n")


def test_a_run_is_validated_by_characters(command: Run, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train", "dev"):
        unspaced(workspace / "corpus" / f"{name}.de")
    data = ("data.target_language=ja", "data.directory=kana", "data.tokenizer.shared=false", "directory=run")
    changes = (*data, "model.tie_embeddings=target", "training.validation.every=2", "training.save_every=2")
    assert command("prepare", "small.yaml", *changes).code == 0
    result = command("train", "small.yaml", *changes, "training.max_updates=2")
    assert result.code == 0 and "update 2: loss " in result.err and "bleu (char) " in result.err, result.err
    monkeypatch.setattr(validation, "fitting_tokenizer", lambda *_: "ja-mecab")  # it was installed meanwhile
    result = command("train", "small.yaml", *changes, "training.max_updates=4", "training.average_last=2")
    assert "warning: the run began with validation by BLEU (char), and keeps it" in result.err
    choice = result.err.split("weights.safetensors: ")[1]
    assert re.search(r"bleu \(char\) \d+\.\d{3} \(last 2: bleu \(char\) \d+\.\d{3}\)", choice), (
        "the choice of an average"
    )
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_bytes().splitlines()]
    assert [(line["update"], line["tokenizer"]) for line in lines if line["kind"] == "validation"] == [
        (2, "char"),
        (4, "char"),
    ]
    assert find_checkpoints(Path("run"))[-1].progress().tokenizer == "char"
    # To write down what the run uses is no other run; to change it is.
    assert command("train", "small.yaml", *changes, "training.max_updates=4", f"{validation._KEY}=char").code == 0
    result = command("train", "small.yaml", *changes, "training.max_updates=4", f"{validation._KEY}=zh")
    assert "the run is validated by BLEU with the tokenizer char, not zh" in result.err


def test_words_are_not_told_of_a_tokenizer(trained: Path) -> None:
    """For text with spaces, all is as in older versions: logs, checkpoints and messages name no tokenizer."""
    lines = [json.loads(line) for line in (trained / "model" / "metrics.jsonl").read_bytes().splitlines()]
    assert not any("tokenizer" in line for line in lines)
    assert find_checkpoints(trained / "model")[-1].progress().tokenizer is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("chars", "training.validation.tokenize: must be one of 13a, char, zh, ja-mecab, ko-mecab, intl, none"),
        ("ja-mecab", "training.validation.tokenize: 'ja-mecab' cannot be used (Japanese tokenization requires"),
    ],
)
def test_tokenizers_that_cannot_be_used(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    assert message in refused("train", "small.yaml", "directory=new", f"training.validation.tokenize={value}")
    assert not Path("new").exists()


def scoring_of(
    trained: Path, lines: list[str], progress: Progress | None, *changes: str, language: str = "ja"
) -> tuple[ScoringOptions, list[str]]:
    """The validation of a run with a text, and what is said of it."""
    said: list[str] = []
    recipe = load_recipe(trained / "small.yaml", [f"data.target_language={language}", *changes])
    data: Any = SimpleNamespace(dev_lines=[("source", line) for line in lines])
    return validation_scoring(recipe, data, progress, said.append), said


def test_runs_keep_the_tokenizer_that_they_began_with(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = Progress(), Progress(tokenizer="char")
    new, said = scoring_of(trained, UNSPACED, None)
    assert (new.tokenize, recorded_tokenizer(new), said) == ("char", "char", [])
    kept, said = scoring_of(trained, UNSPACED, older)
    assert (kept.tokenize, recorded_tokenizer(kept), len(said)) == ("13a", None, 1)
    assert "the run began with validation by BLEU (13a), and keeps it; for BLEU (char), name another" in said[0]
    kept, said = scoring_of(trained, UNSPACED, newer)
    assert (kept.tokenize, kept.unspaced, recorded_tokenizer(kept), said) == ("char", True, "char", [])
    spaced, said = scoring_of(trained, LATIN, older, language="de")
    assert (spaced.tokenize, spaced.unspaced, recorded_tokenizer(spaced), said) == ("13a", False, None, [])
    with pytest.raises(UserError, match="validated by BLEU with the tokenizer 13a, not char"):
        scoring_of(trained, UNSPACED, older, "training.validation.tokenize=char")
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UserError, match="with a tokenizer that it began with: 'ja-mecab' cannot be used"):
        scoring_of(trained, UNSPACED, Progress(tokenizer="ja-mecab"))


@pytest.mark.parametrize(("metric", "tokenizer"), [("ter", "char"), ("rouge1", "char"), ("chrf", None), ("loss", None)])
def test_other_metrics_of_validation(trained: Path, metric: str, tokenizer: str | None) -> None:
    changed = f"training.validation.metric={metric}"
    new, said = scoring_of(trained, UNSPACED, None, changed)
    assert recorded_tokenizer(new) == tokenizer and not said
    kept, said = scoring_of(trained, UNSPACED, Progress(), changed)
    assert recorded_tokenizer(kept) is None and not kept.unspaced and not said, "as the older version measured"
    kept, said = scoring_of(trained, UNSPACED, Progress(tokenizer=tokenizer), changed)
    assert recorded_tokenizer(kept) == tokenizer and not said
