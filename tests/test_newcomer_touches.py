"""The files that an addition touches: each is made in a copy of the package, and used through the command line.

A decoding strategy is one file and one line; an analysis report one measure, one command file and one line; a metric
one record; a subcommand one file and one line; so are a family of Transformers' models, a program whose models are
imported, and a format that models are exported to. For a sparsity method from outside see
`tests/test_outside_method.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsenmt.cli import run
from sparsenmt.data.demo_corpus import write_demo_corpus
from tests.commands.conftest import RECIPE

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.thorough


class Copy:
    """A copy of the package beside a tiny trained model, to which a newcomer adds something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "program" / "sparsenmt"
        shutil.copytree(ROOT / "sparsenmt", self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def add_file(self, name: str, text: str) -> None:
        """Write a new file."""
        path = self.package / name
        assert not path.exists(), f"{name} is there already"
        path.write_text(text, encoding="utf-8", newline="\n")

    def add_line(self, name: str, line: str, *, after: str) -> None:
        """Insert one line into a table, behind the line that begins with ``after``."""
        path = self.package / name
        lines = path.read_bytes().decode().split("\n")
        (place,) = [number for number, each in enumerate(lines) if each.lstrip().startswith(after)]
        indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
        lines.insert(place + 1, indent + line)
        path.write_text("\n".join(lines), encoding="utf-8", newline="\n")

    def run(self, *arguments: str) -> str:
        """Run a command line that must succeed; returns its output."""
        done = self.start(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command line in a process of its own, with the copy as the package."""
        environment = {**os.environ, "PYTHONPATH": str(self.package.parent), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "sparsenmt", *arguments]
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, encoding="utf-8", timeout=120
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with corpus/, prepared/, model/, small.yaml, and the first lines of the test set."""
    folder = tmp_path_factory.mktemp("newcomer")
    write_demo_corpus(folder / "corpus", train=60, dev=6, test=6)
    recipe = RECIPE.replace("max_updates: 12", "max_updates: 6").replace("every: 6", "every: 3")
    (folder / "small.yaml").write_text(recipe, encoding="utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(["prepare", "small.yaml"]) == 0
        assert run(["train", "small.yaml"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Iterator[Copy]:
    folder = tmp_path / "work"
    shutil.copytree(trained, folder)
    yield Copy(folder)
    shutil.rmtree(folder / "program")


# A decoding strategy: one file, and one line in strategy.py

STRATEGY = '''\
"""The second most probable token first, then greedy search."""

from torch import Tensor

from sparsenmt.decoding.single_hypothesis import Pick, SingleHypothesisSearch
from sparsenmt.decoding.strategies import EncodedBatch


def pick(logits: Tensor, rows: Tensor, step: int) -> Tensor:
    return logits.topk(2).indices[:, int(step == 0)]


class SecondSearch(SingleHypothesisSearch):
    """Greedy search from the second best beginning."""

    name = "second"

    def picker(self, batch: EncodedBatch) -> Pick:
        return pick
'''


def test_a_decoding_strategy(copy: Copy) -> None:
    copy.add_file("decoding/second.py", STRATEGY)
    copy.add_line(
        "strategy.py", '"second": StrategyEntry("sparsenmt.decoding.second:SecondSearch"),', after='"greedy": '
    )
    decode = ("decode", "model", "-i", "corpus/test.en", "--threads", "1", "--json", "--method")
    greedy, second = (
        [json.loads(line)["hypotheses"][0] for line in copy.run(*decode, method).split("\n")[:-1]]
        for method in ("greedy", "second")
    )
    assert len(second) == 6
    assert all(
        ours["text"] != theirs["text"] or ours["score"] < theirs["score"]
        for ours, theirs in zip(second, greedy, strict=True)
    )
    assert "second" in copy.run("decode", "--help")
    assert "method: second" in copy.run("train", "small.yaml", "decoding.method=second", "--dump-config")


# An analysis report: one measure in analysis/, one command file, and one line in command.py

MEASURE = '''\
"""Tokens of the sentences."""

from __future__ import annotations

from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Column, Report, Table


def measure_token_counts(session: AnalysisSession, least: int) -> AnalysisResult:
    """Make the report ``token-counts``."""
    rows = tuple(
        (model.label, line.number + 1, len(line.ids))
        for model in session.opened()
        for line in model.sources
        if len(line.ids) >= least
    )
    columns = (Column("model"), Column("line", "count"), Column("tokens", "count"))
    series = {"tokens": [(float(line), float(tokens)) for _, line, tokens in rows]}
    report = Report("token-counts", (Table("token-counts", "tokens of a sentence", columns, rows),))
    return session.result(report, lambda: curves([Panel("line", "tokens", series)]), settings={"least": least})
'''
REPORT = '''\
"""``sparsenmt analyze token-counts``: an example."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("token-counts", short_help="Tokens of sentences.")
@click.option("--least", type=click.IntRange(0), default=0, help="Shortest sentence that is shown, in tokens.")
@analysis_options()
def command(arguments: AnalysisArguments, least: int) -> None:
    """Tokens of the sentences, </s> included."""
    from sparsenmt.analysis.token_counts import measure_token_counts

    arguments.show(measure_token_counts, least=least)
'''


def test_an_analysis_report(copy: Copy) -> None:
    copy.add_file("analysis/token_counts.py", MEASURE)
    copy.add_file("commands/analyze/token_counts.py", REPORT)
    line = '"token-counts": CommandEntry("analyze.token_counts", "Tokens of sentences."),'
    copy.add_line("command.py", line, after='"layers": ')
    assert "Tokens of sentences." in copy.run("analyze", "--help")
    assert "--least" in copy.run("analyze", "token-counts", "--help")
    files = ("--json", "r.json", "--csv", "r.csv")
    text = copy.run("analyze", "token-counts", "model", "-i", "corpus/test.en", "--least", "2", *files)
    rows = json.loads((copy.folder / "r.json").read_bytes())["tables"]["token-counts"]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(str(row["tokens"]) in text for row in rows)
    assert (copy.folder / "r.csv").read_bytes().startswith(b"model,line,tokens\n")


# A metric: one record in metric.py, and, if no scorer fits, a file with one

RECORD = 'Metric("chrf_again", "chrF again", "sacrebleu_scorer:chrf"),'


def test_a_metric_with_a_scorer_that_is_there(copy: Copy) -> None:
    copy.add_line("metric.py", RECORD, after='Metric("chrf", ')
    scores = json.loads(
        copy.run("score", "corpus/dev.de", "-r", "corpus/test.de", "-m", "chrf", "-m", "chrf_again", "--json")
    )["scores"]
    assert scores[0]["value"] == scores[1]["value"] > 0
    baseline = ("score", "corpus/dev.de", "-r", "corpus/test.de", "-m", "chrf_again", "--baseline", "corpus/test.de")
    assert "chrF again" in copy.run(*baseline, "--resamples", "5")
    metric = ("training.validation.metric=chrf_again", "directory=again")
    copy.run("train", "small.yaml", *metric)
    records = [json.loads(line) for line in (copy.folder / "again/metrics.jsonl").read_bytes().split(b"\n")[:-1]]
    assert [record["update"] for record in records if "chrf_again" in record] == [3, 6]
    assert "chrf_again" in copy.run("compare", "--help")


# A subcommand: one file in commands/, and one line in the table of command.py

COMMAND = '''\
"""``sparsenmt count-words``: an example."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("count-words")
@click.argument("text", type=click.Path(path_type=Path, exists=True))
def command(text: Path) -> None:
    """Count the words of TEXT."""
    click.echo(len(text.read_bytes().split()))
'''


def test_a_subcommand(copy: Copy) -> None:
    copy.add_file("commands/count_words.py", COMMAND)
    copy.add_line("command.py", '"count-words": CommandEntry("count_words", "Count words."),', after='"prepare": ')
    assert (
        copy.run("count-words", "corpus/test.en") == f"{len((copy.folder / 'corpus/test.en').read_bytes().split())}\n"
    )
    assert "Count the words of TEXT." in copy.run("count-words", "--help")
    listed = copy.run("--help").split("\n")
    assert any(line.split() == ["count-words", "Count", "words."] for line in listed)
    assert "Did you mean 'count-words'?" in copy.start("count-word").stderr


# A family of models of Transformers: one file in importers/families/, and one line in its table.py

FAMILY = '''\
"""Another family, with the normalisation and the tokenizers of PEGASUS."""

from sparsenmt.importers.families.family import Family

FAMILY = Family(norm="pre", positions="paper", tokenizers=("Another", "Pegasus"))
'''


def test_a_family_of_transformers_models(copy: Copy) -> None:
    copy.add_file("importers/families/another.py", FAMILY)
    line = '"another": FamilyEntry("Another Family", "sparsenmt.importers.families.another"),'
    copy.add_line("importers/families/table.py", line, after='"pegasus": ')
    copy.run("export", "model", "theirs", "--to", "safetensors-hf")
    config = copy.folder / "theirs" / "config.json"
    config.write_bytes(json.dumps(json.loads(config.read_bytes()) | {"model_type": "another"}).encode())
    copy.run("import", "theirs", "ours", "--source-language", "en", "--target-language", "de")
    decode = ("decode", "-i", "corpus/test.en", "--threads", "1", "--method", "greedy")
    ours, theirs = (copy.run(*decode, name).split("\n")[:-1] for name in ("ours", "model"))
    assert all(longer.startswith(line) for longer, line in zip(ours, theirs, strict=True))  # the longest output differs
    assert "Another Family" in copy.run("import", "--help")
    assert "Another Family" in copy.start("import", "corpus", "out").stderr


# A program whose models are imported: one file in importers/, and one line in programs.py

PROGRAM = '''\
"""Files that name a folder of Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsenmt.importers import huggingface
from sparsenmt.importers.foreign_model import ForeignModel


def recognizes(source: Path) -> bool:
    return source.suffix == ".place"


def read(source: Path, vocabularies: Sequence[Path]) -> ForeignModel:
    return huggingface.read(Path(source.read_text(encoding="utf-8")))
'''


def test_a_program_whose_models_are_imported(copy: Copy) -> None:
    copy.add_file("importers/place.py", PROGRAM)
    copy.add_line(
        "importers/programs.py", '"sparsenmt.importers.place": "a .place file",', after='"sparsenmt.importers.h'
    )
    copy.run("export", "model", "theirs", "--to", "safetensors-hf")
    (copy.folder / "model.place").write_text("theirs", encoding="utf-8")
    copy.run("import", "model.place", "ours", "--source-language", "en", "--target-language", "de")
    assert json.loads((copy.folder / "ours" / "manifest.json").read_bytes())["imported_from"]["weights"]
    assert "a .place file" in copy.start("import", "corpus", "out").stderr


# A format that models are exported to: one file in export/, and one line in its table.py

TARGET = '''\
"""The sizes of a model."""

from sparsenmt.export.target import ExportTarget
from sparsenmt.storage.files import write_json

TARGET = ExportTarget(
    name="Sizes",
    check=lambda: None,
    write=lambda plain, bundle, directory, sentencepiece: write_json(directory / "sizes.json", {"d": 1}),
    usage=lambda plain, bundle, sentencepiece: "print(open('sizes.json').read())",
    notes=lambda plain: ["It has sizes alone."],
)
'''


def test_a_format_that_models_are_exported_to(copy: Copy) -> None:
    copy.add_file("export/to_sizes.py", TARGET)
    line = '"sizes": TargetEntry("sparsenmt.export.to_sizes", ("The sizes of a model",)),'
    copy.add_line("export/table.py", line, after="TARGETS: dict")
    copy.run("export", "model", "sizes", "--to", "sizes")
    assert json.loads((copy.folder / "sizes" / "sizes.json").read_bytes()) == {"d": 1}
    assert "It has sizes alone." in (copy.folder / "sizes" / "README.md").read_bytes().decode()
    assert "The sizes of a model" in copy.run("export", "--help")
