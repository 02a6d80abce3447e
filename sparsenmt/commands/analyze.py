"""``sparsenmt analyze``: reports on what gates drop and where attention goes."""

from __future__ import annotations

import click

from sparsenmt.commands import (
    analyze_annotate,
    analyze_attention_mass,
    analyze_entropy,
    analyze_layers,
    analyze_maps,
    analyze_pos,
    analyze_position,
)

# These modules import nothing heavy before they run.
SUBCOMMANDS = {
    "pos": analyze_pos,
    "position": analyze_position,
    "attention-mass": analyze_attention_mass,
    "entropy": analyze_entropy,
    "maps": analyze_maps,
    "layers": analyze_layers,
    "annotate": analyze_annotate,
}


@click.group("analyze", short_help="Report what gates drop, and where attention goes.")
def command() -> None:
    """Report what the gates of trained models drop, and where their attention goes.

    Every report prints a table; --json and --csv write its values, --plot draws it (PNG or SVG, with matplotlib).
    Several models are put side by side. Sparsity is the share of source positions, </s> included, whose gate is 0.
    """


for _name, _module in SUBCOMMANDS.items():
    command.add_command(_module.command, _name)
