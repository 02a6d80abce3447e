"""``sparsenmt analyze maps``: the attention of single sentences, several models side by side."""

from __future__ import annotations

import shutil

import click

from sparsenmt.commands.analyze.options import AnalysisArguments, analysis_options, site_option
from sparsenmt.model.sites import SiteName

_WIDTH = 120
"""Columns of a line where the output is no terminal."""


@click.command("maps")
@site_option("cross", "Attention site.")
@click.option(
    "--layer", "layers", multiple=True, type=click.IntRange(1), help="Only this layer; repeatable.  [default: all]"
)
@click.option(
    "--head", "heads", multiple=True, type=click.IntRange(1), help="Only this head; repeatable.  [default: all]"
)
@click.option("--apart", is_flag=True, help="One map for every head of every layer.  [default: their mean]")
@analysis_options(sentences=True, translates=True, target=True)
def command(
    arguments: AnalysisArguments, site: SiteName, layers: tuple[int, ...], heads: tuple[int, ...], apart: bool
) -> None:
    """Attention maps of sentences, several models side by side.

    Each model translates the sentences itself, or reads those of --target along them; weights are averaged over the
    heads and layers that are named. At cross-attention dropped words stand in brackets (in the plot: red) and get
    nothing; the column "(dropped)" holds the weight of their stand-in vector. Rows are queries, weights are percent,
    and a dot is exactly 0. Name a few sentences: --sentence, or --input with --limit.
    """
    from sparsenmt.analysis.attention_maps import MapChoice, measure_attention_maps

    choice = MapChoice(site, tuple(sorted(set(layers))), tuple(sorted(set(heads))), apart)
    arguments.show(measure_attention_maps, choice, terminal_width=shutil.get_terminal_size((_WIDTH, 24)).columns)
