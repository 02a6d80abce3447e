"""``sparsenmt analyze``: reports on what gates drop, where attention goes, and what heads do."""

from __future__ import annotations

import click

from sparsenmt.commands.analyze import ablate_heads as analyze_ablate_heads
from sparsenmt.commands.analyze import alphas as analyze_alphas
from sparsenmt.commands.analyze import annotate as analyze_annotate
from sparsenmt.commands.analyze import attention_mass as analyze_attention_mass
from sparsenmt.commands.analyze import by_length as analyze_by_length
from sparsenmt.commands.analyze import dense_sentences as analyze_dense_sentences
from sparsenmt.commands.analyze import density as analyze_density
from sparsenmt.commands.analyze import diversity as analyze_diversity
from sparsenmt.commands.analyze import entropy as analyze_entropy
from sparsenmt.commands.analyze import last_token as analyze_last_token
from sparsenmt.commands.analyze import layers as analyze_layers
from sparsenmt.commands.analyze import maps as analyze_maps
from sparsenmt.commands.analyze import pos as analyze_pos
from sparsenmt.commands.analyze import position as analyze_position
from sparsenmt.commands.analyze import roles as analyze_roles

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
