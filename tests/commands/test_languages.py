"""Models of several languages, from the vocabularies that they are given to every command that reads text."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsenmt.data.tokenizers.frame import Frames
from sparsenmt.storage.tensors import load_tensors
from tests.commands.support import Run
from tests.importers import sources

Refused = Callable[..., str]

LANGUAGES = {"en_XX": 20, "de_DE": 21, "fr_XX": 22}
FRAMES = Frames(LANGUAGES, source_prefix=["source"], target_prefix=["target"])
SMALL = ("training.validation.metric=loss", "data.directory=several-data", "data.tokenizer.from_model=several")


@pytest.fixture
def several(command: Run, workspace: Path) -> Path:
    """A model of three languages; its first recipe translates from English to German."""
    shutil.copytree(workspace / "prepared" / "tokenizers", workspace / "several" / "tokenizers")
    FRAMES.save(workspace / "several" / "tokenizers" / "frames.json")
    languages = ("decoding.source_language=en_XX", "decoding.target_language=de_DE")
    assert command("prepare", "small.yaml", *SMALL).code == 0
    for name, updates in (("half", 4), ("half", 8), ("whole", 8)):
        limits = (f"directory={name}", f"training.max_updates={updates}")
        assert command("train", "small.yaml", *SMALL, *languages, *limits).code == 0
    return workspace / "half"


def test_languages_from_training_to_decoding(command: Run, refused: Refused, several: Path, workspace: Path) -> None:
    # A run that was interrupted ends with the same weights.
    found, expected = (load_tensors(workspace / name / "weights.safetensors", hint="") for name in ("half", "whole"))
    assert all(found[name].equal(expected[name]) for name in expected)
    text = (workspace / "corpus" / "dev.en").read_bytes()
    (workspace / "few.en").write_bytes(b"".join(text.splitlines(keepends=True)[:4]))
    german = command("decode", several, "-i", "few.en").out
    scored = ("decode", several, "-i", "few.en", "--json")  # an untrained model, whose scores show what it reads
    as_german = command(*scored).out
    assert command(*scored, "--target-language", "de_DE").out == as_german
    assert command(*scored, "--target-language", "fr_XX").out != as_german
    assert command(*scored, "--source-language", "fr_XX").out != as_german
    (workspace / "few.de").write_bytes(german)
    scores = [
        command("score", "--model", several, "--source", "few.en", "--target", "few.de", *more).out
        for more in ((), ("--target-language", "de_DE"), ("--target-language", "fr_XX"))
    ]
    assert scores[0] == scores[1] != scores[2]
    report = command("analyze", "density", several, "-i", "few.en", "--target-language", "fr_XX")
    assert report.code == 0, report.err
    # A shortlist need not have the languages' tokens.
    short = command("shortlist", several, "few.en", "few.de", "-o", "small", "--first", "2", "--best", "2")
    assert short.code == 0, short.err
    for code in ("de_DE", "fr_XX"):
        assert command(*scored, "--shortlist", "small", "--target-language", code).code == 0
    table = ("depth-table", several, "--source", "few.en", "--reference", "few.de", "--no-speed")
    for number, code in enumerate(("de_DE", "fr_XX", "de_DE")):
        result = command(*table, "--target-language", code, "-o", f"table-{number}")
        assert result.code == 0, result.err
    cut = command(
        "slice",
        several,
        "cut",
        "--vocabulary",
        "few.en",
        "--vocabulary",
        "few.de",
        "--keep-language",
        "en_XX",
        "--keep-language",
        "de_DE",
    )
    assert cut.code == 0, cut.err
    assert command("decode", "cut", "-i", "few.en").code == 0
    assert "does not have the language 'fr_XX'" in refused(
        "decode", "cut", "-i", "few.en", "--target-language", "fr_XX"
    )
    assert "and de_DE is left out" in refused(
        "slice", several, "cut2", "--vocabulary", "few.en", "--keep-language", "en_XX"
    )
    assert "'xx'" in refused("depth-table", several, *table[2:], "--target-language", "xx", "-o", "table-x")
    selected = ("select-depth", several, "-s", "few.en", "-r", "few.de", "--target-language", "xx")
    assert "'xx'" in refused(*selected)
    assert "'xx'" in refused("decode", several, "--target-language", "xx")
    assert "Take one of: de_DE" in refused("decode", several, "--target-language", "de")
    assert "no languages to choose from" in refused("decode", "model", "--target-language", "de")


def test_a_language_that_is_missing_is_asked_for(refused: Refused, workspace: Path, command: Run) -> None:
    shutil.copytree(workspace / "prepared" / "tokenizers", workspace / "several" / "tokenizers")
    FRAMES.save(workspace / "several" / "tokenizers" / "frames.json")
    assert command("prepare", "small.yaml", *SMALL).code == 0
    assert "--source-language" in refused("train", "small.yaml", *SMALL, "directory=other")
    assert "there are no tokenizers" in refused(
        "prepare", "small.yaml", "data.directory=x", "data.tokenizer.from_model=corpus"
    )


@pytest.fixture
def tagged(command: Run, workspace: Path) -> Path:
    """An imported model of several targets, to German unless it is told otherwise."""
    sources.hugging_face(workspace / "opus", "opus-mt-several-targets")
    assert command("import", "opus", "tagged", "--target-language", "deu").code == 0
    return workspace / "tagged"


def test_a_tag_before_a_line_is_its_language(command: Run, refused: Refused, tagged: Path, workspace: Path) -> None:
    lines = ["Two dogs are playing", "Who is reading?"]
    (workspace / "plain").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (workspace / "mixed").write_text(f">>fra<< {lines[0]}\n{lines[1]}\n", encoding="utf-8")
    scored = ("decode", tagged, "--json", "-i")  # an untrained model, whose scores show what it reads
    german, french = (command(*scored, "plain", "--target-language", code).out for code in ("deu", "fra"))
    assert german != french
    mixed = command(*scored, "mixed")
    assert mixed.out.splitlines() == [french.splitlines()[0], german.splitlines()[1]]
    assert "warning" not in mixed.err
    (workspace / "targets").write_bytes((workspace / "plain").read_bytes())
    score = ("score", "--model", tagged, "--target", "targets", "--source")
    found = [command(*score, name, *more).out for name, more in (("plain", ()), ("mixed", ()))]
    assert found[0] != found[1]
    (workspace / "other").write_text(f"{lines[0]}\n>>cmn_Hans<< {lines[1]}\n", encoding="utf-8")
    said = refused("decode", tagged, "-i", "other", "-o", "out")
    assert "line 2: the model does not have the language 'cmn_Hans'" in said and "deu, fra" in said
    # The language of the source names texts, and is no token.
    assert command("import", "opus", "english", "--source-language", "en", "--target-language", "deu").code == 0
    assert command("decode", "english", "--json", "-i", "plain").out == german
    assert "Leave it out" in refused("decode", "english", "-i", "plain", "--source-language", "en")
    assert "'xx'" in refused("import", "opus", "wrong", "--target-language", "xx")


def test_the_tags_of_madlad(command: Run, refused: Refused, workspace: Path) -> None:
    sources.hugging_face(workspace / "theirs", "madlad-400")
    assert command("import", "theirs", "madlad").code == 0
    scored = ("decode", "madlad", "--json", "--max-length-offset", "5", "--max-length-factor", "0")
    french, german = (command(*scored, "--target-language", to, stdin=b"Two dogs\n").out for to in ("fr", "de"))
    assert command(*scored, "--target-language", "de", stdin=b"<2fr> Two dogs\n").out == french != german
    (workspace / "other").write_text("<2xx> Two dogs\n", encoding="utf-8")
    said = refused(*scored, "--target-language", "de", "-i", "other")
    assert "line 1: the model does not have the language 'xx'" in said and "de, fr, zh_Latn" in said


@pytest.mark.parametrize(
    ("family", "languages", "line", "why"),
    [
        ("opus-mt", (), ">>fra<< Two dogs", "the model has none"),
        ("m2m-100", ("en", "de"), "__fr__ Two dogs", "remove it, and give --source-language and --target-language"),
        ("nllb", ("eng_Latn", "deu_Latn"), "zul_Latn Two dogs", "remove it, and give"),
        ("mbart-50", ("en_XX", "de_DE"), ">>fra<< Two dogs", "remove it, and give"),
    ],
)
def test_the_name_of_a_language_that_is_read_as_text_is_told(
    family: str, languages: tuple[str, ...], line: str, why: str, command: Run, workspace: Path
) -> None:
    sources.hugging_face(workspace / "theirs", family)
    options = zip(("--source-language", "--target-language"), languages, strict=False)
    assert command("import", "theirs", "ours", *(each for pair in options for each in pair)).code == 0
    (workspace / "lines").write_text(f"Two dogs\n{line}\nTwo dogs\n", encoding="utf-8")
    found = command("decode", "ours", "-i", "lines", "--max-length-offset", "3", "--max-length-factor", "0")
    assert found.code == 0
    expected = f"warning: line 2 begins with the name of a language, which is read as text: {why}"
    assert found.err.count(expected) == 1
