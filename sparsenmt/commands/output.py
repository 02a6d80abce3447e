"""Text on standard output: reports and lists, whose names and words may come from strangers, and JSON."""

from __future__ import annotations

import re

import click

from sparsenmt.errors import printable_lines

_UNSAFE = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # JSON escapes the other control characters


def show(text: str) -> None:
    """Print lines; control characters in them, which a terminal would obey, are shown as escapes."""
    click.echo(printable_lines(text))


def show_json(text: str) -> None:
    """Print JSON; control characters, and those that reverse the direction of writing, are JSON's own escapes."""
    click.echo(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
