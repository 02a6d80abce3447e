"""Names, words and file contents that hold terminal escapes: no command prints one."""

from __future__ import annotations

import errno
import importlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from sparsenmt import cli
from sparsenmt.process import progress
from sparsenmt.process.interrupts import Interrupted
from sparsenmt.recipe.yaml_tree import parse_plain, write
from tests.commands.support import Result, Run

EVIL = "e\x1b]0;pwned\x07\u009b31m\u202e"
"""Sets the title of the window, colours what follows, and reverses the direction of writing."""


def check(result: Result) -> None:
    text = result.out.decode("utf-8") + result.err
    found = {f"U+{ord(one):04X}" for one in text if (ord(one) < 0x20 and one not in "\n\t") or 0x7F <= ord(one) < 0xA0}
    assert not found and "\u202e" not in text, text
    assert "Traceback" not in text and result.code in (0, 1, 2)


@pytest.mark.parametrize(
    "words",
    [[EVIL], [f"--{EVIL}"], ["decode"], ["train"], ["decode", "model", f"--{EVIL}"], ["decode", "model", "--method"]],
    ids=["command", "option", "model", "recipe", "option of a command", "choice"],
)
def test_words_of_the_command_line(words: list[str], command: Run) -> None:
    result = command(*words, *([EVIL] if len(words) == 1 else [EVIL][: words[-1] == "--method"]))
    assert result.code == 2 and result.err
    check(result)


@pytest.mark.parametrize(
    "setting",
    [
        "name={}",
        "directory={}",
        "{}=1",
        "training.{}=1",
        "model.preset={}",
        "training.seed={}",
        "model.memory=[{{name: {}}}]",
        "model.attention.cross.transform={{name: {}}}",
        "data.train.0.name={}",
        "data.train.0.source={}",
        "data.dev.tags={}",
    ],
)
def test_keys_and_values_of_recipes(setting: str, command: Run) -> None:
    quoted = json.dumps(EVIL)
    given = setting.format(EVIL if setting.index("{") < setting.index("=") else quoted)
    for arguments in (["train", "small.yaml", given, "--dump-config"], ["prepare", "small.yaml", given]):
        check(command(*arguments))


def test_a_recipe_file(command: Run, workspace: Path) -> None:
    text = (workspace / "small.yaml").read_text(encoding="utf-8")
    quoted = json.dumps(EVIL)
    for more in (f"{quoted}: 1\n", f"x: !{EVIL} 1\n", f"base: {quoted}\n", f"x: *{EVIL}\n", EVIL):
        (workspace / EVIL).write_text(text + more, encoding="utf-8")
        result = command("train", EVIL)
        assert result.code == 2 and result.err
        check(result)


@pytest.fixture
def evil(command: Run, workspace: Path) -> Path:
    """A workspace whose corpus, model and texts have evil names."""
    (workspace / "model").rename(workspace / EVIL)
    for name in ("test.en", "test.de", "test.tags"):
        (workspace / "corpus" / name).rename(workspace / f"{EVIL}.{name[5:]}")
    return workspace


MODEL, SOURCE, TARGET = EVIL, f"{EVIL}.en", f"{EVIL}.de"


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", MODEL, "-i", SOURCE, "-o", f"{EVIL}.out"],
        ["decode", MODEL, "-i", SOURCE, "--tags", f"{EVIL}.tags", "-o", f"{EVIL}.out"],
        ["decode", MODEL, "-i", SOURCE, "-o", f"{EVIL}/{EVIL}/x"],
        ["decode", MODEL, "-i", f"{EVIL}.missing"],
        ["decode", MODEL, "-i", SOURCE, "--documents", TARGET],
        ["score", TARGET, "-r", TARGET, "-m", "bleu"],
        ["score", TARGET, "-r", f"{EVIL}.missing"],
        ["score", "--model", MODEL, "--source", SOURCE, "--target", TARGET],
        ["score", "--model", MODEL, "--source", SOURCE, "--target", TARGET, "--json"],
        ["average", MODEL],
        ["average", MODEL, "-o", f"{EVIL}.mean"],
        ["slice", MODEL, "-o", f"{EVIL}.slice", "--encoder-layers", "1", "--decoder-layers", "1"],
        ["contrast", MODEL, "--source", SOURCE, "--correct", TARGET, "--incorrect", TARGET],
        ["contrast", f"{EVIL}.json"],
        ["compare", MODEL, "--no-speed"],
        ["analyze", "gates", MODEL, "-i", SOURCE, "--limit", "2"],
        ["analyze", "annotate", MODEL, "-i", SOURCE, "--limit", "2"],
        ["analyze", "alphas", MODEL],
        ["export", MODEL, f"{EVIL}.export", "--format", EVIL],
        ["select-depth", MODEL],
        ["depth-table", MODEL],
        ["benchmark", MODEL, "--json", f"{EVIL}/{EVIL}/x"],
        ["distill", MODEL, EVIL],
        ["finetune-l0", MODEL],
        ["sweep", f"{EVIL}.yaml", "--list"],
        ["demo", f"{EVIL}=1", "--directory", EVIL],
    ],
    ids=lambda arguments: " ".join(arguments).replace(EVIL, "EVIL"),
)
def test_every_command(arguments: list[str], command: Run, evil: Path) -> None:
    entry = {"source": EVIL, "reference": EVIL, "errors": [{"contrastive": EVIL, "type": EVIL, "distance": -1}]}
    (evil / f"{EVIL}.json").write_text(json.dumps([entry]), encoding="utf-8")
    (evil / f"{EVIL}.yaml").write_text(f"recipe: small.yaml\naxes: {{a: [{json.dumps(EVIL)}, b]}}\n", encoding="utf-8")
    check(command(*arguments))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(EVIL),
        OSError(errno.ENOSPC, "", EVIL),
        MemoryError(EVIL),
        click.UsageError(EVIL),
        EOFError(EVIL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_texts_of_exceptions(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        importlib, "import_module", lambda name: SimpleNamespace(command=click.Command("x", callback=body))
    )
    code = cli.run(["train"])
    found = capsys.readouterr()
    assert code in (1, 2) and found.err
    check(Result(code, found.out.encode(), found.err))
    for report in tmp_path.iterdir():  # is shown with `cat`
        text = report.read_text(encoding="utf-8")
        assert "pwned" in text and "\x1b" not in text and "\u009b" not in text


def test_interrupts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        stop = Interrupted(2)
        stop.note, stop.resumable = EVIL, True
        raise stop

    monkeypatch.setattr(
        importlib, "import_module", lambda name: SimpleNamespace(command=click.Command("x", callback=body))
    )
    assert cli.run(["train", EVIL]) in (2, 130)
    assert cli.run(["train"]) == 130
    found = capsys.readouterr()
    check(Result(0, found.out.encode(), found.err))


def test_progress_bars_and_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.progress_bar(EVIL, 3) as advance:
        advance(1)
        progress.notify(f"{EVIL}\nsecond line")
    assert not any(one in terminal.getvalue() for one in ("\x1b]", "\x07", "\u009b", "\u202e"))
    assert "pwned" in terminal.getvalue() and "\nsecond line\n" in terminal.getvalue()


def test_dumped_recipes_are_read_back_unchanged() -> None:
    values = {"a": EVIL, "b": ["\x85 \x85", "x\x85y"], "c": "\x7f"}
    text = write(values)
    assert parse_plain(text, name="x") == values
    assert not any((one < " " and one != "\n") or "\x7f" <= one < "\xa0" for one in text)
