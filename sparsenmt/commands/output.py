"""Text on standard output: reports and lists, whose names and words may come from strangers, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sparsenmt.errors import UNSAFE, printable_lines
from sparsenmt.process.progress import notify


def show(text: str) -> None:
    """Print lines with control characters as escapes, so that they have no effect on a terminal."""
    click.echo(printable_lines(text))


def show_written(text: str, files: Sequence[Path]) -> None:
    """Print a table, and name the files that it was written to."""
    show(text)
    if files:
        notify("written: " + ", ".join(map(str, files)))


def show_json(text: str) -> None:
    """Print JSON with its own escapes for control characters and for those that reverse the direction of writing."""
    click.echo(UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
