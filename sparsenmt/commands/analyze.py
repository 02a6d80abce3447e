"""``sparsenmt analyze``: reports on what gates drop, where attention goes, and what heads do."""

from __future__ import annotations

import click

from sparsenmt.commands import (
    analyze_ablate_heads,
    analyze_alphas,
    analyze_annotate,
    analyze_attention_mass,
    analyze_by_length,
    analyze_dense_sentences,
    analyze_density,
    analyze_diversity,
    analyze_entropy,
    analyze_last_token,
    analyze_layers,
    analyze_maps,
    analyze_pos,
    analyze_position,
    analyze_roles,
)

# These modules import nothing heavy before they run.
SUBCOMMANDS = {
    "pos": analyze_pos,
    "position": analyze_position,
    "attention-mass": analyze_attention_mass,
    "entropy": analyze_entropy,
    "maps": analyze_maps,
    "alphas": analyze_alphas,
    "density": analyze_density,
    "diversity": analyze_diversity,
    "roles": analyze_roles,
    "dense-sentences": analyze_dense_sentences,
    "last-token": analyze_last_token,
    "ablate-heads": analyze_ablate_heads,
    "by-length": analyze_by_length,
    "layers": analyze_layers,
    "annotate": analyze_annotate,
}


@click.group("analyze", short_help="Report what gates drop, and where attention goes.")
def command() -> None:
    """Report what the gates of trained models drop, where their attention goes, and what their heads do.

    Every report prints a table; --json and --csv write its values, --plot draws it (PNG or SVG, with matplotlib).
    Several models are put side by side. Sparsity is the share of source positions, </s> included, whose gate is 0.
    """


for _name, _module in SUBCOMMANDS.items():
    command.add_command(_module.command, _name)
