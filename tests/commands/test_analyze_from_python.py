"""`workflows.analyze`: every report without click; a new report is a function of a session."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from sparsenmt.analysis.density import measure_density
from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.commands.analyze.group import REPORTS
from sparsenmt.commands.analyze.group import command as group
from sparsenmt.errors import UserError
from sparsenmt.report.output_files import ReportFiles
from sparsenmt.report.plots import Panel, curves
from sparsenmt.report.tables import Report, Table, columns
from sparsenmt.workflows.evaluation.analyze import analyze
from tests.commands.support import Run

SENTENCES = ("The old house", "The house")


def test_a_program_gets_what_the_command_prints_and_writes(command: Run, workspace: Path) -> None:
    session = AnalysisSession([Path("model")], sentences=SENTENCES)
    result = analyze(session, measure_density, ReportFiles(json=Path("a.json")), sites=["encoder_self"])
    (workspace / "text").write_text("\n".join(SENTENCES) + "\n")
    shown = command("analyze", "density", "model", "--input", "text", "--site", "encoder_self", "--json", "b.json")
    assert shown.out.decode() == result.shown + "\n"
    ours, theirs = (json.loads((workspace / name).read_bytes()) for name in ("a.json", "b.json"))
    assert ours["tables"] == theirs["tables"] and ours["settings"] == {**theirs["settings"], "input": "--sentence"}


def measure_lengths(session: AnalysisSession, *, scale: int = 1) -> AnalysisResult:
    """A report made outside of the package: source tokens of every model."""
    rows = [(model.label, scale * sum(len(line.ids) for line in model.sources)) for model in session.opened()]
    table = Table("lengths", "source tokens", columns("text model", "count tokens"), rows)
    panel = Panel("", "tokens", {"tokens": [(0.0, float(rows[0][1]))]}, style="bars")
    return session.result(Report("lengths", (table,)), lambda: curves([panel]), settings={"scale": scale})


def test_a_report_from_outside(workspace: Path) -> None:
    session = AnalysisSession([Path("model")], sentences=SENTENCES)
    result = analyze(session, measure_lengths, ReportFiles(csv=Path("a.csv"), plot=Path("a.svg")), scale=2)
    assert (workspace / "a.csv").read_text().startswith("model,tokens\nmodel,") and (workspace / "a.svg").exists()
    expected = {"models": ["model"], "input": "--sentence", "limit": None, "scale": 2}
    assert result.report.settings == expected and result.shown.startswith("source tokens\n")


def test_what_is_wrong_is_refused_before_a_model_is_opened(workspace: Path) -> None:
    with pytest.raises(UserError, match="named twice"):
        analyze(AnalysisSession([Path("model"), Path("model")], sentences=SENTENCES), measure_lengths)
    with pytest.raises(UserError, match="there is no text"):
        analyze(AnalysisSession([Path("model")]), measure_lengths)
    with pytest.raises(UserError, match="not a model directory"):
        analyze(AnalysisSession([Path("small.yaml")], sentences=SENTENCES), measure_lengths)


def test_every_report_of_the_table_is_there() -> None:
    context = click.Context(group)
    for name in REPORTS:
        found = group.get_command(context, name)
        assert found is not None and found.name == name and found.help
