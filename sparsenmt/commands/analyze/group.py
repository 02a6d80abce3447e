"""``sparsenmt analyze``: reports on what gates drop, where attention goes, and what heads do."""

from __future__ import annotations

import click

from sparsenmt.command import REPORTS, CommandEntry
from sparsenmt.commands.analyze.plugin_report import report_command
from sparsenmt.commands.lazy_group import LazyGroup


class ReportGroup(LazyGroup):
    """The group of all reports: what a plugin registers is a function, of which a command is made."""

    def plugin_command(self, name: str, entry: CommandEntry) -> click.Command:
        return report_command(name, entry)


@click.group("analyze", cls=ReportGroup, table=REPORTS)
def command() -> None:
    """Report what the gates of trained models drop, where their attention goes, and what their heads do.

    Every report prints a table; --json and --csv write its values, --plot draws it (PNG or SVG, with matplotlib).
    Several models are put side by side. The sparsity rate is the share of source positions, </s> included, whose gate
    is 0.
    """
