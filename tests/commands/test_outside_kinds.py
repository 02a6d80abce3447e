"""Plugins of every kind through the command line, and their list; a broken one stops only what uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.support import Plugin, Run
from tests.plugins.support import installed

KINDS = '''\
"""One of each kind."""

from typing import Annotated

import click
import numpy as np
import torch

from sparsenmt import register, register_command, register_metric, register_report, register_strategy
from sparsenmt.decoding.single_hypothesis import SingleHypothesisSearch
from sparsenmt.model.sockets import Transform
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Column, Report, Table


@register("transform", "cool")
class Cool(Transform):
    """Softmax of a fifth of the scores."""

    def __init__(self, options, *, site, heads):
        super().__init__()

    def forward(self, scores, keys):
        visible = keys.visible()
        mass = (0.2 * scores).masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(~visible, 0.0)
        return mass


@register_strategy("second")
class SecondSearch(SingleHypothesisSearch):
    """Greedy search from the second best beginning."""

    def picker(self, batch):
        return lambda logits, rows, step: logits.topk(2).indices[:, int(step == 0)]


@register_metric("exact", "exact matches")
class ExactMatches:
    """The share of lines that are the reference."""

    def __init__(self, name, settings):
        self.settings = settings

    def statistics(self, hypotheses, references):
        return np.array([[h in r, 1] for h, *r in zip(hypotheses, *references)], dtype=float)

    def value(self, sums):
        return 100 * sums[0] / sums[1]

    def corpus(self, hypotheses, references):
        return float(self.value(self.statistics(hypotheses, references).sum(0))), "lines"


@register_report("token-counts", "Tokens of sentences.")
def measure_token_counts(session, *, least: Annotated[int, "Shortest sentence that is shown, in tokens."] = 0):
    """Tokens of the sentences, </s> included."""
    rows = [(m.label, line.number + 1, len(line.ids)) for m in session.opened() for line in m.sources]
    rows = tuple(row for row in rows if row[2] >= least)
    columns = (Column("model"), Column("line", "count"), Column("tokens", "count"))
    series = {"tokens": [(float(line), float(tokens)) for _, line, tokens in rows]}
    report = Report("token-counts", (Table("token-counts", "tokens of a sentence", columns, rows),))
    return session.result(report, lambda: curves([Panel("line", "tokens", series)]), settings={"least": least})


@register_command("count-words", "Count words.")
@click.command()
@click.argument("text", type=click.Path(exists=True))
def count_words(text):
    """Count the words of TEXT."""
    with open(text, "rb") as stream:
        click.echo(len(stream.read().split()))
'''


def test_a_decoding_strategy(plugin: Plugin, command: Run) -> None:
    plugin(KINDS)
    decode = ("decode", "model", "-i", "corpus/test.en", "--json", "--method")
    greedy, second = (
        [json.loads(line)["hypotheses"][0] for line in command(*decode, method).lines]
        for method in ("greedy", "second")
    )
    assert len(second) == len(greedy) == 20
    assert all(a["text"] != b["text"] or a["score"] < b["score"] for a, b in zip(second, greedy, strict=True))
    assert b"|second]" in command("decode", "--help").out
    assert b"method: second" in command("train", "small.yaml", "decoding.method=second", "--dump-config").out


def test_a_metric(plugin: Plugin, command: Run) -> None:
    plugin(KINDS)
    texts = ("score", "corpus/dev.de", "-r", "corpus/dev.de", "-m", "exact")
    (score,) = json.loads(command(*texts, "--json").out)["scores"]
    assert (score["name"], score["value"]) == ("exact", 100.0)
    compared = command(*texts, "--baseline", "corpus/dev.de", "--resamples", "5")
    assert b"exact matches" in compared.out, compared.err
    done = command(
        "train", "small.yaml", "training.validation.metric=exact", "directory=other", "training.max_updates=6"
    )
    assert done.code == 0, done.err
    assert b'"exact": 0.0' in Path("other/metrics.jsonl").read_bytes()


def test_a_report_with_a_drawing_and_files(plugin: Plugin, command: Run, workspace: Path) -> None:
    plugin(KINDS)
    assert b"token-counts     Tokens of sentences." in command("analyze", "--help").out
    shown = command("analyze", "token-counts", "--help").out.decode()
    assert "--least INTEGER" in shown and "Shortest sentence that is shown, in tokens." in shown
    assert "Tokens of the sentences, </s> included." in shown and "--limit" in shown
    files = ("--json", "r.json", "--csv", "r.csv", "--plot", "r.svg")
    done = command("analyze", "token-counts", "model", "-i", "corpus/test.en", "--least", "2", "--limit", "4", *files)
    assert done.code == 0, done.err
    found = json.loads((workspace / "r.json").read_bytes())
    assert [row["line"] for row in found["tables"]["token-counts"]] == [1, 2, 3, 4] and found["settings"]["least"] == 2
    assert (workspace / "r.csv").read_bytes().startswith(b"model,line,tokens\n") and (workspace / "r.svg").exists()


def test_a_command(plugin: Plugin, command: Run, workspace: Path) -> None:
    plugin(KINDS)
    assert int(command("count-words", "corpus/test.en").out) == len((workspace / "corpus/test.en").read_bytes().split())
    assert any(line.split() == [b"count-words", b"Count", b"words."] for line in command("--help").out.split(b"\n"))
    shown = command("count-words", "--help").out
    assert b"Count the words of TEXT." in shown and b"--log-file" in shown
    assert "Did you mean 'count-words'?" in command("count-word").err


@pytest.mark.thorough
def test_the_list(plugin: Plugin, command: Run, workspace: Path) -> None:
    assert command("plugins").lines == ["no plugin is registered"]
    module = plugin(KINDS)
    done = command("plugins", "--json")
    assert done.code == 0, done.err
    names = {"method": "transform cool", "strategy": "second", "metric": "exact", "report": "token-counts"}
    expected = [
        {"kind": kind, "name": name, "module": module, "file": str(workspace / f"{module}.py"), "package": None}
        for kind, name in {**names, "command": "count-words"}.items()
    ]
    assert json.loads(done.out) == {"plugins": [{**row, "version": None} for row in expected], "failures": []}
    shown = command("plugins").out.decode()
    assert all(name in shown for name in names.values())
    everything = json.loads(command("plugins", "--all", "--json").out)["plugins"]
    assert {"transform softmax", "beam", "bleu", "density", "train"} <= {row["name"] for row in everything}


def test_a_broken_plugin_stops_only_what_uses_it(plugin: Plugin, command: Run, workspace: Path) -> None:
    plugin(KINDS)
    plugin("\n\n1 / 0\n", "broken")
    train = ("train", "small.yaml", "directory=other", "training.max_updates=2")
    assert command(*train).code == 0
    assert command(*train, "directory=cool", "model.attention.cross.transform={name: cool}").code == 0
    assert command("decode", "model", "-i", "corpus/test.en", "--method", "second", "-o", "out").code == 0
    told = "broken.py:3: the plugin SPARSENMT_PLUGINS=broken failed: ZeroDivisionError: division by zero"
    for words in (
        (*train, "model.attention.cross.transform={name: odd}"),
        (*train, "decoding.method=odd"),
        (*train, "training.validation.metric=odd"),
        ("decode", "model", "-i", "corpus/test.en", "--method", "odd"),
        ("score", "corpus/dev.de", "-r", "corpus/dev.de", "-m", "odd"),
        ("analyze", "odd", "model"),
        ("odd",),
    ):
        done = command(*words)
        assert done.code == 2 and told in done.err, done.err
    listed = command("plugins", "--json")
    assert listed.code == 2
    (failed,) = json.loads(listed.out)["failures"]
    assert (failed["source"], failed["module"]) == ("SPARSENMT_PLUGINS=broken", "broken")
    assert failed["where"].endswith("broken.py:3") and failed["error"].endswith("division by zero")


@pytest.mark.thorough
def test_installed_plugins_are_imported_when_they_are_used(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "kinds.py").write_text(KINDS.replace("import click\n", "import click\nprint('imported')\n"), "utf-8")
    groups = {"methods": "cool", "strategies": "second", "metrics": "exact", "reports": "token-counts"}
    entries = "".join(
        f"[sparsenmt.{key}]\n{name} = kinds\n" for key, name in {**groups, "commands": "count-words"}.items()
    )
    installed(folder, "odd-kinds", "2.0", f"{entries}broken = gone\n")
    shutil.copytree(trained / "corpus", tmp_path / "corpus")
    environment = {"PYTHONPATH": f"{folder}:{Path(__file__).resolve().parents[2]}"}

    def run(*words: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "sparsenmt", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    _, out, _ = run("--help")
    assert b"Of the package odd-kinds 2.0." in out and b"imported" not in out
    code, out, _ = run("count-words", "corpus/test.en")
    assert code == 0 and out.startswith(b"imported\n")
    code, _, err = run("broken")
    assert code == 2 and b"entry point broken = gone: the plugin entry point broken = gone cannot be loaded" in err
    code, out, _ = run("plugins", "--json")
    found = json.loads(out.removeprefix(b"imported\n"))
    assert code == 2 and [row["error"].rpartition(": ")[2] for row in found["failures"]] == [
        "there is no module 'gone'"
    ]
    assert {(row["package"], row["version"]) for row in found["plugins"]} == {("odd-kinds", "2.0")}
    assert len(found["plugins"]) == 5


@pytest.mark.parametrize(
    ("setting", "message"),
    [("least", "setting 'least'"), ("least: list = []", "setting 'least'"), ("least: int", "setting 'least'")],
)
def test_a_setting_without_an_option(plugin: Plugin, command: Run, setting: str, message: str) -> None:
    plugin(
        f"from sparsenmt import register_report\n@register_report('odd', 'Odd.')\ndef odd(session, {setting}):\n    ..."
    )
    done = command("analyze", "odd", "model", "-i", "corpus/test.en")
    assert done.code == 2 and f"the report 'odd': no option can be made of its {message}" in done.err, done.err


def test_a_command_of_the_package_imports_no_plugin(plugin: Plugin, command: Run) -> None:
    module = plugin(KINDS)
    assert command("score", "corpus/dev.de", "-r", "corpus/dev.de", "-m", "bleu").code == 0
    assert module not in sys.modules
