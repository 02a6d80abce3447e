"""The comparison of a report's figures with those of the commands that its sections name."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsenmt.report.page.document import Document, ReportSection

NOT_PRINTED = ("annotate", "maps", "time")
"""Sections with sentences in place of tables, and the one with times, which differ from run to run."""


def tables(section: ReportSection) -> dict[str, Any]:
    """Return the tables of a section as a command writes them to JSON."""
    return {table.name: table.records() for table in section.tables}


def check_figures(document: Document, call: Callable[[list[str]], int], *options: str) -> list[str]:
    """Check that the figures of a report are those of the commands, to the last digit; writes to the working directory.

    Args:
        call: runs a command line; returns its exit code.
        options: added to commands that read a text.

    Returns:
        the names of the sections whose figures were compared.
    """
    compared = []
    for section in document.sections:
        if section.command and not section.missing and section.name not in NOT_PRINTED:
            words = shlex.split(section.command)[1:]
            more = () if section.name in ("alphas", "spans") else options
            place = ["-o", "depths"] if section.name == "depths" else ["--json", "printed.json"]
            assert call([*words, *more, *place]) == 0, section.command
            written = Path("depths/table.json" if section.name == "depths" else "printed.json")
            _check(section, json.loads(written.read_bytes()))
            compared.append(section.name)
    return compared


def _check(section: ReportSection, printed: dict[str, Any]) -> None:
    own, theirs = tables(section), printed["tables"]
    if section.name == "sparsity":
        rows = {(row["model"], row["metric"]): row for row in own["sparsity"]}
        for row in theirs["models"]:
            ours = rows[row["model"], "BLEU"]
            names = {"quality": "bleu", "difference": "difference", "p_value": "p_value", "sparsity": "sparsity"}
            names |= {name: name for name in ("density", "attended", "parameters")}
            assert {name: ours[name] for name in names} == {name: row[other] for name, other in names.items()}
        for row in theirs["significance"]:
            ours = rows[row["model"], row["metric"]]
            assert (ours["low"], ours["high"]) == (row["low"], row["high"])
        return
    for row in (*own.get("cells", ()), *theirs.get("cells", ())):
        del row["translations"]  # the files are elsewhere
    assert own == theirs and list(section.notes) == printed["notes"], section.name
