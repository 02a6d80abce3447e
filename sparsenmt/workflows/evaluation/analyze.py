"""Make an analysis report: `analyze(session, measure_density)` with any report function of `sparsenmt.analysis`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec

from sparsenmt.analysis.session import AnalysisResult, AnalysisSession
from sparsenmt.report.output_files import ReportFiles

P = ParamSpec("P")


def analyze(
    session: AnalysisSession,
    measure: Callable[Concatenate[AnalysisSession, P], AnalysisResult],
    files: ReportFiles | None = None,
    *arguments: P.args,
    **settings: P.kwargs,
) -> AnalysisResult:
    """Make a report, and write its files.

    Args:
        measure: the report's function, as `density.measure_density`.
        files: None: no files are written.
        settings: the report's own settings, passed to ``measure``.

    Raises:
        UserError: a model, a file or a setting cannot be used.
    """
    files = files or ReportFiles()
    session = replace(session, for_plot=session.for_plot or files.plot is not None)
    session.check()
    given = [value for value in (*arguments, *settings.values()) if isinstance(value, Path)]
    files.check([*session.files, *given])
    session.use_processors()
    result = measure(session, *arguments, **settings)
    files.write(result.report, result.draw)
    return result
