"""``sparsenmt analyze attention-mass``: the cross-attention that source words get."""

from __future__ import annotations

from typing import Literal

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options


@click.command("attention-mass")
@click.option(
    "--unit",
    type=click.Choice(["piece", "word"]),
    default="piece",
    show_default=True,
    help="Unit that counts as a source word: a subword token, or all retained tokens of a word together.",
)
@click.option("--eos/--no-eos", default=True, show_default=True, help="Count </s>, on both sides.")
@click.option(
    "--threshold",
    type=click.FloatRange(0),
    default=0.6,
    show_default=True,
    help="Report the share of words with less mass than this.",
)
@analysis_options(words=True, translates=True)
def command(arguments: AnalysisArguments, unit: Literal["piece", "word"], eos: bool, threshold: float) -> None:
    """Cross-attention of source words, summed over the model's own translation.

    Weights are averaged over heads and layers. All closed positions hold the same zero vector; the mass on them is that
    of the stand-in vector.

    \b
    words            source words, dropped ones included
    mean             mass of all words and the stand-in, per word
    retained         words with an open gate
    retained mean    their mass, per word
    under threshold  share of them with less mass than --threshold
    stand in mean    mass of the stand-in, per sentence that has one
    stand in share   share of all mass
    """
    from sparsenmt.analysis.attention_mass import measure_attention_mass

    arguments.show(measure_attention_mass, unit=unit, eos=eos, threshold=threshold)
